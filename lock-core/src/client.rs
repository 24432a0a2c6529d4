//! Acquiring leases.
//!
//! An attempt is a future of its own: it owns the backend and the request. While the caller polls
//! it, it runs where the caller runs. When the caller goes away, or the time limit passes, it is
//! handed to the watchdog's I/O thread, which drives it to its end and takes back by claim what it
//! may have been granted (I7).

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;

use crate::cell::LeaseCell;
use crate::line::Lines;
use crate::rng::Jitter;
use crate::seen::Seen;
use crate::watchdog::{Abandoned, Lanes, Order, Pending, ReleaseOrder};
use crate::{
    AcquireRequest, Attempt, BackendError, BootTime, Claim, Contention, Declared, Effect, EndReason,
    ErrorKind, Grant, Inspection, Lease, LeaseBackend, LeaseName, OwnerId, Profile, ReleaseRequest, Settings,
    SettingsError, Token, Watchdog, deadline,
};

/// Pauses between tries while the store does not answer.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(25);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Acquires leases from one store. Clones share everything.
///
/// See [`LeaseClient::acquire`] for an example.
#[derive(Clone)]
pub struct LeaseClient(pub(crate) Arc<ClientInner>);

pub(crate) struct ClientInner {
    pub(crate) backend: Arc<dyn LeaseBackend>,
    pub(crate) watchdog: Watchdog,
    pub(crate) group: u32,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) operation_timeout: Duration,
    pub(crate) pending: Arc<Pending>,
    lines: Lines,
    seen: Seen,
    closed: AtomicBool,
}

/// What one try gives. Being refused is a value, not an error.
#[derive(Debug)]
#[must_use = "a granted lease is released when it is dropped"]
pub enum TryAcquire {
    /// The lease.
    Granted(Lease),
    /// Somebody else has it.
    Held(Contention),
}

/// How long to wait for a name that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted.
    Forever,
    /// So long, and not independent of the store's answer: up to the operation timeout more.
    AtMost(Duration),
}

/// Why nothing was acquired. Whatever the store may have granted is being taken back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The settings contradict themselves; nothing was sent.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store did not answer, or refused the question.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The wait is over.
    #[error("{name:?} is still taken after {waited:?}: nothing was acquired")]
    TimedOut {
        /// The name.
        name: LeaseName,
        /// How long was waited.
        waited: Duration,
        /// Who was seen holding it last.
        seen: Box<Contention>,
    },
    /// The grant came so late that its time was over. It is being taken back.
    #[error(
        "{name:?} was granted, but the store took {took:?} of its ttl of {ttl:?} to say so: it is given back. Use a longer ttl or a faster store"
    )]
    GrantedTooLate {
        /// The name.
        name: LeaseName,
        /// How long the answer took.
        took: Duration,
        /// The granted ttl.
        ttl: Duration,
    },
    /// The store granted a token that is not larger than one seen before, twice: it has lost data.
    #[error(
        "{name:?} was granted with fencing token {granted}, but {seen} was seen before: the store has lost data (restored, wiped, failed over?). Nothing was acquired; raise its epoch (leasehold epoch raise)"
    )]
    TokenRegression {
        /// The name.
        name: LeaseName,
        /// The token that came.
        granted: Token,
        /// The larger or equal one seen before.
        seen: Token,
    },
    /// The client was shut down.
    #[error("this client was shut down: nothing was acquired")]
    Closed,
}

impl AcquireError {
    /// The backend's error, where there is one.
    pub fn backend(&self) -> Option<&BackendError> {
        match self {
            AcquireError::Backend(e) => Some(e),
            _ => None,
        }
    }
}

impl LeaseClient {
    /// Default time limit of one store operation.
    pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

    /// A client of `backend` whose leases `watchdog` keeps.
    pub fn new(backend: impl LeaseBackend, watchdog: &Watchdog) -> Self {
        Self::with_backend(Arc::new(backend), watchdog)
    }

    /// As [`LeaseClient::new`], for a backend that is shared.
    pub fn with_backend(backend: Arc<dyn LeaseBackend>, watchdog: &Watchdog) -> Self {
        Self::with_operation_timeout(backend, watchdog, Self::OPERATION_TIMEOUT)
    }

