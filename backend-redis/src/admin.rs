//! Operations for people: list, forced release, floors, epoch.
//!
//! Floors are kept for each name, and the namespace has one for names without. An operator who raises the floor of
//! all raises the namespace's first, then walks over the others: a floor that is made meanwhile is made above the
//! namespace's. Holders keep their tokens.

use std::collections::BTreeSet;

use leasehold_core::{
    BackendError, Effect, ErrorKind, ForceRelease, Inspection, LeaseAdmin, LeaseName, Page, Released, Token,
    async_trait,
};
use redis::Value;

use crate::SCHEME;
use crate::backend::RedisBackend;
use crate::calls::{FLOOR_TTL, bad_floor, floor_millis, keep_millis, millis, released};
use crate::core::Request;
use crate::error::{Does, refused, strange};
use crate::keys::What;
use crate::link::Purpose;
use crate::record::{self, KEPT, NO_FLOOR, Note};
use crate::scripts;

/// Longest text that is kept of who forced a release, and of why.
const NOTE_BYTES_MAX: usize = 1024;
/// A note stays at least so long: a holder that renews at all has read it by then.
const NOTE_LIFE_MIN: std::time::Duration = std::time::Duration::from_secs(60);
/// Keys that the server is asked to walk over in one step.
const SCAN_STEP: usize = 1_000;
/// Names that are looked at, or raised, in one script.
const NAMES_AT_ONCE: usize = 200;

#[async_trait]
impl LeaseAdmin for RedisBackend {
    /// A record that leasehold did not write is in the list too, as a name that nobody holds and that stays taken for
    /// [`Duration::MAX`](std::time::Duration::MAX): nothing is granted under it, and
    /// [`inspect`](leasehold_core::LeaseBackend::inspect) tells what is wrong with it. A key whose name is no lease
    /// name is nobody's lease, and is left out.
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        const OP: &str = "list";
        let limit = page.limit.min(Page::LIMIT_MAX);
        let mut names = BTreeSet::new();
        let mut scan = Scan::new(self, prefix, What::Lease);
        while let Some(found) = scan.next(OP).await? {
            names.extend(found.into_iter().filter(|name| {
                name.as_str().starts_with(prefix) && page.after.as_ref().is_none_or(|after| name > after)
            }));
            // Only the smallest make it into the page.
            while names.len() > limit {
                names.pop_last();
            }
        }
        let names: Vec<&LeaseName> = names.iter().collect();
        let mut list = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_AT_ONCE) {
            let give_up = self.store.now() + self.store.config.op_timeout;
            let (namespace, seen) = self.store.look(OP, Purpose::Calls, names, give_up).await?;
            for (name, seen) in names.iter().zip(seen) {
                let name = (*name).clone();
                match seen {
                    // It ran out, or was released, while the list was made.
                    Ok(seen) if seen.record.is_none() => {}
                    Ok(seen) => list.push(seen.inspection(name, namespace)),
                    Err(_) => {
                        let mut taken = Inspection::free(name);
                        taken.free_in = Some(std::time::Duration::MAX);
                        list.push(taken);
                    }
                }
            }
        }
        Ok(list)
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        const OP: &str = "force_release";
        for (what, text) in [("who does it", &request.by), ("why", &request.reason)] {
            if text.len() > NOTE_BYTES_MAX {
                let message = format!(
                    "the text that tells {what} has {} bytes and may have {NOTE_BYTES_MAX}: nothing was released",
                    text.len()
                );
                return Err(refused(OP, ErrorKind::ConfigInvalid, message));
            }
        }
        let store = &self.store;
        let keys = store.keys.of(&request.name);
        let note = Note { by: request.by.clone(), reason: request.reason.clone() };
        let mut run = Request::new(&scripts::FORCE_RELEASE, 3, 10, 512);
        run.arg(keys.key(What::Lease))
            .arg(keys.key(What::Floor))
            .arg(keys.key(What::Note))
            .arg(record::digits(request.token))
            .arg(keys.key(What::Channel))
            .arg(keep_millis(request.keep_for))
            .arg(KEPT)
            .arg(floor_millis(request.keep_for))
            .arg(note.to_json())
            .arg(millis(NOTE_LIFE_MIN));
        let give_up = store.now() + store.config.op_timeout;
        let answer = store.run(OP, Does::Write, Purpose::Calls, &run, give_up).await;
        answer.and_then(|answer| released(OP, answer)).map_err(|e| e.with_name(&request.name))
    }

    async fn raise_floor(&self, name: Option<&LeaseName>, token: Token) -> Result<(), BackendError> {
        const OP: &str = "raise_floor";
        match name {
            Some(name) => self.raise(OP, std::slice::from_ref(name), &record::digits(token)).await,
            None => {
                // Nothing is changed where something is wrong.
                self.raise_all(OP, NO_FLOOR).await?;
                self.raise_namespace(OP, token).await?;
                self.raise_all(OP, &record::digits(token)).await
            }
        }
    }

    async fn raise_epoch(&self) -> Result<u64, BackendError> {
        const OP: &str = "raise_epoch";
        loop {
            let epoch = self.highest(OP).await?.map_or(0, Token::epoch) + 1;
            let token = Token::from_parts(epoch, 0).map_err(|_| {
                let message = format!("no larger epoch exists: {} is the last one", Token::EPOCH_MAX);
                // why: nothing was written yet.
                BackendError::new(ErrorKind::TokenRegression, Effect::None, SCHEME, OP, message)
            })?;
            // Another operator may have been quicker: then there is a higher one to be above.
            if self.raise_namespace(OP, token).await? {
                self.raise_all(OP, &record::digits(token)).await?;
                return Ok(epoch);
            }
        }
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        const OP: &str = "prepare";
        // A right that only a release needs for which somebody waits: better missed now than then.
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.store.keys.namespace()).arg("");
        self.store.command(OP, Does::Read, &publish).await?;
        for script in scripts::all() {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.text);
            match self.store.command(OP, Does::Read, &load).await {
                Ok(_) => {}
                // Loading is a convenience: each script is sent by its text when it is not known.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => return self.probe().await,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.store.command("probe", Does::Read, &redis::cmd("PING")).await.map(drop)
    }
}

