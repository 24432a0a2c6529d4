//! The I/O thread: every backend call that no user is waiting for.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, select};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::Shared;
use super::step::{Batch, Event, Key};
use crate::cell::LeaseCell;
use crate::{
    Attempt, BackendError, BootTime, Claim, Effect, LeaseBackend, ReleaseRequest, RenewAnswer, Renewal,
};

/// Calls in flight at once, for each client: renewals, and clean-ups beside them, so that neither a
/// store that hangs nor a kind of call that hangs starves the others.
const RENEWALS_IN_FLIGHT_MAX: usize = 48;
const CLEANUPS_IN_FLIGHT_MAX: usize = 16;
/// Pauses between tries of a background release.
const RELEASE_PAUSE_MIN: Duration = Duration::from_millis(50);
const RELEASE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A store that has been away for long is asked less often: every eighth of the time it was away.
const RELEASE_PAUSE_DIVISOR: u32 = 8;
const RELEASE_PAUSE_LIMIT: Duration = Duration::from_secs(30);
/// How long a stopped watchdog goes on cleaning up.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The calls that one client may have in flight.
#[derive(Debug)]
pub(crate) struct Lanes {
    renewals: Semaphore,
    cleanups: Semaphore,
    /// How long a call that was given up may still be on its way to the store.
    pub(crate) late_max: Duration,
}

impl Lanes {
    pub(crate) fn new(late_max: Duration) -> Self {
        Lanes {
            renewals: Semaphore::new(RENEWALS_IN_FLIGHT_MAX),
            cleanups: Semaphore::new(CLEANUPS_IN_FLIGHT_MAX),
            late_max,
        }
    }
}

/// What the I/O thread is to do.
pub(crate) enum Order {
    Renew(Batch),
    Release(ReleaseOrder),
    Abandoned(Abandoned),
    Stop,
}

/// Counts the clean-ups of one client, so that a shutdown can wait for them.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: AtomicUsize,
    idle: Notify,
}

impl Pending {
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.count.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(self))
    }

    pub(crate) fn pending(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) async fn idle(&self) {
        loop {
            let mut notified = pin!(self.idle.notified());
            notified.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            notified.await;
        }
    }
}

/// One clean-up under way.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Pending>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// A release that nobody waits for.
pub(crate) struct ReleaseOrder {
    pub(crate) backend: Arc<dyn LeaseBackend>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) claim: Claim,
    /// Until when the name stays taken all the same.
    pub(crate) keep_until: BootTime,
    /// One call's time limit.
    pub(crate) timeout: Duration,
    /// When the store has let the grant run out by itself.
    pub(crate) until: BootTime,
    /// When to release once more, whatever the first release finds: an attempt of unknown outcome may
    /// still arrive (I7).
    pub(crate) again_at: Option<BootTime>,
    pub(crate) counted: Counted,
}

/// An attempt whose caller went away, or whose time limit passed.
pub(crate) struct Abandoned {
    pub(crate) attempt: BoxFuture<'static, Result<Attempt, BackendError>>,
    /// Until when the attempt may take to come to its end.
    pub(crate) give_up: BootTime,
    pub(crate) release: ReleaseOrder,
}

pub(super) fn start(
    shared: Weak<Shared>,
    inbox: mpsc::UnboundedReceiver<Order>,
) -> std::io::Result<tokio::runtime::Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let runtime = EndsQuietly(Some(runtime));
    std::thread::Builder::new().name("leasehold-io".into()).spawn(move || {
        if let Some(runtime) = &runtime.0 {
            runtime.block_on(serve(shared, inbox));
        }
    })?;
    Ok(handle)
}

/// A runtime whose drop waits for nobody. Tasks that are left hang in a store that does not answer:
/// the store's expiry is their end. And when no thread is to be had it is dropped where the caller
/// is, perhaps inside another runtime, where a drop that waits would panic.
struct EndsQuietly(Option<tokio::runtime::Runtime>);

