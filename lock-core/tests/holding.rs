//! Goal: what a holder may rely on while the world around it misbehaves: blocked runtimes, renewals
//! that never come through, a backend that blocks, a store that forgot its tokens.
//!
//! Method: the real watchdog on the machine's clock, and the memory backend behind a wrapper that
//! misbehaves on command. Every test asserts that the danger was there.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{
    AcquireError, AcquireRequest, Attempt, BackendError, BootTime, Clock, Effect, ErrorKind, Facets, Grant,
    Inspection, LeaseBackend, LeaseClient, LeaseName, LeaseState, LostCause, MemoryBackend, Profile,
    ReleaseRequest, Released, RenewAnswer, Renewal, Settings, SystemClock, Token, TryAcquire, Wait, Waiter,
    Watchdog, async_trait,
};

type Hook<A, R> = Mutex<Option<Box<dyn Fn(A) -> R + Send>>>;

/// The memory backend, with renewals and grants that misbehave on command.
struct Moody {
    inner: MemoryBackend,
    /// Called before a renewal; an error is its answer.
    renew: Hook<(), Result<(), BackendError>>,
    /// Called after a grant; its token is the one that the caller sees.
    token: Hook<Token, Token>,
    floors: Mutex<Vec<Option<Token>>>,
}

impl Moody {
    fn new(watchdog: &Watchdog) -> Arc<Self> {
        Arc::new(Moody {
            inner: MemoryBackend::new(watchdog.context()),
            renew: Mutex::default(),
            token: Mutex::default(),
            floors: Mutex::default(),
        })
    }

    fn on_renew(&self, f: impl Fn(()) -> Result<(), BackendError> + Send + 'static) {
        *self.renew.lock().expect("hook") = Some(Box::new(f));
    }
}

fn unknown() -> BackendError {
    BackendError::new(ErrorKind::Unavailable, Effect::Unknown, "moody", "renew", "the link is cut")
}

impl fmt::Debug for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Moody")
    }
}

#[async_trait]
impl LeaseBackend for Moody {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        self.floors.lock().expect("floors").push(request.token_floor);
        let attempt = self.inner.acquire(request).await?;
        Ok(match (attempt, &*self.token.lock().expect("hook")) {
            (Attempt::Granted(grant), Some(f)) => Attempt::Granted(Grant::of(request, f(grant.token))),
            (attempt, _) => attempt,
        })
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        let refused = match &*self.renew.lock().expect("hook") {
            Some(f) => f(()).err(),
            None => None,
        };
        match refused {
            Some(e) => renewals.iter().map(|_| Err(e.clone())).collect(),
            None => self.inner.renew(renewals).await,
        }
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        self.inner.release(request).await
    }
    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        self.inner.inspect(name).await
    }
    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        self.inner.waiter(request).await
    }
    fn facets(&self) -> Facets<'_> {
        self.inner.facets()
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

fn now() -> BootTime {
    SystemClock.now()
}

fn name(text: &str) -> LeaseName {
    text.parse().expect("legal")
}

fn granted(answer: TryAcquire) -> leasehold_core::Lease {
    match answer {
        TryAcquire::Granted(lease) => lease,
        TryAcquire::Held(seen) => panic!("held by {seen:?}"),
    }
}

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("runtime")
}

