//! Store URLs: how they are split, and how they are shown.
//!
//! `scheme:[//authority]path[?name=value&…]`. The `url` crate refuses lists of hosts with ports
//! (`a:1,b:2`) and knows nothing of relative files, so the text is split here, and each single host
//! is handed to that crate alone.
//!
//! A URL may hold secrets. It is shown by an allow-list only: user information never, the values of
//! unlisted parameters never, and nothing but the scheme when the text cannot be split with
//! certainty (a password with a bare `/`, `?` or `#` in it moves the borders).

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Parameters whose values may be shown. Everything else may be a secret.
const SHOWN_PARAMETERS: [&str; 24] = [
    "allow_eviction",
    "allow_network_fs",
    "busy_timeout",
    "cache",
    "connect_timeout",
    "create",
    "db",
    "durability",
    "immutable",
    "mode",
    "namespace",
    "op_timeout",
    "poll",
    "poll_interval",
    "protocol",
    "schema",
    "synchronous",
    "timeout",
    "tls_ca",
    "tls_cert",
    "tls_insecure",
    "tls_key",
    "tls_server_name",
    "ttl",
];

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 8192;

/// Why a text is no store URL. Nothing was connected to. Never repeats the text: it may hold a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no scheme.
    #[error("a store URL begins with a scheme and a colon, as sqlite:///var/lib/leases.db does")]
    NoScheme,
    /// The text is too long.
    #[error("a store URL has at most {URL_BYTES_MAX} bytes and this one has {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The text holds a control character or a blank.
    #[error("a store URL must not hold blanks or control characters: percent-encode them (a blank is %20)")]
    ControlCharacter,
    /// The text holds a `#`.
    #[error("a store URL has no fragment: write a '#' that belongs to a name or password as %23")]
    Fragment,
    /// A `%` is not followed by two hexadecimal digits, or the bytes are no UTF-8.
    #[error("the {part} of the store URL is not percent-encoded UTF-8: write a '%' as %25")]
    Encoding {
        /// Which part.
        part: &'static str,
    },
    /// A parameter has no value.
    #[error("a parameter of the store URL has no value: write name=value, and an '&' inside a value as %26")]
    NoValue,
    /// A parameter is there twice.
    #[error("the parameter {name:?} is given twice in the store URL: keep one")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A host or port is wrong.
    #[error(
        "a host of the store URL is wrong ({reason}): write host, host:port or [v6]:port, with commas between"
    )]
    Host {
        /// What is wrong with it.
        reason: String,
    },
    /// The path is missing, or there is something where nothing belongs.
    #[error("{0}")]
    Shape(&'static str),
}

/// A store URL, split. `Display` and `Debug` show no secret.
///
/// ```
/// use leasehold::StoreUrl;
/// let url: StoreUrl = "redis://user:hunter2@a:6379,b:6380/0?password=x&ttl=5s".parse()?;
/// assert_eq!(url.to_string(), "redis://***@a:6379,b:6380/0?password=***&ttl=5s");
/// assert_eq!(url.hosts()?.len(), 2);
/// let file: StoreUrl = "sqlite://my%20leases.db".parse()?;
/// assert_eq!(file.file_path()?.to_str(), Some("my leases.db"));
/// # Ok::<(), leasehold::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    authority: Option<String>,
    path: String,
    params: Vec<(String, String)>,
}

impl std::str::FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong { bytes: text.len() });
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(UrlError::ControlCharacter);
        }
        let (scheme, rest) = split_scheme(text).ok_or(UrlError::NoScheme)?;
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                (Some(rest[..end].to_owned()), rest[end..].to_owned())
            }
            None => (None, rest.to_owned()),
        };
        let params = query.map_or(Ok(Vec::new()), parameters)?;
        Ok(StoreUrl { scheme, authority, path, params })
    }
}

/// The scheme in lower case, and what follows its colon.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let legal = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.len() <= 32
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b));
    legal.then(|| (scheme.to_ascii_lowercase(), rest))
}

fn parameters(query: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut params: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(UrlError::NoValue)?;
        let (name, value) = (decode(name, "query")?, decode(value, "query")?);
        if params.iter().any(|(other, _)| *other == name) {
            let shown = is_plain(&name);
            return Err(UrlError::Twice { name: if shown { name } else { "…".to_owned() } });
        }
        params.push((name, value));
    }
    Ok(params)
}

/// Whether a parameter's name may be repeated to the user.
pub(crate) fn is_plain(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b == b'-')
}

fn decode(text: &str, part: &'static str) -> Result<String, UrlError> {
    let bytes = text.as_bytes();
    for (at, &b) in bytes.iter().enumerate() {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if b == b'%' && (digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(UrlError::Encoding { part });
        }
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| UrlError::Encoding { part })?;
    Ok(decoded.into_owned())
}

