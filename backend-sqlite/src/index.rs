//! The shared memory of a database, `-shm`: the locks of all its processes, and the index of its log.
//!
//! SQLite has one for all connections of a process to a file, and goes on with it when it is removed from its
//! path: even a new connection does, as long as an old one is open. Whoever comes by the path then has another
//! one, with another write lock.
//!
//! What can go wrong, and where it is handled:
//! * It is removed under the connections: [`Identity::compare`], as for the file itself.
//! * It is removed, and a backend of this process that has not noticed keeps it open: [`Index::of`].
//! * It is removed, and a connection of the program's own keeps it open: [`refuse_removed`].

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_core::{BackendError, ErrorKind};

use crate::error::refused;
use crate::file::{Identity, Place, companion};

/// By device and inode of the database.
type Open = HashMap<(u64, u64), Weak<Index>>;

/// Which shared memory the connections of this process have open, by device and inode. Kept as long as they are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index((u64, u64));

impl Index {
    /// That of a database that was just opened and read.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the connections cannot have the one that others find at the path.
    pub(crate) fn of(op: &'static str, place: &Place, opened: &Identity) -> Result<Arc<Index>, BackendError> {
        static OPEN: Mutex<Option<Open>> = Mutex::new(None);
        // Who has read has made it: if none is there, this process has a removed one.
        let Some(shm) = opened.shm else { return Err(removed(op, &place.shm)) };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        match open.get(&opened.database).and_then(Weak::upgrade) {
            Some(index) if index.0 == shm => Ok(index),
            Some(_) => Err(removed(op, &place.shm)),
            None => {
                open.retain(|_, index| index.strong_count() > 0);
                let index = Arc::new(Index(shm));
                open.insert(opened.database, Arc::downgrade(&index));
                Ok(index)
            }
        }
    }
}

/// Refuses to open a database anew while this process still has its removed shared memory open. `before` is what
/// the backend had open, and has closed.
///
/// # Errors
/// [`ErrorKind::Unavailable`].
pub(crate) fn refuse_removed(op: &'static str, place: &Place, before: &Identity) -> Result<(), BackendError> {
    // Another database has a shared memory of its own. Without /proc nobody can tell.
    let is_same = Identity::of(place).is_ok_and(|now| now.database == before.database);
    let Some(open) = fs::read_dir("/proc/self/fd").ok().filter(|_| is_same) else { return Ok(()) };
    let path = companion(&place.shm, " (deleted)");
    let is_open = open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|found| found == path));
    if is_open { Err(removed(op, &place.shm)) } else { Ok(()) }
}

fn removed(op: &'static str, shm: &Path) -> BackendError {
    let message = format!(
        "{shm:?} was removed or replaced while this program has it open by another connection: a lease granted here would exclude no other process. Nothing was granted. Close that connection, or start this program again"
    );
    refused(op, ErrorKind::Unavailable, message)
}
