//! What a connection needs to know: where, as whom, and how careful to be.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{BackendError, Effect, ErrorKind};

use crate::{SCHEME, Secret};

/// How to reach the servers. Made by [`EtcdConfig::new`] or [`EtcdConfig::from_params`]. `Debug` shows no secret.
#[derive(Clone)]
#[non_exhaustive]
pub struct EtcdConfig {
    /// Where the members of the cluster listen for clients.
    pub endpoints: Vec<Endpoint>,
    /// Whether connections are encrypted.
    pub encrypted: bool,
    /// The user, where authentication is enabled.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// What all keys begin with. Leases of different prefixes do not know each other. Default `leasehold`.
    pub prefix: String,
    /// How long one try to connect may take. Default 2 s.
    pub connect_timeout: Duration,
    /// How long one call may take; an acquire at most its ttl. Default 2 s.
    pub op_timeout: Duration,
    /// For encrypted connections.
    pub tls: TlsConfig,
}

/// Where one member listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address of the host; an IPv6 address without brackets.
    pub host: String,
    /// The port; 2379 by habit.
    pub port: u16,
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
    /// The name that the servers' certificates must have, where it is not the host's.
    pub server_name: Option<String>,
}

/// A configuration that cannot work. Nothing was connected to. Never repeats what may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A parameter that does not exist. A typing error in a safety tool must not be ignored.
    #[error("there is no such parameter; an {SCHEME} store knows {}", EtcdConfig::PARAMS.join(", "))]
    UnknownParam,
    /// A parameter with a value it does not take.
    #[error("the value of {name} is not possible: {expected}")]
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

impl Endpoint {
    /// `host:port`, as a URL has it.
    pub(crate) fn authority(&self) -> String {
        let Endpoint { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl EtcdConfig {
    /// Default of [`EtcdConfig::connect_timeout`].
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// Default of [`EtcdConfig::op_timeout`].
    pub const OP_TIMEOUT: Duration = Duration::from_secs(2);
    /// Longest timeout: beyond it a caller is better off asking again.
    pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
    /// Shortest timeout: below it an ordinary network looks dead.
    pub const TIMEOUT_MIN: Duration = Duration::from_millis(10);
    /// Longest prefix, in bytes.
    pub const PREFIX_BYTES_MAX: usize = 256;
    /// Most endpoints: larger clusters than this vote slowly, and nobody runs them.
    pub const ENDPOINTS_MAX: usize = 32;
    /// Default of [`EtcdConfig::prefix`].
    pub const PREFIX: &'static str = "leasehold";
    /// The port of an endpoint that names none.
    pub const PORT: u16 = 2379;
    /// The parameters that [`EtcdConfig::from_params`] knows.
    pub const PARAMS: &'static [&'static str] = &[
        "connect_timeout",
        "op_timeout",
        "password_file",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "tls_server_name",
    ];

    /// The defaults for the cluster at `endpoints`.
    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        EtcdConfig {
            endpoints: endpoints.into_iter().collect(),
            encrypted: false,
            user: None,
            password: None,
            prefix: Self::PREFIX.to_owned(),
            connect_timeout: Self::CONNECT_TIMEOUT,
            op_timeout: Self::OP_TIMEOUT,
            tls: TlsConfig::default(),
        }
    }

    /// The configuration that scheme, hosts, path, user information and parameters of a URL ask for:
    /// `etcd://user:password@h1:2379,h2:2379/prefix?op_timeout=1s`, or `etcds:` with TLS. Reads `password_file`.
    ///
    /// | parameter | values | default |
    /// |---|---|---|
    /// | `connect_timeout`, `op_timeout` | `5s`, `250ms`, or milliseconds | `2s` |
    /// | `password_file` | a file whose first line is the password | |
    /// | `tls_ca`, `tls_cert`, `tls_key` | PEM files | |
    /// | `tls_server_name` | the name in the servers' certificates | the host |
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_params<K: AsRef<str>, V: AsRef<str>>(
        scheme: &str,
        hosts: impl IntoIterator<Item = (String, Option<u16>)>,
        path: &str,
        login: Option<(String, Option<String>)>,
        params: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        let endpoints =
            hosts.into_iter().map(|(host, port)| Endpoint { host, port: port.unwrap_or(Self::PORT) });
        let mut config = EtcdConfig::new(endpoints);
        config.encrypted = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(ConfigError::Contradiction("the scheme of an etcd store is etcd or etcds")),
        };
        match path.trim_matches('/') {
            "" => {}
            prefix => config.prefix = prefix.to_owned(),
        }
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
        let time = |name| {
            let expected = "it is a time such as 5s, 250ms, or milliseconds";
            duration(value).ok_or(ConfigError::BadValue { name, expected })
        };
        match name {
            "connect_timeout" => self.connect_timeout = time("connect_timeout")?,
            "op_timeout" => self.op_timeout = time("op_timeout")?,
            "password_file" => self.password = Some(password_file(value)?),
            "tls_ca" => self.tls.ca = Some(value.into()),
            "tls_cert" => self.tls.cert = Some(value.into()),
            "tls_key" => self.tls.key = Some(value.into()),
            "tls_server_name" => self.tls.server_name = Some(value.to_owned()),
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
                return Err(ConfigError::BadValue { name, expected: "it is between 10ms and 60s" });
            }
        }
        let prefix = &self.prefix;
        let is_legal = !prefix.is_empty()
            && prefix.len() <= Self::PREFIX_BYTES_MAX
            && !prefix.ends_with('/')
            && !prefix.chars().any(char::is_control);
        if !is_legal {
            let expected = "it has 1 to 256 bytes, no control characters, and no slash at its end";
            return Err(ConfigError::BadValue { name: "prefix", expected });
        }
        let contradiction = if self.endpoints.is_empty() || self.endpoints.len() > Self::ENDPOINTS_MAX {
            "an etcd store has 1 to 32 endpoints: write etcd://host:2379/prefix"
        } else if self.endpoints.iter().any(|endpoint| endpoint.host.is_empty()) {
            "an endpoint without a host: write etcd://host:2379/prefix"
        } else if self.user.is_some() != self.password.is_some() {
            "user and password go together: write etcd://USER:PASSWORD@HOST, or give password_file"
        } else if !self.encrypted && self.tls != TlsConfig::default() {
            "parameters of TLS were given for a connection without TLS: the scheme is etcds://"
        } else if self.tls.cert.is_some() != self.tls.key.is_some() {
            "a client certificate needs both tls_cert and tls_key"
        } else {
            return Ok(());
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
        _ => Err(ConfigError::BadValue { name: "password_file", expected: "its first line is the password" }),
    }
}

