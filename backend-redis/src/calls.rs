//! The scripts' arguments and answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendError, BootTime, Claim, Contention, Effect, ErrorKind, Grant, HolderView,
    LeaseName, LostCause, ReleaseRequest, Released, RenewAnswer, Renewal, Token, TokenError,
};
use redis::Value;

use crate::SCHEME;
use crate::core::{Request, Store};
use crate::error::{Does, refused, strange};
use crate::keys::What;
use crate::link::Purpose;
use crate::record::{self, KEPT, Note, Record, Seen};
use crate::scripts;

/// How long a floor outlives the lease that it belongs to. While it is there, tokens rise even if the server's clock
/// steps back by as much; when it is gone, the clock has passed it.
pub(crate) const FLOOR_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Grants set the life of a floor anew every 10,000 s at most; those of leases that live longer than this always do,
/// since the last one may have set it for a short lease.
const LONG_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often an attempt is made when the server's clock was not known well enough to date it.
const DATINGS_MAX: usize = 2;
/// Longest `keep_for`: what is longer is for ever.
const KEEP_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Whole milliseconds, rounded up.
pub(crate) fn millis(d: Duration) -> String {
    let ms = d.as_nanos().div_ceil(1_000_000);
    ms.max(1).to_string()
}

/// How long a name stays taken after its release, for the scripts: `0` for not at all.
pub(crate) fn keep_millis(keep_for: Duration) -> String {
    if keep_for.is_zero() { "0".to_owned() } else { millis(keep_for.min(KEEP_MAX)) }
}

/// How long a floor lives whose lease may live for `ttl`: at its half, where it is renewed, it still outlives it.
pub(crate) fn floor_millis(ttl: Duration) -> String {
    millis(ttl.min(KEEP_MAX) * 2 + FLOOR_TTL)
}

impl Store {
    /// One attempt, and one more when it was refused as late by a clock that was not known well.
    pub(crate) async fn attempt(self: &Arc<Self>, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        const OP: &str = "acquire";
        let limit = self.config.op_timeout.min(request.store_ttl);
        let give_up = self.now() + limit;
        let keys = self.keys.of(&request.name);
        let acquired_ms = self.clock.at(request.sent_at) / 1_000;
        let record = record::held(&request.owner, acquired_ms, &request.holder_info);
        for _ in 0..DATINGS_MAX {
            let mut run =
                Request::new(scripts::acquire(), 3, 8, 4 * request.name.as_str().len() + record.len() + 128);
            run.arg(keys.key(What::Lease))
                .arg(keys.key(What::Floor))
                .arg(self.keys.namespace())
                .arg(&record)
                .arg(millis(request.store_ttl))
                .arg(self.clock.not_after(give_up, Duration::ZERO));
            // What an ordinary grant does without: every argument costs the server time.
            let epoch = self.epoch.load(Ordering::Relaxed);
            let (has_floor, is_long) = (request.token_floor.is_some(), request.store_ttl > LONG_TTL);
            if epoch != 0 || has_floor || is_long {
                run.arg(format!("{epoch:04}"));
            }
            if has_floor || is_long {
                run.arg(request.token_floor.map_or_else(String::new, record::digits));
            }
            if is_long {
                run.arg("");
            }
            let answer = self.run(OP, Does::Write, Purpose::Calls, &run, give_up).await?;
            match Answer::read(OP, answer)? {
                Answer::Granted { token, server_us, namespace } => {
                    self.clock.learn(server_us, self.now());
                    if let Some(namespace) = namespace {
                        self.epoch.store(namespace.epoch() as u32, Ordering::Relaxed);
                    }
                    return Ok(Attempt::Granted(Grant::of(request, token)));
                }
                Answer::Held { record, left, floor } => {
                    return held(OP, &record, left, floor).map(Attempt::Held);
                }
                Answer::Late { server_us } => self.clock.learn(server_us, self.now()),
                Answer::Exhausted => return Err(exhausted(OP)),
                Answer::Bad(what) => return Err(bad_floor(OP, what)),
            }
        }
        // why: the script looked at the clock before it wrote anything.
        let message =
            format!("the request took longer than {limit:?} to reach the server, which refused it as late");
        Err(BackendError::new(ErrorKind::Timeout, Effect::None, SCHEME, OP, message))
    }

