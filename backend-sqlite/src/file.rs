//! The file behind the path: making it, judging it, and noticing that it is another one now.
//!
//! Nothing here opens the database file: closing any descriptor of it would drop the locks that SQLite holds
//! on it in this process (<https://www.sqlite.org/howtocorrupt.html>, 2.2). It is made with mknod, looked at with
//! stat, and held by a descriptor that opens nothing ([`Handle`]).
//!
//! What can go wrong, and where it is handled:
//! * Locks and shared memory that do not work between machines: [`refuse_fs`], an allow-list.
//! * Two names of one file have two `-wal` files: hard links and files that are mount points are refused, and
//!   symbolic links are resolved once, when the file is opened.
//! * The file, its `-wal` or its `-shm` is removed or replaced under the connections: [`Identity::compare`],
//!   before the calls and with each grant.
//! * The `-shm` is gone, and another connection of this process keeps the removed one in use: [`crate::index`].
//! * The directory is moved away for a while: [`find`] makes one for the first connection only. One that is made
//!   by a waiter would be in the way when the first comes back.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use leasehold_core::{BackendError, ErrorKind};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, accessat, mknodat,
    statfs, statx,
};

use crate::error::refused;
use crate::{SchemaMode, SqliteConfig};

/// File systems whose locks and shared memory work among the processes of one machine.
const LOCAL: &[(u64, &str)] = &[
    (0xef53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x5265_4973, "reiserfs"),
    (0x3153_464a, "jfs"),
    (0x3434, "nilfs2"),
];

/// File systems that are refused by name; any other is refused by number.
const REFUSED: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0xf15f, "eCryptfs"),
];

/// A database's path and those of its companions.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) database: PathBuf,
    pub(crate) wal: PathBuf,
    pub(crate) shm: PathBuf,
}

impl Place {
    pub(crate) fn new(database: PathBuf) -> Self {
        let (wal, shm) = (companion(&database, "-wal"), companion(&database, "-shm"));
        Place { database, wal, shm }
    }
}

/// Which file the connections have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Device and inode of the database.
    pub(crate) database: (u64, u64),
    /// Device and inode of its write-ahead log, where the newest commits are.
    wal: Option<(u64, u64)>,
    /// Device and inode of the shared memory, where the locks are and the index of the log.
    pub(crate) shm: Option<(u64, u64)>,
}

/// What a path shows, compared with what the connections have open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Same,
    /// What was seen instead, for a person.
    Changed(&'static str),
}

/// A hold on the database that opens nothing (`O_PATH`), so that its end drops none of SQLite's locks
/// (`filp_close` in Linux leaves them alone): it tells the number of names, without a walk along the path.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    /// Of the file that `identity` tells of; none when another one is at the path.
    pub(crate) fn of(place: &Place, identity: &Identity) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = Handle(rustix::fs::openat(CWD, &place.database, flags, Mode::empty())?);
        let seen = handle.see()?;
        Ok((seen.file == identity.database).then_some(handle))
    }

    /// Whether the file is there under one name: it was neither removed, nor replaced, nor linked.
    pub(crate) fn has_one_name(&self) -> bool {
        self.see().is_ok_and(|seen| seen.links == 1)
    }

    fn see(&self) -> io::Result<Seen> {
        Ok(Seen::of(&statx(&self.0, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::NLINK)?))
    }
}

/// Device, inode and number of names of what is at a path.
#[derive(Clone, Copy, Debug)]
struct Seen {
    file: (u64, u64),
    links: u64,
}

impl Seen {
    fn of(seen: &Statx) -> Self {
        let device = u64::from(seen.stx_dev_major) << 32 | u64::from(seen.stx_dev_minor);
        Seen { file: (device, seen.stx_ino), links: u64::from(seen.stx_nlink) }
    }
}

