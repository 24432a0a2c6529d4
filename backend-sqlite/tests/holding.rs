//! Goal: what a holder may rely on holds on a file too: ten thousand leases over three ttls, and a
//! runtime whose workers are all blocked.
//!
//! Method: the real watchdog on the machine's clock. Each test asserts that the danger was there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{
    BootTime, Clock, Lease, LeaseClient, LeaseName, Settings, SystemClock, TryAcquire, Watchdog,
};
use leasehold_sqlite::{SqliteBackend, SqliteConfig};
use leasehold_testkit::{Scratch, quick};

fn now() -> BootTime {
    SystemClock.now()
}

fn name(text: &str) -> LeaseName {
    text.parse().expect("legal")
}

fn granted(answer: TryAcquire) -> Lease {
    match answer {
        TryAcquire::Granted(lease) => lease,
        TryAcquire::Held(seen) => panic!("held by {seen:?}"),
    }
}

async fn client(scratch: &Scratch, watchdog: &Watchdog) -> LeaseClient {
    let config = SqliteConfig::new(scratch.join("leases.db"));
    let backend = SqliteBackend::connect(config, watchdog.context()).await.expect("a new file");
    LeaseClient::new(backend, watchdog)
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("runtime")
}

#[test]
fn ten_thousand_leases_are_held_over_three_ttls() {
    const TTL: Duration = Duration::from_secs(8);
    let count = if quick() { 2_000 } else { 10_000 };
    let (scratch, watchdog, user) = (Scratch::new(), Watchdog::start().expect("watchdog"), runtime(2));
    let settings = Settings::new().ttl(TTL);
    let (client, leases) = user.block_on(async {
        let client = client(&scratch, &watchdog).await;
        let mut leases = Vec::new();
        for i in 0..count {
            leases
                .push(granted(client.try_acquire(&name(&format!("n{i}")), &settings).await.expect("answer")));
        }
        (client, leases)
    });
    let end = now() + TTL * 3;
    while now() < end {
        let at = now() + TTL / 8;
        user.block_on(watchdog.context().sleep_until(at));
        assert_eq!(watchdog.stats().held, count); // also looks for every timer
    }
    let lost = leases.iter().filter(|lease| lease.check().is_err()).count();
    let stats = watchdog.stats();
    println!("{lost} of {count} lost; {stats:?}");
    assert_eq!(lost, 0);
    assert!(stats.renewals_sent >= 8 * count as u64, "held beyond the ttl: {stats:?}");
    assert!(stats.batches_sent * 100 <= stats.renewals_sent, "in batches: {stats:?}");
    for lease in leases {
        std::mem::forget(lease); // ten thousand releases prove nothing here, and the file goes away
    }
    drop(client);
}

/// B25: the renewals' connection lives on the watchdog's I/O thread.
#[test]
fn a_lease_outlives_a_runtime_whose_workers_are_all_blocked() {
    const TTL: Duration = Duration::from_millis(1_200);
    let (scratch, watchdog, user) = (Scratch::new(), Watchdog::start().expect("watchdog"), runtime(2));
    let (client, lease) = user.block_on(async {
        let client = client(&scratch, &watchdog).await;
        let lease = granted(client.try_acquire(&name("n"), &Settings::new().ttl(TTL)).await.expect("answer"));
        (client, lease)
    });
    let renewals_before = watchdog.stats().renewals_sent;
    let (blocked, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (gap, stopped) = (Arc::clone(&blocked), Arc::clone(&stop));
    user.spawn(async move {
        let mut last = now();
        while !stopped.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            gap.fetch_max(now().since(last).as_millis() as u64, Ordering::Relaxed);
            last = now();
        }
    });
    let blockers: Vec<_> = (0..2).map(|_| user.spawn(async { std::thread::sleep(TTL * 3) })).collect();
    let rival = std::thread::spawn({
        let path = scratch.join("leases.db");
        let stop = Arc::clone(&stop);
        move || {
            let watchdog = Watchdog::start().expect("watchdog");
            runtime(1).block_on(async {
                let backend = SqliteBackend::connect(SqliteConfig::new(path), watchdog.context()).await;
                let client = LeaseClient::new(backend.expect("the same file"), &watchdog);
                let mut tries = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer =
                        client.try_acquire(&name("n"), &Settings::new().ttl(TTL)).await.expect("answer");
                    assert!(matches!(answer, TryAcquire::Held(_)), "a rival was granted a held lease");
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                tries
            })
        }
    });
    user.block_on(async {
        for blocker in blockers {
            blocker.await.expect("blocker");
        }
    });
    lease.check().expect("kept while nobody of ours ran");
    // One more tick of the heartbeat records the gap: bounded, it ticks every 10 ms.
    let seen = now() + Duration::from_secs(5);
    while blocked.load(Ordering::Relaxed) < 3_400 && now() < seen {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let tries: u32 = rival.join().expect("rival");
    let renewals = watchdog.stats().renewals_sent - renewals_before;
    println!("blocked {} ms, {tries} rival tries, {renewals} renewals", blocked.load(Ordering::Relaxed));
    assert!(blocked.load(Ordering::Relaxed) >= 3_400, "the workers were not blocked for three ttls");
    assert!(tries > 20 && renewals >= 7, "{tries} tries, {renewals} renewals");
    drop(client);
}
