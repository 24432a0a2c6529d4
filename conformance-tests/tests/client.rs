//! Goal: what the client makes of stores that are slow, unclear or gone, beyond what one case of the
//! table can show: calls that land late, stores that hang beside healthy ones, wakers that misbehave.
//!
//! Method: the memory backend behind wrappers that misbehave on command, on the machine's clock. Upper
//! bounds leave room for a busy machine; what must not happen is asserted strictly.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use leasehold_conformance::{Fate, Faulty, Op};
use leasehold_core::{
    AcquireError, AcquireRequest, Attempt, BackendError, Declared, Effect, ErrorKind, Facets, Inspection,
    Lease, LeaseBackend, LeaseClient, LeaseName, MemoryBackend, Profile, ReleaseRequest, Released,
    RenewAnswer, Renewal, RunError, Settings, TryAcquire, Wait, Waiter, Watchdog, async_trait,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

/// How a [`Odd`] store is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oddity {
    /// The first renewal is never answered, and lands so much later.
    FirstRenewalLands(Duration),
    /// The first acquire is answered "unknown", and lands so much later.
    FirstAcquireLands(Duration),
    /// Renewals hang.
    RenewHangs,
    /// Releases hang.
    ReleaseHangs,
    /// Renewals are granted for a quarter of what is asked.
    GrantsLess,
    /// A name cannot be kept.
    KeepsNothing,
}

struct Odd {
    memory: MemoryBackend,
    oddity: Oddity,
    profile: Profile,
    calls: AtomicU32,
    landed: Arc<AtomicU32>,
}

impl Odd {
    fn client(memory: &MemoryBackend, oddity: Oddity, watchdog: &Watchdog) -> (LeaseClient, Arc<AtomicU32>) {
        let keep = if oddity == Oddity::KeepsNothing { Declared::No } else { Declared::Yes };
        let profile = MemoryBackend::PROFILE.with_keep_for(keep);
        let landed = Arc::new(AtomicU32::new(0));
        let (memory, calls) = (memory.clone(), AtomicU32::new(0));
        let odd = Odd { memory, oddity, profile, calls, landed: Arc::clone(&landed) };
        (LeaseClient::new(odd, watchdog), landed)
    }
}

impl fmt::Debug for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Odd({:?})", self.oddity)
    }
}

#[async_trait]
impl LeaseBackend for Odd {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        match self.oddity {
            Oddity::FirstAcquireLands(later) if self.calls.fetch_add(1, Ordering::SeqCst) == 0 => {
                let (memory, request, landed) =
                    (self.memory.clone(), request.clone(), Arc::clone(&self.landed));
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    let answer = memory.acquire(&request).await;
                    landed.fetch_add(u32::from(matches!(answer, Ok(Attempt::Granted(_)))), Ordering::SeqCst);
                });
                Err(BackendError::new(
                    ErrorKind::Unavailable,
                    Effect::Unknown,
                    "odd",
                    "acquire",
                    "connection reset",
                ))
            }
            _ => self.memory.acquire(request).await,
        }
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        match self.oddity {
            Oddity::FirstRenewalLands(later) if self.calls.fetch_add(1, Ordering::SeqCst) == 0 => {
                let (memory, renewals, landed) =
                    (self.memory.clone(), renewals.to_vec(), Arc::clone(&self.landed));
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    memory.renew(&renewals).await;
                    landed.fetch_add(1, Ordering::SeqCst);
                });
                std::future::pending().await
            }
            Oddity::RenewHangs => std::future::pending().await,
            Oddity::GrantsLess => {
                let mut less = renewals.to_vec();
                less.iter_mut().for_each(|renewal| renewal.store_ttl /= 4);
                self.memory.renew(&less).await
            }
            _ => self.memory.renew(renewals).await,
        }
    }
    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        match self.oddity {
            Oddity::ReleaseHangs => std::future::pending().await,
            _ => self.memory.release(request).await,
        }
    }
    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        self.memory.inspect(name).await
    }
    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        self.memory.waiter(request).await
    }
    fn facets(&self) -> Facets<'_> {
        self.memory.facets()
    }
    async fn close(&self) {}
}

fn name(text: &str) -> LeaseName {
    text.parse().expect("legal")
}

async fn hold(client: &LeaseClient, text: &str, settings: &Settings) -> Lease {
    match client.try_acquire(&name(text), settings).await {
        Ok(TryAcquire::Granted(lease)) => lease,
        other => panic!("{text}: {other:?}"),
    }
}

