//! Leases in a SQLite file: what is asked of the store, and in which order.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Contention, Durability, Facets, Inspection,
    LeaseBackend, LeaseName, LostCause, Profile, ReleaseRequest, Released, RenewAnswer, Renewal, WaitMode,
    Waiter, async_trait,
};

use crate::core::{Counters, Store};
use crate::waiter::SqliteWaiter;
use crate::{SCHEME, SqliteConfig, upkeep};

/// How often an attempt is repeated when the name was freed, or the file replaced, between its statements.
const ROUNDS_MAX: usize = 4;

/// Leases in a SQLite file. Clones share its connections.
///
/// # Contract
/// * An uncontended acquire and a release are one statement each, and so is a batch of renewals.
/// * A grant is on the disk when it is returned.
/// * A future that is dropped leaves at most one statement under way, and whatever is asked next stands behind
///   it.
#[derive(Clone, Debug)]
pub struct SqliteBackend {
    pub(crate) store: Arc<Store>,
}

impl SqliteBackend {
    /// The profile of every SQLite backend.
    pub const PROFILE: Profile = Profile::new(SCHEME)
        .with_ttl_range(
            Duration::from_millis(100),
            Duration::from_secs(366 * 24 * 3600),
            Duration::from_micros(1),
        )
        .with_margin(Duration::from_millis(1))
        .with_batch_max(500)
        .with_wait(WaitMode::Notify)
        .with_durability(Durability::Disk);

    /// Opens the file, and makes or migrates its tables where the configuration allows.
    ///
    /// # Errors
    /// | kind | when |
    /// |---|---|
    /// | [`ConfigInvalid`](leasehold_core::ErrorKind::ConfigInvalid) | the path, the file system, the tables or a setting are wrong |
    /// | [`PermissionDenied`](leasehold_core::ErrorKind::PermissionDenied) | file or directory may not be written |
    /// | [`Unavailable`](leasehold_core::ErrorKind::Unavailable) | the file was busy, the disk full, or the file is being replaced |
    /// | [`Closed`](leasehold_core::ErrorKind::Closed) | the watchdog behind `context` has stopped |
    ///
    /// # Cancel safety
    /// May leave a file with complete tables, or an empty one.
    pub async fn connect(config: SqliteConfig, context: BackendContext) -> Result<Self, BackendError> {
        config.validate()?;
        Ok(SqliteBackend { store: Store::open(config, context, None).await? })
    }

    /// As [`SqliteBackend::connect`], under the clock id of another machine or container, for tests.
    #[doc(hidden)]
    pub async fn connect_with_clock_id(
        config: SqliteConfig,
        context: BackendContext,
        clock_id: String,
    ) -> Result<Self, BackendError> {
        config.validate()?;
        Ok(SqliteBackend { store: Store::open(config, context, Some(clock_id)).await? })
    }

    /// How many statements were sent so far.
    #[doc(hidden)]
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// Walks over the next piece of the names and collects what nobody holds, as grants do now and then.
    #[doc(hidden)]
    pub async fn collect(&self) -> Result<(), BackendError> {
        let file = self.store.file("collect").await?;
        upkeep::pass(&self.store, &file).await
    }

    /// The id of the clock that rows are dated by.
    #[doc(hidden)]
    pub fn clock_id(&self) -> &str {
        &self.store.clock_id
    }
}

#[async_trait]
impl LeaseBackend for SqliteBackend {
    fn profile(&self) -> &Profile {
        &Self::PROFILE
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        Self::PROFILE.refuse(request)?;
        let store = &self.store;
        let give_up = store.give_up(Some(request.store_ttl));
        for _ in 0..ROUNDS_MAX {
            let file = store.file("acquire").await?;
            match store.attempt(&file, request, give_up).await.map_err(|e| e.with_name(&request.name))? {
                Ok(grant) => {
                    // A grant in a file that is gone from its path excludes nobody.
                    if matches!(store.same_file("acquire"), Ok(Ok(same)) if Arc::ptr_eq(&same, &file)) {
                        upkeep::after_grant(store, &file);
                        return Ok(Attempt::Granted(grant));
                    }
                }
                Err(Some(contention)) => return Ok(Attempt::Held(contention)),
                Err(None) => {}
            }
        }
        Ok(Attempt::Held(Contention::new(None, Some(Duration::from_millis(1)))))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        match self.store.same_file("renew") {
            Ok(Ok(file)) => self.store.renew_all(&file, renewals).await,
            Ok(Err(what)) => {
                let lost = || RenewAnswer::Lost(LostCause::StoreForgot { detail: what.to_owned() });
                renewals.iter().map(|_| Ok(lost())).collect()
            }
            Err(e) => renewals.iter().map(|r| Err(e.clone().with_name(&r.claim.name))).collect(),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        let (store, claim) = (&self.store, &request.claim);
        // The grant has gone with its file.
        let Ok(file) = store.same_file("release")? else { return Ok(Released::AlreadyReleased) };
        if store.release(&file, request).await.map_err(|e| e.with_name(&claim.name))? {
            file.hub.wake(&claim.name);
            return Ok(Released::Released);
        }
        let look = store.look(&file, "release", &claim.name).await?;
        match look.contention(&store.clock_id, store.now()).and_then(|seen| seen.holder) {
            Some(by) => Ok(Released::NotHeld { by: Some(by) }),
            None => Ok(Released::AlreadyReleased),
        }
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let file = self.store.file("inspect").await?;
        let look = self.store.look(&file, "inspect", name).await?;
        Ok(look.inspection(name.clone(), &self.store.clock_id, self.store.now()))
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        Self::PROFILE.refuse(request)?;
        let file = self.store.file("waiter").await?;
        Ok(Box::new(SqliteWaiter::new(&self.store, file, &request.name)))
    }

    fn facets(&self) -> Facets<'_> {
        let mut facets = Facets::default();
        facets.admin = Some(self);
        facets.fenced = Some(self);
        facets
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