    /// Renews a batch in one script; what is gone is looked at again, to tell why.
    pub(crate) async fn renew_all(
        self: &Arc<Self>,
        renewals: &[Renewal],
    ) -> Vec<Result<RenewAnswer, BackendError>> {
        const OP: &str = "renew";
        let shortest = renewals.iter().map(|r| r.store_ttl).min().unwrap_or_default();
        let give_up = self.now() + self.config.op_timeout.min(shortest);
        let mut run = Request::new(
            &scripts::RENEW,
            1 + 2 * renewals.len(),
            1 + 7 * renewals.len(),
            256 * renewals.len(),
        );
        run.arg(self.keys.namespace());
        for renewal in renewals {
            let keys = self.keys.of(&renewal.claim.name);
            run.arg(keys.key(What::Lease)).arg(keys.key(What::Floor));
        }
        for renewal in renewals {
            let token = |token: Option<Token>| token.map_or_else(String::new, record::digits);
            run.arg(record::held_by(&renewal.claim.owner))
                .arg(millis(renewal.store_ttl))
                .arg(floor_millis(renewal.store_ttl))
                .arg(token(renewal.claim.token))
                .arg(token(renewal.token_floor));
        }
        let letters = match self.run(OP, Does::Write, Purpose::Renewals, &run, give_up).await {
            Ok(answer) => self.letters(answer, renewals.len()),
            Err(e) => Err(e),
        };
        let letters = match letters {
            Ok(letters) => letters,
            // One call carried them all: nobody knows of any.
            Err(e) => return renewals.iter().map(|r| Err(e.clone().with_name(&r.claim.name))).collect(),
        };
        let gone: Vec<&Claim> =
            renewals.iter().zip(&letters).filter(|(_, l)| **l == b'g').map(|(r, _)| &r.claim).collect();
        let mut causes = self.causes(&gone, give_up).await.into_iter();
        let answer = |(renewal, letter): (&Renewal, &u8)| {
            let answer = match letter {
                b'r' => Ok(RenewAnswer::renewed(renewal)),
                b'g' => causes.next().unwrap_or(Ok(LostCause::ExpiredInStore)).map(RenewAnswer::Lost),
                b'b' => Err(bad_floor(OP, "floor")),
                b'x' => Err(exhausted(OP)),
                _ => Err(strange(OP, Does::Write)),
            };
            answer.map_err(|e| e.with_name(&renewal.claim.name))
        };
        renewals.iter().zip(&letters).map(answer).collect()
    }

    /// The letters of a batch, behind the server's time.
    fn letters(&self, answer: Value, count: usize) -> Result<Vec<u8>, BackendError> {
        let strange = || strange("renew", Does::Write);
        let Value::BulkString(text) = answer else { return Err(strange()) };
        let (time, letters) = text.split_at_checked(16).ok_or_else(strange)?;
        if letters.len() != count {
            return Err(strange());
        }
        self.clock.learn(record::number(time, 16).ok_or_else(strange)?, self.now());
        Ok(letters.to_vec())
    }

    /// Why each of these grants is gone. That they are is known: a look that fails changes the words alone.
    async fn causes(
        self: &Arc<Self>,
        gone: &[&Claim],
        give_up: BootTime,
    ) -> Vec<Result<LostCause, BackendError>> {
        if gone.is_empty() {
            return Vec::new();
        }
        let names: Vec<&LeaseName> = gone.iter().map(|claim| &claim.name).collect();
        match self.look("renew", Purpose::Renewals, &names, give_up).await {
            Ok((_, seen)) => {
                gone.iter().zip(seen).map(|(claim, seen)| seen.and_then(|s| cause(claim, &s))).collect()
            }
            Err(_) => gone.iter().map(|_| Ok(LostCause::ExpiredInStore)).collect(),
        }
    }

    /// Ends the grant of one owner.
    pub(crate) async fn release(
        self: &Arc<Self>,
        request: &ReleaseRequest,
    ) -> Result<Released, BackendError> {
        const OP: &str = "release";
        let claim = &request.claim;
        let keys = self.keys.of(&claim.name);
        let give_up = self.now() + self.config.op_timeout;
        // The ordinary one has a script of its own: every argument costs the server time.
        if request.keep_for.is_zero() {
            let mut run = Request::new(scripts::release(), 1, 2, claim.name.as_str().len() + 96);
            run.arg(keys.key(What::Lease)).arg(record::unwanted(&claim.owner));
            return match self.run(OP, Does::Write, Purpose::Calls, &run, give_up).await? {
                Value::Int(2) => self.not_released(claim, give_up).await,
                answer => released(OP, answer),
            };
        }
        let mut run = Request::new(scripts::release_keeping(), 2, 7, 4 * claim.name.as_str().len() + 160);
        run.arg(keys.key(What::Lease))
            .arg(keys.key(What::Floor))
            .arg(record::held_by(&claim.owner))
            .arg(keys.key(What::Channel))
            .arg(keep_millis(request.keep_for))
            .arg(KEPT)
            .arg(floor_millis(request.keep_for));
        released(OP, self.run(OP, Does::Write, Purpose::Calls, &run, give_up).await?)
    }

