//! What all clones of a backend share, and the reads that several calls make.
//!
//! An attempt that was given up may still be on its way to the servers, and a release must not overtake it (I7). So
//! attempts of unknown outcome are remembered by their owner; the release of such an owner first writes a tombstone
//! (`PREFIX/gone/…`), which every attempt's transaction compares: whatever arrives later is refused.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{KeyValue, PutOptions};
use leasehold_core::{
    BackendContext, BackendError, BootTime, Contention, HolderView, LeaseName, LostCause, OwnerId, Token,
};

use crate::EtcdConfig;
use crate::chunk::{Pool, grant};
use crate::error::{Does, exhausted};
use crate::keys::Keys;
use crate::link::Link;
use crate::record::{Note, Record, corrupt};
use crate::table::{Table, sweep};
use crate::tokens::{Tokens, guard};

/// How long notes and tombstones live: longer than anything is under way.
pub(crate) const ASIDE_TTL_S: u64 = 120;
/// Attempts of unknown outcome that are remembered; above it the oldest are forgotten.
const UNCLEAR_MAX: usize = 4096;
/// How long they are.
const UNCLEAR_FOR: Duration = Duration::from_secs(ASIDE_TTL_S);
/// How often a call looks and writes while others change the same key in between.
pub(crate) const TRIES_MAX: usize = 5;

/// What all clones of a backend share.
pub(crate) struct Store {
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Keys,
    pub(crate) tokens: Tokens,
    pub(crate) pool: Pool,
    pub(crate) table: Arc<Table>,
    /// Owners with an attempt under way (none), or of unknown outcome since then.
    unclear: Mutex<HashMap<OwnerId, Option<BootTime>>>,
    /// For tests: ends are not carried out, as if their answers were lost.
    pub(crate) keeps_ends: std::sync::atomic::AtomicBool,
    /// Tells waiters that the backend is closed.
    pub(crate) closing: tokio::sync::watch::Sender<bool>,
}

/// A key and what stands in it.
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) token: Token,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

impl Store {
    /// Connects, and looks at the tokens' base.
    pub(crate) async fn connect(
        config: EtcdConfig,
        context: BackendContext,
    ) -> Result<Arc<Self>, BackendError> {
        let keys = Keys::new(&config.prefix);
        let link = Link::connect(config, context.clone()).await?;
        let store = Arc::new(Store {
            tokens: Tokens::new(keys.meta()),
            keys,
            pool: Pool::default(),
            table: Arc::default(),
            unclear: Mutex::default(),
            keeps_ends: std::sync::atomic::AtomicBool::new(false),
            closing: tokio::sync::watch::Sender::new(false),
            link,
        });
        let (tell, opened) = tokio::sync::oneshot::channel();
        drop(context.io().spawn(guard(Arc::downgrade(&store), context.clone(), tell)));
        let give_up = store.link.now() + store.link.config.connect_timeout;
        // An error means that there is no watch yet: grants look first, then.
        let _ = futures_util::future::select(opened, context.sleep_until(give_up)).await;
        let give_up = store.link.now() + store.link.config.connect_timeout;
        store.tokens.known(&store.link, "connect", None, give_up).await?;
        let sweeper = sweep(Arc::downgrade(&store), Arc::clone(&store.table), context.clone());
        drop(context.io().spawn(sweeper));
        Ok(store)
    }

