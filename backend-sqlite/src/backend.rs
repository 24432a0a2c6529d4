//! Leases in a SQLite file: what is asked of the store, and in which order.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Contention, Durability, Effect, ErrorKind, Facets,
    Inspection, LeaseBackend, LeaseName, LostCause, Profile, ReleaseRequest, Released, RenewAnswer, Renewal,
    WaitMode, Waiter, async_trait,
};

use crate::core::{Counters, Store};
use crate::waiter::SqliteWaiter;
use crate::{SCHEME, SqliteConfig, upkeep};

/// How often an attempt is repeated when the name was freed, or the file replaced, between its statements.
const ROUNDS_MAX: usize = 4;

/// While SQLite writes a grant, its caller looks at the path: how old that look may be when the grant is answered.
/// What happens to the file after it is told by the next renewal, like what happens after the answer.
const OWN_LOOK_GOOD_FOR: Duration = Duration::from_millis(20);

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

    /// Walks over the next piece of the names and collects what nobody holds, as grants do now and then when it
    /// is much.
    #[doc(hidden)]
    pub async fn collect(&self) -> Result<(), BackendError> {
        let file = self.store.file("collect").await?;
        upkeep::pass(&self.store, &file, 0).await
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
        // A grant was written, but perhaps not to the file that others use.
        let mut discarded = false;
        for _ in 0..ROUNDS_MAX {
            let doubt = |e: BackendError| {
                let e = e.with_name(&request.name);
                if discarded { e.with_unknown_effect() } else { e }
            };
            let file = store.file_for_a_grant("acquire").await.map_err(doubt)?;
            let is_there = || store.is_there("acquire", &file);
            let mut attempt = pin!(store.attempt(&file, request, give_up));
            // Looked at while SQLite's thread writes.
            let mut looked = None;
            let answer = poll_fn(|cx| {
                let answer = attempt.as_mut().poll(cx);
                if answer.is_pending() && looked.is_none() {
                    looked = Some((store.now(), is_there()));
                }
                answer
            });
            match answer.await.map_err(doubt)? {
                Ok(grant) => {
                    let good = looked.filter(|(at, _)| store.now().since(*at) <= OWN_LOOK_GOOD_FOR);
                    // A grant in a file that is gone from its path excludes nobody.
                    if good.map_or_else(is_there, |(_, is_there)| is_there) {
                        upkeep::after_grant(store, &file);
                        return Ok(Attempt::Granted(grant));
                    }
                    discarded = true;
                }
                Err(Some(contention)) => return Ok(Attempt::Held(contention)),
                Err(None) => {}
            }
        }
        if discarded {
            let message = "the database file is being replaced again and again: ask again";
            let e = BackendError::new(ErrorKind::Unavailable, Effect::Unknown, SCHEME, "acquire", message);
            return Err(e.with_name(&request.name));
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
        let Ok(file) = store.recent_file("release")? else { return Ok(Released::AlreadyReleased) };
        if store.release(&file, request).await.map_err(|e| e.with_name(&claim.name))? {
            file.hub.wake(&claim.name);
            return Ok(Released::Released);
        }
        let look = store.look(&file, "release", &claim.name).boxed().await?;
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
