//! A lease in memory beside a map under a lock.
//!
//! The yardstick is the least that any lease in one process does: put an entry into a map under a
//! lock, take it out again, and read the boot clock at both ends. Everything runs on one processor,
//! the watchdog's threads among it, so that nothing is won by working beside the caller.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{
    BootTime, Clock, LeaseClient, LeaseName, MemoryBackend, OwnerId, Settings, SystemClock, TryAcquire,
    Watchdog,
};

use crate::alloc;
use crate::counting_clock::CountingClock;
use crate::report::{Report, Target};
use crate::stats::median;

/// Names that the pairs go round.
const NAMES: usize = 1024;
/// The bounds that the project promises.
pub const RATIO_MIN: f64 = 1.0 / 8.0;
/// Allocations of one acquire and release.
pub const ALLOCATIONS_MAX: f64 = 8.0;
/// Clock readings of one acquire and release.
pub const READINGS_MAX: f64 = 5.0;

/// Anything that ends a measurement.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What one acquire and release costs, whatever the machine.
#[derive(Clone, Copy, Debug)]
pub struct PairCost {
    /// Allocations of the calling thread, per pair.
    pub allocations: f64,
    /// Allocations of the whole process, per pair.
    pub allocations_of_process: f64,
    /// Clock readings of the calling thread, per pair.
    pub readings: f64,
    /// Clock readings of all threads, the watchdog's among them, per pair.
    pub readings_of_process: f64,
}

/// Counts allocations and clock readings of `pairs` pairs. Needs the counting allocator.
///
/// # Errors
/// When a lease is not granted or not released.
pub fn pair_cost(pairs: usize) -> Result<PairCost, Failure> {
    let clock = CountingClock::new();
    let watchdog = Watchdog::with_clock(Arc::clone(&clock) as Arc<dyn Clock>)?;
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let names = names()?;
    let settings = Settings::new();
    runtime()?.block_on(async {
        // The maps have their size after one round over all names.
        go_round(&client, &names, &settings, NAMES).await?;
        let (before, read, all) = (alloc::counts(), CountingClock::readings_of_thread(), clock.readings());
        go_round(&client, &names, &settings, pairs).await?;
        let (after, read, all) =
            (alloc::counts(), CountingClock::readings_of_thread() - read, clock.readings() - all);
        let per_pair = |n: u64| n as f64 / pairs as f64;
        Ok(PairCost {
            allocations: per_pair(after.of_thread - before.of_thread),
            allocations_of_process: per_pair(after.allocations - before.allocations),
            readings: per_pair(read),
            readings_of_process: per_pair(all),
        })
    })
}

/// Measures in `rounds` interleaved rounds of `pairs` pairs.
///
/// # Errors
/// As [`pair_cost`].
pub fn measure(report: &mut Report, rounds: usize, pairs: usize) -> Result<(), Failure> {
    let watchdog = Watchdog::start()?;
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let names = names()?;
    let settings = Settings::new();
    let raw = Mutex::new(HashMap::new());
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let runtime = runtime()?;
    // The counters cost the lease more than the map, which allocates nothing.
    alloc::pause(true);
    for round in 0..=rounds {
        let leased = || {
            let began = Instant::now();
            runtime.block_on(go_round(&client, &names, &settings, pairs))?;
            Ok::<_, Failure>(pairs as f64 / began.elapsed().as_secs_f64())
        };
        let mapped = || {
            let began = Instant::now();
            raw_round(&raw, &names, pairs);
            pairs as f64 / began.elapsed().as_secs_f64()
        };
        // Each goes first in turn, so that a drift of the machine hits both.
        let (lease, map) = if round % 2 == 0 {
            let map = mapped();
            (leased()?, map)
        } else {
            (leased()?, mapped())
        };
        // The first round warms both.
        if round > 0 {
            ours.push(lease);
            theirs.push(map);
            ratios.push(lease / map);
        }
    }
    alloc::pause(false);
    report.note("memory: acquire and release", median(&ours), "pairs/s");
    report.note("memory: map under a lock", median(&theirs), "pairs/s");
    report.check("memory: lease over map", median(&ratios), "ratio", Target::AtLeast(RATIO_MIN));
    if alloc::is_counting() {
        let cost = pair_cost(20_000)?;
        let most = Target::AtMost(ALLOCATIONS_MAX);
        report.check("memory: allocations of a pair", cost.allocations_of_process, "", most);
        report.check("memory: clock readings of a pair", cost.readings, "", Target::AtMost(READINGS_MAX));
    }
    Ok(())
}

/// A runtime that does nothing beside the caller.
///
/// # Errors
/// The operating system's.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn names() -> Result<Vec<LeaseName>, Failure> {
    (0..NAMES).map(|n| Ok(format!("bench/pair-{n:04}").parse()?)).collect()
}

async fn go_round(
    client: &LeaseClient,
    names: &[LeaseName],
    settings: &Settings,
    pairs: usize,
) -> Result<(), Failure> {
    for name in names.iter().cycle().take(pairs) {
        match client.try_acquire(name, settings).await? {
            TryAcquire::Granted(lease) => {
                lease.release().await?;
            }
            TryAcquire::Held(_) => return Err(format!("{name} is held by somebody").into()),
        }
    }
    Ok(())
}

type RawMap = Mutex<HashMap<LeaseName, (OwnerId, BootTime)>>;

fn raw_round(raw: &RawMap, names: &[LeaseName], pairs: usize) {
    let owner = OwnerId::random();
    for name in names.iter().cycle().take(pairs) {
        let until = SystemClock.now() + Duration::from_secs(30);
        raw.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), (owner, until));
        let now = SystemClock.now();
        let gone = raw.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        black_box(gone.is_some_and(|(_, until)| now < until));
    }
}