fn world() -> (Watchdog, MemoryBackend) {
    let watchdog = Watchdog::start().expect("watchdog");
    let memory = MemoryBackend::new(watchdog.context());
    (watchdog, memory)
}

/// I3: a renewal that was given up and lands later starts the store's countdown with its own, shorter
/// ttl. A longer one is not believed before that is impossible.
#[tokio::test(flavor = "multi_thread")]
async fn a_given_up_renewal_that_lands_after_a_longer_ttl_makes_no_second_holder() {
    let (watchdog, memory) = world();
    let (client, landed) = Odd::client(&memory, Oddity::FirstRenewalLands(MS(900)), &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(MS(1200)).attempt_timeout(MS(100))).await;
    tokio::time::sleep(MS(700)).await; // into the time between giving up and landing
    lease.set_ttl(S(60)).await.expect("the link is fine");
    assert!(lease.remaining() > S(50), "the longer ttl is in force");
    assert_eq!(landed.load(Ordering::SeqCst), 1, "the danger: it landed while the ttl was changed");
    let rival = LeaseClient::new(memory.clone(), &watchdog);
    let got = rival.acquire(&name("n"), &Settings::new(), Wait::AtMost(S(2))).await;
    assert!(got.is_err() && lease.check().is_ok(), "{got:?} {:?}", lease.state());
    let store = memory.inspect(&name("n")).await.expect("answer").free_in.expect("held");
    assert!(lease.remaining() <= store, "{:?} beyond the store's {store:?}", lease.remaining());
}

/// I3: the same while the renewal is in flight: the longer ttl is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_in_flight_keeps_a_longer_ttl_from_being_believed() {
    let (watchdog, memory) = world();
    let faulty = Faulty::new(Arc::new(memory.clone()), watchdog.context());
    let client = LeaseClient::with_backend(Arc::new(faulty.clone()), &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(MS(1500)).attempt_timeout(MS(700))).await;
    faulty.set_times(Op::Renew, Fate::HoldRequest, 1);
    while faulty.count(Op::Renew) == 0 {
        tokio::time::sleep(MS(1)).await;
    }
    faulty.set_times(Op::Renew, Fate::Pass, 1);
    faulty.then(Op::Renew, Fate::DropRequest);
    let changed = tokio::time::timeout(MS(300), lease.set_ttl(S(60))).await;
    faulty.set(Op::Renew, Fate::DropRequest);
    faulty.open(); // the old one lands now, and is the last that does
    tokio::time::sleep(MS(100)).await;
    let store = memory.inspect(&name("n")).await.expect("answer").free_in;
    assert!(store.is_none_or(|store| lease.remaining() <= store), "{:?} beyond {store:?}", lease.remaining());
    assert!(changed.is_err(), "believed although an older renewal was under way: {changed:?}");
    assert!(lease.remaining() <= MS(1500), "{:?}", lease.remaining());
    lease.check().expect("held all the time");
}

/// I3: a store that grants less at a renewal is believed.
#[tokio::test]
async fn a_renewal_that_grants_less_moves_the_deadline_back() {
    let (watchdog, memory) = world();
    let (client, _) = Odd::client(&memory, Oddity::GrantsLess, &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(S(8)).fixed()).await;
    lease.renew().await.expect("acknowledged");
    let store = memory.inspect(&name("n")).await.expect("answer").free_in.expect("held");
    assert!(store < S(3) && lease.remaining() <= store, "{:?} beyond {store:?}", lease.remaining());
}

/// I6: work that ended after its lease is not told as work under the lease, and keeps its outcome.
#[tokio::test]
async fn work_that_ends_late_says_so_and_keeps_its_output() {
    let (watchdog, memory) = world();
    let client = LeaseClient::new(memory, &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(MS(300)).fixed()).await;
    let blocking = async {
        std::thread::sleep(MS(600)); // one poll that takes longer than the lease
        Err::<(), _>("the work's own")
    };
    match lease.run(blocking).await {
        Err(RunError::Late { over, output }) => {
            assert!(over.state.is_loss());
            assert_eq!(output, Err("the work's own"));
        }
        other => panic!("{other:?}"),
    }
}

