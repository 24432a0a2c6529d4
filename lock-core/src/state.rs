//! The states of a held lease, and the error of a lease that is over.

use crate::{LeaseName, LostCause, Token};
use std::fmt;
use std::time::Duration;

/// Where a held lease stands.
///
/// ```text
/// Held ⇄ AtRisk ──► Lost(cause)
///   └──────┴──────► Ended(released | max_hold | deadline)
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, and its renewals are on time.
    Held,
    /// Still held, but a renewal failed or is late: it is lost in `remaining` unless one succeeds.
    AtRisk {
        /// Time left when this was written.
        remaining: Duration,
    },
    /// Over against the holder's will.
    Lost(LostCause),
    /// Over by the holder's own doing or settings.
    Ended(EndReason),
}

/// Why a lease ended without being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The holder gave it back.
    Released,
    /// It reached its `max_hold`.
    MaxHold,
    /// It reached its business deadline.
    Deadline,
}

impl LeaseState {
    /// Whether the lease is over.
    pub fn is_over(&self) -> bool {
        matches!(self, LeaseState::Lost(_) | LeaseState::Ended(_))
    }

    /// Whether the holder must stop: over, and not by its own release.
    pub fn is_loss(&self) -> bool {
        self.is_over() && *self != LeaseState::Ended(EndReason::Released)
    }

    /// A short stable word for metrics and JSON.
    pub fn word(&self) -> &'static str {
        match self {
            LeaseState::Held => "held",
            LeaseState::AtRisk { .. } => "at_risk",
            LeaseState::Lost(cause) => cause.word(),
            LeaseState::Ended(EndReason::Released) => "released",
            LeaseState::Ended(EndReason::MaxHold) => "max_hold",
            LeaseState::Ended(EndReason::Deadline) => "deadline",
        }
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseState::Held => f.write_str("held"),
            LeaseState::AtRisk { remaining } => {
                write!(f, "at risk: lost in {remaining:?} unless a renewal succeeds")
            }
            LeaseState::Lost(cause) => write!(f, "lost: {cause}"),
            LeaseState::Ended(EndReason::Released) => f.write_str("released"),
            LeaseState::Ended(EndReason::MaxHold) => f.write_str("ended: it reached its maximum hold"),
            LeaseState::Ended(EndReason::Deadline) => f.write_str("ended: it reached its deadline"),
        }
    }
}

/// The lease is over: stop what it protects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lease {name:?} (token {token}) is over ({state}): stop the work it protects; another holder may be at it"
)]
pub struct LeaseOver {
    /// Its name.
    pub name: LeaseName,
    /// Its token, which the resource will refuse once a newer holder was there.
    pub token: Token,
    /// How it ended.
    pub state: LeaseState,
}
