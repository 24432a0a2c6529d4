//! The guard of a held lease.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cell::LeaseCell;
use crate::sync::Arc;
use crate::watchdog::step::{Event, Key};
use crate::watchdog::{Order, ReleaseOrder};
use crate::{
    BackendError, BootTime, Effect, EndReason, ErrorKind, LeaseClient, LeaseName, LeaseOver, LeaseState,
    ReleaseRequest, Released, RenewAnswer, Renewal, Token, TtlChange, deadline,
};

/// A held lease.
///
/// The watchdog renews it until it is released or dropped, and ends it on time when it cannot.
/// Whoever works under it calls [`Lease::check`] before each step, or works inside [`Lease::run`],
/// and hands [`Lease::token`] to the resource: a process that was frozen between a check and a write
/// can only be stopped there.
///
/// Dropping it never blocks and never fails: the watchdog releases it in the background. Use
/// [`Lease::release`] to learn the outcome. Only `std::mem::forget` keeps a lease that nobody uses.
#[must_use = "a lease is released when it is dropped"]
pub struct Lease {
    cell: Arc<LeaseCell>,
    /// None once released.
    key: Option<Key>,
    client: LeaseClient,
    min_hold: Duration,
    /// Until when an attempt of this owner without a clear answer may still reach the store.
    late_until: Option<BootTime>,
}

/// The lease was over before the work was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T> {
    /// The work was stopped where it waited.
    #[error("{0}")]
    Stopped(LeaseOver),
    /// The work came to its end, but only after the lease had: the resource may have seen a newer
    /// holder meanwhile.
    #[error("the work ended after its lease did: {over}")]
    Late {
        /// How the lease ended.
        over: LeaseOver,
        /// What the work gave, its own error included.
        output: T,
    },
}

impl<T> RunError<T> {
    /// How the lease ended.
    pub fn over(&self) -> &LeaseOver {
        match self {
            RunError::Stopped(over) | RunError::Late { over, .. } => over,
        }
    }
}