/// A fixed lease is renewed by hand alone, however replies cross.
#[tokio::test]
async fn crossing_renewals_of_a_fixed_lease_order_no_other() {
    let (watchdog, memory) = world();
    let faulty = Faulty::new(Arc::new(memory), watchdog.context());
    let client = LeaseClient::with_backend(Arc::new(faulty.clone()), &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(S(5)).fixed()).await;
    faulty.set_times(Op::Renew, Fate::HoldReply, 2);
    let open = async {
        tokio::time::sleep(MS(50)).await;
        faulty.open();
    };
    let (first, second, ()) = tokio::join!(lease.renew(), lease.renew(), open);
    first.and(second).expect("acknowledged");
    tokio::time::sleep(MS(300)).await; // long enough for a renewal that nobody asked for
    assert_eq!(faulty.count(Op::Renew), 2);
}

/// A renewal whose reply comes after a change of the ttl does not undo it.
#[tokio::test]
async fn a_renewal_by_hand_does_not_undo_a_shorter_ttl() {
    let (watchdog, memory) = world();
    let faulty = Faulty::new(Arc::new(memory), watchdog.context());
    let client = LeaseClient::with_backend(Arc::new(faulty.clone()), &watchdog);
    let lease = hold(&client, "n", &Settings::new().ttl(S(60)).fixed()).await;
    faulty.set_times(Op::Renew, Fate::HoldReply, 1);
    let change = async {
        let changed = lease.set_ttl(S(5)).await;
        faulty.open();
        changed
    };
    let (renewed, changed) = tokio::join!(lease.renew(), change);
    renewed.and(changed).expect("acknowledged");
    assert_eq!(lease.ttl(), S(5));
    assert!(lease.remaining() <= S(5));
}

/// A store that hangs delays no renewal of another store on the same watchdog.
#[tokio::test]
async fn a_store_that_hangs_costs_no_lease_of_a_healthy_one() {
    let (watchdog, memory) = world();
    let (sick, _) = Odd::client(&MemoryBackend::new(watchdog.context()), Oddity::RenewHangs, &watchdog);
    let settings = Settings::new().ttl(S(60)).renew_every(MS(200)).attempt_timeout(S(10));
    let mut held = Vec::new();
    for n in 0..60 {
        held.push(hold(&sick, &format!("sick-{n}"), &settings).await);
        tokio::time::sleep(MS(55)).await; // so that no two are renewed in one call
    }
    let well = LeaseClient::new(memory, &watchdog);
    let lease = hold(&well, "well", &Settings::new().ttl(S(1))).await;
    tokio::time::sleep(MS(2_500)).await;
    lease.check().expect("kept");
    held.into_iter().for_each(std::mem::forget);
}

/// The same for clean-ups.
#[tokio::test]
async fn releases_that_hang_delay_no_release_in_a_healthy_store() {
    let (watchdog, memory) = world();
    let (sick, _) = Odd::client(&MemoryBackend::new(watchdog.context()), Oddity::ReleaseHangs, &watchdog);
    for n in 0..40 {
        drop(hold(&sick, &format!("sick-{n}"), &Settings::new()).await);
    }
    let well = LeaseClient::new(memory.clone(), &watchdog);
    drop(hold(&well, "well", &Settings::new()).await);
    let began = Instant::now();
    while memory.inspect(&name("well")).await.expect("answer").holder().is_some() {
        assert!(began.elapsed() < S(2), "a dropped guard was not released");
        tokio::time::sleep(MS(5)).await;
    }
}

/// I7: an attempt of unknown outcome that lands after a later one was granted and released.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_is_taken_back_after_the_release_of_a_later_one() {
    let (watchdog, memory) = world();
    let (client, landed) = Odd::client(&memory, Oddity::FirstAcquireLands(MS(600)), &watchdog);
    let lease =
        client.acquire(&name("n"), &Settings::new().ttl(S(60)), Wait::AtMost(S(3))).await.expect("granted");
    lease.release().await.expect("answer");
    taken_back(&memory, &landed).await;
}

/// I7: the same after a later attempt was refused and the wait was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_is_taken_back_after_a_refusal() {
    let (watchdog, memory) = world();
    let (client, landed) = Odd::client(&memory, Oddity::FirstAcquireLands(MS(900)), &watchdog);
    let other = hold(&LeaseClient::new(memory.clone(), &watchdog), "n", &Settings::new()).await;
    let got = client.acquire(&name("n"), &Settings::new().ttl(S(60)), Wait::AtMost(MS(500))).await;
    assert!(matches!(got, Err(AcquireError::TimedOut { .. })), "{got:?}");
    other.release().await.expect("answer");
    taken_back(&memory, &landed).await;
}

