//! A process as the store sees it, and what a case asks of the store through it.

use std::time::{Duration, Instant};

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Claim, Contention, Effect, FencedStore, Grant,
    Inspection, Lease, LeaseAdmin, LeaseBackend, LeaseClient, LeaseName, OwnerId, Profile, ReleaseRequest,
    Released, RenewAnswer, Renewal, Settings, Token, TryAcquire, Watchdog, WatchdogStats,
};

use crate::case::{check, take};
use crate::{Failed, Faulty};

/// A busy store is asked again so much later.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A process as the store sees it: a watchdog, a connection, and a client over it. Clones share
/// everything.
#[derive(Clone)]
pub struct Node {
    /// Keeps the leases of `client`.
    pub watchdog: Watchdog,
    /// The connection; every call of `client` passes through it.
    pub store: Faulty,
    /// A client over `store`.
    pub client: LeaseClient,
    pub(crate) ttl: Duration,
    /// How long the store may be busy with what others ask of it.
    pub(crate) busy_for: Duration,
}

impl Node {
    /// Changes whenever something is asked of the store, or of the watchdog.
    pub(crate) fn activity(&self) -> (usize, WatchdogStats) {
        (self.store.calls(), self.watchdog.stats())
    }

    /// What the backend was made with.
    pub fn context(&self) -> BackendContext {
        self.watchdog.context()
    }

    /// What the store promises.
    pub fn profile(&self) -> &Profile {
        self.store.profile()
    }

    /// The ttl of leases that are to run out in a case: some 9 s of virtual time, 1 s of real time, or
    /// the shortest that the store takes.
    pub fn ttl(&self) -> Duration {
        self.ttl.max(self.profile().ttl_min)
    }

    /// A ttl that outlives the case.
    pub fn long_ttl(&self) -> Duration {
        Duration::from_secs(300).min(self.profile().ttl_max)
    }

    /// A request of a fresh owner, sent now.
    pub fn request(&self, name: &LeaseName, ttl: Duration) -> AcquireRequest {
        AcquireRequest::new(name.clone(), OwnerId::random(), ttl, self.context().now())
    }

    /// One attempt.
    ///
    /// # Errors
    /// The backend's.
    pub async fn attempt(&self, request: &AcquireRequest) -> Result<Attempt, Failed> {
        let mut request = request.clone();
        let started = Instant::now();
        loop {
            request.sent_at = self.context().now();
            let answer = self.store.acquire(&request).await;
            if !self.is_busy(&answer, started) {
                return Ok(answer?);
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// An attempt that must be granted.
    ///
    /// # Errors
    /// [`Failed`] when it is refused.
    pub async fn granted(&self, request: &AcquireRequest) -> Result<Grant, Failed> {
        let grant = take!(self.attempt(request).await?, Attempt::Granted(g) => g, "refused");
        check!(grant.name == request.name, "the grant is for {:?}", grant.name);
        check!(grant.owner == request.owner, "the grant is another owner's");
        check!(grant.ttl >= request.store_ttl, "granted {:?} of {:?}", grant.ttl, request.store_ttl);
        Ok(grant)
    }

    /// A grant of `name` to a fresh owner.
    ///
    /// # Errors
    /// [`Failed`] when it is refused.
    pub async fn grant(&self, name: &LeaseName, ttl: Duration) -> Result<Grant, Failed> {
        self.granted(&self.request(name, ttl)).await
    }

    /// An attempt of a fresh owner that must be refused.
    ///
    /// # Errors
    /// [`Failed`] when it is granted.
    pub async fn refused(&self, name: &LeaseName, ttl: Duration) -> Result<Contention, Failed> {
        let request = self.request(name, ttl);
        Ok(take!(self.attempt(&request).await?, Attempt::Held(c) => c, "granted beside a holder"))
    }

    /// Whether `name` is free: takes it and gives it back.
    ///
    /// # Errors
    /// The backend's.
    pub async fn is_free(&self, name: &LeaseName) -> Result<Option<Token>, Failed> {
        match self.attempt(&self.request(name, self.long_ttl())).await? {
            Attempt::Held(_) => Ok(None),
            Attempt::Granted(grant) => {
                self.release(&grant.claim()).await?;
                Ok(Some(grant.token))
            }
        }
    }

    /// One release.
    ///
    /// # Errors
    /// The backend's.
    pub async fn release(&self, claim: &Claim) -> Result<Released, Failed> {
        self.release_keeping(claim, Duration::ZERO).await
    }

    /// One release that keeps the name taken for `keep_for`.
    ///
    /// # Errors
    /// The backend's.
    pub async fn release_keeping(&self, claim: &Claim, keep_for: Duration) -> Result<Released, Failed> {
        let started = Instant::now();
        loop {
            let mut request = ReleaseRequest::new(claim.clone(), self.context().now());
            request.keep_for = keep_for;
            let answer = self.store.release(&request).await;
            if !self.is_busy(&answer, started) {
                return Ok(answer?);
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// Whether the store is to be asked again: it says that it is busy, where others use it too.
    fn is_busy<T>(&self, answer: &Result<T, BackendError>, started: Instant) -> bool {
        let untouched = |error: &BackendError| error.is_retryable() && error.effect() == Effect::None;
        started.elapsed() < self.busy_for && answer.as_ref().is_err_and(untouched)
    }

    /// One renewal alone in its batch.
    ///
    /// # Errors
    /// The backend's, and [`Failed`] for anything but one answer.
    pub async fn renew(&self, claim: &Claim, ttl: Duration) -> Result<RenewAnswer, Failed> {
        let renewal = [Renewal::new(claim.clone(), ttl, self.context().now())];
        let mut answers = self.store.renew(&renewal).await;
        check!(answers.len() == 1, "{} answers to one renewal", answers.len());
        Ok(answers.remove(0)?)
    }

    /// The name as the store holds it.
    ///
    /// # Errors
    /// The backend's.
    pub async fn store_inspect(&self, name: &LeaseName) -> Result<Inspection, Failed> {
        let started = Instant::now();
        loop {
            let answer = self.store.inspect(name).await;
            if !self.is_busy(&answer, started) {
                return Ok(answer?);
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// The admin facet, if there is one.
    pub fn store_admin(&self) -> Option<&dyn LeaseAdmin> {
        self.store.facets().admin
    }

    /// The admin facet.
    ///
    /// # Errors
    /// [`Failed`] without one: the case needs [`crate::Need::Admin`].
    pub fn admin(&self) -> Result<&dyn LeaseAdmin, Failed> {
        self.store.facets().admin.ok_or_else(|| Failed::new("no admin facet"))
    }

    /// The fenced values.
    ///
    /// # Errors
    /// [`Failed`] without them: the case needs [`crate::Need::Fenced`].
    pub fn fenced(&self) -> Result<&dyn FencedStore, Failed> {
        self.store.facets().fenced.ok_or_else(|| Failed::new("no fenced values"))
    }

    /// Settings with [`Node::ttl`].
    pub fn settings(&self) -> Settings {
        Settings::new().ttl(self.ttl())
    }

    /// A lease by one try that must be granted.
    ///
    /// # Errors
    /// [`Failed`] when it is refused.
    pub async fn lease(&self, name: &LeaseName, settings: &Settings) -> Result<Lease, Failed> {
        Ok(take!(self.client.try_acquire(name, settings).await?, TryAcquire::Granted(l) => l, "refused"))
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("store", &self.store).finish_non_exhaustive()
    }
}
