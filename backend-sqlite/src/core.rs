//! Connections and calls: one writer, one for renewals, one reader; opened on one file, watched for its
//! removal, and made anew on the next one.
//!
//! * **Writer**: acquires and releases, one after another: a release is ordered after the acquire that was
//!   abandoned before it (I7).
//! * **Renewer**: renewals only, so that nothing of ours stands before them; the writer gives way to them. SQLite
//!   has one writer for the whole file, so other people's transactions still may stand there.
//! * **Reader**: looks. In write-ahead mode they wait for nobody.
//!
//! A busy file is asked again every [`BUSY_SLICE`] until the call's own limit, by this code rather than by
//! SQLite's busy handler alone: a call that nobody waits for ends with its slice, and a gap between two long
//! transactions of others is not slept through.
//!
//! What can go wrong, and where it is handled:
//! * The file is removed or replaced: [`Store::file`] opens the new one; [`Store::same_file`] tells renewals
//!   that the old one is gone.
//! * A connection breaks: its slot is emptied, and the next call makes it anew ([`crate::line`]).
//! * The path changes between the look at it and the opening: looked at again after the opening.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{BackendContext, BackendError, BootTime, ErrorKind, OwnerId};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{Mutex, watch};

use crate::clock_id::clock_id;
use crate::error::{closed, is_busy, native, opening, refused};
use crate::file::{self, Compared, Handle, Identity, Opening, Place};
use crate::index::{self, Index};
use crate::line::{Driver, Line, Query, Turn, Way};
use crate::watch::{Commits, Hub};
use crate::{SqliteConfig, schema};

/// How long SQLite's own busy handler waits before this code looks at the call's limit again. Its naps grow
/// to 10 ms within it.
const BUSY_SLICE: Duration = Duration::from_millis(25);
/// Rows that SQLite's thread may hand over before somebody takes them: more than any statement returns, so
/// that no statement, and with it the write lock, stays open for want of a reader.
const ROW_BUFFER: usize = 2048;
/// How long the database and its companions, once seen in their places, are taken to be there still: no longer than what
/// may happen between a look and the statement behind it anyway. Before a release in a burst of calls nothing is looked
/// at again, before an acquire the open file alone; a grant is answered only after a look of its own, and every other
/// call looks for itself.
const LOOK_GOOD_FOR: Duration = Duration::from_millis(1);
/// How often opening is tried while the file changes under it.
const OPENINGS_MAX: usize = 8;

/// How many statements were sent, for tests and measurements.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// For calls of the backend's traits.
    pub calls: u64,
    /// For the collection of rows that nobody holds.
    pub upkeep: u64,
}

/// What all clones of a backend share.
pub(crate) struct Store {
    pub(crate) config: SqliteConfig,
    pub(crate) context: BackendContext,
    pub(crate) clock_id: Arc<str>,
    place: Place,
    current: RwLock<Arc<File>>,
    reopening: Mutex<()>,
    closed: AtomicBool,
    pub(crate) calls: AtomicU64,
    pub(crate) upkeep: crate::upkeep::Upkeep,
}

/// The open file, or what is seen at its path instead.
pub(crate) type Seen = Result<Arc<File>, &'static str>;

/// An open file.
pub(crate) struct File {
    pub(crate) identity: Identity,
    handle: Handle,
    /// When it and its companions were last seen in their places, in ns of the boot clock.
    seen: AtomicU64,
    pub(crate) writer: Line,
    pub(crate) renewer: Line,
    pub(crate) reader: Line,
    /// Wakes the waiters of this process.
    pub(crate) hub: Arc<Hub>,
    /// Tells of other processes' commits.
    pub(crate) commits: Commits,
    /// Until the connections are closed.
    index: std::sync::Mutex<Option<Arc<Index>>>,
}

impl Store {
    /// Opens the file of `config`, and makes or migrates its tables where that is wanted.
    pub(crate) async fn open(
        config: SqliteConfig,
        context: BackendContext,
        clock_id_override: Option<String>,
    ) -> Result<Arc<Self>, BackendError> {
        const OP: &str = "connect";
        let path = file::find(&config, OP, Opening::First)?;
        let opened = open_on_io(OP, &config, &context, path.clone()).await?;
        Ok(Arc::new(Store {
            config,
            context,
            clock_id: clock_id_override.unwrap_or_else(clock_id).into(),
            place: Place::new(path),
            current: RwLock::new(Arc::new(opened)),
            reopening: Mutex::new(()),
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            upkeep: crate::upkeep::Upkeep::default(),
        }))
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { calls: self.calls.load(Ordering::Relaxed), upkeep: self.upkeep.statements() }
    }

