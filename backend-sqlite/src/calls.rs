//! The statements of leases, one function each: what is bound, what comes back, what it means.
//!
//! What can go wrong, and where it is handled:
//! * The file is busy: tried again within the call's limit; an acquire looks meanwhile, and who asks for a held
//!   name is told so without waiting ([`Store::attempt`]).
//! * The name is free again when the look asks by whom it was refused: the caller tries again
//!   ([`crate::backend`]).
//! * A row of another clock: sighted, with a time that is read after the row was ([`Store::refusal`]).
//! * One renewal of a batch exhausts its epoch: found out one by one ([`Store::renew_all`]).

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use leasehold_core::{
    AcquireRequest, BackendError, BootTime, Contention, Effect, ErrorKind, Grant, LeaseName, OwnerId,
    ReleaseRequest, RenewAnswer, Renewal, Token,
};
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, Row as _};

use crate::SCHEME;
use crate::core::{File, Store};
use crate::error::{is_busy, is_without_token, native};
use crate::line::{Driver, Query, Turn};
use crate::record::{Look, Standing};

/// Bare, because each call hashes and copies the text.
static ACQUIRE: LazyLock<String> = LazyLock::new(|| bare(include_str!("sql/acquire.sql")));
static RELEASE: LazyLock<String> = LazyLock::new(|| bare(include_str!("sql/release.sql")));
static RENEW: LazyLock<String> = LazyLock::new(|| bare(include_str!("sql/renew.sql")));
const LOOK: &str = include_str!("sql/look.sql");
const LOOK_MANY: &str = include_str!("sql/look_many.sql");
const SIGHT: &str = include_str!("sql/sight.sql");

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

/// A statement without its comments and its layout. None of them has `--` in a literal.
fn bare(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn acquire_sql() -> &'static str {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(SqliteTakeoverOfForeignClock) {
        // The end of a row is believed whatever clock dated it.
        static DEFECT: LazyLock<String> = LazyLock::new(|| {
            planted(&ACQUIRE, "OR (l.clock_id = ?5 AND l.expires_us <= ?3)", "OR l.expires_us <= ?3")
        });
        return &DEFECT;
    }
    &ACQUIRE
}

fn release_sql() -> &'static str {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(SqliteReleaseIgnoresOwner) {
        static DEFECT: LazyLock<String> = LazyLock::new(|| planted(&RELEASE, "owner = ?2", "?2 = ?2"));
        return &DEFECT;
    }
    &RELEASE
}

/// The statement with one condition changed.
#[cfg(leasehold_mutants)]
fn planted(sql: &str, right: &str, wrong: &str) -> String {
    assert_eq!(sql.matches(right).count(), 1, "{right:?} is not there once: {sql}");
    sql.replace(right, wrong)
}

fn acquire_query(store: &Store, request: &AcquireRequest, now: BootTime) -> Query {
    with_room(acquire_sql(), 9)
        .bind(Arc::<str>::from(&request.name))
        .bind(Arc::<str>::from(hex(&request.owner).as_str()))
        .bind(now_us(now))
        .bind(micros(request.store_ttl))
        .bind(Arc::clone(&store.clock_id))
        .bind(request.holder_info.to_json())
        .bind(request.token_floor.map_or(0, Token::as_i64))
        .bind(end_us(now, request.store_ttl))
        .bind(wall_ms())
}

/// The wall clock, for people.
fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(0)
}

/// A statement with room for its arguments.
fn with_room(sql: &'static str, arguments: usize) -> Query {
    let mut room = SqliteArguments::default();
    room.reserve(arguments, 0);
    sqlx::query_with(sql, room)
}

