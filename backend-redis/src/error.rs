//! Native errors and what they mean for a lease.
//!
//! A server answers an error *instead of* running a command, or, for our scripts, before the script's first write:
//! those are [`Effect::None`]. Whatever is lost on the way is [`Effect::Unknown`], and settled by asking again with
//! the same owner. No text of a URL is ever repeated; what the server said is, since it names the missing right or
//! the key (I12: servers do not repeat passwords).

use std::io;

use leasehold_core::{BackendError, Effect, ErrorKind};
use redis::RedisError;

use crate::SCHEME;

/// Whether an operation writes: only then can its outcome be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// It reads.
    Read,
    /// It may write.
    Write,
}

/// How much of a server's own words is repeated, in characters.
const SAID_MAX: usize = 240;

/// An error of one call, in the words of leasehold.
pub(crate) fn native(op: &'static str, does: Does, source: &str, error: RedisError) -> BackendError {
    match error.code() {
        Some(_) => answered(op, source, error),
        None => unanswered(op, does, error),
    }
}

/// The server said no.
fn answered(op: &'static str, source: &str, error: RedisError) -> BackendError {
    let code = error.code().unwrap_or_default().to_owned();
    let detail = said(error.detail().unwrap_or_default());
    let (kind, effect, message) = judge(&code, &detail, source);
    BackendError::new(kind, effect, SCHEME, op, message).with_source(error)
}

/// What a server's error means: kind, effect, and what to do.
fn judge(code: &str, detail: &str, source: &str) -> (ErrorKind, Effect, String) {
    // why (for every `Effect::None` here): the server answers these instead of running the command, or, within a
    // script, instead of its first write.
    let none = Effect::None;
    let in_script = |what: &str| detail.contains(what);
    match code {
        "WRONGPASS" => (
            ErrorKind::PermissionDenied,
            none,
            "the server refuses user name and password: check both, and whether the user is switched on".to_owned(),
        ),
        "NOAUTH" => (
            ErrorKind::PermissionDenied,
            none,
            "the server wants a login: give user and password in the store URL, or password_file".to_owned(),
        ),
        "NOPERM" => (ErrorKind::PermissionDenied, none, denied(detail)),
        "DENIED" => (
            ErrorKind::PermissionDenied,
            none,
            "the server is in protected mode and takes only local clients: give it a password, or let it bind to this network"
                .to_owned(),
        ),
        _ if in_script("can't run this command")
            || in_script("can't access at least one of the keys")
            || in_script("can't publish to the channel") =>
        {
            // A step before the one that is forbidden may have written.
            (ErrorKind::PermissionDenied, Effect::Unknown, denied_in_script(detail, source))
        }
        "READONLY" => (
            ErrorKind::Unavailable,
            none,
            "this server is a read-only replica now; nothing was changed. The connection is made anew, to find the primary"
                .to_owned(),
        ),
        "LOADING" => (
            ErrorKind::Unavailable,
            none,
            "the server is loading its data; nothing was changed. It answers when it is done".to_owned(),
        ),
        "MASTERDOWN" => (
            ErrorKind::Unavailable,
            none,
            "this server is a replica that has lost its primary; nothing was changed. Connect to the primary".to_owned(),
        ),
        "CLUSTERDOWN" | "TRYAGAIN" => (
            ErrorKind::Unavailable,
            none,
            format!("the cluster cannot serve this name now ({detail}); nothing was changed"),
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            ErrorKind::ConfigInvalid,
            none,
            "this server is a node of a Redis cluster, which this backend does not follow; nothing was changed. Use a server that is not in cluster mode"
                .to_owned(),
        ),
        "OOM" => (
            ErrorKind::Unavailable,
            none,
            "the server is out of memory (maxmemory) and refuses writes; nothing was granted. Held leases are still renewed and released. Raise maxmemory, or delete data"
                .to_owned(),
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            none,
            "the server cannot save to its disk and refuses writes; nothing was changed. Look at its log and its disk"
                .to_owned(),
        ),
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            none,
            "the server has fewer replicas than min-replicas-to-write asks for, and refuses writes; nothing was changed"
                .to_owned(),
        ),
        "BUSY" => (
            ErrorKind::Unavailable,
            none,
            "the server is busy with somebody's script; nothing was changed. SCRIPT KILL ends it".to_owned(),
        ),
        "WRONGTYPE" => (ErrorKind::Corrupt, none, WRONG_TYPE.to_owned()),
        _ if in_script("WRONGTYPE") => (ErrorKind::Corrupt, none, WRONG_TYPE.to_owned()),
        "ERR" if in_script("max number of clients") => (
            ErrorKind::Unavailable,
            none,
            "the server has as many clients as it takes (maxclients); nothing was changed".to_owned(),
        ),
        "ERR" if in_script("without any password configured") => (
            ErrorKind::PermissionDenied,
            none,
            "a password was given, and the server's default user has none: take it out of the store URL, or name the user"
                .to_owned(),
        ),
        "ERR" if in_script("DB index is out of range") => (
            ErrorKind::ConfigInvalid,
            none,
            "the server has no database of this number: mend the number in the store URL".to_owned(),
        ),
        "ERR" | "NOPROTO" if in_script("unknown command") || code == "NOPROTO" || in_script("unsupported protocol") => (
            ErrorKind::ConfigInvalid,
            none,
            format!("the server lacks a command or protocol that leasehold needs ({detail}): Redis 6.2 or later is needed"),
        ),
        // A script may have written before this.
        _ => (ErrorKind::Other, Effect::Unknown, format!("the server answers {code}: {detail}")),
    }
}

