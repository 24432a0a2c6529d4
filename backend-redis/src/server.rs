//! What the server is: looked at when a connection is made, before anything is asked on it.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use leasehold_core::{BackendError, BootTime, ErrorKind};

use crate::error::refused;

/// Oldest server: `SET … GET` came with it.
const VERSION_MIN: (u32, u32) = (6, 2);

/// What `INFO` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) run_id: String,
    version: String,
    mode: String,
    role: String,
    loading: bool,
    policy: String,
}

/// How strict the look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The first of a backend: what will not change by itself is told as wrong.
    First {
        /// Whether a server that may evict leases is accepted.
        allow_eviction: bool,
    },
    /// A later connection for grants: a replica may be a failover under way.
    Later {
        /// As above.
        allow_eviction: bool,
    },
    /// A later connection for renewals: what is held is kept, however the server was changed meanwhile.
    Renewals,
}

impl Server {
    /// Reads the answer to `INFO`.
    pub(crate) fn read(info: &str) -> Self {
        let mut server = Server::default();
        for line in info.lines() {
            let Some((field, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match field {
                "redis_version" => server.version = value.to_owned(),
                "redis_mode" => server.mode = value.to_owned(),
                "run_id" => server.run_id = value.to_owned(),
                "role" => server.role = value.to_owned(),
                "loading" => server.loading = value == "1",
                "maxmemory_policy" => server.policy = value.to_owned(),
                _ => {}
            }
        }
        server
    }

    /// Refuses a server that cannot keep leases.
    pub(crate) fn judge(&self, op: &'static str, look: Look) -> Result<(), BackendError> {
        let wrong = |message: String| Err(refused(op, ErrorKind::ConfigInvalid, message));
        if self.loading {
            let message = "the server is loading its data; it answers when it is done";
            return Err(refused(op, ErrorKind::Unavailable, message));
        }
        match self.mode.as_str() {
            "cluster" => {
                return wrong("this is a node of a Redis cluster, which this backend does not follow: use a server that is not in cluster mode".to_owned());
            }
            "sentinel" => {
                return wrong(
                    "this is a Sentinel, which keeps no data: connect to the primary that it watches"
                        .to_owned(),
                );
            }
            _ => {}
        }
        if self.is_too_old() {
            let (major, minor) = VERSION_MIN;
            let version = &self.version;
            return wrong(format!(
                "the server is Redis {version}, and {major}.{minor} is the oldest that leasehold works with: update it"
            ));
        }
        if self.role != "master" {
            let message = "this server is a replica, which may not be written to: connect to the primary";
            let kind = match look {
                Look::First { .. } => ErrorKind::ConfigInvalid,
                Look::Later { .. } | Look::Renewals => ErrorKind::Unavailable,
            };
            return Err(refused(op, kind, message));
        }
        let (Look::First { allow_eviction } | Look::Later { allow_eviction }) = look else { return Ok(()) };
        if !allow_eviction && !matches!(self.policy.as_str(), "noeviction" | "") {
            let policy = &self.policy;
            return wrong(format!(
                "the server's maxmemory-policy is {policy}: when its memory is full it deletes leases that are held. Set noeviction (CONFIG SET maxmemory-policy noeviction), or give allow_eviction=1 and trust the fence alone"
            ));
        }
        Ok(())
    }

    /// Versions that cannot be read are given the benefit of the doubt: the scripts will tell.
    fn is_too_old(&self) -> bool {
        let mut parts = self.version.split('.').map_while(|part| part.parse::<u32>().ok());
        match (parts.next(), parts.next()) {
            (Some(major), Some(minor)) => (major, minor) < VERSION_MIN,
            _ => false,
        }
    }
}

/// The server's wall clock, as its answers tell it.
///
/// Each answer with a time gives `server time − boot clock when it came`: never more than the truth while the
/// server's clock runs on. It only serves to date the last moment at which an attempt may still be granted; no
/// deadline of a holder is made of it (I3).
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    offset_us: AtomicI64,
    is_known: AtomicBool,
}

impl ServerClock {
    /// Learns from a time that came just now.
    pub(crate) fn learn(&self, server_us: u64, now: BootTime) {
        let server = i64::try_from(server_us).unwrap_or(i64::MAX);
        let boot = i64::try_from(now.as_micros()).unwrap_or(0);
        self.offset_us.store(server.saturating_sub(boot), Ordering::Relaxed);
        self.is_known.store(true, Ordering::Release);
    }

    /// The server's time at `at`, in µs since 1970: its latest sign of life, before the first the far future.
    pub(crate) fn at(&self, at: BootTime) -> u64 {
        if !self.is_known.load(Ordering::Acquire) {
            return u64::MAX;
        }
        let boot = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        u64::try_from(self.offset_us.load(Ordering::Relaxed).saturating_add(boot)).unwrap_or(0)
    }

    /// The 16 digits of the last moment at which a request of `sent_at` may be granted.
    pub(crate) fn not_after(&self, sent_at: BootTime, limit: Duration) -> String {
        format!("{:016}", self.at(sent_at + limit).min(9_999_999_999_999_999))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:abc\r\n\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nloading:0\r\n";
    const FIRST: Look = Look::First { allow_eviction: false };

    fn judged(from: &str, to: &str, look: Look) -> Option<(ErrorKind, String)> {
        let server = Server::read(&GOOD.replace(from, to));
        server.judge("connect", look).err().map(|e| (e.kind(), e.message().to_owned()))
    }

    #[test]
    fn servers_that_cannot_keep_leases_are_refused() {
        use ErrorKind::{ConfigInvalid, Unavailable};
        assert_eq!(judged("x", "x", FIRST), None);
        for (from, to, look, kind, word) in [
            ("7.0.15", "6.0.16", FIRST, ConfigInvalid, "6.2"),
            ("7.0.15", "5.0", FIRST, ConfigInvalid, "6.2"),
            ("standalone", "cluster", FIRST, ConfigInvalid, "cluster"),
            ("standalone", "sentinel", FIRST, ConfigInvalid, "Sentinel"),
            ("role:master", "role:slave", FIRST, ConfigInvalid, "replica"),
            ("role:master", "role:slave", Look::Renewals, Unavailable, "replica"),
            ("loading:0", "loading:1", FIRST, Unavailable, "loading"),
            ("noeviction", "volatile-ttl", FIRST, ConfigInvalid, "volatile-ttl"),
        ] {
            let (seen, message) = judged(from, to, look).expect(to);
            assert!(seen == kind && message.contains(word), "{to}: {seen:?} {message}");
        }
        assert_eq!(judged("noeviction", "allkeys-lru", Look::First { allow_eviction: true }), None);
        assert_eq!(judged("noeviction", "allkeys-lru", Look::Renewals), None);
        assert_eq!(judged("7.0.15", "6.2.5", FIRST), None);
        assert_eq!(judged("7.0.15", "255.255.255", FIRST), None);
    }

    #[test]
    fn the_last_moment_is_never_later_than_the_truth() {
        let clock = ServerClock::default();
        let at = |ms: u64| BootTime::from_nanos(ms * 1_000_000);
        assert_eq!(clock.not_after(at(5), Duration::ZERO), "9999999999999999");
        // Sent at 1,000 s by the server's clock, and 30 ms under way.
        clock.learn(1_000_000_000, at(130));
        assert_eq!(clock.not_after(at(200), Duration::from_millis(100)), "0000001000170000");
        assert_eq!(clock.at(at(0)), 999_870_000);
    }
}
