//! Who wakes the waiters: releases in this process, by name; commits of other processes, by a watch on the
//! directory.
//!
//! 1. All backends of one process on one file share a [`Hub`]; a release rings its name there.
//! 2. Every commit appends to the write-ahead log. The first waiter of a backend puts an inotify watch on the
//!    directory of the file (the log itself may be removed and made anew), and a task on the I/O runtime
//!    counts what happens to the log.
//! 3. A counted commit says that *something* was written: the waiter looks ([`crate::waiter`]).
//!
//! What can go wrong, and where it is handled:
//! * No watch can be had (limit of instances or watches), or it breaks: waiters look again after a pause, as
//!   they do anyway.
//! * The kernel drops events when nobody reads them (`Q_OVERFLOW`): counted as a commit.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use futures_util::future::select;
use leasehold_core::{BackendContext, LeaseName};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::file::Place;

/// The hubs of this process, by device and inode of their file.
type Hubs = HashMap<(u64, u64), Weak<Hub>>;

/// Waiters of one process on one file, by name.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<HashMap<LeaseName, watch::Sender<()>>>);

impl Hub {
    /// The hub of the file with this device and inode.
    pub(crate) fn of(file: (u64, u64)) -> Arc<Hub> {
        static HUBS: Mutex<Option<Hubs>> = Mutex::new(None);
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        let hubs = hubs.get_or_insert_default();
        if let Some(hub) = hubs.get(&file).and_then(Weak::upgrade) {
            return hub;
        }
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let hub = Arc::new(Hub::default());
        hubs.insert(file, Arc::downgrade(&hub));
        hub
    }

    /// Rings for the waiters of a name.
    pub(crate) fn wake(&self, name: &LeaseName) {
        if let Some(waiting) = self.names().get(name) {
            waiting.send_replace(());
        }
    }

    pub(crate) fn subscribe(&self, name: &LeaseName) -> watch::Receiver<()> {
        self.names().entry(name.clone()).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Forgets a name whose last waiter, the caller, is about to go.
    pub(crate) fn leave(&self, name: &LeaseName) {
        let mut names = self.names();
        if names.get(name).is_some_and(|waiting| waiting.receiver_count() <= 1) {
            names.remove(name);
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseName, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the commits on one file, from the first waiter on.
pub(crate) struct Commits {
    context: BackendContext,
    place: Place,
    /// None inside: no watch could be had.
    counted: OnceLock<Option<watch::Receiver<u64>>>,
}

impl Commits {
    pub(crate) fn new(context: &BackendContext, place: &Place) -> Self {
        Commits { context: context.clone(), place: place.clone(), counted: OnceLock::new() }
    }

    /// A receiver that changes with every commit from now on.
    pub(crate) fn subscribe(&self) -> Option<watch::Receiver<u64>> {
        let mut counted = self.counted.get_or_init(|| self.start().ok()).clone()?;
        counted.mark_unchanged();
        Some(counted)
    }

    fn start(&self) -> std::io::Result<watch::Receiver<u64>> {
        let directory = self.place.database.parent().unwrap_or(Path::new("/"));
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let interest = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        inotify::add_watch(&events, directory, interest | WatchFlags::ONLYDIR)?;
        let _runtime = self.context.io().enter();
        // Its successor is unsafe for the sake of values that swap their descriptor; an OwnedFd does not.
        #[allow(deprecated)]
        let events = AsyncFd::with_interest(events, Interest::READABLE)?;
        let (count, counted) = watch::channel(0);
        let names: Vec<Vec<u8>> = [self.place.database.file_name(), self.place.wal.file_name()]
            .into_iter()
            .flatten()
            .map(|name: &OsStr| name.as_bytes().to_vec())
            .collect();
        // Ends with the last receiver, or with the runtime.
        self.context.io().spawn(async move {
            let followed = pin!(follow(&events, &names, &count));
            select(pin!(count.closed()), followed).await;
        });
        Ok(counted)
    }
}

async fn follow(events: &AsyncFd<OwnedFd>, names: &[Vec<u8>], count: &watch::Sender<u64>) {
    while let Ok(mut ready) = events.readable().await {
        if is_written(events.get_ref(), names) {
            count.send_modify(|n| *n += 1);
        }
        ready.clear_ready();
    }
}

/// Reads what has happened; whether any of it concerns these files.
fn is_written(events: &OwnedFd, names: &[Vec<u8>]) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events, &mut buffer);
    let mut written = false;
    // Ends with WOULDBLOCK when there is no more.
    while let Ok(event) = reader.next() {
        written |= event.events().contains(ReadFlags::QUEUE_OVERFLOW)
            || event.file_name().is_some_and(|name| names.iter().any(|known| known == name.to_bytes()));
    }
    written
}