const WRONG_TYPE: &str = "a key of leasehold holds another type of value: it was not written by leasehold. It was left as it is and nothing was granted; delete the key, or choose another namespace";

fn denied(detail: &str) -> String {
    format!(
        "the server's access list forbids it: {detail}{}. Nothing was changed; grant the user what is named (docs.md has the least that is needed)",
        pattern(detail)
    )
}

/// What the user's access list lacks when the server only says that it is a key or a channel.
fn pattern(detail: &str) -> &'static str {
    match detail {
        _ if detail.contains("key") => " (~lh:NAMESPACE:*)",
        _ if detail.contains("channel") => " (&lh:NAMESPACE:*)",
        _ => "",
    }
}

/// A script's denied call. Servers before 7.2 name its line only: the command stands in that line of our source.
fn denied_in_script(detail: &str, source: &str) -> String {
    let line = detail.rsplit(':').find_map(|part| part.trim().trim_end_matches('.').parse::<usize>().ok());
    let text = line.and_then(|line| source.lines().nth(line.wrapping_sub(1))).unwrap_or_default();
    let command = text.split("call('").nth(1).and_then(|rest| rest.split('\'').next());
    let missing = match command {
        Some(command) if detail.contains("keys") => {
            format!("a key of this name, in {command}{}", pattern(detail))
        }
        _ if detail.contains("channel") => format!("the channel of this name{}", pattern(detail)),
        Some(command) => format!("+{}", command.to_ascii_lowercase()),
        None => detail.to_owned(),
    };
    format!(
        "the server's access list forbids a step of the script ({missing}); what the steps before it did stays. Grant the user what is named (docs.md has the least that is needed)"
    )
}

/// No answer came: the connection broke.
fn unanswered(op: &'static str, does: Does, error: RedisError) -> BackendError {
    let effect = match does {
        // why: nothing is written by it.
        Does::Read => Effect::None,
        Does::Write => Effect::Unknown,
    };
    let (kind, message) = match error.kind() {
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            (ErrorKind::Other, "the server's answer is none of Redis: is this a Redis server?".to_owned())
        }
        _ => {
            (ErrorKind::Unavailable, "the connection was lost before the answer; it is made anew".to_owned())
        }
    };
    BackendError::new(kind, effect, SCHEME, op, message).with_source(error)
}

