//! Leases in a SQLite file: what is asked of the store, and in which order.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, BootTime, Contention, Durability, Effect,
    ErrorKind, Facets, Grant, Inspection, LeaseBackend, LeaseName, LostCause, OwnerId, Profile,
    ReleaseRequest, Released, RenewAnswer, Renewal, Token, WaitMode, Waiter, async_trait,
};
use sqlx::Row as _;

use crate::core::{Counters, File, Store};
use crate::error::{is_busy, native};
use crate::line::{Driver, Query, Turn};
use crate::record::{Look, Standing};
use crate::waiter::SqliteWaiter;
use crate::{SCHEME, SqliteConfig};

const ACQUIRE: &str = include_str!("sql/acquire.sql");
const RELEASE: &str = include_str!("sql/release.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const LOOK: &str = include_str!("sql/look.sql");
const LOOK_MANY: &str = include_str!("sql/look_many.sql");
const SIGHT: &str = include_str!("sql/sight.sql");

/// How often an attempt is repeated when the name was freed, or the file replaced, between its statements.
const ROUNDS_MAX: usize = 4;

/// Leases in a SQLite file. Clones share its connections.
///
/// # Contract
/// * An uncontended acquire and a release are one statement each, and so is a batch of renewals.
/// * A grant is on the disk when it is returned.
/// * A future that is dropped leaves at most one statement under way, and whatever is asked next stands behind
///   it.
#[derive(Clone, Debug)]
pub struct SqliteBackend {
    pub(crate) store: Arc<Store>,
}

impl SqliteBackend {
    /// The profile of every SQLite backend.
    pub const PROFILE: Profile = Profile::new(SCHEME)
        .with_ttl_range(
            Duration::from_millis(100),
            Duration::from_secs(366 * 24 * 3600),
            Duration::from_micros(1),
        )
        .with_margin(Duration::from_millis(1))
        .with_batch_max(500)
        .with_wait(WaitMode::Notify)
        .with_durability(Durability::Disk);

    /// Opens the file, and makes or migrates its tables where the configuration allows.
    ///
    /// # Errors
    /// | kind | when |
    /// |---|---|
    /// | [`ErrorKind::ConfigInvalid`] | the path, the file system, the tables or a setting are wrong |
    /// | [`ErrorKind::PermissionDenied`] | file or directory may not be written |
    /// | [`ErrorKind::Unavailable`] | the file was busy, the disk full, or the file is being replaced |
    /// | [`ErrorKind::Closed`] | the watchdog behind `context` has stopped |
    ///
    /// # Cancel safety
    /// May leave a file with complete tables, or an empty one.
    pub async fn connect(config: SqliteConfig, context: BackendContext) -> Result<Self, BackendError> {
        config.validate()?;
        Ok(SqliteBackend { store: Store::open(config, context, None).await? })
    }

    /// As [`SqliteBackend::connect`], under the clock id of another machine or container, for tests.
    #[doc(hidden)]
    pub async fn connect_with_clock_id(
        config: SqliteConfig,
        context: BackendContext,
        clock_id: String,
    ) -> Result<Self, BackendError> {
        config.validate()?;
        Ok(SqliteBackend { store: Store::open(config, context, Some(clock_id)).await? })
    }

    /// How many statements were sent so far.
    #[doc(hidden)]
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// Walks over the next piece of the names and collects what nobody holds, as grants do now and then.
    #[doc(hidden)]
    pub async fn collect(&self) -> Result<(), BackendError> {
        let file = self.store.file("collect").await?;
        crate::upkeep::pass(&self.store, &file).await
    }

    /// The id of the clock that rows are dated by.
    #[doc(hidden)]
    pub fn clock_id(&self) -> &str {
        &self.store.clock_id
    }
}

/// Whole microseconds, rounded up: a countdown is never shorter than asked for.
pub(crate) fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// A point of time in whole microseconds, rounded down, as "now" is compared.
pub(crate) fn now_us(at: BootTime) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// The end of something that lasts `d` from `start`.
pub(crate) fn end_us(start: BootTime, d: Duration) -> i64 {
    i64::try_from((start + d).as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

fn acquire_sql() -> &'static str {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(SqliteTakeoverOfForeignClock) {
        return include_str!("sql/mutant_takeover_of_foreign_clock.sql");
    }
    ACQUIRE
}

fn release_sql() -> &'static str {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(SqliteReleaseIgnoresOwner) {
        return include_str!("sql/mutant_release_ignores_owner.sql");
    }
    RELEASE
}