/// Looks at a path; none when there is nothing.
///
/// Asks for no times: a kernel with fine-grained timestamps (6.13) would write the inode anew with the next commit
/// to the file, which makes that commit half as slow again.
fn see(path: &Path) -> io::Result<Option<Seen>> {
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO | StatxFlags::NLINK) {
        Ok(seen) => Ok(Some(Seen::of(&seen))),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn gone() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Identity {
    /// What is there now.
    pub(crate) fn of(place: &Place) -> io::Result<Self> {
        let database = see(&place.database)?.ok_or_else(gone)?.file;
        let inode = |path| see(path).map(|seen| seen.map(|seen| seen.file));
        Ok(Identity { database, wal: inode(&place.wal)?, shm: inode(&place.shm)? })
    }

    /// Compares with what is there now: three stat calls.
    ///
    /// # Errors
    /// When the path cannot be looked at, or the file has got a second name.
    pub(crate) fn compare(&self, place: &Place, op: &'static str) -> Result<Compared, BackendError> {
        let path = &place.database;
        let Some(seen) = see(path).map_err(|e| unreadable(op, path, &e))? else {
            return Ok(Compared::Changed("the database file was removed"));
        };
        if seen.file != self.database {
            return Ok(Compared::Changed("another file is at the path of the database now"));
        }
        refuse_links(op, path, seen.links)?;
        let inode = |path| match see(path) {
            Ok(seen) => Ok(seen.map(|seen| seen.file)),
            Err(e) => Err(unreadable(op, path, &e)),
        };
        if inode(&place.wal)? != self.wal {
            return Ok(Compared::Changed("the database's write-ahead log (-wal) was removed or replaced"));
        }
        if inode(&place.shm)? != self.shm {
            // Processes with two of them have two write locks.
            return Ok(Compared::Changed("the database's shared memory (-shm) was removed or replaced"));
        }
        Ok(Compared::Same)
    }
}

/// Refuses a database that was put at the place of another one whose log is still there: SQLite would take the
/// log for the new file's own and mix the two. An empty file is none: SQLite drops the log then.
pub(crate) fn refuse_stale_log(
    op: &'static str,
    place: &Place,
    before: &Identity,
) -> Result<(), BackendError> {
    let path = &place.database;
    let file = fs::symlink_metadata(path).map_err(|e| unreadable(op, path, &e))?;
    let now = Identity::of(place).map_err(|e| unreadable(op, path, &e))?;
    if file.size() == 0 || now.wal.is_none() || now.wal != before.wal || now.database == before.database {
        return Ok(());
    }
    let message = format!(
        "{path:?} was replaced while the log of the file before it was left beside it: SQLite would mix the two. Stop every user of the file, remove {:?} and the -shm file, and start again",
        place.wal
    );
    Err(refused(op, ErrorKind::Corrupt, message))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The path with `suffix` at its end.
pub(crate) fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

fn unreadable(op: &'static str, path: &Path, error: &io::Error) -> BackendError {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::InvalidFilename => ErrorKind::ConfigInvalid,
        _ if is_loop(error) => ErrorKind::ConfigInvalid,
        _ => ErrorKind::Unavailable,
    };
    let advice = match kind {
        _ if is_loop(error) => "Its symbolic links lead in a circle: give another path",
        ErrorKind::Unavailable => "Look at the disk, and at the limit of open files (ulimit -n)",
        _ => "Look at the path and at its rights",
    };
    refused(op, kind, format!("{path:?} cannot be used: {error}. {advice}"))
}

/// Symbolic links that lead in a circle.
fn is_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

fn refuse_links(op: &'static str, path: &Path, links: u64) -> Result<(), BackendError> {
    if links <= 1 {
        return Ok(());
    }
    let message = format!(
        "{path:?} has {links} names (hard links): a process that opens it by another one would have a log of its own and see none of these leases. Remove the other names"
    );
    Err(refused(op, ErrorKind::ConfigInvalid, message))
}

/// Which opening it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Of this backend: what is missing may be made.
    First,
    /// After the file was removed or replaced: the directory is to be there.
    Again,
}

/// Finds the file that `config` names, makes it where that is wanted, and refuses what cannot be shared
/// safely. Returns its path without symbolic links.
pub(crate) fn find(
    config: &SqliteConfig,
    op: &'static str,
    opening: Opening,
) -> Result<PathBuf, BackendError> {
    let given = &config.path;
    let absolute = std::path::absolute(given).map_err(|e| unreadable(op, given, &e))?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(refused(op, ErrorKind::ConfigInvalid, format!("{given:?} has no file name")));
    };
    let may_make = config.schema == SchemaMode::Auto;
    if opening == Opening::Again && matches!(directory.try_exists(), Ok(false)) {
        let message = format!(
            "the directory {directory:?} was removed or moved away: nothing was asked of the store. Put it back, or start anew to make another"
        );
        return Err(refused(op, ErrorKind::Unavailable, message));
    }
    if may_make && opening == Opening::First {
        // Only what is missing is made, and only that gets these rights.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|e| match (e.kind(), fs::metadata(directory)) {
            (_, Err(e)) if is_loop(&e) => unreadable(op, directory, &e),
            // What is there is none, or a link that leads to none.
            (io::ErrorKind::AlreadyExists, _) => {
                let message = format!(
                    "{directory:?} is no directory, or a symbolic link that leads nowhere: make the directory, or give another path"
                );
                refused(op, ErrorKind::ConfigInvalid, message)
            }
            _ => unreadable(op, directory, &e),
        })?;
    }
    let directory =
        fs::canonicalize(directory).map_err(|e| missing_or_unreadable(op, given, may_make, &e))?;
    let path = match fs::canonicalize(directory.join(name)) {
        Ok(path) => path,
        Err(e) if is_gone(&e) && may_make => {
            make(op, &directory.join(name))?;
            fs::canonicalize(directory.join(name)).map_err(|e| unreadable(op, given, &e))?
        }
        Err(e) => return Err(missing_or_unreadable(op, given, may_make, &e)),
    };
    if path.to_str().is_none() {
        return Err(refused(
            op,
            ErrorKind::ConfigInvalid,
            format!("{path:?} is not UTF-8: give another path"),
        ));
    }
    judge(config, op, &path)?;
    Ok(path)
}

