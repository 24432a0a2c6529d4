//! Many leases held by one process.
//!
//! Two threads keep them all: what may grow with their number is memory, in proportion, and the work
//! of a renewal, by no more than a map grows.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Lease, LeaseClient, ManualClock, MemoryBackend, Settings, TryAcquire, Watchdog};

use leasehold_testkit::eventually;

use crate::memory::{Failure, runtime};
use crate::report::{Report, Target};
use crate::{alloc, machine};

/// How many leases one process must be able to hold.
pub const LEASES: usize = 100_000;
/// Memory of one of them: guard, watchdog's entry, and the memory backend's record.
pub const BYTES_MAX: f64 = 1024.0;
/// How much dearer a renewal may be among [`LEASES`] than among 1,000.
pub const GROWTH_MAX: f64 = 2.0;

/// The names of a watchdog's threads.
const WATCHDOG: &[&str] = &["leasehold-clock", "leasehold-io"];

/// What holding many leases takes.
#[derive(Clone, Copy, Debug)]
pub struct HeldCost {
    /// Live bytes per lease, all of it. Needs the counting allocator.
    pub bytes_per_lease: f64,
    /// Threads of the process that came with them.
    pub threads_added: i64,
    /// Tasks of the watchdog's runtime that came with them.
    pub tasks_added: i64,
}

/// Holds `count` leases on a fresh memory backend; the guards come back with the client.
///
/// # Errors
/// When a lease is not granted.
pub fn hold(count: usize, ttl: Duration) -> Result<(Watchdog, LeaseClient, Vec<Lease>), Failure> {
    let watchdog = Watchdog::start()?;
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let leases = hold_range(&client, 0..count, ttl)?;
    Ok((watchdog, client, leases))
}

fn hold_range(client: &LeaseClient, range: Range<usize>, ttl: Duration) -> Result<Vec<Lease>, Failure> {
    let settings = Settings::new().ttl(ttl);
    runtime()?.block_on(async {
        let mut leases = Vec::with_capacity(range.len());
        for n in range {
            // 32 bytes, as long as most names are.
            let name = format!("bench/held/lease-number-{n:08}").parse()?;
            match client.try_acquire(&name, &settings).await? {
                TryAcquire::Granted(lease) => leases.push(lease),
                TryAcquire::Held(_) => return Err(format!("{name} is held by somebody").into()),
            }
        }
        Ok(leases)
    })
}

/// What `count` leases take.
///
/// # Errors
/// As [`hold`].
pub fn cost(count: usize) -> Result<HeldCost, Failure> {
    let watchdog = Watchdog::start()?;
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    // One lease before: everything that is made once is there.
    let first = hold_range(&client, count..count + 1, Duration::from_secs(600))?;
    let io = watchdog.context().io().clone();
    let tasks = || io.metrics().num_alive_tasks() as i64;
    let (bytes, threads, alive) = (alloc::counts().live_bytes, machine::threads() as i64, tasks());
    let leases = hold_range(&client, 0..count, Duration::from_secs(600))?;
    let cost = HeldCost {
        bytes_per_lease: (alloc::counts().live_bytes - bytes) as f64 / count as f64,
        threads_added: machine::threads() as i64 - threads,
        tasks_added: tasks() - alive,
    };
    drop((first, leases));
    Ok(cost)
}

/// Allocations of the watchdog's threads for one renewal of one of `count` leases: all are renewed once,
/// on a clock that is moved by hand. Needs the counting allocator.
///
/// # Errors
/// As [`hold`].
pub fn renewal_allocations(count: usize) -> Result<f64, Failure> {
    let ttl = Duration::from_secs(30);
    let clock = ManualClock::new();
    let watchdog = Watchdog::with_clock(Arc::new(clock.clone()))?;
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let leases = hold_range(&client, 0..count, ttl)?;
    clock.settle();
    let (before, sent) = (alloc::counts(), watchdog.stats().renewals_sent);
    clock.advance(ttl / 3);
    let renewed = |lease: &Lease| lease.remaining() > ttl * 9 / 10;
    // In debug builds too this takes seconds at most; the machine may be busy.
    eventually(Duration::from_secs(120), "every lease is renewed an interval after its grant", || {
        leases.iter().all(renewed).then_some(())
    });
    let (after, sent) = (alloc::counts(), watchdog.stats().renewals_sent - sent);
    let elsewhere = |counts: alloc::Counts| counts.allocations - counts.of_thread;
    drop(leases);
    Ok((elsewhere(after) - elsewhere(before)) as f64 / sent as f64)
}

/// Time on a processor that the watchdog's threads spend on one renewal of one of `count` leases, in
/// nanoseconds, and how many renewals were seen.
///
/// # Errors
/// As [`hold`], or when a lease was lost meanwhile.
pub fn renewal_cpu(count: usize, ttl: Duration, rounds: u32) -> Result<(f64, u64), Failure> {
    // The threads of a watchdog before this one would leave with their time.
    eventually(Duration::from_secs(60), "earlier watchdogs have ended their threads", || {
        (machine::threads_named(WATCHDOG) == 0).then_some(())
    });
    let (watchdog, client, leases) = hold(count, ttl)?;
    let io = || machine::thread_cpu(WATCHDOG);
    let wanted = watchdog.stats().renewals_sent + u64::from(rounds) * count as u64;
    // Renewals come an interval after the grant; the first ones warm the caches.
    let (cpu, sent) = (io(), watchdog.stats().renewals_sent);
    let limit = Instant::now() + ttl * (rounds + 3);
    while watchdog.stats().renewals_sent < wanted {
        if Instant::now() >= limit {
            return Err(format!("{count} leases were not renewed {rounds} times in time").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (cpu, sent) = (io().saturating_sub(cpu), watchdog.stats().renewals_sent - sent);
    if let Some(lost) = leases.iter().find(|lease| lease.check().is_err()) {
        return Err(format!("{lost:?} was lost while {count} were held").into());
    }
    drop(leases);
    runtime()?.block_on(client.shutdown(Duration::from_secs(30)));
    Ok((cpu.as_nanos() as f64 / sent as f64, sent))
}

/// Measures memory and renewals.
///
/// # Errors
/// As [`cost`] and [`renewal_cpu`].
pub fn measure(report: &mut Report, ttl: Duration, rounds: u32) -> Result<(), Failure> {
    let cost = cost(LEASES)?;
    if alloc::is_counting() {
        let most = Target::AtMost(BYTES_MAX);
        report.check("held 100,000: memory of a lease", cost.bytes_per_lease, "bytes", most);
    }
    report.check("held 100,000: threads added", cost.threads_added as f64, "", Target::AtMost(0.0));
    report.check("held 100,000: tasks added", cost.tasks_added as f64, "", Target::AtMost(0.0));
    let mut each = Vec::new();
    for count in [1_000, 10_000, LEASES] {
        let (nanos, sent) = renewal_cpu(count, ttl, rounds)?;
        report.note(format!("held {count}: processor time of a renewal ({sent} seen)"), nanos, "ns");
        each.push(nanos);
    }
    let growth = each.last().unwrap_or(&0.0) / each.first().unwrap_or(&1.0);
    report.check("held: renewal among 100,000 over 1,000", growth, "ratio", Target::AtMost(GROWTH_MAX));
    Ok(())
}