impl Drop for EndsQuietly {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[allow(clippy::future_not_send)] // lives on the I/O thread
async fn serve(shared: Weak<Shared>, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let cleaning = Arc::new(Pending::default());
    while let Some(order) = inbox.recv().await {
        let shared = Weak::clone(&shared);
        let counted = cleaning.count();
        match order {
            Order::Renew(batch) => drop(tokio::spawn(async move {
                let lanes = Arc::clone(&batch.lanes);
                // Never closed.
                let _permit = lanes.renewals.acquire().await;
                renew(&shared, batch).await;
            })),
            Order::Release(order) => drop(tokio::spawn(async move {
                release(&Timing(shared), order).await;
                drop(counted);
            })),
            Order::Abandoned(abandoned) => drop(tokio::spawn(async move {
                clean_up(&Timing(shared), abandoned).await;
                drop(counted);
            })),
            Order::Stop => {
                drop(counted);
                break;
            }
        }
    }
    inbox.close();
    // The last orders may stand behind the stop: guards that were dropped in the same breath.
    while let Ok(order) = inbox.try_recv() {
        let shared = Weak::clone(&shared);
        let counted = cleaning.count();
        match order {
            Order::Release(order) => drop(tokio::spawn(async move {
                release(&Timing(shared), order).await;
                drop(counted);
            })),
            Order::Abandoned(abandoned) => drop(tokio::spawn(async move {
                clean_up(&Timing(shared), abandoned).await;
                drop(counted);
            })),
            Order::Renew(_) | Order::Stop => drop(counted),
        }
    }
    let grace = Timing(shared);
    let _ = grace.within(STOP_GRACE, cleaning.idle()).await;
}

/// Time limits by the watchdog's clock while it lives, and by the runtime's after that.
struct Timing(Weak<Shared>);

impl Timing {
    fn now(&self) -> BootTime {
        self.0.upgrade().map_or_else(|| crate::Clock::now(&crate::SystemClock), |s| s.now())
    }

    async fn sleep(&self, d: Duration) {
        match self.0.upgrade() {
            Some(shared) if !shared.lock().stopping => {
                let at = shared.now() + d;
                drop(shared);
                crate::timers::TimerHandle(Weak::clone(&self.0)).sleep_until(at).await;
            }
            _ => tokio::time::sleep(d).await,
        }
    }

