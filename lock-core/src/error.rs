//! Errors of backends: one concrete type for all stores.
//!
//! Contention and loss are values; an error means that the question was not answered. What matters
//! most to a holder is whether the store may have changed all the same: [`Effect`] says so, and has
//! no default (I5).

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::LeaseName;

/// What kind of trouble kept a backend from answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, or refuses service for now (down, loading, busy, full).
    Unavailable,
    /// No answer came within the operation's time limit.
    Timeout,
    /// The store cannot do what was asked; refused before any I/O.
    Unsupported,
    /// URL, settings or schema are wrong; nothing will change until someone mends them.
    ConfigInvalid,
    /// The store refuses these credentials, or they lack a right.
    PermissionDenied,
    /// The store issued, or would have to issue, a token that is not larger than one seen before.
    TokenRegression,
    /// What the store holds under this name was not written by leasehold, or by a newer version.
    Corrupt,
    /// The backend or its client was closed.
    Closed,
    /// Anything else.
    Other,
}

/// Whether the store may have changed although an error came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Provably not applied.
    None,
    /// May have been applied, now or later: ask again with the same owner, or release by owner.
    Unknown,
}

/// The error of every backend. Cheap to clone.
///
/// `Display` is one line for a person and names no secret (I12): sources are for programs, and a
/// backend puts no credentials into them.
#[derive(Clone)]
pub struct BackendError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    op: &'static str,
    backend: &'static str,
    name: Option<LeaseName>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl BackendError {
    /// An error of `backend` (its profile's name) in `op` (`acquire`, `renew`, `connect`, …).
    ///
    /// `message` says what happened and what to do, in words, without secrets. Beside an
    /// [`Effect::None`] the code says why the store cannot have changed.
    pub fn new(
        kind: ErrorKind,
        effect: Effect,
        backend: &'static str,
        op: &'static str,
        message: impl Into<String>,
    ) -> Self {
        BackendError(Box::new(Inner {
            kind,
            effect,
            op,
            backend,
            name: None,
            message: message.into(),
            source: None,
        }))
    }

    /// The same error, naming the lease it is about.
    #[must_use]
    pub fn with_name(mut self, name: &LeaseName) -> Self {
        self.0.name = Some(name.clone());
        self
    }

    /// The same error, after an earlier step of the same call may have changed the store.
    #[must_use]
    pub fn with_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// The same error with its cause, kept for programs and never printed.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the store may have changed.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// The operation that failed.
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The backend's name, as in its profile.
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// The lease it is about, where one was named.
    pub fn name(&self) -> Option<&LeaseName> {
        self.0.name.as_ref()
    }

    /// What happened and what to do, without backend, operation and name around it.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether asking again, with the same owner, makes sense. Every operation compares or carries
    /// the owner and is idempotent by it, so only the kind decides.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout)
            || (self.0.kind == ErrorKind::Other && self.0.effect == Effect::Unknown)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { effect, op, backend, name, message, .. } = &*self.0;
        write!(f, "{backend}: {op}")?;
        if let Some(name) = name {
            write!(f, " of {name:?}")?;
        }
        write!(f, ": {message}")?;
        match effect {
            Effect::None => Ok(()),
            Effect::Unknown => f.write_str(" (outcome unknown: it may have been applied)"),
        }
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.0.kind)
            .field("effect", &self.0.effect)
            .field("backend", &self.0.backend)
            .field("op", &self.0.op)
            .field("name", &self.0.name)
            .field("message", &self.0.message)
            .finish_non_exhaustive()
    }
}

impl StdError for BackendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn StdError + 'static))
    }
}