fn missing_or_unreadable(op: &'static str, path: &Path, may_make: bool, e: &io::Error) -> BackendError {
    if is_gone(e) && !may_make {
        let message =
            format!("{path:?} does not exist, and schema=refuse forbids making it: run `leasehold init`");
        return refused(op, ErrorKind::ConfigInvalid, message);
    }
    unreadable(op, path, e)
}

/// Makes an empty file with rights for its owner only. SQLite gives its companions the same rights.
fn make(op: &'static str, path: &Path) -> Result<(), BackendError> {
    let rights = Mode::RUSR | Mode::WUSR;
    match mknodat(CWD, path, FileType::RegularFile, rights, 0) {
        // Somebody else was faster.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(unreadable(op, path, &e.into())),
    }
}

fn judge(config: &SqliteConfig, op: &'static str, path: &Path) -> Result<(), BackendError> {
    let file = fs::symlink_metadata(path).map_err(|e| unreadable(op, path, &e))?;
    if !file.is_file() {
        let what = if file.is_dir() { "a directory" } else { "no regular file" };
        let message = format!("{path:?} is {what}: give the path of a database file");
        return Err(refused(op, ErrorKind::ConfigInvalid, message));
    }
    refuse_links(op, path, file.nlink())?;
    if !config.allow_network_fs {
        let magic = match config.fs_magic {
            Some(magic) => magic,
            // The numbers are 32 bits wide; the field's sign depends on the machine.
            None => statfs(path).map_err(|e| unreadable(op, path, &e.into()))?.f_type as u64 & 0xffff_ffff,
        };
        refuse_fs(op, path, magic)?;
    }
    refuse_mount_point(op, path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    for (what, access) in
        [(path, Access::READ_OK | Access::WRITE_OK), (directory, Access::WRITE_OK | Access::EXEC_OK)]
    {
        accessat(CWD, what, access, AtFlags::EACCESS).map_err(|e| {
            let kind = match e {
                rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::ROFS => {
                    ErrorKind::PermissionDenied
                }
                _ => ErrorKind::Unavailable,
            };
            let message = format!(
                "{what:?} may not be written by this user ({e}): the database, its companions -wal and -shm, and their directory must be writable"
            );
            refused(op, kind, message)
        })?;
    }
    Ok(())
}

fn refuse_fs(op: &'static str, path: &Path, magic: u64) -> Result<(), BackendError> {
    if LOCAL.iter().any(|(known, _)| *known == magic) {
        return Ok(());
    }
    let name = REFUSED
        .iter()
        .find(|(known, _)| *known == magic)
        .map_or_else(|| format!("of an unknown kind ({magic:#x})"), |(_, name)| (*name).to_owned());
    let message = format!(
        "{path:?} lies on a file system that is {name}: SQLite's locks and shared memory are only known to work on local ones. Put the file on a local disk, or choose a server store. allow_network_fs=1 opens it all the same and gives every guarantee up"
    );
    Err(refused(op, ErrorKind::ConfigInvalid, message))
}

/// A file that was bind-mounted by itself has another directory, hence another log, at each of its paths.
fn refuse_mount_point(op: &'static str, path: &Path) -> Result<(), BackendError> {
    // Kernels before 5.8 do not tell.
    let Ok(seen) = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) else {
        return Ok(());
    };
    let is_told = seen.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    if is_told && seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        let message = format!(
            "{path:?} is a mount point by itself: a process that opens the file by its other path would have a log of its own. Mount its directory instead"
        );
        return Err(refused(op, ErrorKind::ConfigInvalid, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_file_systems_pass_and_others_are_named() {
        let path = Path::new("/x/leases.db");
        for (magic, _) in LOCAL {
            assert!(refuse_fs("connect", path, *magic).is_ok());
        }
        for (magic, name) in REFUSED {
            let error = refuse_fs("connect", path, *magic).expect_err("refused");
            assert!(error.message().contains(name), "{error}");
            assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
        }
        let error = refuse_fs("connect", path, 0xdead_beef).expect_err("refused");
        assert!(error.message().contains("0xdeadbeef"), "{error}");
    }
}