    pub(crate) fn now(&self) -> BootTime {
        self.context.now()
    }

    fn current(&self) -> Arc<File> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn refuse_closed(&self, op: &'static str) -> Result<(), BackendError> {
        if self.closed.load(Ordering::Acquire) { Err(closed(op)) } else { Ok(()) }
    }

    /// The open file if it is still the one at the path, with its companions, or what is seen instead.
    pub(crate) fn same_file(&self, op: &'static str) -> Result<Seen, BackendError> {
        self.refuse_closed(op)?;
        let file = self.current();
        let now = self.now().as_nanos();
        // Until this look has found them again.
        file.seen.store(0, Ordering::Relaxed);
        match file.identity.compare(&self.place, op)? {
            Compared::Same => {
                file.seen.store(now, Ordering::Relaxed);
                Ok(Ok(file))
            }
            Compared::Changed(what) => Ok(Err(what)),
        }
    }

    /// As [`Store::same_file`], content with a look of [`LOOK_GOOD_FOR`].
    pub(crate) fn recent_file(&self, op: &'static str) -> Result<Seen, BackendError> {
        self.refuse_closed(op)?;
        let file = self.current();
        if self.was_just_seen(&file) { Ok(Ok(file)) } else { self.same_file(op) }
    }

    fn was_just_seen(&self, file: &File) -> bool {
        let since = self.now().as_nanos().saturating_sub(file.seen.load(Ordering::Relaxed));
        since < LOOK_GOOD_FOR.as_nanos() as u64
    }

    /// Whether `file` is still the one at the path, with its companions.
    pub(crate) fn is_there(&self, op: &'static str, file: &Arc<File>) -> bool {
        matches!(self.same_file(op), Ok(Ok(same)) if Arc::ptr_eq(&same, file))
    }

    /// The file at the path: the open one, or the one that took its place, opened now.
    pub(crate) async fn file(&self, op: &'static str) -> Result<Arc<File>, BackendError> {
        match self.same_file(op)? {
            Ok(file) => Ok(file),
            Err(_) => self.next_file(op).boxed().await,
        }
    }

    /// As [`Store::file`], for an acquire: in a burst of calls it asks the open file alone how many names it has, since
    /// one that was removed, replaced or linked must not be written to.
    pub(crate) async fn file_for_a_grant(&self, op: &'static str) -> Result<Arc<File>, BackendError> {
        self.refuse_closed(op)?;
        let file = self.current();
        if self.was_just_seen(&file) && file.handle.has_one_name() {
            return Ok(file);
        }
        self.file(op).await
    }

    /// Opens what took the place of the open file.
    async fn next_file(&self, op: &'static str) -> Result<Arc<File>, BackendError> {
        let _turn = self.reopening.lock().await;
        if let Ok(file) = self.same_file(op)? {
            return Ok(file);
        }
        // Two files must not have their logs open under one name in one process.
        let before = self.current();
        before.close().await;
        // As at the start: the path may lead elsewhere now, or be of no use any more.
        let path = file::find(&self.config, op, Opening::Again)?;
        if path != self.place.database {
            let message =
                format!("{:?} leads to another file since it was opened: connect anew", self.config.path);
            return Err(refused(op, ErrorKind::ConfigInvalid, message));
        }
        file::refuse_stale_log(op, &self.place, &before.identity)?;
        index::refuse_removed(op, &self.place, &before.identity)?;
        let file = Arc::new(open_on_io(op, &self.config, &self.context, path).await?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&file);
        Ok(file)
    }

    /// Until when a call that was made now waits for others to finish writing. Its caller waits for `bound`, the
    /// ttl, at most: "busy" must come before "no answer", which leaves the outcome unknown.
    pub(crate) fn give_up(&self, bound: Option<Duration>) -> BootTime {
        let limit = self.config.busy_timeout;
        self.now() + bound.map_or(limit, |bound| (bound / 5 * 4).min(limit))
    }

