//! Leases on a Redis server: what is asked of the store, and in which order.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Durability, Facets, Inspection, LeaseBackend,
    LeaseName, Profile, ReleaseRequest, Released, RenewAnswer, Renewal, WaitMode, Waiter, async_trait,
};

use crate::core::{Counters, Store};
use crate::error::{Does, strange};
use crate::hub::Hub;
use crate::keys::What;
use crate::link::Purpose;
use crate::waiter::RedisWaiter;
use crate::{RedisConfig, SCHEME};

/// Leases on a Redis or Valkey server. Clones share its connections.
///
/// # Contract
/// * An acquire and a release are one round trip each, and so is a batch of renewals.
/// * Lease and token are written in one atomic step of the server.
/// * A future that is dropped leaves at most one request under way; an attempt that arrives at the server after its
///   time limit is refused there.
#[derive(Clone, Debug)]
pub struct RedisBackend {
    pub(crate) store: Arc<Store>,
}

impl RedisBackend {
    /// The profile of every Redis backend.
    pub const PROFILE: Profile = Profile::new(SCHEME)
        .with_ttl_range(
            Duration::from_millis(100),
            Duration::from_secs(366 * 24 * 3600),
            Duration::from_millis(1),
        )
        // The server counts in whole milliseconds of its wall clock.
        .with_margin(Duration::from_millis(1))
        .with_batch_max(512)
        .with_wait(WaitMode::Notify)
        // With the server's usual settings a grant may be gone after its restart; only tokens go on rising.
        .with_durability(Durability::Process);

    /// Connects to the server, and refuses one that cannot keep leases.
    ///
    /// # Errors
    /// | kind | when |
    /// |---|---|
    /// | [`ConfigInvalid`](leasehold_core::ErrorKind::ConfigInvalid) | a setting is wrong; certificates do not fit; the server is too old, a replica, a cluster node, a Sentinel, or may evict leases |
    /// | [`PermissionDenied`](leasehold_core::ErrorKind::PermissionDenied) | the login or a right of it is refused |
    /// | [`Unavailable`](leasehold_core::ErrorKind::Unavailable) | nobody listens there, the server is loading or full |
    /// | [`Closed`](leasehold_core::ErrorKind::Closed) | the watchdog behind `context` has stopped |
    ///
    /// # Cancel safety
    /// Nothing is written to the store.
    pub async fn connect(config: RedisConfig, context: BackendContext) -> Result<Self, BackendError> {
        Ok(RedisBackend { store: Store::connect(config, context).await? })
    }

    /// How much was sent so far.
    #[doc(hidden)]
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// Believes that the server's clock is so far behind, for tests.
    #[doc(hidden)]
    pub fn learn_server_time(&self, behind: Duration) {
        let (clock, now) = (&self.store.clock, self.store.now());
        clock.learn(clock.at(now).saturating_sub(behind.as_micros() as u64), now);
    }

    /// How many channels are subscribed to.
    #[doc(hidden)]
    pub fn channels(&self) -> usize {
        self.store.hub.channels()
    }
}

#[async_trait]
impl LeaseBackend for RedisBackend {
    fn profile(&self) -> &Profile {
        &Self::PROFILE
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        Self::PROFILE.refuse(request)?;
        self.store.attempt(request).await.map_err(|e| e.with_name(&request.name))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        if renewals.is_empty() {
            return Vec::new();
        }
        self.store.renew_all(renewals).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        self.store.release(request).await.map_err(|e| e.with_name(&request.claim.name))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        const OP: &str = "inspect";
        let give_up = self.store.now() + self.store.config.op_timeout;
        let (namespace, mut seen) = self.store.look(OP, Purpose::Calls, &[name], give_up).await?;
        let seen = seen.pop().ok_or_else(|| strange(OP, Does::Read))??;
        Ok(seen.inspection(name.clone(), namespace))
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        Self::PROFILE.refuse(request)?;
        let store = &self.store;
        let channel = store.keys.of(&request.name).key(What::Channel);
        let give_up = store.now() + store.config.op_timeout;
        let seat = Hub::join(store, channel, give_up).await.map_err(|e| e.with_name(&request.name))?;
        Ok(Box::new(RedisWaiter::new(store, seat)))
    }

    fn facets(&self) -> Facets<'_> {
        let mut facets = Facets::default();
        facets.admin = Some(self);
        facets.fenced = Some(self);
        facets
    }

    async fn close(&self) {
        self.store.close();
    }
}