    /// Who has the name of a grant that was not there. That it was not is known: a look that fails changes the words
    /// alone.
    async fn not_released(
        self: &Arc<Self>,
        claim: &Claim,
        give_up: BootTime,
    ) -> Result<Released, BackendError> {
        let looked = self.look("release", Purpose::Calls, &[&claim.name], give_up).await;
        let Some(seen) = looked.ok().and_then(|(_, mut seen)| seen.pop()) else {
            return Ok(Released::NotHeld { by: None });
        };
        Ok(match seen?.view() {
            Some(by) => Released::NotHeld { by: Some(by) },
            None => Released::AlreadyReleased,
        })
    }

    /// Names as they are, and the floor of those that have none.
    pub(crate) async fn look(
        self: &Arc<Self>,
        op: &'static str,
        purpose: Purpose,
        names: &[&LeaseName],
        give_up: BootTime,
    ) -> Result<(Option<Token>, Vec<Result<Seen, BackendError>>), BackendError> {
        let mut run =
            Request::new(&scripts::LOOK, 1 + 3 * names.len(), 1 + 3 * names.len(), 192 * names.len());
        run.arg(self.keys.namespace());
        for name in names {
            let keys = self.keys.of(name);
            run.arg(keys.key(What::Lease)).arg(keys.key(What::Floor)).arg(keys.key(What::Note));
        }
        let strange = || strange(op, Does::Read);
        let Value::Array(answer) = self.run(op, Does::Read, purpose, &run, give_up).await? else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let namespace = match answer.next() {
            Some(Value::BulkString(text)) => record::token(&text),
            _ => return Err(strange()),
        };
        let seen: Vec<_> = answer
            .zip(names)
            .map(|(seen, name)| read_seen(op, seen).map_err(|e| e.with_name(name)))
            .collect();
        if seen.len() == names.len() { Ok((namespace, seen)) } else { Err(strange()) }
    }
}