/// The owner id as the rows keep it: 32 hexadecimal digits.
fn hex(owner: &OwnerId) -> Hex {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (two, &b) in digits.chunks_exact_mut(2).zip(owner.as_bytes()) {
        two.copy_from_slice(&[DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    }
    Hex(digits)
}

struct Hex([u8; 32]);

impl Hex {
    fn as_str(&self) -> &str {
        // Digits are text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
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
    /// With the time that the countdown began from.
    Granted(Token, BootTime),
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
        let (wanted, clock_id) = (name.as_str().to_owned(), Arc::clone(&self.clock_id));
        let rows = self
            .persist(op, &file.reader, self.give_up(None), move |_| {
                sqlx::query(LOOK).bind(wanted.clone()).bind(Arc::clone(&clock_id))
            })
            .await?;
        match rows.first() {
            Some(found) => Look::read(op, found).map_err(|e| e.with_name(name)),
            None => Ok(Look { floor: None, row: None }),
        }
    }

    /// Sends the attempt until the file is not busy; the grant, or who is in the way.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        file: &Arc<File>,
        request: &AcquireRequest,
        give_up: BootTime,
    ) -> Result<Result<Grant, Option<Contention>>, BackendError> {
        let (store, looked, wanted) = (Arc::clone(self), Arc::clone(file), request.clone());
        let tried = file
            .writer
            .run("acquire", Driver::Caller, async move |mut turn: Turn| {
                turn.begin("acquire").await?;
                store.granted(&mut turn, &looked, &wanted, give_up).await
            })
            .await?;
        match tried {
            Tried::Granted(token, from) => {
                let mut grant = Grant::of(request, token);
                // The countdown began with this try, not with those that found the file busy.
                grant.anchor = from;
                Ok(Ok(grant))
            }
            Tried::Held(seen) => Ok(Err(Some(seen))),
            Tried::Refused => Ok(Err(self.refusal(file, request, give_up).boxed().await?)),
        }
    }

    async fn granted(
        self: &Arc<Self>,
        turn: &mut Turn,
        file: &File,
        request: &AcquireRequest,
        give_up: BootTime,
    ) -> Result<Tried, BackendError> {
        const OP: &str = "acquire";
        loop {
            let now = self.now();
            match turn.once(&self.calls, acquire_query(self, request, now)).await {
                Ok(rows) => {
                    let Some(row) = rows.first() else { return Ok(Tried::Refused) };
                    let token: i64 = row.try_get(0).map_err(|e| native(OP, e))?;
                    return Token::try_from(token).map(|token| Tried::Granted(token, now)).map_err(|e| {
                        let message = format!("the store granted a token that is none ({e})");
                        BackendError::new(ErrorKind::TokenRegression, Effect::Unknown, SCHEME, OP, message)
                    });
                }
                Err(e) if is_busy(&e) => {
                    // Looking waits for no writer: whoever is told "held" need not wait for the file.
                    if let Ok(Some(seen)) = self.seen(file, request).boxed().await {
                        return Ok(Tried::Held(seen));
                    }
                    if self.now() >= give_up || !matches!(self.same_file(OP), Ok(Ok(_))) {
                        return Err(native(OP, e));
                    }
                    turn.refuse_abandoned(OP)?;
                }
                Err(e) if is_without_token(&e) => {
                    // A floor that cannot be read is found by the look, and is its error.
                    self.look(file, OP, &request.name).boxed().await?;
                    return Err(native(OP, e));
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
        give_up: BootTime,
    ) -> Result<Option<Contention>, BackendError> {
        let look = self.look(file, "acquire", &request.name).await?;
        // Read after the row was: what the row's writer did lies before this.
        let now = self.now();
        if let Some(row) = &look.row
            && let Standing::Taken { unsighted: true, remaining } = row.standing(&self.clock_id, now)
        {
            let (name, clock_id) = (row.name.as_str().to_owned(), Arc::clone(&self.clock_id));
            let (token, seq, until) = (row.token.as_i64(), row.seq, end_us(now, remaining));
            self.persist("acquire", &file.writer, give_up, move |_| {
                sqlx::query(SIGHT)
                    .bind(name.clone())
                    .bind(Arc::clone(&clock_id))
                    .bind(token)
                    .bind(seq)
                    .bind(until)
            })
            .await?;
        }
        Ok(look.contention(&self.clock_id, now))
    }

    /// One statement for the batch; what it renewed, by name and owner, and from when on.
    async fn renew_batch(
        self: &Arc<Self>,
        file: &File,
        renewals: &[Renewal],
    ) -> Result<(HashSet<(String, String)>, BootTime), BackendError> {
        const OP: &str = "renew";
        let mut batch = String::with_capacity(renewals.len() * 96 + 2);
        batch.push('[');
        for (n, renewal) in renewals.iter().enumerate() {
            batch.push_str(if n == 0 { "[" } else { ",[" });
            push_json(&mut batch, renewal.claim.name.as_str());
            let floor = renewal.token_floor.map_or(0, Token::as_i64);
            let owner = hex(&renewal.claim.owner);
            let owner = owner.as_str();
            // Writing to a string cannot fail.
            let _ = write!(batch, ",\"{owner}\",{},{floor}]", micros(renewal.store_ttl));
        }
        batch.push(']');
        let shortest = renewals.iter().map(|renewal| renewal.store_ttl).min();
        let clock_id = Arc::clone(&self.clock_id);
        let (rows, from) = self
            .persist_at(OP, &file.renewer, self.give_up(shortest), move |now| {
                sqlx::query(RENEW.as_str())
                    .bind(batch.clone())
                    .bind(now_us(now))
                    .bind(Arc::clone(&clock_id))
                    .bind(end_us(now, Duration::ZERO))
            })
            .await?;
        let pair = |row: &sqlx::sqlite::SqliteRow| Ok((row.try_get(0)?, row.try_get(1)?));
        let renewed = rows.iter().map(pair).collect::<Result<_, _>>().map_err(|e| native(OP, e))?;
        Ok((renewed, from))
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
        let clock_id = Arc::clone(&self.clock_id);
        let looked = self
            .persist(OP, &file.reader, self.give_up(None), move |_| {
                sqlx::query(LOOK_MANY).bind(names.clone()).bind(Arc::clone(&clock_id))
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

    pub(crate) async fn renew_all(
        self: &Arc<Self>,
        file: &File,
        renewals: &[Renewal],
    ) -> Vec<Result<RenewAnswer, BackendError>> {
        let (renewed, from) = match self.renew_batch(file, renewals).await {
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
            renewed.contains(&(claim.name.as_str().to_owned(), hex(&claim.owner).as_str().to_owned()))
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
                    // The countdown began with the try that was answered.
                    let ttl = renewal.store_ttl;
                    return Ok(RenewAnswer::Renewed { anchor: from, ttl, revoke: None });
                }
                left.next().unwrap_or_else(|| {
                    let message = "the store did not tell why it was not renewed: ask again";
                    // why: the statement renewed nothing of this owner's.
                    Err(BackendError::new(ErrorKind::Unavailable, Effect::None, SCHEME, "renew", message))
                })
            })
            .collect()
    }

    /// Ends the grant of one owner; whether it was there.
    pub(crate) async fn release(
        self: &Arc<Self>,
        file: &File,
        request: &ReleaseRequest,
    ) -> Result<bool, BackendError> {
        let (claim, keep) = (&request.claim, request.keep_for);
        let (name, clock_id) = (Arc::<str>::from(&claim.name), Arc::clone(&self.clock_id));
        let owner = Arc::<str>::from(hex(&claim.owner).as_str());
        let until = if keep.is_zero() { 0 } else { end_us(request.sent_at, keep) };
        let ended = self
            .change("release", &file.writer, self.give_up(None), move |_| {
                with_room(release_sql(), 5)
                    .bind(Arc::clone(&name))
                    .bind(Arc::clone(&owner))
                    .bind(until)
                    .bind(micros(keep))
                    .bind(Arc::clone(&clock_id))
            })
            .await?;
        Ok(ended > 0)
    }
}