    /// As [`LeaseClient::with_backend`], with another time limit for one store operation.
    pub fn with_operation_timeout(
        backend: Arc<dyn LeaseBackend>,
        watchdog: &Watchdog,
        timeout: Duration,
    ) -> Self {
        let lanes = Arc::new(Lanes::new(timeout));
        let group = watchdog.shared().add_group(Arc::clone(&backend), Arc::clone(&lanes));
        LeaseClient(Arc::new(ClientInner {
            backend,
            watchdog: watchdog.clone(),
            group,
            lanes,
            operation_timeout: timeout,
            pending: Arc::default(),
            lines: Lines::default(),
            seen: Seen::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// What the store promises.
    pub fn profile(&self) -> &Profile {
        self.0.backend.profile()
    }

    /// The backend, for its facets.
    pub fn backend(&self) -> &Arc<dyn LeaseBackend> {
        &self.0.backend
    }

    /// One try, without waiting: at most the operation timeout.
    ///
    /// # Errors
    /// [`AcquireError`]. Whatever the store may have granted all the same is taken back within the
    /// operation timeout.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no grant (I7, `cancel/dropped_at_every_poll_leaves_nothing`).
    pub async fn try_acquire(
        &self,
        name: &LeaseName,
        settings: &Settings,
    ) -> Result<TryAcquire, AcquireError> {
        self.refuse(settings)?;
        let mut pursuit = Pursuit::new(self, name);
        self.attempt(&mut pursuit, settings).await
    }

    /// Waits until the name is granted, or the wait is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_core::{LeaseClient, MemoryBackend, Settings, Wait, Watchdog};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let watchdog = Watchdog::start()?;
    /// let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
    /// let name = "deploy".parse()?;
    /// let lease = client.acquire(&name, &Settings::new(), Wait::AtMost(Duration::from_secs(60))).await?;
    /// let answer = lease.run(async { 6 * 7 }).await?; // stopped if the lease is lost
    /// lease.release().await?;
    /// # assert_eq!(answer, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Tasks of one client that wait for one name stand in one line, first come, first served; the
    /// head of the line contends in the store. A store that does not answer is asked again, with
    /// the same owner, until it was silent for the operation timeout.
    ///
    /// # Errors
    /// [`AcquireError`]; [`AcquireError::TimedOut`] when the wait is over.
    ///
    /// # Cancel safety
    /// As [`LeaseClient::try_acquire`]; the place in line is lost.
    pub async fn acquire(
        &self,
        name: &LeaseName,
        settings: &Settings,
        wait: Wait,
    ) -> Result<Lease, AcquireError> {
        self.acquire_observed(name, settings, wait, |_| {}).await
    }

    /// As [`LeaseClient::acquire`], telling `observe` about every refusal, so that a person can be
    /// told who holds the name.
    ///
    /// # Errors
    /// As [`LeaseClient::acquire`].
    pub async fn acquire_observed(
        &self,
        name: &LeaseName,
        settings: &Settings,
        wait: Wait,
        mut observe: impl FnMut(&Contention) + Send,
    ) -> Result<Lease, AcquireError> {
        self.refuse(settings)?;
        let started = self.now();
        let until = match wait {
            Wait::Forever => BootTime::MAX,
            Wait::AtMost(_) if mutant!(WaitNeverTimesOut) => BootTime::MAX,
            Wait::AtMost(d) => started + d,
        };
        let timed_out = |seen: Contention| AcquireError::TimedOut {
            name: name.clone(),
            waited: self.now().since(started),
            seen: Box::new(seen),
        };
        let turn = self.0.lines.turn(name);
        let Some(_turn) = self.by(until, turn).await else { return Err(timed_out(Contention::default())) };
        let mut pursuit = Pursuit::new(self, name);
        let mut waiter = None;
        let mut answered = self.now();
        let mut pause = RETRY_PAUSE_MIN;
        let mut jitter = Jitter::seeded();
        loop {
            let error = match self.attempt(&mut pursuit, settings).await {
                Ok(TryAcquire::Granted(lease)) => return Ok(lease),
                Ok(TryAcquire::Held(seen)) => {
                    answered = self.now();
                    pause = RETRY_PAUSE_MIN;
                    observe(&seen);
                    if answered >= until {
                        return Err(timed_out(seen));
                    }
                    match &mut waiter {
                        // Subscribed now: look once more before waiting (I9).
                        None => match self.waiter(name, settings).await {
                            Ok(made) => {
                                waiter = Some(made);
                                continue;
                            }
                            Err(e) => e.into(),
                        },
                        Some(waiter) => match self.by(until, waiter.wait(&seen)).await {
                            Some(()) if mutant!(WokenDoesNotLook) => std::future::pending().await,
                            Some(()) => continue,
                            None => return Err(timed_out(seen)),
                        },
                    }
                }
                Err(e) => e,
            };
            let now = self.now();
            let again = error.backend().is_some_and(BackendError::is_retryable)
                && now < until
                && now.since(answered) < self.0.operation_timeout;
            if !again {
                return Err(error);
            }
            let at = (now + jitter.shorten(pause, 50)).min(until);
            self.0.watchdog.sleep_until(at).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// The name as the store holds it now.
    ///
    /// # Errors
    /// The backend's, or a timeout.
    pub async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        self.bounded("inspect", Effect::None, self.0.backend.inspect(name)).await
    }

    /// Takes no more acquires, waits at most `limit` for the clean-ups under way (dropped guards,
    /// abandoned attempts), and closes the backend. Returns how many clean-ups were left.
    ///
    /// Release your leases first: what is still held is no longer renewed and runs out.
    ///
    /// # Cancel safety
    /// May be called again.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        self.0.closed.store(true, Ordering::Release);
        if !mutant!(ShutdownDoesNotWait) {
            let _ = self.by(self.now() + limit, self.0.pending.idle()).await;
        }
        let _ = self.by(self.now() + self.0.operation_timeout, self.0.backend.close()).await;
        self.0.pending.pending()
    }

    pub(crate) fn now(&self) -> BootTime {
        self.0.watchdog.shared().now()
    }

    fn refuse(&self, settings: &Settings) -> Result<(), AcquireError> {
        if self.0.closed.load(Ordering::Acquire) && !mutant!(ShutdownForgotten) {
            return Err(AcquireError::Closed);
        }
        settings.validate()?;
        self.profile().refuse_ttl(settings.ttl)?;
        self.refuse_min_hold(settings)?;
        if settings.deadline.is_some_and(|at| at <= SystemTime::now()) {
            return Err(SettingsError::DeadlinePassed.into());
        }
        Ok(())
    }

    /// Refuses a min_hold that the store cannot keep.
    fn refuse_min_hold(&self, settings: &Settings) -> Result<(), BackendError> {
        let profile = self.profile();
        let (kind, message) = if settings.min_hold.is_zero() {
            return Ok(());
        } else if profile.keep_for == Declared::No && !mutant!(MinHoldNotRefused) {
            let message = "this store cannot keep a name taken after its release (min_hold)".to_owned();
            (ErrorKind::Unsupported, message)
        } else if settings.min_hold > profile.ttl_max {
            let (min_hold, limit) = (settings.min_hold, profile.ttl_max);
            (
                ErrorKind::ConfigInvalid,
                format!("a min_hold of {min_hold:?} is not possible here: the longest is {limit:?}"),
            )
        } else {
            return Ok(());
        };
        // why: refused before anything was sent.
        let message = format!("{message}; nothing was granted");
        Err(BackendError::new(kind, Effect::None, profile.name, "acquire", message))
    }

    /// The future's output, or none when `until` came first.
    async fn by<F: Future>(&self, until: BootTime, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        if until == BootTime::MAX {
            return Some(future.await);
        }
        // The sleep is made only when the first poll brought no output.
        let mut sleep = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let sleep = sleep.get_or_insert_with(|| self.0.watchdog.sleep_until(until));
            Pin::new(sleep).poll(cx).map(|()| None)
        })
        .await
    }

    pub(crate) async fn bounded<T>(
        &self,
        op: &'static str,
        effect: Effect,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        self.bounded_from(self.now(), op, effect, call).await
    }

    /// As [`LeaseClient::bounded`], for a caller who has just read the clock.
    pub(crate) async fn bounded_from<T>(
        &self,
        now: BootTime,
        op: &'static str,
        effect: Effect,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let timeout = self.0.operation_timeout;
        match self.by(now + timeout, call).await {
            Some(result) => result,
            None => Err(self.timeout(op, effect, timeout)),
        }
    }

    pub(crate) fn timeout(&self, op: &'static str, effect: Effect, after: Duration) -> BackendError {
        let message = format!("the store did not answer within {after:?}");
        BackendError::new(ErrorKind::Timeout, effect, self.profile().name, op, message)
    }

    async fn waiter(
        &self,
        name: &LeaseName,
        settings: &Settings,
    ) -> Result<Box<dyn crate::Waiter>, BackendError> {
        let mut request = AcquireRequest::new(name.clone(), OwnerId::random(), settings.ttl, self.now());
        request.holder_info = settings.holder.clone();
        self.bounded("waiter", Effect::None, self.0.backend.waiter(&request)).await
    }

    /// One attempt, and one more with a floor when its token was not larger than one seen before.
    async fn attempt(
        &self,
        pursuit: &mut Pursuit<'_>,
        settings: &Settings,
    ) -> Result<TryAcquire, AcquireError> {
        // A shutdown waits until it is known what came of the attempt.
        let _counted = self.0.pending.count();
        let mut floor = None;
        loop {
            let (sent_at, answer) = self.ask(pursuit, settings, floor).await?;
            let grant = match answer {
                Attempt::Held(contention) => return Ok(TryAcquire::Held(contention)),
                Attempt::Granted(grant) => grant,
            };
            match self.0.seen.accept(pursuit.name, grant.token) {
                Ok(()) => return self.hold(pursuit, settings, grant, sent_at).map(TryAcquire::Granted),
                Err(seen) => {
                    self.take_back(pursuit).await;
                    if floor.replace(seen).is_some() {
                        let (name, granted) = (pursuit.name.clone(), grant.token);
                        return Err(AcquireError::TokenRegression { name, granted, seen });
                    }
                }
            }
        }
    }

    /// Takes back a grant that is not accepted, before the next attempt meets it.
    async fn take_back(&self, pursuit: &mut Pursuit<'_>) {
        let request = ReleaseRequest::new(pursuit.claim(), self.now());
        if self.bounded("release", Effect::Unknown, self.0.backend.release(&request)).await.is_ok() {
            pursuit.owner = OwnerId::random();
            pursuit.unclear = false;
        } else {
            pursuit.give_up();
        }
    }

    async fn ask(
        &self,
        pursuit: &mut Pursuit<'_>,
        settings: &Settings,
        floor: Option<Token>,
    ) -> Result<(BootTime, Attempt), AcquireError> {
        let sent_at = self.now();
        let mut request = AcquireRequest::new(pursuit.name.clone(), pursuit.owner, settings.ttl, sent_at);
        request.holder_info = settings.holder.clone();
        request.token_floor = floor;
        let backend = Arc::clone(&self.0.backend);
        let limit = self.0.operation_timeout.min(settings.ttl);
        pursuit.ttl = settings.ttl;
        let mut attempting = Attempting {
            attempt: Some(Box::pin(async move { backend.acquire(&request).await })),
            give_up: sent_at + limit,
            pursuit,
        };
        let answer = attempting.answer().await;
        let pursuit = &mut *attempting.pursuit;
        match answer {
            Some(Ok(answer)) => {
                // A grant is unclear until somebody holds it; a refusal tells that nothing is held.
                pursuit.unclear = matches!(answer, Attempt::Granted(_));
                Ok((sent_at, answer))
            }
            Some(Err(e)) => {
                if e.effect() == Effect::Unknown && !mutant!(UnknownTakenForFailure) {
                    pursuit.unclear = true;
                    pursuit.late_until = Some(self.now() + self.0.operation_timeout);
                }
                Err(e.into())
            }
            None => {
                // Dropping it hands it over; its owner is not used again.
                drop(attempting);
                Err(self.timeout("acquire", Effect::Unknown, limit).into())
            }
        }
    }

    /// Makes the guard, unless the grant's time is over already.
    fn hold(
        &self,
        pursuit: &mut Pursuit<'_>,
        settings: &Settings,
        grant: Grant,
        sent_at: BootTime,
    ) -> Result<Lease, AcquireError> {
        if self.0.closed.load(Ordering::Acquire) {
            pursuit.give_up();
            return Err(AcquireError::Closed);
        }
        let margin = self.profile().margin;
        let grant = if mutant!(DeadlineFromReply) { Grant { anchor: self.now(), ..grant } } else { grant };
        let valid_until = deadline::valid_until(grant.anchor, settings.ttl, grant.ttl, margin);
        let now = self.now();
        if now >= valid_until {
            pursuit.give_up();
            let (name, took, ttl) = (grant.name, now.since(grant.anchor), grant.ttl);
            return Err(AcquireError::GrantedTooLate { name, took, ttl });
        }
        let mut hard = (BootTime::MAX, EndReason::MaxHold);
        if let Some(max_hold) = settings.max_hold.filter(|_| !mutant!(MaxHoldIgnored)) {
            hard.0 = sent_at + max_hold;
        }
        if let Some(at) = settings.deadline.filter(|_| !mutant!(BusinessDeadlineIgnored)) {
            // The wall clock is read once, here: a later step of it moves nothing.
            let end = now + at.duration_since(SystemTime::now()).unwrap_or_default();
            if end < hard.0 {
                hard = (end, EndReason::Deadline);
            }
        }
        let cell = crate::sync::Arc::new(LeaseCell::new(
            grant.claim(),
            grant.token,
            settings.plan(),
            margin,
            settings.ttl,
            sent_at,
            hard,
            valid_until,
        ));
        let key = self.0.watchdog.shared().add(self.0.group, crate::sync::Arc::clone(&cell), grant.anchor);
        pursuit.unclear = false;
        let late_until = pursuit.late_until.take();
        Ok(Lease::new(cell, key, self.clone(), settings.min_hold, late_until))
    }

    /// The order that takes back whatever `claim` may hold.
    pub(crate) fn release_order(
        &self,
        claim: Claim,
        ttl: Duration,
        keep_until: BootTime,
        now: BootTime,
    ) -> ReleaseOrder {
        ReleaseOrder {
            backend: Arc::clone(&self.0.backend),
            lanes: Arc::clone(&self.0.lanes),
            claim,
            keep_until,
            timeout: self.0.operation_timeout,
            until: now + ttl,
            again_at: None,
            counted: self.0.pending.count(),
        }
    }

    pub(crate) fn order(&self, order: Order) {
        self.0.watchdog.shared().order(order);
    }
}

/// The owner of one acquisition, and whether the store may hold something for it.
struct Pursuit<'a> {
    client: &'a LeaseClient,
    name: &'a LeaseName,
    owner: OwnerId,
    ttl: Duration,
    /// The store may hold a grant that nobody has taken over.
    unclear: bool,
    /// Until when an attempt without a clear answer may still reach the store: longer than whatever a
    /// later attempt was told (I7).
    late_until: Option<BootTime>,
}

impl<'a> Pursuit<'a> {
    fn new(client: &'a LeaseClient, name: &'a LeaseName) -> Self {
        Pursuit {
            client,
            name,
            owner: OwnerId::random(),
            ttl: Duration::ZERO,
            unclear: false,
            late_until: None,
        }
    }