impl StoreUrl {
    /// The scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The same URL, with parameter `key` set to `value` whether or not it was there.
    #[must_use]
    pub fn with_param(mut self, key: &str, value: &str) -> Self {
        self.params.retain(|(name, _)| name != key);
        self.params.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The parameters, decoded, in the order given. Their values may be secret.
    pub fn params(&self) -> &[(String, String)] {
        &self.params
    }

    /// User and password, decoded once. Secret.
    ///
    /// # Errors
    /// [`UrlError::Encoding`].
    pub fn user_info(&self) -> Result<Option<(String, Option<String>)>, UrlError> {
        let Some((user_info, _)) = self.split_authority() else { return Ok(None) };
        let (user, password) = match user_info.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (user_info, None),
        };
        let password = password.map(|p| decode(p, "password")).transpose()?;
        Ok(Some((decode(user, "user name")?, password)))
    }

    /// The hosts, with ports where given; none of them for a URL without an authority.
    ///
    /// # Errors
    /// [`UrlError::Host`].
    pub fn hosts(&self) -> Result<Vec<(String, Option<u16>)>, UrlError> {
        let Some(authority) = self.authority.as_deref() else { return Ok(Vec::new()) };
        let hosts = self.split_authority().map_or(authority, |(_, hosts)| hosts);
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        hosts.split(',').map(single_host).collect()
    }

    /// The path as it was written, with its leading slash where it has one.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Authority and path together, decoded, as schemes that name a file use them:
    /// `sqlite:///abs.db`, `sqlite://rel.db` and `sqlite:rel.db`.
    ///
    /// # Errors
    /// [`UrlError::Encoding`]; [`UrlError::Shape`] when there is no path, or a NUL in it.
    pub fn file_path(&self) -> Result<PathBuf, UrlError> {
        if self.split_authority().is_some() {
            return Err(UrlError::Shape(
                "a file has no user and password: write an '@' at the start of its name as %40",
            ));
        }
        let text = decode(&format!("{}{}", self.authority.as_deref().unwrap_or(""), self.path), "path")?;
        if text.is_empty() {
            return Err(UrlError::Shape(
                "the store URL names no file: write sqlite:///absolute/path.db or sqlite://relative.db",
            ));
        }
        if text.contains('\0') {
            return Err(UrlError::Shape("a file name cannot hold a NUL (%00)"));
        }
        Ok(PathBuf::from(text))
    }

    /// The path, decoded, of schemes that name a socket: `redis+unix:///run/redis.sock`.
    ///
    /// # Errors
    /// [`UrlError::Encoding`]; [`UrlError::Shape`] when there is no path, or a NUL in it.
    pub fn socket_path(&self) -> Result<PathBuf, UrlError> {
        let text = decode(&self.path, "path")?;
        if text.len() < 2 {
            return Err(UrlError::Shape("the store URL names no socket: write redis+unix:///run/redis.sock"));
        }
        if text.contains('\0') {
            return Err(UrlError::Shape("a file name cannot hold a NUL (%00)"));
        }
        Ok(PathBuf::from(text))
    }

    /// Whether nothing in this URL can be a secret: no user information, and no parameter whose
    /// value is not shown.
    pub fn is_public(&self) -> bool {
        let certain = self.names_file() || !self.path.contains('@');
        certain && self.split_authority().is_none() && self.params.iter().all(|(name, _)| is_shown(name))
    }

    /// User information and hosts; the last `@` divides them, so that a bare one in a password does
    /// not show half of it.
    fn split_authority(&self) -> Option<(&str, &str)> {
        self.authority.as_deref()?.rsplit_once('@')
    }

    fn names_file(&self) -> bool {
        self.scheme == "sqlite"
    }
}

fn is_shown(name: &str) -> bool {
    SHOWN_PARAMETERS.contains(&name)
}

