//! What a connection needs to know: where, as whom, and how careful to be.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{BackendError, Effect, ErrorKind, LeaseName};

use crate::{SCHEME, Secret};

/// How to reach the server. Made by [`RedisConfig::new`] or [`RedisConfig::from_params`]. `Debug` shows no secret.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Where the server is.
    pub address: Address,
    /// The user of the server's access list; the default user when none.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// The number of the database. Default 0.
    pub db: u32,
    /// Leases of different namespaces do not know each other. Default `default`.
    pub namespace: LeaseName,
    /// How long one try to connect may take. Default 2 s.
    pub connect_timeout: Duration,
    /// How long one call may take; an acquire at most its ttl. No longer than the operation timeout of the
    /// client, so that an attempt that was given up is refused by the server when it arrives at last. Default 2 s.
    pub op_timeout: Duration,
    /// Which version of the protocol to speak. Default: 2.
    pub protocol: Protocol,
    /// Accepts a server that may evict leases when its memory is full. **Gives mutual exclusion up** at that
    /// moment; the fence still refuses late writers. Default: no.
    pub allow_eviction: bool,
    /// For [`Address::Tls`].
    pub tls: TlsConfig,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// Name or address of the host.
        host: String,
        /// The port; 6379 by habit.
        port: u16,
    },
    /// A TCP port with TLS.
    Tls {
        /// Name or address of the host, as its certificate has it.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The version of the Redis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP2: every server.
    #[default]
    Resp2,
    /// RESP3, by `HELLO 3`.
    Resp3,
}

/// How to trust and to be trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsConfig {
    /// A PEM file of authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// A PEM file with the client's certificate and its chain.
    pub cert: Option<PathBuf>,
    /// A PEM file with the client's private key.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have, where it is not the host's.
    pub server_name: Option<String>,
    /// Trusts any certificate: **whoever is between can read and change everything**. Default: no.
    pub insecure: bool,
}

/// A configuration that cannot work. Nothing was connected to. Never repeats what may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A parameter that does not exist. A typing error in a safety tool must not be ignored.
    #[error("there is no such parameter; a {SCHEME} store knows {}", RedisConfig::PARAMS.join(", "))]
    UnknownParam,
    /// A parameter with a value it does not take.
    #[error("the value of {name} is not possible; what is: {expected}")]
    BadValue {
        /// Which parameter.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// Two things that do not go together, or one that misses the other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// A file that cannot be read.
    #[error("the file of {name} cannot be read ({kind})")]
    BadFile {
        /// Which parameter.
        name: &'static str,
        /// Why not.
        kind: std::io::ErrorKind,
    },
}

impl From<ConfigError> for BackendError {
    fn from(error: ConfigError) -> BackendError {
        // why: refused before anything was connected to.
        BackendError::new(ErrorKind::ConfigInvalid, Effect::None, SCHEME, "connect", error.to_string())
            .with_source(error)
    }
}