    fn claim(&self) -> Claim {
        Claim::new(self.name.clone(), self.owner, None)
    }

    /// Takes back what the store may hold. An owner is not used again after a release.
    fn give_up(&mut self) {
        let now = self.client.now();
        let mut order = self.client.release_order(self.claim(), self.ttl, BootTime::ZERO, now);
        order.again_at = self.late_until.take();
        self.client.order(Order::Release(order));
        self.owner = OwnerId::random();
        self.unclear = false;
    }
}

impl Drop for Pursuit<'_> {
    fn drop(&mut self) {
        if self.unclear || self.late_until.is_some() {
            self.give_up();
        }
    }
}

/// An attempt under way; dropped before its answer, it is handed to the I/O thread.
struct Attempting<'a, 'b> {
    attempt: Option<BoxFuture<'static, Result<Attempt, BackendError>>>,
    give_up: BootTime,
    pursuit: &'a mut Pursuit<'b>,
}

impl Attempting<'_, '_> {
    /// The answer, or none when the time limit came first.
    async fn answer(&mut self) -> Option<Result<Attempt, BackendError>> {
        let watchdog = &self.pursuit.client.0.watchdog;
        let give_up = if mutant!(OperationsUnbounded) { BootTime::MAX } else { self.give_up };
        let attempt = self.attempt.as_mut()?;
        // The sleep is made only when the first poll brought no answer.
        let mut sleep = None;
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = attempt.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            let sleep = sleep.get_or_insert_with(|| watchdog.sleep_until(give_up));
            Pin::new(sleep).poll(cx).map(|()| None)
        })
        .await;
        if answer.is_some() {
            self.attempt = None;
        }
        answer
    }
}

impl Drop for Attempting<'_, '_> {
    fn drop(&mut self) {
        let Some(attempt) = self.attempt.take() else { return };
        if mutant!(AbandonedNotCleaned) {
            return;
        }
        let pursuit = &mut *self.pursuit;
        let now = pursuit.client.now();
        let mut release = pursuit.client.release_order(pursuit.claim(), pursuit.ttl, BootTime::ZERO, now);
        release.again_at = pursuit.late_until.take();
        pursuit.client.order(Order::Abandoned(Abandoned { attempt, give_up: self.give_up, release }));
        pursuit.owner = OwnerId::random();
        pursuit.unclear = false;
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        self.watchdog.shared().remove_group(self.group);
    }
}

impl fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClient").field("backend", &self.0.backend).finish_non_exhaustive()
    }
}
