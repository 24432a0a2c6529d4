//! What a connection needs to know: the path, and how careful to be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::{BackendError, Effect, ErrorKind};

use crate::SCHEME;

/// How to open the file. Made by [`SqliteConfig::new`] or [`SqliteConfig::from_params`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The database file. It may hold other tables: leasehold's begin with `leasehold_`. A relative path
    /// counts from the current directory at the time of connecting.
    pub path: PathBuf,
    /// How long a call waits for others to finish writing; an acquire or a renewal at most four fifths of its
    /// ttl. Shorter than the operation timeout of the client, so that "busy" is told before "no answer", whose
    /// outcome is unknown. Default 4 s.
    pub busy_timeout: Duration,
    /// Whether tables may be made or migrated. Default: they may.
    pub schema: SchemaMode,
    /// Accepts file systems whose locks and shared memory are not known to work. **Gives every guarantee
    /// up**: on a network file system two machines may hold one lease. Default: no.
    pub allow_network_fs: bool,
    /// What the file system is taken for, for tests.
    #[doc(hidden)]
    pub fs_magic: Option<u64>,
    /// Bounds the database's size, for tests of a full disk.
    #[doc(hidden)]
    pub max_pages: Option<u32>,
}

/// What to do about missing or old tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaMode {
    /// Make and migrate them, and the file and its directory too.
    #[default]
    Auto,
    /// Refuse; an operator makes them with `leasehold init`.
    Refuse,
}

/// A configuration that cannot work. Nothing was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A parameter that does not exist. A typing error in a safety tool must not be ignored.
    #[error("there is no parameter {name:?}{}: {SCHEME} knows {}",
        .suggestion.map_or_else(String::new, |word| format!(" (did you mean {word:?}?)")),
        SqliteConfig::PARAMS.join(", "))]
    UnknownParam {
        /// As it was given.
        name: String,
        /// What may have been meant.
        suggestion: Option<&'static str>,
    },
    /// A parameter with a value it does not take.
    #[error("{name}={value:?} is not possible; what is: {expected}")]
    BadValue {
        /// Which parameter.
        name: &'static str,
        /// As it was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// A database in memory.
    #[error(
        "a SQLite database in memory is shared with nobody and survives nothing: use memory:// for leases inside one process, or give the path of a file"
    )]
    InMemory,
    /// A path that SQLite cannot open as it is.
    #[error("{what} cannot name a lease database: give the path of a file")]
    BadPath {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl From<ConfigError> for BackendError {
    fn from(error: ConfigError) -> BackendError {
        // why: refused before anything was opened.
        BackendError::new(ErrorKind::ConfigInvalid, Effect::None, SCHEME, "connect", error.to_string())
            .with_source(error)
    }
}

impl SqliteConfig {
    /// Default of [`SqliteConfig::busy_timeout`].
    pub const BUSY_TIMEOUT: Duration = Duration::from_secs(4);
    /// Longest busy timeout: beyond it a caller is better off asking again.
    pub const BUSY_TIMEOUT_MAX: Duration = Duration::from_secs(60);
    /// The parameters that [`SqliteConfig::from_params`] knows.
    pub const PARAMS: &'static [&'static str] =
        &["schema", "busy_timeout", "allow_network_fs", "synchronous"];

    /// The defaults for the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteConfig {
            path: path.into(),
            busy_timeout: Self::BUSY_TIMEOUT,
            schema: SchemaMode::Auto,
            allow_network_fs: false,
            fs_magic: None,
            max_pages: None,
        }
    }

    /// The configuration that the path and the parameters of a URL ask for.
    ///
    /// | parameter | values | default |
    /// |---|---|---|
    /// | `schema` | `auto`, `refuse` | `auto` |
    /// | `busy_timeout` | `5s`, `250ms`, or milliseconds | `4s` |
    /// | `allow_network_fs` | `0`, `1` | `0` |
    /// | `synchronous` | `full` | `full` |
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown parameter, a value out of range, or a path that cannot be used.
    pub fn from_params<K: AsRef<str>, V: AsRef<str>>(
        path: impl Into<PathBuf>,
        params: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        let mut config = SqliteConfig::new(path);
        for (name, value) in params {
            config.set(name.as_ref(), value.as_ref())?;
        }
        config.validate()?;
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let bad = |name, expected| ConfigError::BadValue { name, value: value.to_owned(), expected };
        match name {
            "schema" => {
                self.schema = match value {
                    "auto" => SchemaMode::Auto,
                    "refuse" => SchemaMode::Refuse,
                    _ => return Err(bad("schema", "auto or refuse")),
                }
            }
            "busy_timeout" => {
                self.busy_timeout = duration(value)
                    .ok_or_else(|| bad("busy_timeout", "a time such as 5s, 250ms, or milliseconds"))?;
            }
            "allow_network_fs" => {
                self.allow_network_fs = match value {
                    "0" | "false" => false,
                    "1" | "true" => true,
                    _ => return Err(bad("allow_network_fs", "0 or 1")),
                }
            }
            "synchronous" => {
                if !value.eq_ignore_ascii_case("full") {
                    let expected = "only full is offered, since a token that a loss of power takes back could be granted twice";
                    return Err(bad("synchronous", expected));
                }
            }
            _ => {
                return Err(ConfigError::UnknownParam { name: name.to_owned(), suggestion: nearest(name) });
            }
        }
        Ok(())
    }

    /// Refuses what cannot work, before any I/O.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Some(path) = self.path.to_str() else {
            return Err(ConfigError::BadPath { what: "a path that is not UTF-8" });
        };
        if path.starts_with(":memory:") || path.starts_with("file::memory:") {
            return Err(ConfigError::InMemory);
        }
        let what = match path {
            "" => "an empty path",
            _ if path.contains('\0') => "a path with a NUL byte",
            _ if path.ends_with('/') => "a path that ends with a slash",
            _ if Path::new(path).file_name().is_none() => "a path without a file name",
            _ => "",
        };
        if !what.is_empty() {
            return Err(ConfigError::BadPath { what });
        }
        if self.busy_timeout.is_zero() || self.busy_timeout > Self::BUSY_TIMEOUT_MAX {
            return Err(ConfigError::BadValue {
                name: "busy_timeout",
                value: format!("{:?}", self.busy_timeout),
                expected: "longer than zero and at most 60s",
            });
        }
        Ok(())
    }
}