/// The call's own time limit passed.
pub(crate) fn timed_out(op: &'static str, does: Does, after: std::time::Duration) -> BackendError {
    let effect = match does {
        // why: nothing is written by it.
        Does::Read => Effect::None,
        Does::Write => Effect::Unknown,
    };
    let message = format!("the server did not answer within {after:?}");
    BackendError::new(ErrorKind::Timeout, effect, SCHEME, op, message)
}

/// An answer that no script of ours gives.
pub(crate) fn strange(op: &'static str, does: Does) -> BackendError {
    let effect = match does {
        // why: nothing is written by it.
        Does::Read => Effect::None,
        Does::Write => Effect::Unknown,
    };
    let message = "the server's answer is not one of leasehold's scripts: something between altered it";
    BackendError::new(ErrorKind::Other, effect, SCHEME, op, message)
}

/// The backend or its watchdog was closed.
pub(crate) fn closed(op: &'static str) -> BackendError {
    // why: the store is not touched any more.
    BackendError::new(ErrorKind::Closed, Effect::None, SCHEME, op, "the store was closed")
}

/// The watchdog stopped while an answer was waited for.
pub(crate) fn stopped(op: &'static str, does: Does) -> BackendError {
    let effect = match does {
        // why: nothing is written by it.
        Does::Read => Effect::None,
        Does::Write => Effect::Unknown,
    };
    let message = "the watchdog of this backend has stopped: nobody keeps time for it any more";
    BackendError::new(ErrorKind::Closed, effect, SCHEME, op, message)
}

/// Refused before anything was sent, or after a look that changed nothing.
pub(crate) fn refused(op: &'static str, kind: ErrorKind, message: impl Into<String>) -> BackendError {
    // why: refused before anything was written.
    BackendError::new(kind, Effect::None, SCHEME, op, message)
}

/// What a look-up that finds no address ends with: the system's own error has no kind.
pub(crate) const UNKNOWN_HOST: io::ErrorKind = io::ErrorKind::AddrNotAvailable;

/// What stood in the way of a connection. Nothing was asked on it yet.
pub(crate) fn connecting(op: &'static str, encrypted: bool, error: io::Error) -> BackendError {
    let (kind, message) = tls_trouble(&error).unwrap_or_else(|| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            (ErrorKind::Unavailable, "nobody listens at the store's address: is the server running?".to_owned())
        }
        io::ErrorKind::NotFound => {
            (ErrorKind::Unavailable, "the server's socket does not exist: is the server running?".to_owned())
        }
        UNKNOWN_HOST => (
            ErrorKind::Unavailable,
            "the store's host name has no address here: look at its spelling, and at the name server".to_owned(),
        ),
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, "this user may not use the server's socket".to_owned())
        }
        // A Redis that speaks no TLS waits for the end of a line that never comes.
        io::ErrorKind::TimedOut if encrypted => (
            ErrorKind::Unavailable,
            "no TLS connection to the server came about within connect_timeout: is it reachable, and does it speak TLS at this port (if not, the scheme is redis://)?"
                .to_owned(),
        ),
        io::ErrorKind::TimedOut => {
            (ErrorKind::Unavailable, "no connection to the server came about within connect_timeout".to_owned())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if encrypted => (
            ErrorKind::Unavailable,
            "the server closed the connection during the TLS handshake: it may speak no TLS at this port (then the scheme is redis://), or have no room for clients"
                .to_owned(),
        ),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => (
            ErrorKind::Unavailable,
            "the server closed the connection during the handshake: it may want TLS at this port (then the scheme is rediss://), or have no room for clients"
                .to_owned(),
        ),
        _ => (ErrorKind::Unavailable, format!("no connection to the server came about ({})", error.kind())),
    });
    // why: nothing but the handshake was sent.
    BackendError::new(kind, Effect::None, SCHEME, op, message).with_source(error)
}