/// What the acquire script answers.
enum Answer {
    Granted { token: Token, server_us: u64, namespace: Option<Token> },
    Held { record: Vec<u8>, left: i64, floor: Option<Token> },
    Late { server_us: u64 },
    Exhausted,
    Bad(&'static str),
}

impl Answer {
    fn read(op: &'static str, answer: Value) -> Result<Self, BackendError> {
        let strange = || strange(op, Does::Write);
        let parts = match answer {
            // The ordinary grant: a token of the present clock.
            Value::BulkString(text) => {
                let token = record::token(&text).ok_or_else(strange)?;
                return Ok(Answer::Granted { token, server_us: token.native(), namespace: None });
            }
            Value::Array(parts) => parts,
            _ => return Err(strange()),
        };
        let text = |i: usize| match parts.get(i) {
            Some(Value::BulkString(text)) => Ok(text.as_slice()),
            _ => Err(strange()),
        };
        let time = |i: usize| record::number(text(i)?, 16).ok_or_else(strange);
        Ok(match text(0)? {
            b"granted" => Answer::Granted {
                token: record::token(text(1)?).ok_or_else(strange)?,
                server_us: time(2)?,
                namespace: record::token(text(3)?),
            },
            b"held" => match parts.get(2) {
                Some(Value::Int(left)) => {
                    Answer::Held { record: text(1)?.to_vec(), left: *left, floor: record::token(text(3)?) }
                }
                _ => return Err(strange()),
            },
            b"late" => Answer::Late { server_us: time(1)? },
            b"exhausted" => Answer::Exhausted,
            b"bad" if text(1)? == b"namespace" => Answer::Bad("namespace"),
            b"bad" => Answer::Bad("floor"),
            _ => return Err(strange()),
        })
    }
}

fn held(
    op: &'static str,
    record: &[u8],
    left: i64,
    floor: Option<Token>,
) -> Result<Contention, BackendError> {
    Ok(seen(op, record, left, floor, None)?.contention())
}

fn seen(
    op: &'static str,
    record: &[u8],
    left: i64,
    floor: Option<Token>,
    note: Option<&[u8]>,
) -> Result<Seen, BackendError> {
    let record = Record::read(record).map_err(|what| corrupt(op, what))?;
    if record.owner.is_some() && record.token(floor).is_none() {
        return Err(corrupt(
            op,
            "its floor is gone, and with it the holder's token; a renewal of the holder makes it anew",
        ));
    }
    let left = record::left(left);
    Ok(Seen { record: Some(record), left, floor, note: note.and_then(Note::read) })
}

/// One name of the look script.
fn read_seen(op: &'static str, answer: Value) -> Result<Seen, BackendError> {
    let strange = || strange(op, Does::Read);
    let Value::Array(parts) = answer else { return Err(strange()) };
    let [
        Value::Int(kind),
        Value::BulkString(record),
        Value::Int(left),
        Value::BulkString(floor),
        Value::BulkString(note),
    ] = &parts[..]
    else {
        return Err(strange());
    };
    let floor = match floor.as_slice() {
        b"" => None,
        text => Some(record::token(text).ok_or_else(|| bad_floor(op, "floor"))?),
    };
    match kind {
        0 => Ok(Seen { record: None, left: Duration::ZERO, floor, note: Note::read(note) }),
        1 => seen(op, record, *left, floor, Some(note)),
        _ => Err(corrupt(op, "it is of another type")),
    }
}

/// Why the grant of `claim` is gone, by what is there now.
fn cause(claim: &Claim, seen: &Seen) -> Result<LostCause, BackendError> {
    if let Some((_, note)) = seen.note.as_ref().filter(|(owner, _)| *owner == claim.owner) {
        return Ok(LostCause::Revoked { by: note.by.clone(), reason: note.reason.clone() });
    }
    let by = seen.view().filter(|_| seen.record.as_ref().is_some_and(|r| r.owner != Some(claim.owner)));
    if let Some(by) = by {
        return Ok(LostCause::taken(&by));
    }
    // The floor outlives the lease: a store without it, or with an older one, is not the one that granted.
    match claim.token {
        Some(token) if seen.floor.is_none_or(|floor| floor < token) => Ok(LostCause::StoreForgot {
            detail: "record and floor are gone (restarted without its data, flushed, failed over, or deleted by hand)"
                .to_owned(),
        }),
        _ => Ok(LostCause::ExpiredInStore),
    }
}

/// What the scripts that release answer.
pub(crate) fn released(op: &'static str, answer: Value) -> Result<Released, BackendError> {
    let strange = || strange(op, Does::Write);
    match answer {
        Value::Int(1) => Ok(Released::Released),
        Value::Int(0) => Ok(Released::AlreadyReleased),
        Value::Array(parts) => {
            let [Value::BulkString(record), Value::Int(left), Value::BulkString(floor)] = &parts[..] else {
                return Err(strange());
            };
            let seen = seen(op, record, *left, record::token(floor), None)?;
            Ok(match seen.view() {
                Some(by) => Released::NotHeld { by: Some(by) },
                None if op == "release" => Released::AlreadyReleased,
                None => Released::NotHeld { by: None::<HolderView> },
            })
        }
        _ => Err(strange()),
    }
}

/// A record that leasehold did not write.
fn corrupt(op: &'static str, what: &str) -> BackendError {
    let message = format!(
        "the record of this name was not written by leasehold, or by a newer version ({what}): it was left as it is and nothing was granted. Update leasehold, or delete the key"
    );
    refused(op, ErrorKind::Corrupt, message)
}

/// A floor that is none.
pub(crate) fn bad_floor(op: &'static str, what: &str) -> BackendError {
    let message = format!(
        "the {what} key holds no token: something altered it, and tokens that were granted before may be larger than any that is known. It was left as it is and nothing was granted. Delete it, and raise the epoch with `leasehold epoch raise`"
    );
    refused(op, ErrorKind::Corrupt, message)
}

fn exhausted(op: &'static str) -> BackendError {
    // why: the script takes back what it wrote before it answers so.
    BackendError::new(
        ErrorKind::TokenRegression,
        Effect::None,
        SCHEME,
        op,
        TokenError::NativeExhausted.to_string(),
    )
}
