//! Native errors and what they mean for a lease.

use leasehold_core::{BackendError, Effect, ErrorKind};

use crate::SCHEME;

/// Result codes of SQLite (<https://www.sqlite.org/rescode.html>).
mod code {
    pub(super) const ERROR: i32 = 1;
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const CONSTRAINT: i32 = 19;
    pub(super) const NOTADB: i32 = 26;
    pub(super) const CONSTRAINT_NOTNULL: i32 = 1299;
    pub(super) const IOERR_SHORT_READ: i32 = 522;
    pub(super) const IOERR_WRITE: i32 = 778;
    pub(super) const IOERR_SHMSIZE: i32 = 4874;
}

/// The extended result code, where SQLite itself answered.
pub(crate) fn native_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Whether somebody else's work is all that stands in the way.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    native_code(error).is_some_and(|c| matches!(c & 0xff, code::BUSY | code::LOCKED | code::PROTOCOL))
}

/// Whether the statement found no token to write.
pub(crate) fn is_without_token(error: &sqlx::Error) -> bool {
    native_code(error) == Some(code::CONSTRAINT_NOTNULL)
}

/// Whether the connection is of no more use.
pub(crate) fn is_broken(error: &sqlx::Error) -> bool {
    !matches!(error, sqlx::Error::Database(_))
}

/// A native error of one statement, in the words of leasehold.
pub(crate) fn native(op: &'static str, error: sqlx::Error) -> BackendError {
    translated(op, error, Doing::Leases)
}

/// A native error of making a connection, or the tables, for whatever operation it was wanted.
pub(crate) fn opening(op: &'static str, error: sqlx::Error) -> BackendError {
    translated(op, error, Doing::Opening)
}

/// What SQLite was asked to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Opening,
    Leases,
}

fn translated(op: &'static str, error: sqlx::Error, doing: Doing) -> BackendError {
    let whole = native_code(&error);
    let (kind, effect, message) = match (whole, whole.map(|c| c & 0xff)) {
        (Some(code::CONSTRAINT_NOTNULL), _) => (
            ErrorKind::TokenRegression,
            Effect::None, // why: the statement failed as a whole before its commit.
            "no larger fencing token exists in this epoch (its counter reached 2^52): raise the epoch with `leasehold epoch raise`",
        ),
        (_, Some(code::BUSY | code::LOCKED | code::PROTOCOL)) => (
            ErrorKind::Unavailable,
            Effect::None, // why: the write lock, which comes before the first change, was not given.
            "busy: another process has been writing to the file for longer than the busy timeout; nothing was changed. Try again, or look for a long transaction on this file",
        ),
        (_, Some(code::FULL)) => (
            ErrorKind::Unavailable,
            Effect::None, // why: SQLite rolls a statement back that finds no room for its pages.
            "the disk is full (or a quota is): nothing was changed. Free some space",
        ),
        (_, Some(code::READONLY | code::PERM)) => (
            ErrorKind::PermissionDenied,
            Effect::None, // why: refused before the first change.
            "the file or its directory may not be written by this user: nothing was changed. The database, its -wal and its -shm file and the directory must be writable",
        ),
        (_, Some(code::CANTOPEN)) => (
            ErrorKind::Unavailable,
            Effect::None, // why: no file, no change.
            "the file or one of its companions (-wal, -shm) cannot be opened: nothing was changed. Look at the directory, its rights, and the limit of open files",
        ),
        (_, Some(code::NOTADB)) => (
            ErrorKind::ConfigInvalid,
            Effect::None, // why: not opened as a database.
            "the file is no SQLite database, or an encrypted one: nothing was changed. Give another path",
        ),
        (_, Some(code::SCHEMA | code::ERROR)) => (
            ErrorKind::ConfigInvalid,
            Effect::None, // why: the statement could not be prepared against these tables.
            "the tables of leasehold are missing in this file, or are not as expected: nothing was changed. Run `leasehold init`, or look for what altered them",
        ),
        (_, Some(code::CONSTRAINT)) => (
            ErrorKind::Corrupt,
            Effect::None, // why: the statement failed as a whole before its commit.
            "the tables of leasehold refuse a legal row: something altered them. Nothing was changed",
        ),
        (_, Some(code::CORRUPT)) => (
            ErrorKind::Corrupt,
            Effect::Unknown,
            "the database file is damaged: restore it from a copy, then raise the epoch with `leasehold epoch raise`",
        ),
        (Some(code::IOERR_SHMSIZE | code::IOERR_WRITE), _) => (
            ErrorKind::Unavailable,
            Effect::Unknown,
            "the file or one of its companions (-wal, -shm) could not grow: the disk is full, a quota is, or files may not be so large (ulimit -f)",
        ),
        (Some(code::IOERR_SHORT_READ), _) => (
            ErrorKind::Unavailable,
            Effect::Unknown,
            "the file or one of its companions (-wal, -shm) is shorter than it says: it was cut, or is being copied",
        ),
        (_, Some(code::NOMEM)) => (
            ErrorKind::Unavailable,
            Effect::Unknown,
            "SQLite got no memory (ulimit -v, or the limit of a container)",
        ),
        (_, Some(code::IOERR)) => (
            ErrorKind::Unavailable,
            Effect::Unknown,
            "reading or writing the file or one of its companions (-wal, -shm) failed: look at the disk and at the kernel's log",
        ),
        (Some(_), _) => (ErrorKind::Unavailable, Effect::Unknown, "SQLite could not finish"),
        (None, _) if doing == Doing::Opening => (
            ErrorKind::Unavailable,
            Effect::None, // why: see below.
            "no connection to the database file could be made: threads, memory or file descriptors may be exhausted (ulimit -u, ulimit -v, ulimit -n)",
        ),
        (None, _) => (
            ErrorKind::Unavailable,
            Effect::Unknown,
            "the connection to the database file was lost; it is made anew by the next call",
        ),
    };
    // why: opening writes no lease; what it may have left are empty tables.
    let effect = if doing == Doing::Opening { Effect::None } else { effect };
    let message = match whole {
        Some(code) => format!("{message} (SQLite result code {code})"),
        None => message.to_owned(),
    };
    BackendError::new(kind, effect, SCHEME, op, message).with_source(error)
}

/// The backend or its watchdog was closed.
pub(crate) fn closed(op: &'static str) -> BackendError {
    // why: the store is not touched any more.
    BackendError::new(ErrorKind::Closed, Effect::None, SCHEME, op, "the store was closed")
}

/// The watchdog was stopped while the call was under way.
pub(crate) fn cut_off(op: &'static str) -> BackendError {
    let message =
        "the store was closed while the call was under way: whether it was carried out is not known";
    BackendError::new(ErrorKind::Closed, Effect::Unknown, SCHEME, op, message)
}

/// A thing that is wrong with the file, found before any statement.
pub(crate) fn refused(op: &'static str, kind: ErrorKind, message: impl Into<String>) -> BackendError {
    // why: found by looking at the path, before any statement was sent.
    BackendError::new(kind, Effect::None, SCHEME, op, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_leaves_nothing_unknown() {
        let crashed = || sqlx::Error::WorkerCrashed;
        for op in ["connect", "acquire", "renew"] {
            assert_eq!(native(op, crashed()).effect(), Effect::Unknown);
            let error = opening(op, crashed());
            assert_eq!(error.effect(), Effect::None);
            assert!(error.message().contains("ulimit -n"), "{error}");
        }
    }
}
