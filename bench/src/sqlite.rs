//! A lease in SQLite beside the two statements that any lease in SQLite needs.
//!
//! The yardstick is one upsert and one update by the same library, on the same file system, with the
//! same journal and the same care for a loss of power: what it costs to write down who has a name, and
//! that nobody has it any more.

use std::path::Path;
use std::time::Instant;

use leasehold_core::{Clock, LeaseClient, LeaseName, Settings, SystemClock, TryAcquire, Watchdog};
use leasehold_sqlite::{SqliteBackend, SqliteConfig};
use leasehold_testkit::Scratch;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use crate::alloc;
use crate::memory::{Failure, runtime};
use crate::report::{Report, Target};
use crate::stats::median;

/// Names that the pairs go round.
const NAMES: usize = 64;
/// How near to the bare statements a lease must come.
pub const RATIO_MIN: f64 = 0.9;
/// Statements of one acquire and release.
pub const STATEMENTS_MAX: f64 = 2.0;

const RAW_TABLE: &str = "CREATE TABLE raw (name TEXT PRIMARY KEY, owner TEXT, token INTEGER NOT NULL,
    expires_us INTEGER NOT NULL) STRICT, WITHOUT ROWID";
const RAW_ACQUIRE: &str = "INSERT INTO raw AS r (name, owner, token, expires_us) VALUES (?1, ?2, 1, ?3)
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = r.token + 1,
    expires_us = excluded.expires_us WHERE r.expires_us <= ?4 RETURNING token";
const RAW_RELEASE: &str = "UPDATE raw SET owner = NULL, expires_us = 0 WHERE name = ?1 AND owner = ?2";

/// A lease client on a fresh file.
#[derive(Debug)]
pub struct Leases {
    client: LeaseClient,
    backend: SqliteBackend,
    _watchdog: Watchdog,
}

impl Leases {
    /// Opens the file.
    ///
    /// # Errors
    /// The backend's.
    pub async fn open(path: &Path) -> Result<Self, Failure> {
        let watchdog = Watchdog::start()?;
        let backend = SqliteBackend::connect(SqliteConfig::new(path), watchdog.context()).await?;
        Ok(Leases { client: LeaseClient::new(backend.clone(), &watchdog), backend, _watchdog: watchdog })
    }

    /// Its client.
    pub fn client(&self) -> &LeaseClient {
        &self.client
    }

    /// Acquires and releases, `pairs` times.
    ///
    /// # Errors
    /// The store's, or when a name is held by somebody.
    pub async fn go_round(&self, names: &[LeaseName], pairs: usize) -> Result<(), Failure> {
        let settings = Settings::new();
        for name in names.iter().cycle().take(pairs) {
            match self.client.try_acquire(name, &settings).await? {
                TryAcquire::Granted(lease) => lease.release().await?,
                TryAcquire::Held(_) => return Err(format!("{name} is held by somebody").into()),
            };
        }
        Ok(())
    }

    /// As [`Leases::go_round`]; returns pairs per second.
    async fn timed_round(&self, names: &[LeaseName], pairs: usize) -> Result<f64, Failure> {
        let began = Instant::now();
        self.go_round(names, pairs).await?;
        Ok(pairs as f64 / began.elapsed().as_secs_f64())
    }

    /// Statements that one of `pairs` acquires and releases sends.
    ///
    /// # Errors
    /// As [`Leases::go_round`].
    pub async fn statements_per_pair(&self, pairs: usize) -> Result<f64, Failure> {
        let names = names()?;
        let before = self.backend.counters().calls;
        self.go_round(&names, pairs).await?;
        Ok((self.backend.counters().calls - before) as f64 / pairs as f64)
    }
}

/// Measures in `rounds` interleaved rounds of `pairs` pairs.
///
/// # Errors
/// The store's.
pub fn measure(report: &mut Report, rounds: usize, pairs: usize) -> Result<(), Failure> {
    let scratch = Scratch::new();
    let names = names()?;
    // Two threads that count in one place would measure the counting.
    alloc::pause(true);
    let measured = runtime()?.block_on(async {
        let leases = Leases::open(&scratch.join("leases.db")).await?;
        let mut raw = open_raw(&scratch.join("raw.db")).await?;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            // Each goes first in turn, so that a drift of the disk hits both.
            let (lease, bare) = if round % 2 == 0 {
                let bare = raw_round(&mut raw, &names, pairs).await?;
                (leases.timed_round(&names, pairs).await?, bare)
            } else {
                let lease = leases.timed_round(&names, pairs).await?;
                (lease, raw_round(&mut raw, &names, pairs).await?)
            };
            // The first round warms both.
            if round > 0 {
                ours.push(lease);
                theirs.push(bare);
                ratios.push(lease / bare);
            }
        }
        report.note("sqlite: acquire and release", median(&ours), "pairs/s");
        report.note("sqlite: two bare statements", median(&theirs), "pairs/s");
        report.check("sqlite: lease over statements", median(&ratios), "ratio", Target::AtLeast(RATIO_MIN));
        let statements = leases.statements_per_pair(100).await?;
        report.check("sqlite: statements of a pair", statements, "", Target::AtMost(STATEMENTS_MAX));
        raw.close().await?;
        Ok(())
    });
    alloc::pause(false);
    measured
}

fn names() -> Result<Vec<LeaseName>, Failure> {
    (0..NAMES).map(|n| Ok(format!("bench/pair-{n:04}").parse()?)).collect()
}

async fn open_raw(path: &Path) -> Result<SqliteConnection, Failure> {
    let mut raw = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    sqlx::query(RAW_TABLE).execute(&mut raw).await?;
    Ok(raw)
}

/// The bare statements; returns pairs per second.
async fn raw_round(raw: &mut SqliteConnection, names: &[LeaseName], pairs: usize) -> Result<f64, Failure> {
    let began = Instant::now();
    for name in names.iter().cycle().take(pairs) {
        let owner = "0123456789abcdef0123456789abcdef";
        let now = (SystemClock.now().as_nanos() / 1_000) as i64;
        let granted = sqlx::query(RAW_ACQUIRE)
            .bind(name.as_str())
            .bind(owner)
            .bind(now + 30_000_000)
            .bind(now)
            .fetch_all(&mut *raw)
            .await?;
        if granted.len() != 1 {
            return Err(format!("{name} is held by somebody").into());
        }
        sqlx::query(RAW_RELEASE).bind(name.as_str()).bind(owner).execute(&mut *raw).await?;
    }
    Ok(pairs as f64 / began.elapsed().as_secs_f64())
}