fn acquire_query(store: &Store, request: &AcquireRequest, now: BootTime) -> Query {
    sqlx::query(acquire_sql())
        .bind(request.name.as_str().to_owned())
        .bind(hex(&request.owner))
        .bind(now_us(now))
        .bind(micros(request.store_ttl))
        .bind(store.clock_id.clone())
        .bind(request.holder_info.to_json())
        .bind(request.token_floor.map_or(0, Token::as_i64))
        .bind(end_us(now, request.store_ttl))
}

/// The owner id as the rows keep it: 32 hexadecimal digits.
fn hex(owner: &OwnerId) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = owner.as_bytes().iter().flat_map(|&b| [b >> 4, b & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A JSON text in quotes. Names hold no control characters.
fn push_json(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

/// What became of one attempt.
enum Tried {
    Granted(Token),
    /// The file was busy, and a look told that the name is another owner's.
    Held(Contention),
    /// By the statement; a look tells by whom.
    Refused,
}

impl Store {
    /// One name as it stands now.
    pub(crate) async fn look(
        self: &Arc<Self>,
        file: &File,
        op: &'static str,
        name: &LeaseName,
    ) -> Result<Look, BackendError> {
        let (wanted, clock_id) = (name.as_str().to_owned(), self.clock_id.clone());
        let rows = self
            .persist(op, &file.reader, self.give_up(None), move |_| {
                sqlx::query(LOOK).bind(wanted.clone()).bind(clock_id.clone())
            })
            .await?;
        match rows.first() {
            Some(found) => Look::read(op, found).map_err(|e| e.with_name(name)),
            None => Ok(Look { floor: None, row: None }),
        }
    }

    /// Sends the attempt until the file is not busy; the token, or who is in the way.
    async fn attempt(
        self: &Arc<Self>,
        file: &Arc<File>,
        request: &AcquireRequest,
    ) -> Result<Result<Token, Option<Contention>>, BackendError> {
        let (store, looked, wanted) = (Arc::clone(self), Arc::clone(file), request.clone());
        let give_up = self.give_up(Some(request.store_ttl));
        let tried = file
            .writer
            .run("acquire", Driver::Caller, async move |turn| {
                store.granted(turn, &looked, &wanted, give_up).await
            })
            .await?;
        match tried {
            Tried::Granted(token) => Ok(Ok(token)),
            Tried::Held(seen) => Ok(Err(Some(seen))),
            Tried::Refused => Ok(Err(self.refusal(file, request).await?)),
        }
    }

    async fn granted(
        self: &Arc<Self>,
        mut turn: Turn,
        file: &File,
        request: &AcquireRequest,
        give_up: BootTime,
    ) -> Result<Tried, BackendError> {
        const OP: &str = "acquire";
        loop {
            match turn.once(&self.calls, acquire_query(self, request, self.now())).await {
                Ok(rows) => {
                    let Some(row) = rows.first() else { return Ok(Tried::Refused) };
                    let token: i64 = row.try_get(0).map_err(|e| native(OP, e))?;
                    return Token::try_from(token).map(Tried::Granted).map_err(|e| {
                        let message = format!("the store granted a token that is none ({e})");
                        BackendError::new(ErrorKind::TokenRegression, Effect::Unknown, SCHEME, OP, message)
                    });
                }
                Err(e) if is_busy(&e) => {
                    // Looking waits for no writer: whoever is told "held" need not wait for the file.
                    if let Ok(Some(seen)) = self.seen(file, request).await {
                        return Ok(Tried::Held(seen));
                    }
                    if self.now() >= give_up || !matches!(self.same_file(OP), Ok(Ok(_))) {
                        return Err(native(OP, e));
                    }
                    turn.refuse_abandoned(OP)?;
                }
                Err(e) => return Err(native(OP, e)),
            }
        }
    }

    /// Another owner's hold, as a look sees it.
    async fn seen(
        self: &Arc<Self>,
        file: &File,
        request: &AcquireRequest,
    ) -> Result<Option<Contention>, BackendError> {
        let look = self.look(file, "acquire", &request.name).await?;
        if look.row.as_ref().is_some_and(|row| row.owner == Some(request.owner)) {
            return Ok(None);
        }
        Ok(look.contention(&self.clock_id, self.now()))
    }

    /// Why an attempt was refused; none when nothing is in the way any more. A row of another clock is
    /// sighted.
    async fn refusal(
        self: &Arc<Self>,
        file: &File,
        request: &AcquireRequest,
    ) -> Result<Option<Contention>, BackendError> {
        let look = self.look(file, "acquire", &request.name).await?;
        // Read after the row was: what the row's writer did lies before this.
        let now = self.now();
        if let Some(row) = &look.row
            && let Standing::Taken { unsighted: true, remaining } = row.standing(&self.clock_id, now)
        {
            let (name, clock_id) = (row.name.as_str().to_owned(), self.clock_id.clone());
            let (token, seq, until) = (row.token.as_i64(), row.seq, end_us(now, remaining));
            self.persist("acquire", &file.writer, self.give_up(Some(request.store_ttl)), move |_| {
                sqlx::query(SIGHT).bind(name.clone()).bind(clock_id.clone()).bind(token).bind(seq).bind(until)
            })
            .await?;
        }
        Ok(look.contention(&self.clock_id, now))
    }

    /// One statement for the batch; what it renewed, by name and owner.
    async fn renew_batch(
        self: &Arc<Self>,
        file: &File,
        renewals: &[Renewal],
    ) -> Result<HashSet<(String, String)>, BackendError> {
        const OP: &str = "renew";
        let mut batch = String::with_capacity(renewals.len() * 96 + 2);
        batch.push('[');
        for (n, renewal) in renewals.iter().enumerate() {
            batch.push_str(if n == 0 { "[" } else { ",[" });
            push_json(&mut batch, renewal.claim.name.as_str());
            let floor = renewal.token_floor.map_or(0, Token::as_i64);
            let owner = hex(&renewal.claim.owner);
            // Writing to a string cannot fail.
            let _ = write!(batch, ",\"{owner}\",{},{floor}]", micros(renewal.store_ttl));
        }
        batch.push(']');
        let shortest = renewals.iter().map(|renewal| renewal.store_ttl).min();
        let clock_id = self.clock_id.clone();
        let rows = self
            .persist(OP, &file.renewer, self.give_up(shortest), move |now| {
                sqlx::query(RENEW).bind(batch.clone()).bind(now_us(now)).bind(clock_id.clone())
            })
            .await?;
        let pair = |row: &sqlx::sqlite::SqliteRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(pair).collect::<Result<_, _>>().map_err(|e| native(OP, e))
    }

    /// Why grants were not renewed, in their order.
    async fn not_renewed(
        self: &Arc<Self>,
        file: &File,
        renewals: &[&Renewal],
    ) -> Vec<Result<RenewAnswer, BackendError>> {
        const OP: &str = "renew";
        let mut names = String::from("[");
        for (n, renewal) in renewals.iter().enumerate() {
            names.push_str(if n == 0 { "" } else { "," });
            push_json(&mut names, renewal.claim.name.as_str());
        }
        names.push(']');
        let clock_id = self.clock_id.clone();
        let looked = self
            .persist(OP, &file.reader, self.give_up(None), move |_| {
                sqlx::query(LOOK_MANY).bind(names.clone()).bind(clock_id.clone())
            })
            .await;
        let rows = match looked {
            Ok(rows) => rows,
            Err(e) => return renewals.iter().map(|_| Err(e.clone())).collect(),
        };
        let now = self.now();
        let answer = |(renewal, row): (&&Renewal, _)| {
            let look = Look::read(OP, row)?;
            match look.lost(renewal.claim.owner, &self.clock_id, now) {
                Some(cause) => Ok(RenewAnswer::Lost(cause)),
                None => {
                    let message = "the name changed while it was looked at: ask again";
                    // why: the statement renewed nothing of this owner's.
                    Err(BackendError::new(ErrorKind::Unavailable, Effect::None, SCHEME, OP, message))
                }
            }
        };
        renewals
            .iter()
            .zip(&rows)
            .map(|pair| answer(pair).map_err(|e| e.with_name(&pair.0.claim.name)))
            .collect()
    }

    async fn renew_all(
        self: &Arc<Self>,
        file: &File,
        renewals: &[Renewal],
    ) -> Vec<Result<RenewAnswer, BackendError>> {
        let renewed = match self.renew_batch(file, renewals).await {
            Ok(renewed) => renewed,
            // One exhausted token refuses the whole statement: find out whose it is.
            Err(e) if e.kind() == ErrorKind::TokenRegression && renewals.len() > 1 => {
                let mut answers = Vec::with_capacity(renewals.len());
                for renewal in renewals {
                    answers.extend(Box::pin(self.renew_all(file, std::slice::from_ref(renewal))).await);
                }
                return answers;
            }
            Err(e) => return renewals.iter().map(|r| Err(e.clone().with_name(&r.claim.name))).collect(),
        };
        let is_renewed = |renewal: &Renewal| {
            let claim = &renewal.claim;
            renewed.contains(&(claim.name.as_str().to_owned(), hex(&claim.owner)))
        };
        let left: Vec<&Renewal> = renewals.iter().filter(|renewal| !is_renewed(renewal)).collect();
        let mut left = match left.as_slice() {
            [] => Vec::new(),
            left => self.not_renewed(file, left).await,
        }
        .into_iter();
        renewals
            .iter()
            .map(|renewal| {
                if is_renewed(renewal) {
                    return Ok(RenewAnswer::renewed(renewal));
                }
                left.next().unwrap_or_else(|| {
                    let message = "the store did not tell why it was not renewed: ask again";
                    // why: the statement renewed nothing of this owner's.
                    Err(BackendError::new(ErrorKind::Unavailable, Effect::None, SCHEME, "renew", message))
                })
            })
            .collect()
    }
}

#[async_trait]
impl LeaseBackend for SqliteBackend {
    fn profile(&self) -> &Profile {
        &Self::PROFILE
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        Self::PROFILE.refuse(request)?;
        let store = &self.store;
        for _ in 0..ROUNDS_MAX {
            let file = store.file("acquire").await?;
            match store.attempt(&file, request).await.map_err(|e| e.with_name(&request.name))? {
                Ok(token) => {
                    // A grant in a file that is gone from its path excludes nobody.
                    if matches!(store.same_file("acquire"), Ok(Ok(same)) if Arc::ptr_eq(&same, &file)) {
                        crate::upkeep::after_grant(store, &file);
                        return Ok(Attempt::Granted(Grant::of(request, token)));
                    }
                }
                Err(Some(contention)) => return Ok(Attempt::Held(contention)),
                Err(None) => {}
            }
        }
        Ok(Attempt::Held(Contention::new(None, Some(Duration::from_millis(1)))))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        match self.store.same_file("renew") {
            Ok(Ok(file)) => self.store.renew_all(&file, renewals).await,
            Ok(Err(what)) => {
                let lost = || RenewAnswer::Lost(LostCause::StoreForgot { detail: what.to_owned() });
                renewals.iter().map(|_| Ok(lost())).collect()
            }
            Err(e) => renewals.iter().map(|r| Err(e.clone().with_name(&r.claim.name))).collect(),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        let (store, claim) = (&self.store, &request.claim);
        // The grant has gone with its file.
        let Ok(file) = store.same_file("release")? else { return Ok(Released::AlreadyReleased) };
        let keep = request.keep_for;
        let until = if keep.is_zero() { 0 } else { end_us(request.sent_at, keep) };
        let (name, clock_id) = (claim.name.as_str().to_owned(), store.clock_id.clone());
        let owner = hex(&claim.owner);
        let rows = store
            .persist("release", &file.writer, store.give_up(None), move |_| {
                sqlx::query(release_sql())
                    .bind(name.clone())
                    .bind(owner.clone())
                    .bind(until)
                    .bind(micros(keep))
                    .bind(clock_id.clone())
            })
            .await
            .map_err(|e| e.with_name(&claim.name))?;
        if !rows.is_empty() {
            file.hub.wake(&claim.name);
            return Ok(Released::Released);
        }
        let look = store.look(&file, "release", &claim.name).await?;
        match look.contention(&store.clock_id, store.now()).and_then(|seen| seen.holder) {
            Some(by) => Ok(Released::NotHeld { by: Some(by) }),
            None => Ok(Released::AlreadyReleased),
        }
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let file = self.store.file("inspect").await?;
        let look = self.store.look(&file, "inspect", name).await?;
        Ok(look.inspection(name.clone(), &self.store.clock_id, self.store.now()))
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        Self::PROFILE.refuse(request)?;
        let file = self.store.file("waiter").await?;
        Ok(Box::new(SqliteWaiter::new(&self.store, file, &request.name)))
    }

    fn facets(&self) -> Facets<'_> {
        let mut facets = Facets::default();
        facets.admin = Some(self);
        facets.fenced = Some(self);
        facets
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
