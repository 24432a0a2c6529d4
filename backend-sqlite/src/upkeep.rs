//! Collecting rows that nobody holds, so that the table stays bounded however many names come and go.
//!
//! A released row stays, because its token is the floor of the next grant. Once in [`EVERY`] grants a task on
//! the I/O runtime walks over the next [`WINDOW`] names: free ones are deleted, and the trigger on the table
//! raises the floor of all names to their tokens in the same step. What it looks at is four times what was
//! granted meanwhile, so that the walk catches up with any churn; what it does at once is bounded. A few free names
//! of each window stay ([`SPARED`]). The caller of the grant waits for none of it.
//!
//! Rows of another clock are sighted on the way ([`crate::record`]), so that what a reboot left behind goes too,
//! and sightings of versions that are gone are deleted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::{BackendError, BootTime};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::calls::{end_us, now_us};
use crate::core::{Countdown, File, Store};
use crate::error::native;
use crate::line::{Driver, Query, Turn};

/// One pass for so many grants, on average.
const EVERY: u32 = 256;
/// Names in one pass.
const WINDOW: i64 = 1024;
/// So many free names of a window stay: names that come back again and again are cheaper kept than made anew.
const SPARED: i64 = WINDOW / 4;
/// Sightings noted, and deleted, in one pass.
const SIGHTINGS_MAX: i64 = 64;

const OP: &str = "collect";
const LOOK: &str = include_str!("sql/collect_window.sql");
const COLLECT: &str = include_str!("sql/collect.sql");
const UNSIGHTED: &str = include_str!("sql/collect_unsighted.sql");
const SIGHT: &str = include_str!("sql/sight.sql");
const SIGHTINGS: &str = include_str!("sql/collect_sightings.sql");

/// Where the walk is.
#[derive(Debug)]
pub(crate) struct Upkeep {
    due: Countdown,
    running: AtomicBool,
    statements: AtomicU64,
    /// The last name that was walked over.
    after: Mutex<String>,
}

impl Default for Upkeep {
    fn default() -> Self {
        Upkeep {
            due: Countdown::new(EVERY),
            running: AtomicBool::new(false),
            statements: AtomicU64::new(0),
            after: Mutex::default(),
        }
    }
}

impl Upkeep {
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }
}

/// Starts a pass if it is time for one and none is under way.
pub(crate) fn after_grant(store: &Arc<Store>, file: &Arc<File>) {
    if !store.upkeep.due.is_due() || store.upkeep.running.swap(true, Ordering::AcqRel) {
        return;
    }
    let (store, file) = (Arc::clone(store), Arc::clone(file));
    let io = store.context.io().clone();
    io.spawn(async move {
        // A pass that fails is made up for by the next one.
        let _ = pass(&store, &file, SPARED).await;
        store.upkeep.running.store(false, Ordering::Release);
    });
}

/// One window, whose free names are deleted if there are more than `spared`.
pub(crate) async fn pass(store: &Arc<Store>, file: &File, spared: i64) -> Result<(), BackendError> {
    let after = store.upkeep.after.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let clock_id = &store.clock_id;
    let query = sqlx::query(LOOK).bind(after.clone()).bind(WINDOW).bind(Arc::clone(clock_id));
    let window = send(store, file, Kind::Look, move |now| query.bind(now_us(now))).await?;
    let Some(window) = window.first() else { return Ok(()) };
    let column = |n: usize| window.try_get::<i64, _>(n).map_err(|e| native(OP, e));
    let (scanned, free, unsighted, sightings) = (column(1)?, column(2)?, column(3)?, column(4)?);
    let is_last = scanned < WINDOW;
    // Beyond every legal name: the last window includes what sorts behind the last row.
    let end = "\u{10ffff}".repeat(129);
    let last: Option<String> = window.try_get(0).map_err(|e| native(OP, e))?;
    let last = last.filter(|_| !is_last).unwrap_or(end);
    if unsighted > 0 {
        sight(store, file, &after, &last).await?;
    }
    if free > spared {
        let query = sqlx::query(COLLECT).bind(after.clone()).bind(last.clone()).bind(Arc::clone(clock_id));
        send(store, file, Kind::Write, move |now| query.bind(now_us(now))).await?;
    }
    if sightings > 0 {
        let query = sqlx::query(SIGHTINGS).bind(after).bind(last.clone()).bind(SIGHTINGS_MAX);
        send(store, file, Kind::Write, move |_| query).await?;
    }
    let next = if is_last { String::new() } else { last };
    *store.upkeep.after.lock().unwrap_or_else(PoisonError::into_inner) = next;
    Ok(())
}

/// Notes sightings of what another clock dated.
async fn sight(store: &Arc<Store>, file: &File, after: &str, last: &str) -> Result<(), BackendError> {
    let clock_id = &store.clock_id;
    let query = sqlx::query(UNSIGHTED).bind(after.to_owned()).bind(last.to_owned());
    let query = query.bind(Arc::clone(clock_id)).bind(SIGHTINGS_MAX);
    let rows = send(store, file, Kind::Look, move |_| query).await?;
    // Read after the versions were.
    let seen_at = store.now();
    for row in &rows {
        let Ok((name, token, seq, ttl)) = version(row) else { continue };
        let until = end_us(seen_at, std::time::Duration::from_micros(ttl));
        let query =
            sqlx::query(SIGHT).bind(name).bind(Arc::clone(clock_id)).bind(token).bind(seq).bind(until);
        send(store, file, Kind::Write, move |_| query).await?;
    }
    Ok(())
}

fn version(row: &SqliteRow) -> Result<(String, i64, i64, u64), sqlx::Error> {
    let ttl: i64 = row.try_get(3)?;
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, u64::try_from(ttl).unwrap_or(0)))
}

#[derive(Clone, Copy)]
enum Kind {
    Look,
    Write,
}

/// One statement, tried once: upkeep waits for nobody longer than SQLite's own patience.
async fn send(
    store: &Arc<Store>,
    file: &File,
    kind: Kind,
    make: impl FnOnce(BootTime) -> Query + Send + 'static,
) -> Result<Vec<SqliteRow>, BackendError> {
    let line = match kind {
        Kind::Look => &file.reader,
        Kind::Write => &file.writer,
    };
    let counted = Arc::clone(store);
    line.run(OP, Driver::Caller, async move |mut turn: Turn| {
        turn.begin(OP).await?;
        let query = make(counted.now());
        turn.once(&counted.upkeep.statements, query).await.map_err(|e| native(OP, e))
    })
    .await
}