/// The grant that landed late is gone within the operation timeout (5 s) and some room.
async fn taken_back(memory: &MemoryBackend, landed: &AtomicU32) {
    let began = Instant::now();
    while landed.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < S(5), "the danger: nothing landed late");
        tokio::time::sleep(MS(10)).await;
    }
    while let Some(holder) = memory.inspect(&name("n")).await.expect("answer").holder() {
        assert!(began.elapsed() < S(12), "held by nobody: {holder:?}");
        tokio::time::sleep(MS(20)).await;
    }
}

/// What a store cannot keep is refused before it is asked.
#[tokio::test]
async fn a_min_hold_that_cannot_be_kept_is_refused() {
    let (watchdog, memory) = world();
    let (client, _) = Odd::client(&memory, Oddity::KeepsNothing, &watchdog);
    let refused = |answer: Result<TryAcquire, AcquireError>| match answer {
        Err(AcquireError::Backend(e)) => (e.kind(), e.effect()),
        other => panic!("{other:?}"),
    };
    let answer = client.try_acquire(&name("n"), &Settings::new().min_hold(S(600))).await;
    assert_eq!(refused(answer), (ErrorKind::Unsupported, Effect::None));
    let client = LeaseClient::new(memory, &watchdog);
    let answer = client.try_acquire(&name("n"), &Settings::new().min_hold(S(400 * 24 * 3600))).await;
    assert_eq!(refused(answer), (ErrorKind::ConfigInvalid, Effect::None));
}

/// A client that was shut down grants nothing, also where the store was asked before.
#[tokio::test]
async fn an_attempt_under_way_is_not_granted_after_a_shutdown() {
    let (watchdog, memory) = world();
    let faulty = Faulty::new(Arc::new(memory.clone()), watchdog.context());
    let client = LeaseClient::with_backend(Arc::new(faulty.clone()), &watchdog);
    faulty.set_times(Op::Acquire, Fate::HoldReply, 1);
    let settings = Settings::new();
    let n = name("n");
    let open = async {
        tokio::time::sleep(MS(50)).await;
        faulty.open();
    };
    let (got, left, ()) = tokio::join!(client.try_acquire(&n, &settings), client.shutdown(S(5)), open);
    assert!(matches!(got, Err(AcquireError::Closed)), "{got:?}");
    assert_eq!(left, 0, "the shutdown waited for it");
    let other = MemoryBackend::shared_with(&memory, watchdog.context());
    assert!(other.inspect(&n).await.expect("answer").holder().is_none(), "and nothing is held");
}

/// A task that its own waker owns, as in simple executors.
struct Task {
    _future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// Dropping a sleep may drop the last reference to a task that sleeps too: not under the lock.
#[test]
fn a_waker_that_owns_a_sleep_is_dropped_outside_the_lock() {
    let watchdog = Watchdog::start().expect("watchdog");
    let context = watchdog.context();
    let far = context.now() + S(600);
    let (mut sleep, mut owned) = (Box::pin(context.sleep_until(far)), Box::pin(context.sleep_until(far)));
    assert!(owned.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let task = Arc::new(Task { _future: Mutex::new(Some(owned)) });
    let waker = Waker::from(Arc::clone(&task));
    assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop((task, waker)); // only the sleep's waker holds the task now
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(sleep);
        let _ = tell.send(());
    });
    told.recv_timeout(S(10)).expect("dropping a sleep hangs under the watchdog's lock");
    assert_eq!(watchdog.stats().sleeping, 0);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a listener's waker");
    }
}

/// A listener that panics keeps nobody else from hearing.
#[test]
fn a_panicking_listener_does_not_hide_a_loss() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let (watchdog, memory) = world();
    let client = LeaseClient::new(memory, &watchdog);
    let lease = runtime.block_on(hold(&client, "n", &Settings::new().ttl(MS(300)).fixed()));
    let mut states = lease.states();
    let mut listener = Box::pin(async move { drop(states.changed().await) });
    let waker = Waker::from(Arc::new(Panics));
    assert!(listener.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let cancelled = lease.cancelled();
    let heard = runtime.block_on(async { tokio::time::timeout(S(5), cancelled.cancelled()).await });
    assert!(heard.is_ok(), "lost, and not cancelled: {:?}", lease.state());
}