impl RedisConfig {
    /// Default of [`RedisConfig::connect_timeout`].
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// Default of [`RedisConfig::op_timeout`].
    pub const OP_TIMEOUT: Duration = Duration::from_secs(2);
    /// Longest timeout: beyond it a caller is better off asking again.
    pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
    /// Shortest timeout: below it an ordinary network looks dead.
    pub const TIMEOUT_MIN: Duration = Duration::from_millis(10);
    /// Longest namespace, in bytes.
    pub const NAMESPACE_BYTES_MAX: usize = 64;
    /// The port of a URL that names none.
    pub const PORT: u16 = 6379;
    /// The parameters that [`RedisConfig::from_params`] knows.
    pub const PARAMS: &'static [&'static str] = &[
        "namespace",
        "connect_timeout",
        "op_timeout",
        "protocol",
        "allow_eviction",
        "db",
        "password_file",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "tls_server_name",
        "tls_insecure",
    ];

    /// The defaults for the server at `address`.
    pub fn new(address: Address) -> Self {
        RedisConfig {
            address,
            user: None,
            password: None,
            db: 0,
            // A constant that is legal.
            namespace: LeaseName::new("default").unwrap_or_else(|_| unreachable!("a legal namespace")),
            connect_timeout: Self::CONNECT_TIMEOUT,
            op_timeout: Self::OP_TIMEOUT,
            protocol: Protocol::default(),
            allow_eviction: false,
            tls: TlsConfig::default(),
        }
    }

    /// The configuration that address, user information and parameters of a URL ask for. Reads `password_file`.
    ///
    /// | parameter | values | default |
    /// |---|---|---|
    /// | `namespace` | 1 to 64 bytes without control characters | `default` |
    /// | `connect_timeout`, `op_timeout` | `5s`, `250ms`, or milliseconds | `2s` |
    /// | `protocol` | `resp2`, `resp3` | `resp2` |
    /// | `allow_eviction` | `0`, `1` | `0` |
    /// | `db` | a number, where the path does not hold it | `0` |
    /// | `password_file` | a file whose first line is the password | |
    /// | `tls_ca`, `tls_cert`, `tls_key` | PEM files | |
    /// | `tls_server_name` | the name in the server's certificate | the host |
    /// | `tls_insecure` | `0`, `1` | `0` |
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_params<K: AsRef<str>, V: AsRef<str>>(
        address: Address,
        login: Option<(String, Option<String>)>,
        params: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        let mut config = RedisConfig::new(address);
        if let Some((user, password)) = login {
            config.user = Some(user).filter(|user| !user.is_empty());
            config.password = password.map(Secret::new);
        }
        for (name, value) in params {
            config.set(name.as_ref(), value.as_ref())?;
        }
        config.validate()?;
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let bad = |name, expected| ConfigError::BadValue { name, expected };
        let time = |name| duration(value).ok_or(bad(name, "a time such as 5s, 250ms, or milliseconds"));
        let flag = |name| match value {
            "0" | "false" => Ok(false),
            "1" | "true" => Ok(true),
            _ => Err(bad(name, "0 or 1")),
        };
        match name {
            "namespace" => {
                self.namespace = LeaseName::new(value)
                    .map_err(|_| bad("namespace", "1 to 64 bytes without control characters"))?;
            }
            "connect_timeout" => self.connect_timeout = time("connect_timeout")?,
            "op_timeout" => self.op_timeout = time("op_timeout")?,
            "protocol" => {
                self.protocol = match value {
                    "resp2" | "2" => Protocol::Resp2,
                    "resp3" | "3" => Protocol::Resp3,
                    _ => return Err(bad("protocol", "resp2 or resp3")),
                }
            }
            "allow_eviction" => self.allow_eviction = flag("allow_eviction")?,
            "db" => {
                let db = value.parse().map_err(|_| bad("db", "a number from 0"))?;
                if self.db != 0 && self.db != db {
                    return Err(ConfigError::Contradiction(
                        "the database is given twice, and not the same: keep one",
                    ));
                }
                self.db = db;
            }
            "password_file" => self.password = Some(password_file(value)?),
            "tls_ca" => self.tls.ca = Some(value.into()),
            "tls_cert" => self.tls.cert = Some(value.into()),
            "tls_key" => self.tls.key = Some(value.into()),
            "tls_server_name" => self.tls.server_name = Some(value.to_owned()),
            "tls_insecure" => self.tls.insecure = flag("tls_insecure")?,
            _ => return Err(ConfigError::UnknownParam),
        }
        Ok(())
    }

    /// Refuses what cannot work, before any I/O.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = Self::TIMEOUT_MIN..=Self::TIMEOUT_MAX;
        for (name, value) in [("connect_timeout", self.connect_timeout), ("op_timeout", self.op_timeout)] {
            if !range.contains(&value) {
                return Err(ConfigError::BadValue { name, expected: "from 10ms to 60s" });
            }
        }
        if self.namespace.as_str().len() > Self::NAMESPACE_BYTES_MAX {
            let expected = "1 to 64 bytes without control characters";
            return Err(ConfigError::BadValue { name: "namespace", expected });
        }
        let contradiction = match (&self.address, &self.tls) {
            _ if self.user.is_some() && self.password.is_none() => {
                "a user was given without a password: write redis://USER:PASSWORD@HOST (or redis://:PASSWORD@HOST for the default user), or give password_file"
            }
            (Address::Tls { .. }, tls) if tls.cert.is_some() != tls.key.is_some() => {
                "a client certificate needs both tls_cert and tls_key"
            }
            (Address::Tls { .. }, tls) if tls.insecure && tls.ca.is_some() => {
                "tls_insecure trusts any certificate: take tls_ca or tls_insecure away"
            }
            (Address::Tls { .. }, _) => return Ok(()),
            (_, tls) if *tls != TlsConfig::default() => {
                "parameters of TLS were given for a connection without TLS: the scheme is rediss://"
            }
            _ => return Ok(()),
        };
        Err(ConfigError::Contradiction(contradiction))
    }
}