/// What TLS has against it.
pub(crate) fn tls_trouble(error: &io::Error) -> Option<(ErrorKind, String)> {
    use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};
    let tls = error.get_ref()?.downcast_ref::<Error>()?;
    let config = |message: &str| Some((ErrorKind::ConfigInvalid, message.to_owned()));
    match tls {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                config("the server's certificate has expired: renew it")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                config("the server's certificate is not valid yet: look at both clocks")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => config(
                "the server's certificate is for another host name: mend the host, or give tls_server_name",
            ),
            CertificateError::UnknownIssuer => config(
                "the server's certificate was signed by nobody that is trusted here: give its authority with tls_ca",
            ),
            _ => config("the server's certificate is refused: look at it with openssl x509 -text"),
        },
        Error::InvalidMessage(_) => config(
            "the server does not speak TLS at this port: use its TLS port, or the scheme redis:// without TLS",
        ),
        Error::AlertReceived(AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure) => {
            Some((
                ErrorKind::PermissionDenied,
                "the server wants a client certificate: give tls_cert and tls_key".to_owned(),
            ))
        }
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked,
        ) => Some((
            ErrorKind::PermissionDenied,
            "the server refuses the client certificate of tls_cert".to_owned(),
        )),
        _ => config("the TLS handshake failed: look at the versions and ciphers that the server takes"),
    }
}

/// A server's words, fit for one line.
fn said(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(SAID_MAX).collect::<String>().trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "local a = 1\nredis.call('PEXPIRE', KEYS[1], 5)\n";

    fn error(line: &str) -> BackendError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
        let error = value.extract_error().expect_err("an error");
        native("acquire", Does::Write, SCRIPT, error)
    }

    #[test]
    fn answers_have_kind_effect_and_advice() {
        use ErrorKind::{ConfigInvalid, Corrupt, Other, PermissionDenied, Unavailable};
        for (line, kind, effect, word) in [
            ("WRONGPASS invalid username-password pair", PermissionDenied, Effect::None, "password"),
            ("NOAUTH Authentication required.", PermissionDenied, Effect::None, "login"),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                PermissionDenied,
                Effect::None,
                "'evalsha'",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 1f, on @user_script:2.",
                PermissionDenied,
                Effect::Unknown,
                "+pexpire",
            ),
            ("READONLY You can't write against a read only replica.", Unavailable, Effect::None, "replica"),
            ("LOADING Redis is loading the dataset in memory", Unavailable, Effect::None, "loading"),
            ("CLUSTERDOWN The cluster is down", Unavailable, Effect::None, "cluster"),
            ("MASTERDOWN Link with MASTER is down", Unavailable, Effect::None, "primary"),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Unavailable,
                Effect::None,
                "maxmemory",
            ),
            ("MISCONF Redis is configured to save RDB snapshots", Unavailable, Effect::None, "disk"),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable, Effect::None, "min-replicas"),
            ("BUSY Redis is busy running a script.", Unavailable, Effect::None, "SCRIPT KILL"),
            ("ERR max number of clients reached", Unavailable, Effect::None, "maxclients"),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Corrupt,
                Effect::None,
                "type",
            ),
            ("MOVED 3999 127.0.0.1:6381", ConfigInvalid, Effect::None, "cluster"),
            ("DENIED Redis is running in protected mode", PermissionDenied, Effect::None, "protected"),
            ("ERR something new", Other, Effect::Unknown, "something new"),
        ] {
            let error = error(line);
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{line}: {error}");
            assert!(error.message().contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn no_answer_is_unknown_for_writers_alone() {
        let broken = || RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        let write = native("acquire", Does::Write, "", broken());
        assert_eq!((write.kind(), write.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        assert!(write.is_retryable());
        assert_eq!(native("inspect", Does::Read, "", broken()).effect(), Effect::None);
    }
}