/// Why a renewal by hand, or a change of the ttl, did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// The lease is over.
    #[error(transparent)]
    Over(#[from] LeaseOver),
    /// The store did not answer or refused; the lease is valid until its deadline, which did not
    /// move. With [`Effect::Unknown`] the store may have renewed all the same.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Lease {
    pub(crate) fn new(
        cell: Arc<LeaseCell>,
        key: Key,
        client: LeaseClient,
        min_hold: Duration,
        late_until: Option<BootTime>,
    ) -> Self {
        Lease { cell, key: Some(key), client, min_hold, late_until }
    }

    /// Its name.
    pub fn name(&self) -> &LeaseName {
        &self.cell.name
    }

    /// The fencing token of this grant: larger than every one before, the same until the end.
    pub fn token(&self) -> Token {
        self.cell.token
    }

    /// Eight digits that tell this grant's owner from others in a log.
    pub fn fingerprint(&self) -> String {
        self.cell.owner.fingerprint()
    }

    /// The ttl in force.
    pub fn ttl(&self) -> Duration {
        self.cell.ttl()
    }

    /// Until when the lease is valid unless it is renewed; none when it is over.
    pub fn valid_until(&self) -> Option<BootTime> {
        self.cell.deadline().filter(|_| self.is_valid())
    }

    /// The moment at which the lease ends whatever anybody does, and which limit that is; none without
    /// a limit.
    pub fn limit(&self) -> Option<(BootTime, EndReason)> {
        (self.cell.hard_end < BootTime::MAX).then_some((self.cell.hard_end, self.cell.hard_reason))
    }

    /// How long the lease is valid unless it is renewed; zero when it is over.
    pub fn remaining(&self) -> Duration {
        self.valid_until().map_or(Duration::ZERO, |until| until.since(self.client.now()))
    }

    /// Whether the lease is valid now. Reads the clock itself: it is right even if the watchdog did
    /// not run, and one failure is final (I6).
    ///
    /// # Errors
    /// [`LeaseOver`]: stop the work.
    pub fn check(&self) -> Result<(), LeaseOver> {
        if self.is_valid() { Ok(()) } else { Err(self.over()) }
    }

    /// Whether at least `needed` is left, for a step that must not be cut off in the middle.
    ///
    /// # Errors
    /// [`LeaseOver`]; its state is [`LeaseState::AtRisk`] when the lease is valid but not for long
    /// enough: wait for a renewal, or stop.
    pub fn ensure(&self, needed: Duration) -> Result<(), LeaseOver> {
        self.check()?;
        match self.remaining() {
            left if left >= needed || mutant!(EnsureIgnoresNeed) => Ok(()),
            remaining => Err(LeaseOver { state: LeaseState::AtRisk { remaining }, ..self.over() }),
        }
    }

    /// Where the lease stands.
    pub fn state(&self) -> LeaseState {
        self.is_valid();
        self.cell.state(self.client.now())
    }

    /// The states as they come. The last one is seen by everybody who subscribed.
    pub fn states(&self) -> watch::Receiver<LeaseState> {
        self.cell.states()
    }

    /// A token that is cancelled when the lease is lost or reaches a limit, and not when it is
    /// released. Cancelling it ends nothing but those who listen to it.
    pub fn cancelled(&self) -> CancellationToken {
        self.cell.cancelled()
    }

    /// Completes when the lease is lost or reaches a limit: no later than its deadline, whether or
    /// not the store answers.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LeaseOver {
        let mut states = self.cell.states();
        let lost = states.wait_for(LeaseState::is_loss).await.is_ok();
        if !lost {
            // The sender lives in the cell that this guard holds.
            std::future::pending::<()>().await;
        }
        self.over()
    }

    /// Runs `work` while the lease is valid. When the lease is over first, `work` is dropped where
    /// it waits, and then the error returned.
    ///
    /// Dropping a future stops neither a blocking task that it started nor a request that is under
    /// way: that is what the token is for.
    ///
    /// # Errors
    /// [`RunError`] when the lease was, or came to be, over before `work` ended. Work that ended late
    /// keeps its output.
    #[allow(clippy::future_not_send)] // Send whenever `work` is
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, RunError<F::Output>> {
        self.check().map_err(RunError::Stopped)?;
        let work = pin!(work);
        if mutant!(RunIgnoresLoss) {
            return Ok(work.await);
        }
        match select(pin!(self.lost()), work).await {
            Either::Left((over, _)) => Err(RunError::Stopped(over)),
            // One poll may have taken long.
            Either::Right((output, _)) => match self.check() {
                Ok(()) => Ok(output),
                Err(over) => Err(RunError::Late { over, output }),
            },
        }
    }

    /// Renews now, whatever the watchdog does: for a [fixed](crate::Settings::fixed) lease.
    ///
    /// # Errors
    /// [`RenewError::Over`] when the store says that the lease is gone, or its time ran out before
    /// the answer; [`RenewError::Backend`] when nobody knows.
    ///
    /// # Cancel safety
    /// Dropped, the store may have renewed; the deadline did not move.
    pub async fn renew(&self) -> Result<(), RenewError> {
        self.renew_once(|| {}).await
    }

    /// Changes the ttl: a shorter one takes effect here first, a longer one in the store first.
    ///
    /// A longer one is believed when the store has acknowledged it and no renewal with the shorter one
    /// can reach the store any more. When one was given up shortly before, that takes up to the
    /// operation timeout.
    ///
    /// # Errors
    /// As [`Lease::renew`]; [`ErrorKind::Unsupported`] or [`ErrorKind::ConfigInvalid`] when the store
    /// cannot do it, with nothing changed.
    ///
    /// # Cancel safety
    /// Dropped, a longer ttl is not believed; the store may keep it for one renewal.
    pub async fn set_ttl(&self, ttl: Duration) -> Result<(), RenewError> {
        let profile = self.client.profile();
        profile.refuse_ttl(ttl)?;
        if profile.ttl_change == TtlChange::Refused && !mutant!(FixedTtlIsChanged) {
            // why: refused before anything was sent.
            let message = "this store cannot change the ttl of a held lease; nothing changed";
            let error =
                BackendError::new(ErrorKind::Unsupported, Effect::None, profile.name, "set_ttl", message);
            return Err(error.with_name(self.name()).into());
        }
        self.check()?;
        if mutant!(SetTtlIgnored) {
            self.cell.set_ttl(ttl);
            self.cell.believe(ttl);
            return Ok(());
        }
        if ttl <= self.cell.believed() {
            self.cell.set_ttl(ttl);
            self.cell.believe(ttl);
            self.cell.shorten(deadline::valid_until(self.client.now(), ttl, ttl, self.cell.margin));
            self.answer(|key| Event::Replan { key });
            return self.renew_once(|| {}).await;
        }
        // From here on every renewal asks for the longer one, and the deadline goes on with the shorter.
        let before = self.cell.ttl();
        self.cell.set_ttl(ttl);
        let mut changing = Changing { cell: &self.cell, before: Some(before) };
        self.quiet().await?;
        self.renew_once(|| self.cell.believe(ttl)).await?;
        changing.before = None;
        Ok(())
    }

    /// Waits until no renewal that was sent before can reach the store any more.
    async fn quiet(&self) -> Result<(), RenewError> {
        /// Between two looks.
        const LOOK: Duration = Duration::from_millis(5);
        let timeout = self.client.0.operation_timeout;
        let give_up = self.client.now() + timeout * 3;
        loop {
            self.check()?;
            let now = self.client.now();
            if self.cell.is_quiet(now) {
                return Ok(());
            }
            if now >= give_up {
                let error = self.client.timeout("set_ttl", Effect::Unknown, timeout * 3);
                return Err(error.with_name(self.name()).into());
            }
            self.client.0.watchdog.sleep_until(now + LOOK).await;
        }
    }

    /// One renewal; `acknowledged` is done before the deadline moves.
    async fn renew_once(&self, acknowledged: impl FnOnce() + Send) -> Result<(), RenewError> {
        self.check()?;
        let (Some(key), Some(from)) = (self.key, self.cell.deadline()) else {
            return Err(self.over().into());
        };
        let sent_at = self.client.now();
        // In this order: see the watchdog's renewals.
        let mut sent = Sent::new(&self.cell, &self.client);
        let renewal = [Renewal::new(self.cell.claim(), self.cell.ttl(), sent_at)];
        let limit = from.since(sent_at).min(self.client.0.operation_timeout);
        let call = self.client.0.backend.renew(&renewal);
        let answer = match select(pin!(call), self.client.0.watchdog.sleep_until(sent_at + limit)).await {
            Either::Left((answers, _)) => answers.into_iter().next(),
            Either::Right(_) => None,
        };
        sent.is_clear = match &answer {
            Some(Ok(_)) => true,
            Some(Err(e)) => e.effect() == Effect::None,
            None => false,
        };
        drop(sent);
        match answer {
            Some(Ok(RenewAnswer::Renewed { anchor, ttl: granted, .. })) => {
                acknowledged();
                self.answer(|_| Event::Renewed { key, from, anchor, granted });
            }
            Some(Ok(RenewAnswer::Lost(cause))) => self.answer(|_| Event::Gone { key, cause }),
            Some(Err(e)) => return Err(e.into()),
            None => {
                self.check()?;
                let error = self.client.timeout("renew", Effect::Unknown, limit);
                return Err(error.with_name(self.name()).into());
            }
        }
        Ok(self.check()?)
    }

    fn answer(&self, event: impl FnOnce(Key) -> Event) {
        if let Some(key) = self.key {
            self.client.0.watchdog.shared().answer([event(key)]);
        }
    }

    /// Gives the lease back and tells the outcome.
    ///
    /// From the call on the lease is over here and nothing renews it; then the store ends the grant
    /// if it is still this owner's. Releasing what was lost meanwhile is no error, and says so.
    ///
    /// # Errors
    /// The store did not answer: the release goes on in the background, until the store answers or
    /// has let the grant run out. With [`Effect::Unknown`] it may have been released already.
    ///
    /// # Cancel safety
    /// Dropped at any await, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released, BackendError> {
        // One reading serves the whole release.
        let now = self.client.now();
        let Some(order) = self.finish(now) else { return Ok(Released::AlreadyReleased) };
        let mut request = ReleaseRequest::new(order.claim.clone(), now);
        request.keep_for = order.keep_until.since(request.sent_at);
        let backend = std::sync::Arc::clone(&order.backend);
        let mut background = InBackground { client: &self.client, order: Some(order) };
        let call = backend.release(&request);
        let result = self.client.bounded_from(now, "release", Effect::Unknown, call).await;
        if result.is_ok() {
            background.order = background.order.take().filter(|order| order.again_at.is_some());
        }
        result.map_err(|e| e.with_name(&self.cell.name))
    }

    /// Marks the lease done and stops its renewals, in this order (I8).
    fn finish(&mut self, now: BootTime) -> Option<ReleaseOrder> {
        let key = self.key.take()?;
        if mutant!(RenewsAfterRelease) {
            return Some(self.client.release_order(self.cell.claim(), self.cell.ttl(), BootTime::ZERO, now));
        }
        // What is over by the clock is lost, also when nobody had looked.
        self.is_valid_at(now);
        if mutant!(ReleaseTellsLoss) {
            self.cell.end(LeaseState::Lost(crate::LostCause::Expired));
        }
        self.cell.end(LeaseState::Ended(EndReason::Released));
        self.client.0.watchdog.shared().remove(key);
        let keep_until = if self.min_hold.is_zero() || mutant!(MinHoldIgnored) {
            BootTime::ZERO
        } else {
            self.cell.since + self.min_hold
        };
        let mut order = self.client.release_order(self.cell.claim(), self.cell.ttl(), keep_until, now);
        order.again_at = self.late_until.filter(|late_until| now < *late_until);
        Some(order)
    }

    fn is_valid(&self) -> bool {
        self.is_valid_at(self.client.now())
    }

    fn is_valid_at(&self, now: BootTime) -> bool {
        self.cell.is_valid(now, |deadline| self.client.0.watchdog.shared().paused(now, deadline))
    }

    fn over(&self) -> LeaseOver {
        LeaseOver {
            name: self.cell.name.clone(),
            token: self.cell.token,
            state: self.cell.state(self.client.now()),
        }
    }
}

