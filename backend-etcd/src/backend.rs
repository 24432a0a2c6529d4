//! Leases on etcd: what is asked of the store, and in which order.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Declared, Durability, Facets, Inspection,
    LeaseBackend, LeaseName, Profile, ReleaseRequest, Released, RenewAnswer, Renewal, TokenSource, TtlChange,
    WaitMode, Waiter, async_trait,
};

use crate::chunk::revoke;
use crate::core::Store;
use crate::waiter::EtcdWaiter;
use crate::{EtcdConfig, SCHEME};

/// Leases on an etcd cluster. Clones share its connection.
///
/// # Contract
/// * An uncontended acquire and a release are one transaction each: one replicated write.
/// * All names of one ttl share etcd leases; a renewal of all of them is a keep-alive and a read.
/// * A grant's deadline is counted from the lease's last acknowledged keep-alive.
/// * A future that is dropped leaves at most one request under way.
#[derive(Clone, Debug)]
pub struct EtcdBackend {
    pub(crate) store: Arc<Store>,
}

impl EtcdBackend {
    /// The profile of every etcd backend.
    pub const PROFILE: Profile = {
        let mut profile = Profile::new(SCHEME)
            // Stock servers keep no lease shorter than 2 s, and count in whole seconds.
            .with_ttl_range(
                Duration::from_secs(2),
                Duration::from_secs(30 * 24 * 3600),
                Duration::from_secs(1),
            )
            // Servers count by a monotonic clock, round up, and end leases late rather than early.
            .with_margin(Duration::from_millis(5))
            .with_batch_max(512)
            .with_wait(WaitMode::Notify)
            .with_durability(Durability::Replicated)
            .with_keep_for(Declared::Yes);
        profile.token = TokenSource::Native;
        profile.ttl_change = TtlChange::Move;
        profile
    };

    /// Connects to the cluster, and makes the key of the tokens where it is missing.
    ///
    /// # Errors
    /// | kind | when |
    /// |---|---|
    /// | [`ConfigInvalid`](leasehold_core::ErrorKind::ConfigInvalid) | a setting is wrong; certificates cannot be read |
    /// | [`PermissionDenied`](leasehold_core::ErrorKind::PermissionDenied) | the login is refused, or lacks a right under the prefix |
    /// | [`Unavailable`](leasehold_core::ErrorKind::Unavailable), [`Timeout`](leasehold_core::ErrorKind::Timeout) | nobody listens there, there is no leader, the database is full |
    /// | [`Corrupt`](leasehold_core::ErrorKind::Corrupt) | the key of the tokens holds something else |
    /// | [`Closed`](leasehold_core::ErrorKind::Closed) | the watchdog behind `context` has stopped |
    ///
    /// # Cancel safety
    /// At most the key of the tokens is written.
    pub async fn connect(config: EtcdConfig, context: BackendContext) -> Result<Self, BackendError> {
        Ok(EtcdBackend { store: Store::connect(config, context).await? })
    }

    /// How many calls were made so far, and how many clients.
    #[doc(hidden)]
    pub fn counters(&self) -> (u64, u64) {
        (self.store.link.calls(), self.store.link.generation())
    }

    /// Deletes nothing any more whose time is over, as if each delete failed, for tests.
    #[doc(hidden)]
    pub fn keep_ends(&self, keeps: bool) {
        self.store.keeps_ends.store(keeps, std::sync::atomic::Ordering::Relaxed);
    }
}

#[async_trait]
impl LeaseBackend for EtcdBackend {
    fn profile(&self) -> &Profile {
        &Self::PROFILE
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        Self::PROFILE.refuse(request)?;
        self.store.acquire(request).await.map_err(|e| e.with_name(&request.name))
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
        self.store.inspect(name).await.map_err(|e| e.with_name(name))
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        Self::PROFILE.refuse(request)?;
        let waiter = EtcdWaiter::new(&self.store, &request.name).await;
        Ok(Box::new(waiter.map_err(|e| e.with_name(&request.name))?))
    }

    fn facets(&self) -> Facets<'_> {
        let mut facets = Facets::default();
        facets.admin = Some(self);
        facets.fenced = Some(self);
        facets
    }

    async fn close(&self) {
        const OP: &str = "close";
        let store = &self.store;
        if store.link.is_closed() {
            return;
        }
        // What nobody is on is given back; what is held stays, and runs out by itself.
        let give_up = store.link.give_up(Duration::MAX);
        for lease in store.pool.idle().await {
            revoke(&store.link, OP, lease, give_up).await;
        }
        store.link.close();
        store.closing.send_replace(true);
        store.table.ring();
    }
}