impl RedisBackend {
    /// Raises the namespace's floor. Whether it was lower.
    async fn raise_namespace(&self, op: &'static str, token: Token) -> Result<bool, BackendError> {
        let store = &self.store;
        let mut run = Request::new(&scripts::RAISE_NAMESPACE, 1, 2, 128);
        run.arg(store.keys.namespace()).arg(record::digits(token));
        let give_up = store.now() + store.config.op_timeout;
        match store.run(op, Does::Write, Purpose::Calls, &run, give_up).await? {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            Value::Int(_) => Err(bad_floor(op, "namespace")),
            _ => Err(strange(op, Does::Write)),
        }
    }

    /// Raises every floor that there is to a token's digits.
    async fn raise_all(&self, op: &'static str, token: &str) -> Result<(), BackendError> {
        let mut scan = Scan::new(self, "", What::Floor);
        while let Some(names) = scan.next(op).await? {
            for names in names.chunks(NAMES_AT_ONCE) {
                self.raise(op, names, token).await?;
            }
        }
        Ok(())
    }

    /// Raises the floors of names. The first one that is none is the error's.
    async fn raise(&self, op: &'static str, names: &[LeaseName], token: &str) -> Result<(), BackendError> {
        let store = &self.store;
        let mut run =
            Request::new(&scripts::RAISE, 1 + 2 * names.len(), 3 + 2 * names.len(), 128 * names.len());
        run.arg(store.keys.namespace());
        for name in names {
            let keys = store.keys.of(name);
            run.arg(keys.key(What::Lease)).arg(keys.key(What::Floor));
        }
        run.arg(token).arg(millis(FLOOR_TTL));
        let give_up = store.now() + store.config.op_timeout;
        match store.run(op, Does::Write, Purpose::Calls, &run, give_up).await? {
            Value::Int(0) => Ok(()),
            Value::Int(bad) => {
                let name = usize::try_from(bad - 1).ok().and_then(|at| names.get(at));
                let error = bad_floor(op, "floor");
                Err(name.map_or_else(|| error.clone(), |name| error.clone().with_name(name)))
            }
            _ => Err(strange(op, Does::Write)),
        }
    }

    /// The highest token that any name, or the namespace, is known to have; none may be unreadable.
    async fn highest(&self, op: &'static str) -> Result<Option<Token>, BackendError> {
        let give_up = || self.store.now() + self.store.config.op_timeout;
        let (mut highest, _) = self.store.look(op, Purpose::Calls, &[], give_up()).await?;
        let mut scan = Scan::new(self, "", What::Floor);
        while let Some(names) = scan.next(op).await? {
            for names in names.chunks(NAMES_AT_ONCE) {
                self.raise(op, names, NO_FLOOR).await?;
                let names: Vec<&LeaseName> = names.iter().collect();
                let (_, seen) = self.store.look(op, Purpose::Calls, &names, give_up()).await?;
                highest = highest.max(seen.into_iter().filter_map(|seen| seen.ok()?.floor).max());
            }
        }
        Ok(highest)
    }
}

/// A walk over the names that have a key of one kind, a piece at a time; some may come twice.
struct Scan<'a> {
    backend: &'a RedisBackend,
    what: What,
    pattern: String,
    /// None: the walk is over.
    cursor: Option<Vec<u8>>,
}

impl<'a> Scan<'a> {
    fn new(backend: &'a RedisBackend, prefix: &str, what: What) -> Self {
        let pattern = backend.store.keys.pattern(prefix, what);
        Scan { backend, what, pattern, cursor: Some(b"0".to_vec()) }
    }

    /// The next piece, which may be empty; none when the walk is over.
    async fn next(&mut self, op: &'static str) -> Result<Option<Vec<LeaseName>>, BackendError> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let store = &self.backend.store;
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor[..]).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(SCAN_STEP);
        let answer = store.command(op, Does::Read, &command).await?;
        let strange = || strange(op, Does::Read);
        let Value::Array(parts) = answer else { return Err(strange()) };
        let [Value::BulkString(next), Value::Array(keys)] = &parts[..] else { return Err(strange()) };
        self.cursor = Some(next.clone()).filter(|next| next != b"0");
        let name = |key: &Value| match key {
            Value::BulkString(key) => store.keys.name_of(std::str::from_utf8(key).ok()?, self.what),
            _ => None,
        };
        Ok(Some(keys.iter().filter_map(name).collect()))
    }
}
