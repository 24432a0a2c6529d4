//! Why a store could not be connected to.

use leasehold_core::{BackendError, ErrorKind, WatchdogError};

use crate::UrlError;

/// Why a URL gave no backend. No lease was touched. Never holds a secret of the URL.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is no store URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// No backend is registered for the scheme.
    #[error("no store is known for the scheme {scheme:?}{}: this build knows {}", meant(.suggestion), .known.join(", "))]
    UnknownScheme {
        /// The scheme as given.
        scheme: String,
        /// What may have been meant.
        suggestion: Option<String>,
        /// The schemes that are registered.
        known: Vec<String>,
    },
    /// The scheme is known, and its feature is off in this build.
    #[error("{scheme:?} stores are left out of this build: build it with the Cargo feature {feature:?}")]
    FeatureMissing {
        /// The scheme.
        scheme: String,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The store does not know a parameter. A typing error in a safety tool must not be ignored.
    #[error("a {scheme:?} store has no parameter {parameter:?}{}: it knows {}", meant(.suggestion), listed(.known))]
    UnknownParameter {
        /// The scheme.
        scheme: String,
        /// The parameter's name, or a dash where it might be a secret.
        parameter: String,
        /// What may have been meant.
        suggestion: Option<String>,
        /// The parameters that exist.
        known: Vec<String>,
    },
    /// The store refused, could not be reached, or does not like a value.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl ConnectError {
    /// The kind of trouble, in the words of backends: everything about the URL is
    /// [`ErrorKind::ConfigInvalid`].
    pub fn kind(&self) -> ErrorKind {
        match self {
            ConnectError::Backend(e) => e.kind(),
            _ => ErrorKind::ConfigInvalid,
        }
    }
}

/// Why a registry could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The text is no scheme.
    #[error(
        "{scheme:?} is no URL scheme: a lower-case letter, then lower-case letters, digits, '+', '-' and '.'"
    )]
    IllegalScheme {
        /// The text.
        scheme: String,
    },
    /// Two factories for one scheme.
    #[error("the scheme {scheme:?} is registered twice: which store it means would depend on the order")]
    Twice {
        /// The scheme.
        scheme: String,
    },
}

/// Why [`crate::client`] gave no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The watchdog could not start.
    #[error(transparent)]
    Watchdog(#[from] WatchdogError),
    /// The store could not be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

fn meant(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map_or_else(String::new, |word| format!(" (did you mean {word:?}?)"))
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}