    /// Sends a statement until the file is not busy, or until `give_up`. `make` is told the time of each try.
    pub(crate) async fn persist(
        self: &Arc<Self>,
        op: &'static str,
        line: &Line,
        give_up: BootTime,
        make: impl Fn(BootTime) -> Query + Send + 'static,
    ) -> Result<Vec<SqliteRow>, BackendError> {
        self.persist_at(op, line, give_up, make).await.map(|(rows, _)| rows)
    }

    /// As [`Store::persist`], telling too the time of the try that was answered: what the statement counts from.
    pub(crate) async fn persist_at(
        self: &Arc<Self>,
        op: &'static str,
        line: &Line,
        give_up: BootTime,
        make: impl Fn(BootTime) -> Query + Send + 'static,
    ) -> Result<(Vec<SqliteRow>, BootTime), BackendError> {
        match self.persist_with(op, line, give_up, make, Want::Rows).await? {
            (Sent::Rows(rows), from) => Ok((rows, from)),
            (Sent::Changed(_), from) => Ok((Vec::new(), from)),
        }
    }

    /// As [`Store::persist`], for a statement that returns no rows: how many it changed.
    pub(crate) async fn change(
        self: &Arc<Self>,
        op: &'static str,
        line: &Line,
        give_up: BootTime,
        make: impl Fn(BootTime) -> Query + Send + 'static,
    ) -> Result<u64, BackendError> {
        match self.persist_with(op, line, give_up, make, Want::Changes).await? {
            (Sent::Changed(rows), _) => Ok(rows),
            (Sent::Rows(rows), _) => Ok(rows.len() as u64),
        }
    }

    async fn persist_with(
        self: &Arc<Self>,
        op: &'static str,
        line: &Line,
        give_up: BootTime,
        make: impl Fn(BootTime) -> Query + Send + 'static,
        want: Want,
    ) -> Result<(Sent, BootTime), BackendError> {
        let store = Arc::clone(self);
        line.run(op, Driver::Caller, async move |mut turn: Turn| {
            turn.begin(op).await?;
            loop {
                let now = store.now();
                let answer = match want {
                    Want::Rows => turn.once(&store.calls, make(now)).await.map(Sent::Rows),
                    Want::Changes => turn.change(&store.calls, make(now)).await.map(Sent::Changed),
                };
                match answer {
                    Err(e) if is_busy(&e) && store.now() < give_up => {
                        store.refuse_closed(op)?;
                        turn.refuse_abandoned(op)?;
                    }
                    answer => return answer.map(|answer| (answer, now)).map_err(|e| native(op, e)),
                }
            }
        })
        .await
    }

    /// Ends the connections in order. Idempotent.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.current().close().await;
    }
}

/// What is taken of a statement's answer.
#[derive(Clone, Copy)]
enum Want {
    Rows,
    Changes,
}

enum Sent {
    Rows(Vec<SqliteRow>),
    Changed(u64),
}

impl File {
    /// Ends the connections, after the calls that were made before.
    async fn close(&self) {
        for line in [&self.writer, &self.renewer, &self.reader] {
            line.close().await;
        }
        self.index.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.place.database).finish_non_exhaustive()
    }
}

fn options(config: &SqliteConfig, path: &std::path::Path) -> SqliteConnectOptions {
    let mut options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .busy_timeout(BUSY_SLICE)
        .journal_mode(SqliteJournalMode::Wal)
        // A commit that a loss of power takes back would let a token be granted twice.
        .synchronous(SqliteSynchronous::Full)
        // A foreign schema must not run functions with side effects through our statements.
        .pragma("trusted_schema", "OFF")
        // The tables' checks are for other hands: our statements bind what they allow, and each grant would pay for a
        // dozen of them.
        .pragma("ignore_check_constraints", "ON")
        .row_buffer_size(ROW_BUFFER)
        .thread_name(|id| format!("leasehold-sql-{id}"))
        .disable_statement_logging();
    if let Some(pages) = config.max_pages {
        options = options.pragma("max_page_count", pages.to_string());
    }
    options
}

async fn open_on_io(
    op: &'static str,
    config: &SqliteConfig,
    context: &BackendContext,
    path: PathBuf,
) -> Result<File, BackendError> {
    let opening = open(op, config.clone(), context.clone(), path);
    context.io().spawn(opening).await.unwrap_or_else(|_| Err(closed(op)))
}