/// B25, B26: all workers blocked for three ttls; a rival in a runtime of its own tries all the time.
#[test]
fn a_lease_outlives_a_runtime_whose_workers_are_all_blocked() {
    const TTL: Duration = Duration::from_millis(800);
    let watchdog = Watchdog::start().expect("watchdog");
    let backend = MemoryBackend::new(watchdog.context());
    let user = runtime(2);
    let client = LeaseClient::new(backend.clone(), &watchdog);
    let lease =
        user.block_on(client.try_acquire(&name("n"), &Settings::new().ttl(TTL))).map(granted).expect("free");
    let renewals_before = watchdog.stats().renewals_sent;

    // The danger: a task that ticks every 10 ms, and how long it did not.
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
    let rival = std::thread::spawn({
        let (watchdog, backend) = (Watchdog::start().expect("watchdog"), backend.clone());
        let stop = Arc::clone(&stop);
        move || {
            let client = LeaseClient::new(backend, &watchdog);
            let mut tries = 0;
            runtime(1).block_on(async {
                while !stop.load(Ordering::Relaxed) {
                    let answer =
                        client.try_acquire(&name("n"), &Settings::new().ttl(TTL)).await.expect("answer");
                    assert!(matches!(answer, TryAcquire::Held(_)), "a rival was granted a held lease");
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            tries
        }
    });
    let blockers: Vec<_> = (0..2).map(|_| user.spawn(async { std::thread::sleep(TTL * 3) })).collect();
    user.block_on(async {
        for blocker in blockers {
            blocker.await.expect("blocker");
        }
    });
    lease.check().expect("kept while nobody of ours ran");
    // One more tick of the heartbeat records the gap: bounded, it ticks every 10 ms.
    let seen = now() + Duration::from_secs(5);
    while blocked.load(Ordering::Relaxed) < 2_300 && now() < seen {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let tries = rival.join().expect("rival");
    let renewals = watchdog.stats().renewals_sent - renewals_before;
    println!("blocked {} ms, {tries} rival tries, {renewals} renewals", blocked.load(Ordering::Relaxed));
    assert!(blocked.load(Ordering::Relaxed) >= 2_300, "the workers were not blocked for three ttls");
    assert!(tries > 20 && (7..40).contains(&renewals), "{tries} tries, {renewals} renewals");
}

/// I6: with renewals cut, every check is right by the clock, from any thread, at every instant.
#[test]
fn checks_are_right_at_every_instant_when_renewals_are_cut() {
    const TTL: Duration = Duration::from_millis(600);
    let watchdog = Watchdog::start().expect("watchdog");
    let backend = Moody::new(&watchdog);
    let cuts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&cuts);
    backend.on_renew(move |()| {
        counted.fetch_add(1, Ordering::Relaxed);
        Err(unknown())
    });
    let user = runtime(1);
    let client = LeaseClient::with_backend(backend, &watchdog);
    let lease =
        user.block_on(client.try_acquire(&name("n"), &Settings::new().ttl(TTL))).map(granted).expect("free");
    let deadline = lease.valid_until().expect("held");
    let (mut valid, mut over) = (0u64, 0u64);
    while now() < deadline + TTL {
        let before = now();
        let checked = lease.check();
        let after = now();
        match checked {
            Ok(()) => {
                assert!(before < deadline, "valid after its deadline");
                valid += 1;
            }
            Err(_) => {
                assert!(after >= deadline, "over before its deadline");
                over += 1;
            }
        }
        assert!(over == 0 || lease.check().is_err(), "valid again after a failed check");
    }
    println!("{valid} checks valid, {over} over, {} renewals cut", cuts.load(Ordering::Relaxed));
    assert!(valid > 1_000 && over > 1_000 && cuts.load(Ordering::Relaxed) >= 3);
    assert!(matches!(lease.state(), LeaseState::Lost(LostCause::Expired)), "{:?}", lease.state());
}

/// Every held entry keeps its timer: nothing is lost among ten thousand over three ttls.
#[test]
fn ten_thousand_leases_are_held_over_three_ttls() {
    const TTL: Duration = Duration::from_millis(2_500);
    let watchdog = Watchdog::start().expect("watchdog");
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let user = runtime(2);
    let settings = Settings::new().ttl(TTL);
    let leases: Vec<_> = user.block_on(async {
        let mut leases = Vec::new();
        for i in 0..10_000 {
            leases
                .push(granted(client.try_acquire(&name(&format!("n{i}")), &settings).await.expect("answer")));
        }
        leases
    });
    let end = now() + TTL * 3;
    while now() < end {
        let at = now() + TTL / 10;
        user.block_on(watchdog.context().sleep_until(at));
        assert_eq!(watchdog.stats().held, 10_000); // also looks for every timer
    }
    let lost = leases.iter().filter(|lease| lease.check().is_err()).count();
    let stats = watchdog.stats();
    println!("{lost} lost; {stats:?}");
    assert_eq!(lost, 0);
    assert!(stats.renewals_sent >= 80_000, "held beyond the ttl: {stats:?}");
    assert!(stats.batches_sent * 100 <= stats.renewals_sent, "in batches: {stats:?}");
    drop(leases);
    // Dropped guards are released in the background; bounded by the test's own patience.
    user.block_on(client.shutdown(Duration::from_secs(20)));
    assert_eq!(watchdog.stats().held, 0);
}

/// A backend that blocks the I/O thread delays no other lease's loss signal.
#[test]
fn a_backend_that_blocks_delays_no_loss_signal_of_others() {
    const TTL: Duration = Duration::from_millis(500);
    const BLOCK: Duration = Duration::from_millis(400);
    let watchdog = Watchdog::start().expect("watchdog");
    let user = runtime(2);
    let blocking = Moody::new(&watchdog);
    let spans = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&spans);
    blocking.on_renew(move |()| {
        let from = now();
        std::thread::sleep(BLOCK); // the misbehaviour itself
        noted.lock().expect("spans").push((from, now()));
        Ok(())
    });
    let blocked = LeaseClient::with_backend(blocking, &watchdog);
    // Renewed all the time, so that the I/O thread is blocked most of it.
    let settings = Settings::new().ttl(Duration::from_secs(20)).renew_every(Duration::from_millis(50));
    let _kept = user.block_on(blocked.try_acquire(&name("k"), &settings)).map(granted).expect("free");

    let cut = Moody::new(&watchdog);
    cut.on_renew(|()| Err(unknown()));
    let client = LeaseClient::with_backend(cut, &watchdog);
    let mut late = Vec::new();
    for round in 0..6 {
        let lease = user
            .block_on(client.try_acquire(&name(&format!("n{round}")), &Settings::new().ttl(TTL)))
            .map(granted)
            .expect("free");
        let deadline = lease.valid_until().expect("held");
        user.block_on(lease.lost());
        late.push((deadline, now().since(deadline)));
    }
    let spans = spans.lock().expect("spans");
    let in_block =
        late.iter().filter(|(at, _)| spans.iter().any(|(from, to)| from <= at && at <= to)).count();
    let worst = late.iter().map(|(_, late)| *late).max().expect("rounds");
    println!("{in_block} of {} losses fell into a block; the latest signal came {worst:?} late", late.len());
    assert!(in_block >= 2, "the I/O thread was not blocked when the leases ended");
    // Far below the block, far above the scheduling of a busy machine.
    assert!(worst < Duration::from_millis(150), "{worst:?}");
}

/// The regression alarm: a token that is not larger than one seen before is not accepted.
#[test]
fn a_store_that_forgot_its_tokens_is_asked_once_more_with_a_floor() {
    let watchdog = Watchdog::start().expect("watchdog");
    let backend = Moody::new(&watchdog);
    let client = LeaseClient::with_backend(Arc::clone(&backend) as Arc<dyn LeaseBackend>, &watchdog);
    let user = runtime(1);
    let settings = Settings::new();
    let first = user.block_on(client.try_acquire(&name("n"), &settings)).map(granted).expect("free");
    let seen = first.token();
    user.block_on(first.release()).expect("released");

    // Forgets once: the second answer honours the floor.
    let lies = AtomicUsize::new(1);
    *backend.token.lock().expect("hook") = Some(Box::new(move |token| {
        let lie = lies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        if lie { seen } else { token }
    }));
    let second =
        user.block_on(client.try_acquire(&name("n"), &settings)).map(granted).expect("granted at last");
    assert!(second.token() > seen);
    assert_eq!(backend.floors.lock().expect("floors").last(), Some(&Some(seen)), "asked with the floor");
    user.block_on(second.release()).expect("released");

    // Forgets for good: a typed error, and nothing is left taken.
    *backend.token.lock().expect("hook") = Some(Box::new(move |_| seen));
    let error = user.block_on(client.try_acquire(&name("n"), &settings)).expect_err("refused");
    assert!(matches!(error, AcquireError::TokenRegression { .. }), "{error}");
    assert!(error.to_string().contains("epoch"), "{error}");
    let inspection = user.block_on(client.inspect(&name("n"))).expect("answer");
    assert!(inspection.holder().is_none(), "{inspection:?}");
}

/// B19, B93: a guard dropped anywhere frees its name soon, without a panic or a hang.
#[test]
fn a_guard_dropped_anywhere_frees_its_name() {
    let watchdog = Watchdog::start().expect("watchdog");
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let user = runtime(2);
    let acquire = |text: &str| {
        user.block_on(client.try_acquire(&name(text), &Settings::new())).map(granted).expect("free")
    };
    let mut held = ["runtime", "thread", "panic", "task", "gone"].map(|text| Some(acquire(text)));
    let [in_runtime, thread, panic, task, gone] = &mut held;

    user.block_on(async { drop(in_runtime.take()) });
    let lease = thread.take();
    std::thread::spawn(move || drop(lease)).join().expect("a plain thread");
    let lease = panic.take();
    std::thread::spawn(move || {
        let _lease = lease;
        panic!("on purpose");
    })
    .join()
    .expect_err("panicked");
    let lease = task.take();
    let handle = user.spawn(async move {
        let _lease = lease;
        std::future::pending::<()>().await;
    });
    handle.abort();
    let lease = gone.take();
    let other = runtime(1);
    other.spawn(async move {
        let _lease = lease;
        std::future::pending::<()>().await;
    });
    drop(other); // drops its tasks while it shuts down

    for text in ["runtime", "thread", "panic", "task", "gone"] {
        // In the background, hence a bounded wait: a second is a hundred times what it takes.
        let wait = Wait::AtMost(Duration::from_secs(1));
        let lease = user.block_on(client.acquire(&name(text), &Settings::new(), wait));
        assert!(lease.is_ok(), "{text}: {lease:?}");
    }
}

/// An alarm of a manual clock needs no time to pass: a day of holding in a moment.
#[test]
fn a_manual_clock_drives_the_real_threads() {
    let clock = leasehold_core::ManualClock::new();
    let watchdog = Watchdog::with_clock(Arc::new(clock.clone())).expect("watchdog");
    let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    let user = runtime(1);
    let lease = user.block_on(client.try_acquire(&name("n"), &Settings::new())).map(granted).expect("free");
    let mut deadline = lease.valid_until().expect("held");
    for _ in 0..24 * 60 {
        clock.advance(Duration::from_secs(11));
        // The renewal is a task of the I/O thread: wait for its effect, at most 5 s of real time.
        let patience = now() + Duration::from_secs(5);
        while lease.valid_until() == Some(deadline) && now() < patience {
            std::thread::yield_now();
        }
        let next = lease.valid_until().expect("still held");
        assert!(next > deadline, "not renewed");
        deadline = next;
    }
    clock.suspend(Duration::from_secs(3600));
    let over = lease.check().expect_err("over after an hour's suspend");
    assert!(matches!(over.state, LeaseState::Lost(LostCause::Paused { .. } | LostCause::Expired)), "{over}");
}

/// B46: the outcome of the work is the work's, also when the lease is lost right after it.
#[test]
fn the_works_own_error_is_not_masked_by_a_lost_lease() {
    let watchdog = Watchdog::start().expect("watchdog");
    let backend = Moody::new(&watchdog);
    backend.on_renew(|()| Err(unknown()));
    let client = LeaseClient::with_backend(backend, &watchdog);
    let settings = Settings::new().ttl(Duration::from_millis(200));
    runtime(1).block_on(async {
        let lease = granted(client.try_acquire(&name("n"), &settings).await.expect("answer"));
        let own: Result<(), &str> = lease.run(async { Err("the work's own") }).await.expect("ended in time");
        assert_eq!(own, Err("the work's own"));
        let over = lease.lost().await;
        assert_eq!(over.state, LeaseState::Lost(LostCause::Expired));
        // Releasing what was lost is a value.
        lease.release().await.expect("no error to mask the work's");
    });
}