fn single_host(text: &str) -> Result<(String, Option<u16>), UrlError> {
    // An unknown scheme, so that the crate drops no default port.
    let parsed = url::Url::parse(&format!("x://{text}"));
    match parsed {
        Ok(url) if !text.contains(['/', '@', '?']) => match url.host_str() {
            Some(host) if !host.is_empty() => Ok((host.to_owned(), url.port())),
            _ => Err(UrlError::Host { reason: "it is empty".to_owned() }),
        },
        Ok(_) => Err(UrlError::Host { reason: "it holds a character that hosts do not".to_owned() }),
        Err(e) => Err(UrlError::Host { reason: e.to_string() }),
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if self.names_file() {
            match (self.split_authority(), &self.authority) {
                (Some((_, rest)), _) => write!(f, "//***@{rest}")?,
                (None, Some(authority)) => write!(f, "//{authority}")?,
                (None, None) => {}
            }
            f.write_str(&self.path)?;
        } else {
            // A bare '@' behind the authority, or a host that is none, tells that the borders are
            // not where they seem: what looks like a port may be a password.
            let certain = !self.path.contains('@') && self.hosts().is_ok();
            let (Some(authority), true) = (self.authority.as_deref(), certain) else {
                return f.write_str("***");
            };
            match self.split_authority() {
                Some((_, hosts)) => write!(f, "//***@{hosts}")?,
                None => write!(f, "//{authority}")?,
            }
            f.write_str(&self.path)?;
        }
        for (i, (name, value)) in self.params.iter().enumerate() {
            f.write_str(if i == 0 { "?" } else { "&" })?;
            match (is_shown(name), is_plain(name)) {
                (true, _) => write!(f, "{name}={}", value.escape_debug())?,
                (false, true) => write!(f, "{name}=***")?,
                (false, false) => f.write_str("***")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    #[test]
    fn files_are_found_in_every_spelling() {
        for (text, path) in [
            ("sqlite:///abs/path.db", "/abs/path.db"),
            ("sqlite://rel.db", "rel.db"),
            ("sqlite:rel.db", "rel.db"),
            ("sqlite:./a/../b.db", "./a/../b.db"),
            ("sqlite:/abs.db?mode=rwc", "/abs.db"),
            ("SQLite://dir/a%20b%3F%23.db", "dir/a b?#.db"),
            ("sqlite://caf%C3%A9.db", "café.db"),
            ("sqlite://100%25.db", "100%.db"),
        ] {
            assert_eq!(url(text).file_path().expect(text), PathBuf::from(path), "{text}");
        }
        for bad in ["sqlite:", "sqlite://", "sqlite:?mode=ro", "sqlite:a%00b", "sqlite:100%.db", "sqlite:%FF"]
        {
            assert!(url(bad).file_path().is_err(), "{bad}");
        }
    }

    #[test]
    fn broken_texts_say_what_is_wrong() {
        let refused = |text: &str| text.parse::<StoreUrl>().expect_err(text);
        assert_eq!(refused("prod"), UrlError::NoScheme);
        assert_eq!(refused("://x"), UrlError::NoScheme);
        assert_eq!(refused("9x://y"), UrlError::NoScheme);
        assert_eq!(refused("redis://u:a#b@h"), UrlError::Fragment);
        assert_eq!(refused("sqlite:a b"), UrlError::ControlCharacter);
        assert_eq!(refused("sqlite:x?mode"), UrlError::NoValue);
        assert_eq!(refused("sqlite:x?mode=%z"), UrlError::Encoding { part: "query" });
        assert_eq!(refused("sqlite:x?mode=a&mode=b"), UrlError::Twice { name: "mode".to_owned() });
        assert!(matches!(refused(&format!("sqlite:{}", "x".repeat(9000))), UrlError::TooLong { .. }));
    }

    #[test]
    fn lists_of_hosts_are_split() {
        let hosts = url("etcd://a:1,b,[::1]:3/prefix").hosts().expect("legal");
        assert_eq!(hosts, [("a".into(), Some(1)), ("b".into(), None), ("[::1]".into(), Some(3))]);
        for bad in ["x://a:b", "x://a:99999", "x://a,,b", "x://[::1"] {
            assert!(url(bad).hosts().is_err(), "{bad}");
        }
        let (user, password) = url("x://u%40:p%3A%25@h").user_info().expect("legal").expect("there");
        assert_eq!((user.as_str(), password.as_deref()), ("u@", Some("p:%")));
    }

    #[test]
    fn secrets_are_never_shown_wherever_they_stand() {
        const SECRET: &str = "hunter2";
        for text in [
            "redis://u:hunter2@h/0",
            "redis://hunter2@h",
            "redis://u:x@hunter2@h",
            "redis://u:/hunter2@h",
            "redis://u:?hunter2@h=1",
            "redis://u:hunter2",
            "redis:hunter2",
            "redis://h?password=hunter2",
            "redis://h?hunter2=1",
            "sqlite:x.db?key=hunter2",
            "sqlite://u:hunter2@h/x.db",
            "memory://hunter2@x",
        ] {
            let Ok(url) = text.parse::<StoreUrl>() else { continue };
            assert!(!format!("{url} {url:?}").contains(SECRET), "{text} is shown as {url}");
            assert!(!url.is_public() || !text.contains(['@', '?']), "{text} is not public");
        }
        assert_eq!(url("sqlite:///a/b.db?mode=rwc").to_string(), "sqlite:///a/b.db?mode=rwc");
        assert!(url("sqlite:///a/b@c.db?mode=rwc").is_public());
    }

    proptest! {
        #[test]
        fn splitting_never_panics(text in "\\PC{0,80}") {
            if let Ok(url) = text.parse::<StoreUrl>() {
                let _ = (url.to_string(), url.hosts().is_ok(), url.file_path().is_ok(), url.is_public());
            }
        }

        #[test]
        fn an_encoded_path_comes_back(path in "[^\\p{C}]{1,40}") {
            let set = percent_encoding::NON_ALPHANUMERIC;
            let text = format!("sqlite:{}", percent_encoding::utf8_percent_encode(&path, set));
            prop_assert_eq!(url(&text).file_path().expect("legal"), PathBuf::from(path));
        }
    }
}