/// The first line of a file.
fn password_file(path: &str) -> Result<Secret, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| ConfigError::BadFile { name: "password_file", kind: e.kind() })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Secret::new(line)),
        _ => Err(ConfigError::BadValue {
            name: "password_file",
            expected: "a file whose first line is the password",
        }),
    }
}

/// `5s`, `250ms`, or milliseconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, scale_ms) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 1),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1_000),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60_000),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(scale_ms).map(Duration::from_millis)
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("address", &self.address)
            .field("login", &(self.user.is_some() || self.password.is_some()))
            .field("db", &self.db)
            .field("namespace", &self.namespace)
            .field("connect_timeout", &self.connect_timeout)
            .field("op_timeout", &self.op_timeout)
            .field("protocol", &self.protocol)
            .field("allow_eviction", &self.allow_eviction)
            .field("tls", &self.tls)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> Address {
        Address::Tcp { host: "localhost".to_owned(), port: 6379 }
    }

    fn tls() -> Address {
        Address::Tls { host: "localhost".to_owned(), port: 6379 }
    }

    fn parse(address: Address, params: &[(&str, &str)]) -> Result<RedisConfig, ConfigError> {
        RedisConfig::from_params(address, None, params.iter().copied())
    }

    #[test]
    fn parameters_are_understood() {
        let config = parse(
            tcp(),
            &[
                ("namespace", "a/b"),
                ("op_timeout", "250ms"),
                ("protocol", "resp3"),
                ("db", "3"),
                ("allow_eviction", "1"),
            ],
        )
        .expect("legal");
        assert_eq!(config.namespace.as_str(), "a/b");
        assert_eq!(config.op_timeout, Duration::from_millis(250));
        assert_eq!((config.protocol, config.db, config.allow_eviction), (Protocol::Resp3, 3, true));
        assert_eq!(parse(tcp(), &[]).expect("legal").op_timeout, RedisConfig::OP_TIMEOUT);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (name, value) in [
            ("namespace", ""),
            ("namespace", "a\nb"),
            ("op_timeout", "soon"),
            ("op_timeout", "0"),
            ("op_timeout", "61s"),
            ("connect_timeout", "99999999999999999999s"),
            ("protocol", "4"),
            ("db", "-1"),
            ("allow_eviction", "yes please"),
        ] {
            assert!(
                matches!(parse(tcp(), &[(name, value)]), Err(ConfigError::BadValue { .. })),
                "{name}={value}"
            );
        }
        assert_eq!(parse(tcp(), &[("nmaespace", "x")]).err(), Some(ConfigError::UnknownParam));
        let long = "x".repeat(65);
        assert!(parse(tcp(), &[("namespace", &long)]).is_err());
        for params in
            [&[("tls_cert", "a")][..], &[("tls_key", "a")], &[("tls_insecure", "1"), ("tls_ca", "a")]]
        {
            assert!(matches!(parse(tls(), params), Err(ConfigError::Contradiction(_))), "{params:?}");
        }
        assert!(matches!(parse(tcp(), &[("tls_ca", "a")]), Err(ConfigError::Contradiction(_))));
        let no_password = RedisConfig::from_params(tcp(), Some(("u".into(), None)), [("db", "0")]);
        assert!(matches!(no_password, Err(ConfigError::Contradiction(_))));
        let no_file = parse(tcp(), &[("password_file", "/nowhere/at/all")]);
        assert!(matches!(no_file, Err(ConfigError::BadFile { name: "password_file", .. })));
    }

    #[test]
    fn secrets_are_never_printed() {
        let login = Some(("someone".to_owned(), Some("hunter2".to_owned())));
        let config = RedisConfig::from_params(tcp(), login, [("db", "1")]).expect("legal");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