    fn unclear(&self) -> MutexGuard<'_, HashMap<OwnerId, Option<BootTime>>> {
        self.unclear.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt of this owner begins.
    pub(crate) fn asking(&self, owner: OwnerId) -> Asking<'_> {
        let now = self.link.now();
        let mut unclear = self.unclear();
        if unclear.len() >= UNCLEAR_MAX {
            unclear.retain(|_, since| since.is_none_or(|since| now < since + UNCLEAR_FOR));
        }
        if unclear.len() >= UNCLEAR_MAX
            && let Some(oldest) =
                unclear.iter().filter_map(|(owner, since)| Some((*since.as_ref()?, *owner))).min()
        {
            unclear.remove(&oldest.1);
        }
        unclear.insert(owner, None);
        Asking { store: self, owner, is_settled: false }
    }

    /// Whether an attempt of this owner may still arrive.
    pub(crate) fn is_unclear(&self, owner: &OwnerId) -> bool {
        self.unclear().contains_key(owner)
    }

    /// Nothing of this owner can arrive any more.
    pub(crate) fn settled(&self, owner: &OwnerId) {
        self.unclear().remove(owner);
    }

    /// Writes the tombstone of an owner: from here on its attempts are refused.
    pub(crate) async fn bury(
        &self,
        op: &'static str,
        owner: &OwnerId,
        give_up: BootTime,
    ) -> Result<(), BackendError> {
        let link = &self.link;
        let (lease, _) = grant(link, op, ASIDE_TTL_S, give_up).await?;
        let options = PutOptions::new().with_lease(lease);
        let put = link.call(op, Does::Write, give_up, async {
            link.client().kv_client().put(self.keys.gone(owner), "", Some(options)).await
        });
        // A tombstone ends nothing: if it was not written, the grant is as it was.
        put.await.map(drop).map_err(|failure| failure.into_error(op))
    }

    /// The record of a name, read from a majority.
    pub(crate) async fn read(
        &self,
        op: &'static str,
        name: &LeaseName,
        give_up: BootTime,
    ) -> Result<Option<Found>, BackendError> {
        let link = &self.link;
        let read = link.call(op, Does::Read, give_up, async {
            link.client().kv_client().get(self.keys.lease(name), None).await
        });
        let read = read.await.map_err(|failure| failure.into_error(op))?;
        read.kvs().first().map(|kv| found(op, kv)).transpose()
    }

    /// Why a grant is gone that was not found. That it is gone is known: a look that fails changes the words alone.
    pub(crate) async fn cause(
        &self,
        op: &'static str,
        name: &LeaseName,
        token: Option<Token>,
        other: Option<HolderView>,
        give_up: BootTime,
    ) -> LostCause {
        let link = &self.link;
        let read = link.call(op, Does::Read, give_up, async {
            link.client().kv_client().get(self.keys.note(name), None).await
        });
        let note = match read.await {
            Ok(read) => read.kvs().first().and_then(|kv| Note::from_text(kv.value())),
            Err(_) => None,
        };
        match note.filter(|note| token.is_none_or(|token| token == note.token)) {
            Some(note) => note.cause(),
            None => other.as_ref().map_or(LostCause::ExpiredInStore, LostCause::taken),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The sweeper sleeps without a hold on the store.
        self.table.ring();
    }
}

impl Found {
    /// The holder as others may see it.
    pub(crate) fn view(&self) -> Option<HolderView> {
        let mut view = self.record.view(self.token)?;
        view.remaining = Some(self.ttl());
        Some(view)
    }

    /// How long the name stays taken at most unless somebody renews.
    fn ttl(&self) -> Duration {
        Duration::from_secs(self.record.ttl_s)
    }

    pub(crate) fn contention(&self) -> Contention {
        Contention::new(self.view(), Some(self.ttl()))
    }
}

/// Reads a key.
pub(crate) fn found(op: &'static str, kv: &KeyValue) -> Result<Found, BackendError> {
    let record = Record::from_text(kv.value()).ok_or_else(|| corrupt(op, "key of the lease"))?;
    let token = record.token(kv.create_revision()).map_err(|_| exhausted(op))?;
    Ok(Found { record, token, created: kv.create_revision(), modified: kv.mod_revision(), lease: kv.lease() })
}

/// An attempt under way. Unless it is settled when it is dropped, its outcome is unknown.
pub(crate) struct Asking<'a> {
    store: &'a Store,
    owner: OwnerId,
    is_settled: bool,
}

impl Asking<'_> {
    pub(crate) fn settled(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut unclear = self.store.unclear();
        if self.is_settled {
            unclear.remove(&self.owner);
        } else {
            unclear.insert(self.owner, Some(self.store.link.now()));
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("link", &self.link).finish_non_exhaustive()
    }
}
