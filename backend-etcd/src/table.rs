//! What this process holds, and the end of what it holds no more.
//!
//! Names that share an etcd lease live as long as any of them is renewed. So the end of each is the backend's work
//! (I11):
//!
//! 1. Every grant is an entry with its own end: anchor + granted ttl, moved by its own renewals alone.
//! 2. When the end has come, the sweeper deletes the key, comparing the revision of our last write: a key that somebody
//!    else has renewed or taken meanwhile is left alone.
//! 3. From that moment on the entry is *ending*: no renewal answers for it any more, whatever it saw before.
//! 4. A delete that cannot be confirmed is repeated; after half a ttl the whole chunk is retired, so that the etcd
//!    lease runs out. Its other names move to another lease with their next renewal, and keep their tokens.
//!
//! What can go wrong, and where it is handled:
//! * A renewal and the sweeper at once: whoever comes first under the table's lock wins.
//! * A release whose outcome is unknown: its entry ends at once, and the sweeper repeats the delete.
//! * The process stands still: the etcd lease runs out by itself.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use leasehold_core::{BackendContext, BootTime, LeaseName, OwnerId};
use tokio::sync::Notify;

use crate::chunk::{Chunk, Seat};
use crate::core::Store;
use crate::error::Does;

/// Deletes under way at once.
const DELETES_AT_ONCE: usize = 16;
/// Between two tries to delete.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The sweeper looks at least so often.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// A grant of this process.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: LeaseName,
    pub(crate) key: String,
    /// The revision that made the key.
    pub(crate) created: i64,
    /// The revision of our last write of it.
    pub(crate) modified: i64,
    pub(crate) seat: Seat,
    /// When it is over unless it is renewed.
    pub(crate) expires: BootTime,
    /// Nothing renews it any more.
    pub(crate) is_ending: bool,
}

/// All grants of this process, by owner.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Mutex<HashMap<OwnerId, Entry>>,
    changed: Notify,
}

/// What a renewal needs of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: String,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) is_ending: bool,
}

/// A key to be deleted.
#[derive(Debug)]
struct Due {
    owner: OwnerId,
    key: String,
    modified: i64,
    chunk: Arc<Chunk>,
    expires: BootTime,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, HashMap<OwnerId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a grant in, in the place of an earlier one of the same owner.
    pub(crate) fn put(&self, owner: OwnerId, entry: Entry) {
        let old = self.lock().insert(owner, entry);
        drop(old);
        self.changed.notify_one();
    }

    /// What is known of this owner's grant of this name.
    pub(crate) fn held(&self, owner: &OwnerId, name: &LeaseName) -> Option<Held> {
        let entries = self.lock();
        let entry = entries.get(owner).filter(|entry| entry.name == *name)?;
        Some(Held {
            key: entry.key.clone(),
            created: entry.created,
            modified: entry.modified,
            chunk: Arc::clone(&entry.seat.chunk),
            is_ending: entry.is_ending,
        })
    }

    /// Moves the end of a grant that was seen; false when it is over meanwhile, or was written anew.
    pub(crate) fn renewed(&self, owner: &OwnerId, modified: i64, expires: BootTime) -> bool {
        let mut entries = self.lock();
        match entries.get_mut(owner).filter(|entry| entry.modified == modified && !entry.is_ending) {
            Some(entry) => {
                entry.expires = entry.expires.max(expires);
                true
            }
            None => false,
        }
    }

    /// Marks the beginning of a release, or takes it back.
    pub(crate) fn mark_ending(&self, owner: &OwnerId, is_ending: bool) {
        if let Some(entry) = self.lock().get_mut(owner) {
            entry.is_ending = is_ending;
        }
    }

    /// The grant is over: the sweeper deletes what may be left.
    pub(crate) fn end_now(&self, owner: &OwnerId, now: BootTime) {
        if let Some(entry) = self.lock().get_mut(owner) {
            (entry.expires, entry.is_ending) = (now, false);
        }
        self.changed.notify_one();
    }

    /// Forgets a grant that is known to be gone.
    pub(crate) fn remove(&self, owner: &OwnerId) {
        let gone = self.lock().remove(owner);
        drop(gone);
    }

    /// As [`Table::remove`], unless it was written anew.
    fn remove_if(&self, owner: &OwnerId, modified: i64) {
        let mut entries = self.lock();
        if entries.get(owner).is_some_and(|entry| entry.modified == modified) {
            let gone = entries.remove(owner);
            drop(entries);
            drop(gone);
        }
    }

    /// Marks what is over at `now` as ending, and returns it, with the moment of the next end.
    fn due(&self, now: BootTime) -> (Vec<Due>, BootTime) {
        let (mut due, mut next) = (Vec::new(), now + LOOK_EVERY);
        for (owner, entry) in self.lock().iter_mut().filter(|(_, entry)| !entry.is_ending) {
            if entry.expires > now {
                next = next.min(entry.expires);
                continue;
            }
            entry.is_ending = true;
            due.push(Due {
                owner: *owner,
                key: entry.key.clone(),
                modified: entry.modified,
                chunk: Arc::clone(&entry.seat.chunk),
                expires: entry.expires,
            });
        }
        (due, next)
    }

    /// Wakes the sweeper.
    pub(crate) fn ring(&self) {
        self.changed.notify_one();
    }
}

/// Ends what is over, until the backend is gone.
pub(crate) async fn sweep(store: Weak<Store>, table: Arc<Table>, context: BackendContext) {
    loop {
        let Some(strong) = store.upgrade().filter(|store| !store.link.is_closed()) else { return };
        let (due, next) = table.due(strong.link.now());
        drop(strong);
        if !due.is_empty() && !leasehold_core::mutant!(EtcdEndedNameStays) {
            let store = Weak::clone(&store);
            let ends = futures_util::stream::iter(due)
                .for_each_concurrent(DELETES_AT_ONCE, move |due| end(Weak::clone(&store), due));
            drop(context.io().spawn(ends));
        }
        match select(pin!(table.changed.notified()), context.sleep_until(next)).await {
            // The watchdog has stopped: the etcd leases are the end.
            Either::Right(_) if context.now() < next => return,
            _ => {}
        }
    }
}

/// Deletes one key whose time is over.
async fn end(store: Weak<Store>, due: Due) {
    const OP: &str = "end";
    let last = due.expires + due.chunk.granted / 2;
    let mut pause = PAUSE_MIN;
    loop {
        let Some(store) = store.upgrade() else { return };
        let link = &store.link;
        let txn = Txn::new()
            .when([Compare::mod_revision(due.key.as_str(), CompareOp::Equal, due.modified)])
            .and_then([TxnOp::delete(due.key.as_str(), None)]);
        let give_up = link.give_up(due.chunk.granted);
        let is_kept = store.keeps_ends.load(Ordering::Relaxed);
        let deleting =
            link.call(OP, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
        if !is_kept && deleting.await.is_ok() {
            // Gone, or not ours any more.
            return store.table.remove_if(&due.owner, due.modified);
        }
        let now = link.now();
        if now >= last {
            due.chunk.retire();
            return store.table.remove_if(&due.owner, due.modified);
        }
        let until = now + pause;
        pause = (pause * 2).min(PAUSE_MAX);
        link.context.sleep_until(until).await;
        if link.now() < until {
            // The watchdog has stopped: the etcd lease is the end.
            return;
        }
    }
}