/// Opens writer and renewer, and makes sure of the tables, on the I/O runtime.
async fn open(
    op: &'static str,
    config: SqliteConfig,
    context: BackendContext,
    path: PathBuf,
) -> Result<File, BackendError> {
    let options = options(&config, &path);
    let place = Place::new(path);
    let patience = Patience { context: context.clone(), until: context.now() + config.busy_timeout };
    for _ in 0..OPENINGS_MAX {
        let before = Identity::of(&place).map_err(|e| refused(op, ErrorKind::Unavailable, e.to_string()))?;
        let mut writer = connect(op, &options, &patience).await?;
        schema::ensure(op, &mut writer, config.schema, &patience).await?;
        let renewer = connect(op, &options, &patience).await?;
        let identity =
            Identity::of(&place).map_err(|e| refused(op, ErrorKind::Unavailable, e.to_string()))?;
        if identity.database != before.database {
            continue;
        }
        let index = match Index::of(op, &place, &identity) {
            Ok(index) => index,
            Err(e) => {
                // Closed now, not whenever their threads come to it: what is left open is what is wrong.
                for connection in [writer, renewer] {
                    let _ = connection.close().await;
                }
                return Err(e);
            }
        };
        let renewals = watch::Sender::new(0);
        let line = |connection, way| {
            Line::new(connection, &options, (identity, place.clone()), way, context.clone())
        };
        let handle =
            Handle::of(&place, &identity).map_err(|e| refused(op, ErrorKind::Unavailable, e.to_string()))?;
        let Some(handle) = handle else { continue };
        return Ok(File {
            identity,
            handle,
            seen: AtomicU64::new(0),
            writer: line(Some(writer), Way::Given(renewals.clone())),
            renewer: line(Some(renewer), Way::Announced(renewals)),
            reader: line(None, Way::Free),
            hub: Hub::of(identity.database),
            index: std::sync::Mutex::new(Some(index)),
            commits: Commits::new(&context, &place),
        });
    }
    let message = "the database file is being replaced again and again: nothing was opened";
    Err(refused(op, ErrorKind::Unavailable, message))
}

/// How long a busy file is asked again while it is opened.
pub(crate) struct Patience {
    pub(crate) context: BackendContext,
    pub(crate) until: BootTime,
}

impl Patience {
    /// A short pause; false when there is no time left.
    pub(crate) async fn pause(&self) -> bool {
        let now = self.context.now();
        if now >= self.until {
            return false;
        }
        self.context.sleep_until(now + Duration::from_millis(2)).await;
        true
    }
}

/// Connects, and waits while others make the file what it is to be: switching a new file to write-ahead mode
/// needs it alone for a moment.
async fn connect(
    op: &'static str,
    options: &SqliteConnectOptions,
    patience: &Patience,
) -> Result<SqliteConnection, BackendError> {
    loop {
        match options.connect().await {
            Ok(mut connection) => {
                let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
                    .fetch_one(&mut connection)
                    .await
                    .map_err(|e| opening(op, e))?;
                if mode.eq_ignore_ascii_case("wal") {
                    return Ok(connection);
                }
                let message = format!(
                    "the file cannot be switched to write-ahead mode (it stays in {mode:?} mode): give another path"
                );
                return Err(refused(op, ErrorKind::ConfigInvalid, message));
            }
            Err(e) if is_busy(&e) && patience.pause().await => {}
            Err(e) => return Err(opening(op, e)),
        }
    }
}

/// A small random number, for countdowns that must not march in step between processes.
pub(crate) fn random_below(bound: u32) -> u32 {
    let bytes = OwnerId::random();
    let [a, b, c, d, ..] = *bytes.as_bytes();
    u32::from_ne_bytes([a, b, c, d]) % bound.max(1)
}

/// A countdown shared by threads: true once in `every` calls.
#[derive(Debug)]
pub(crate) struct Countdown {
    left: AtomicU32,
    every: u32,
}

impl Countdown {
    /// Starts anywhere, so that processes that only live for one grant take their turn too.
    pub(crate) fn new(every: u32) -> Self {
        Countdown { left: AtomicU32::new(random_below(every)), every }
    }

    pub(crate) fn is_due(&self) -> bool {
        let every = self.every;
        // `Err` and `Ok` both carry the value before; zero starts the next round.
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.checked_sub(1).unwrap_or(every - 1))
            })
            .is_ok_and(|before| before == 0)
    }
}