/// A renewal by hand under way; dropped without a clear answer, it may still reach the store.
struct Sent<'a> {
    cell: &'a LeaseCell,
    client: &'a LeaseClient,
    is_clear: bool,
}

impl<'a> Sent<'a> {
    fn new(cell: &'a LeaseCell, client: &'a LeaseClient) -> Self {
        cell.renewal_sent();
        Sent { cell, client, is_clear: false }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let late_until = self.client.now() + self.client.0.lanes.late_max;
        self.cell.renewal_over((!self.is_clear).then_some(late_until));
    }
}

/// A longer ttl that is not believed yet; given up, renewals ask for the former one again.
struct Changing<'a> {
    cell: &'a LeaseCell,
    before: Option<Duration>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.cell.set_ttl(before);
        }
    }
}

/// A release whose answer is still out; dropped, it goes on in the background.
struct InBackground<'a> {
    client: &'a LeaseClient,
    order: Option<ReleaseOrder>,
}

impl Drop for InBackground<'_> {
    fn drop(&mut self) {
        if let Some(order) = self.order.take()
            && !mutant!(DroppedReleaseForgotten)
        {
            self.client.order(Order::Release(order));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.key.is_none() {
            return;
        }
        if let Some(order) = self.finish(self.client.now())
            && !mutant!(DropReleasesNothing)
        {
            self.client.order(Order::Release(order));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
