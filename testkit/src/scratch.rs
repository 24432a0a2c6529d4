//! Directories that go away with the test.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// An empty directory on a local file system, removed on drop.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes one that its owner alone may enter.
    ///
    /// # Panics
    /// When the temporary directory is full or read-only: no test can run then.
    pub fn new() -> Self {
        Scratch(tempfile::Builder::new().prefix("leasehold-test-").tempdir().expect("a temporary directory"))
    }

    /// Makes one in memory where the machine has such a place (`/dev/shm`), for what a process writes
    /// while it is watched: a writer that waits for a disk can neither be stopped nor killed meanwhile.
    ///
    /// # Panics
    /// As [`Scratch::new`].
    pub fn in_memory() -> Self {
        let made = tempfile::Builder::new().prefix("leasehold-test-").tempdir_in("/dev/shm");
        made.map_or_else(|_| Self::new(), Scratch)
    }

    /// Makes one that every user may enter and list, but not write to.
    ///
    /// # Panics
    /// As [`Scratch::new`].
    pub fn readable_by_all() -> Self {
        let scratch = Self::new();
        set_mode(scratch.path(), 0o755).expect("own directory");
        scratch
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// What a file in it holds; empty when it is not there.
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        std::fs::read(self.join(name)).map_or_else(|_| String::new(), |b| String::from_utf8_lossy(&b).into())
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Sets the permission bits of a file or directory.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}