/// `5s`, `250ms`, or milliseconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, scale_ms) = if let Some(digits) = text.strip_suffix("ms") {
        (digits, 1)
    } else if let Some(digits) = text.strip_suffix('s') {
        (digits, 1_000)
    } else {
        (text, 1)
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(scale_ms).map(Duration::from_millis)
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("encrypted", &self.encrypted)
            .field("login", &self.user.is_some())
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("op_timeout", &self.op_timeout)
            .field("tls", &self.tls)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        scheme: &str,
        path: &str,
        login: Option<(&str, Option<&str>)>,
        params: &[(&str, &str)],
    ) -> Result<EtcdConfig, ConfigError> {
        let hosts = [("h1".to_owned(), None), ("::1".to_owned(), Some(7))];
        let login = login.map(|(user, password)| (user.to_owned(), password.map(str::to_owned)));
        EtcdConfig::from_params(scheme, hosts, path, login, params.iter().copied())
    }

    #[test]
    fn a_url_is_understood() {
        let config =
            parse("etcds", "/app/a/", Some(("u", Some("p"))), &[("op_timeout", "250ms"), ("tls_ca", "/ca")])
                .expect("legal");
        assert_eq!((config.prefix.as_str(), config.encrypted), ("app/a", true));
        let authorities: Vec<String> = config.endpoints.iter().map(Endpoint::authority).collect();
        assert_eq!(authorities, ["h1:2379", "[::1]:7"]);
        assert_eq!(config.op_timeout, Duration::from_millis(250));
        assert!(!format!("{config:?}").contains("\"p\""), "{config:?}");
        assert_eq!(parse("etcd", "", None, &[]).expect("legal").prefix, EtcdConfig::PREFIX);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for params in [
            [("op_timeout", "soon")],
            [("op_timeout", "0")],
            [("connect_timeout", "61s")],
            [("tls_ca", "/ca")],
            [("namespace", "x")],
            [("password_file", "/nowhere/at/all")],
        ] {
            assert!(parse("etcd", "", None, &params).is_err(), "{params:?}");
        }
        assert!(parse("etcds", "", None, &[("tls_cert", "/c")]).is_err(), "half a client certificate");
        assert!(parse("redis", "", None, &[]).is_err(), "another scheme");
        assert!(parse("etcd", "", Some(("u", None)), &[]).is_err(), "a user without a password");
        assert!(parse("etcd", "a\nb", None, &[]).is_err(), "a control character");
        assert!(EtcdConfig::new([]).validate().is_err(), "no endpoint");
    }
}