    /// The future's output, or none when `d` passed first.
    async fn within<F: Future>(&self, d: Duration, future: F) -> Option<F::Output> {
        match select(pin!(future), pin!(self.sleep(d))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }
}

/// One renewal call, raced against its time limit and, through the clock thread, its deadlines.
async fn renew(shared: &Weak<Shared>, batch: Batch) {
    let Some(strong) = shared.upgrade() else { return };
    let sent_at = strong.now();
    // What was released or lost since the batch was cut is not renewed any more (I6).
    let mut live: Vec<(Key, BootTime, &crate::sync::Arc<LeaseCell>)> = Vec::with_capacity(batch.items.len());
    let mut renewals = Vec::with_capacity(batch.items.len());
    let mut timeout = Duration::MAX;
    for (key, cell) in &batch.items {
        if let Some(deadline) = cell.deadline() {
            live.push((*key, deadline, cell));
            // In this order: whoever changes the ttl and then sees nothing in flight is not overtaken.
            cell.renewal_sent();
            renewals.push(Renewal::new(cell.claim(), cell.ttl(), sent_at));
            timeout = timeout.min(cell.plan.attempt_timeout(cell.believed()));
        }
    }
    drop(strong);
    if renewals.is_empty() {
        return;
    }
    let timing = Timing(Weak::clone(shared));
    let call = AssertUnwindSafe(batch.backend.renew(&renewals)).catch_unwind();
    let answers = match timing.within(timeout, call).await {
        Some(Ok(answers)) => answers,
        // A panic or a passed time limit: nobody knows, which neither extends nor ends a lease.
        Some(Err(_)) | None => Vec::new(),
    };
    let Some(strong) = shared.upgrade() else { return };
    let mut answers = answers.into_iter();
    let unclear_until = strong.now() + batch.lanes.late_max;
    strong.answer(live.into_iter().map(|(key, from, cell)| {
        let answer = answers.next();
        let clear = match &answer {
            Some(Ok(_)) => true,
            Some(Err(e)) => e.effect() == Effect::None,
            None => false,
        };
        cell.renewal_over((!clear).then_some(unclear_until));
        match answer {
            Some(Ok(RenewAnswer::Renewed { anchor, ttl, .. })) => {
                Event::Renewed { key, from, anchor, granted: ttl }
            }
            Some(Ok(RenewAnswer::Lost(cause))) => Event::Gone { key, cause },
            // A backend that answers too few leaves the rest unknown.
            Some(Err(_)) | None => Event::Failed { key },
        }
    }));
}

/// Drives an abandoned attempt to its end and takes back what it may have been granted.
///
/// The attempt goes on without a permit: it was under way before, and it may hold the very connection
/// that those who have the permits wait for.
async fn clean_up(timing: &Timing, abandoned: Abandoned) {
    let Abandoned { attempt, give_up, release: mut order } = abandoned;
    // A task of its own: a panic in it must not eat the clean-up.
    let mut task = tokio::spawn(attempt);
    let left = give_up.since(timing.now());
    match timing.within(left, &mut task).await {
        // A refused try leaves nothing behind, and neither does a failure that provably had no effect.
        Some(Ok(Ok(Attempt::Held(_)))) if order.again_at.is_none() => {}
        Some(Ok(Err(e))) if e.effect() == Effect::None && order.again_at.is_none() => {}
        Some(Ok(Ok(Attempt::Held(_)))) => release(timing, order).await,
        Some(Ok(Ok(Attempt::Granted(_)))) => release(timing, order).await,
        // Unknown, or a panic somewhere in between.
        Some(Ok(Err(_)) | Err(_)) => {
            order.again_at = Some(timing.now() + order.timeout);
            release(timing, order).await;
        }
        None => {
            // It still runs. The backend orders this release after it; in case it does not, the
            // release is repeated once the attempt has come to its end.
            let again = ReleaseOrder {
                backend: Arc::clone(&order.backend),
                lanes: Arc::clone(&order.lanes),
                claim: order.claim.clone(),
                counted: order.counted.0.count(),
                ..order
            };
            let timeout = order.timeout;
            release(timing, order).await;
            if timing.within(timeout, &mut task).await.is_none() {
                task.abort();
            }
            if mutant!(LateGrantNotReleased) {
                return;
            }
            release(timing, again).await;
        }
    }
}

/// Releases until the store answers, or until it has let the grant run out by itself.
async fn release(timing: &Timing, mut order: ReleaseOrder) {
    let started = timing.now();
    let mut pause = RELEASE_PAUSE_MIN;
    loop {
        // For the call alone: whoever pauses holds up nobody. Never closed.
        let permit = order.lanes.cleanups.acquire().await;
        let now = timing.now();
        let mut request = ReleaseRequest::new(order.claim.clone(), now);
        request.keep_for = order.keep_until.since(now);
        let call = AssertUnwindSafe(order.backend.release(&request)).catch_unwind();
        let answer = timing.within(order.timeout, call).await;
        drop(permit);
        match answer {
            Some(Ok(Ok(_))) => match order.again_at.take() {
                Some(at) => {
                    timing.sleep(at.since(timing.now())).await;
                    // What was kept is kept already; the repetition only ends what came late.
                    order.keep_until = BootTime::ZERO;
                    continue;
                }
                None => return,
            },
            Some(Ok(Err(e))) if !e.is_retryable() || mutant!(ReleaseNotRetried) => return,
            Some(Ok(Err(_))) | Some(Err(_)) | None => {}
        }
        let now = timing.now();
        if now >= order.until {
            return;
        }
        timing.sleep(pause).await;
        let away = (now.since(started) / RELEASE_PAUSE_DIVISOR).min(RELEASE_PAUSE_LIMIT);
        pause = (pause * 2).min(RELEASE_PAUSE_MAX.max(away));
    }
}
