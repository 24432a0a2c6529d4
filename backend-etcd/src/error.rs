//! etcd's errors and what they mean: one table.

use leasehold_core::{BackendError, Effect, ErrorKind};

use crate::SCHEME;

/// Longest piece of the server's own words in a message.
const SAID_MAX: usize = 160;

/// Whether a call may change the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Read,
    Write,
}

impl Does {
    /// What is known of a call without an answer.
    fn unanswered(self) -> Effect {
        match self {
            // why: nothing is written by it.
            Does::Read => Effect::None,
            Does::Write => Effect::Unknown,
        }
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The etcd lease that it named is gone; nothing was done.
    LeaseGone,
    /// Anything else.
    Error(BackendError),
}

impl Failure {
    /// The error, where a missing lease has no meaning of its own.
    pub(crate) fn into_error(self, op: &'static str) -> BackendError {
        match self {
            Failure::LeaseGone => {
                // why: etcd refuses the whole transaction.
                let message = "the etcd lease under the key ran out meanwhile; nothing was done";
                BackendError::new(ErrorKind::Unavailable, Effect::None, SCHEME, op, message)
            }
            Failure::Error(error) => error,
        }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Failure::Error(error)
    }
}

/// What an error of the client means.
pub(crate) fn native(op: &'static str, does: Does, error: etcd_client::Error) -> Failure {
    use etcd_client::Error;
    let (kind, effect, message) = match &error {
        Error::GRpcStatus(status) => {
            if status.message().contains("requested lease not found") {
                return Failure::LeaseGone;
            }
            by_status(does, status.code().into(), status.message())
        }
        Error::LeaseKeepAliveError(words) if words.contains("lease not found") => return Failure::LeaseGone,
        Error::TransportError(_)
        | Error::IoError(_)
        | Error::LeaseKeepAliveError(_)
        | Error::WatchError(_) => {
            let message = "the connection was lost before the answer; it is made anew".to_owned();
            (ErrorKind::Unavailable, does.unanswered(), message)
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::EndpointError(_) => {
            // why: the client refused it before it was sent.
            let message = "an endpoint or a TLS setting of the store is not possible".to_owned();
            (ErrorKind::ConfigInvalid, Effect::None, message)
        }
        _ => (ErrorKind::Other, does.unanswered(), "the client of etcd failed".to_owned()),
    };
    Failure::Error(BackendError::new(kind, effect, SCHEME, op, message).with_source(error))
}

/// The codes of gRPC, as etcd uses them.
fn by_status(does: Does, code: i32, words: &str) -> (ErrorKind, Effect, String) {
    const CANCELLED: i32 = 1;
    const INVALID_ARGUMENT: i32 = 3;
    const DEADLINE_EXCEEDED: i32 = 4;
    const PERMISSION_DENIED: i32 = 7;
    const RESOURCE_EXHAUSTED: i32 = 8;
    const FAILED_PRECONDITION: i32 = 9;
    const UNAVAILABLE: i32 = 14;
    const UNAUTHENTICATED: i32 = 16;
    let said = said(words);
    // why: refused by the server before it was proposed, or when it was applied, as a whole.
    let refused = Effect::None;
    match code {
        PERMISSION_DENIED => (
            ErrorKind::PermissionDenied,
            refused,
            "the user may not do this under the store's prefix: grant its role readwrite on the whole prefix (etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/)"
                .to_owned(),
        ),
        INVALID_ARGUMENT if words.contains("authentication failed") => {
            (ErrorKind::PermissionDenied, refused, "user or password is wrong".to_owned())
        }
        INVALID_ARGUMENT if words.contains("user name is empty") => (
            ErrorKind::PermissionDenied,
            refused,
            "the server wants a login: write etcd://USER:PASSWORD@HOST".to_owned(),
        ),
        UNAUTHENTICATED => (ErrorKind::PermissionDenied, refused, format!("the login is refused ({said})")),
        FAILED_PRECONDITION if words.contains("authentication is not enabled") => (
            ErrorKind::PermissionDenied,
            refused,
            "a login was given, and the server has authentication switched off: take it out of the store URL".to_owned(),
        ),
        RESOURCE_EXHAUSTED if words.contains("database space exceeded") => (
            ErrorKind::Unavailable,
            refused,
            "etcd's database is full (NOSPACE alarm) and takes no writes; nothing was granted. Compact and defragment it, then disarm the alarm"
                .to_owned(),
        ),
        RESOURCE_EXHAUSTED => (ErrorKind::Unavailable, refused, format!("the server is overloaded ({said})")),
        INVALID_ARGUMENT if words.contains("too many operations") => (
            ErrorKind::ConfigInvalid,
            refused,
            "the server takes too few operations in a transaction: leave --max-txn-ops at 128 or raise it".to_owned(),
        ),
        INVALID_ARGUMENT => (ErrorKind::Other, refused, format!("the server refuses the request ({said})")),
        UNAVAILABLE if words.contains("tcp connect error") || words.contains("dns error") => {
            // why: there was no connection to send it on.
            (ErrorKind::Unavailable, Effect::None, "nobody listens at the store's endpoints: is etcd running?".to_owned())
        }
        UNAVAILABLE | CANCELLED => (ErrorKind::Unavailable, does.unanswered(), format!("the store did not answer ({said})")),
        DEADLINE_EXCEEDED => {
            (ErrorKind::Timeout, does.unanswered(), format!("the servers took too long ({said})"))
        }
        // Broken connections come as "unknown".
        _ => (ErrorKind::Unavailable, does.unanswered(), format!("the call failed ({said}); it may be asked again")),
    }
}

/// The call's own time limit passed.
pub(crate) fn timed_out(op: &'static str, does: Does, after: std::time::Duration) -> BackendError {
    let message = format!("the store did not answer within {after:?}");
    BackendError::new(ErrorKind::Timeout, does.unanswered(), SCHEME, op, message)
}

/// The watchdog stopped while an answer was waited for.
pub(crate) fn stopped(op: &'static str, does: Does) -> BackendError {
    let message = "the watchdog of this backend has stopped: nobody keeps time for it any more";
    BackendError::new(ErrorKind::Closed, does.unanswered(), SCHEME, op, message)
}

/// The backend was closed.
pub(crate) fn closed(op: &'static str) -> BackendError {
    // why: the store is not touched any more.
    BackendError::new(ErrorKind::Closed, Effect::None, SCHEME, op, "the store was closed")
}

/// Refused before anything was sent, or after a look that changed nothing.
pub(crate) fn refused(op: &'static str, kind: ErrorKind, message: impl Into<String>) -> BackendError {
    // why: refused before anything was written.
    BackendError::new(kind, Effect::None, SCHEME, op, message)
}

/// Others changed the same keys again and again between our look and our write.
pub(crate) fn busy(op: &'static str) -> BackendError {
    // why: each write compared what was read, and did nothing.
    let message = "others changed it again and again in between; nothing was changed";
    BackendError::new(ErrorKind::Unavailable, Effect::None, SCHEME, op, message)
}

/// No larger token exists.
pub(crate) fn exhausted(op: &'static str) -> BackendError {
    // why: refused before it was granted, or released again.
    let message = "no larger fencing token exists in this epoch: raise it (leasehold epoch raise)";
    BackendError::new(ErrorKind::TokenRegression, Effect::None, SCHEME, op, message)
}

/// A server's words, fit for one line.
fn said(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(SAID_MAX).collect::<String>().trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_kind_effect_and_advice() {
        use ErrorKind::{ConfigInvalid, PermissionDenied, Timeout, Unavailable};
        for (code, words, kind, effect, advice) in [
            (7, "etcdserver: permission denied", PermissionDenied, Effect::None, "readwrite"),
            (
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                PermissionDenied,
                Effect::None,
                "password",
            ),
            (3, "etcdserver: user name is empty", PermissionDenied, Effect::None, "login"),
            (16, "etcdserver: invalid auth token", PermissionDenied, Effect::None, "login"),
            (9, "etcdserver: authentication is not enabled", PermissionDenied, Effect::None, "switched off"),
            (8, "etcdserver: mvcc: database space exceeded", Unavailable, Effect::None, "NOSPACE"),
            (8, "etcdserver: too many requests", Unavailable, Effect::None, "overloaded"),
            (3, "etcdserver: too many operations in txn request", ConfigInvalid, Effect::None, "max-txn-ops"),
            (14, "tcp connect error: Connection refused", Unavailable, Effect::None, "running"),
            (14, "etcdserver: no leader", Unavailable, Effect::Unknown, "no leader"),
            (14, "etcdserver: request timed out", Unavailable, Effect::Unknown, "timed out"),
            (4, "context deadline exceeded", Timeout, Effect::Unknown, "too long"),
            (2, "h2 protocol error: broken pipe", Unavailable, Effect::Unknown, "broken pipe"),
        ] {
            let (got, what, message) = by_status(Does::Write, code, words);
            assert_eq!((got, what), (kind, effect), "{words}");
            assert!(message.contains(advice), "{words}: {message}");
        }
        assert_eq!(by_status(Does::Read, 14, "etcdserver: no leader").1, Effect::None);
    }
}