/// `5s`, `250ms`, or a bare number of milliseconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit_ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1_000),
        (None, None) => (text, 1),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit_ms).map(Duration::from_millis)
}

/// The known parameter with the fewest edits to `word`, if at most a third of its letters differ.
fn nearest(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    SqliteConfig::PARAMS
        .iter()
        .map(|known| (edits(&word, known), *known))
        .filter(|(edits, known)| *edits <= known.len() / 3)
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            row.push((above[j] + usize::from(x != y)).min(above[j + 1] + 1).min(row[j] + 1));
        }
        above = row;
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(params: &[(&str, &str)]) -> Result<SqliteConfig, ConfigError> {
        SqliteConfig::from_params("/tmp/x.db", params.iter().copied())
    }

    #[test]
    fn params_are_read() {
        let config = parse(&[
            ("schema", "refuse"),
            ("busy_timeout", "250ms"),
            ("allow_network_fs", "1"),
            ("synchronous", "FULL"),
        ])
        .expect("legal");
        assert_eq!(config.schema, SchemaMode::Refuse);
        assert_eq!(config.busy_timeout, Duration::from_millis(250));
        assert!(config.allow_network_fs);
        assert_eq!(parse(&[("busy_timeout", "2s")]).expect("legal").busy_timeout, Duration::from_secs(2));
        assert_eq!(parse(&[("busy_timeout", "90")]).expect("legal").busy_timeout, Duration::from_millis(90));
    }

    #[test]
    fn typing_errors_are_named() {
        for (typed, meant) in [
            ("bsuy_timeout", Some("busy_timeout")),
            ("shema", Some("schema")),
            ("allow_networkfs", Some("allow_network_fs")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(
                parse(&[(typed, "1")]),
                Err(ConfigError::UnknownParam { name: typed.to_owned(), suggestion: meant })
            );
        }
    }

    #[test]
    fn bad_values_and_paths_are_refused() {
        for (name, value) in [
            ("schema", "no"),
            ("busy_timeout", "soon"),
            ("busy_timeout", "0"),
            ("busy_timeout", "-5s"),
            ("busy_timeout", "61s"),
            ("busy_timeout", "99999999999999999999s"),
            ("allow_network_fs", "yes please"),
            ("synchronous", "normal"),
        ] {
            assert!(matches!(parse(&[(name, value)]), Err(ConfigError::BadValue { .. })), "{name}={value}");
        }
        for path in ["", "/", "dir/", "..", "a\0b"] {
            let refused = SqliteConfig::new(path).validate();
            assert!(matches!(refused, Err(ConfigError::BadPath { .. })), "{path:?}");
        }
        for path in [":memory:", "file::memory:?cache=shared"] {
            let refused = SqliteConfig::new(path).validate();
            assert_eq!(refused, Err(ConfigError::InMemory), "{path:?}");
            assert!(ConfigError::InMemory.to_string().contains("memory://"));
        }
    }
}
