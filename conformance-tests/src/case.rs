//! A case: a sentence about every backend, what it needs, and which defects prove it.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;

use leasehold_core::{Declared, LeaseBackend, Profile, TokenSource, TtlChange};

use crate::history::{History, excerpt};
use crate::{Bench, Fault, Harness};

/// How much of a history a failure shows: what led to it, and no wall of text.
const LINES_SHOWN: usize = 20;

/// The future of a case. It runs on a thread of its own and need not be `Send`.
pub type CaseFuture = Pin<Box<dyn Future<Output = Result<(), Failed>>>>;

/// One row of [`crate::CASES`].
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `area/sentence_in_present_tense`.
    pub name: &'static str,
    /// Without these the case is ignored, with the reason printed.
    pub needs: &'static [Need],
    /// Planted defects that fail this case, by name: without one it does not count.
    pub proven_by: &'static [&'static str],
    /// The body.
    pub run: fn(Bench) -> CaseFuture,
}

/// What a case needs of a store beyond the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// [`leasehold_core::LeaseAdmin`].
    Admin,
    /// [`leasehold_core::FencedStore`].
    Fenced,
    /// `keep_for` of a release is honoured.
    KeepFor,
    /// Tokens are values that the backend makes: floors can be imposed.
    ValueTokens,
    /// The ttl of a held grant can be changed.
    TtlChange,
    /// Time is virtual: a clock can be stepped.
    ContextClock,
    /// Nobody else uses the store: what holds for all its names can be changed.
    OwnStore,
    /// A fault hook.
    Fault(Fault),
}

impl Need {
    /// Whether the store offers it, or why not.
    ///
    /// # Errors
    /// The reason to print.
    pub fn met(self, harness: &dyn Harness, backend: &dyn LeaseBackend) -> Result<(), String> {
        let profile: &Profile = backend.profile();
        let declared = |met: bool, why: &str| if met { Ok(()) } else { Err(why.to_owned()) };
        match self {
            Need::Admin => declared(backend.facets().admin.is_some(), "the store offers no admin facet"),
            Need::Fenced => declared(backend.facets().fenced.is_some(), "the store offers no fenced values"),
            Need::KeepFor => declared(profile.keep_for == Declared::Yes, "keep_for is not declared"),
            Need::ValueTokens => {
                declared(profile.token == TokenSource::Value, "tokens are the store's own numbers")
            }
            Need::TtlChange => {
                declared(profile.ttl_change != TtlChange::Refused, "the ttl of a held grant is fixed")
            }
            Need::ContextClock => {
                declared(harness.on_context_clock(), "the store has a clock of its own, which is not stepped")
            }
            Need::OwnStore => declared(
                !harness.is_shared(),
                "others use the store, and this would change what holds for all its names",
            ),
            Need::Fault(fault) => match harness.fault() {
                None => Err(format!("the harness has no hook for {fault:?}")),
                Some(injector) => injector.offers(fault).map_err(|why| format!("no {fault:?}: {why}")),
            },
        }
    }
}

/// Why a case failed, and where.
pub struct Failed {
    message: String,
    at: &'static Location<'static>,
    /// What the store was asked and answered before, as far as it was recorded.
    history: Option<String>,
}

impl Failed {
    /// A failure at the caller's place.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        Failed { message: message.into(), at: Location::caller(), history: None }
    }

    /// The same, with the end of a history for a person to look at.
    #[must_use]
    pub(crate) fn with_history(mut self, history: &History) -> Self {
        self.history.get_or_insert_with(|| excerpt(history, LINES_SHOWN));
        self
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.message, self.at.file(), self.at.line())?;
        self.history.as_ref().map_or(Ok(()), |history| write!(f, "\n{history}"))
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: std::error::Error> From<E> for Failed {
    #[track_caller]
    fn from(error: E) -> Self {
        Failed::new(format!("unexpected error: {error}"))
    }
}

/// Fails the case unless the condition holds.
macro_rules! check {
    ($cond:expr, $($message:tt)+) => {
        if $cond {
        } else {
            return Err($crate::Failed::new(format!($($message)+)));
        }
    };
}

/// Takes what the pattern binds, or fails the case and shows the value.
macro_rules! take {
    ($value:expr, $pattern:pat => $out:expr, $($message:tt)+) => {
        match $value {
            $pattern => $out,
            #[allow(unreachable_patterns)]
            other => return Err($crate::Failed::new(format!("{}: {other:?}", format!($($message)+)))),
        }
    };
}

/// Rows of the table.
macro_rules! cases {
    ($($name:literal needs [$($need:expr),*] proven_by [$($mutant:ident),*] => $run:path;)+) => {
        &[$($crate::Case {
            name: $name,
            needs: &[$($need),*],
            proven_by: &[$(stringify!($mutant)),*],
            run: |bench| Box::pin($run(bench)),
        },)+]
    };
}

pub(crate) use {cases, check, take};
