//! What a store promises, declared by its backend.
//!
//! A profile is read twice: the core refuses what a store cannot do before any I/O
//! ([`Profile::refuse`]), and the conformance suite picks its cases by it. What is declared is
//! tested; what is not declared is tested to be refused.

use std::time::Duration;

use crate::{AcquireRequest, Admission, BackendError, Effect, ErrorKind, Mode};

/// How a grant runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expiry {
    /// A time to live in the grant's own record.
    Ttl,
    /// With a session that many grants share and that heartbeats keep alive.
    Session,
    /// With the connection that took it.
    Connection,
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenSource {
    /// `max(last + 1, store clock, floor + 1)`, written with the grant: floors can be imposed.
    Value,
    /// The store's own revision or transaction number.
    Native,
}

/// In which order waiters are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// No order across processes. Within one process waiters are served first come, first served.
    Unordered,
    /// First come, first served.
    Fifo,
}

/// How a waiter learns that trying again makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitMode {
    /// The store, or the operating system, tells it.
    Notify,
    /// It looks again and again.
    Poll,
}

/// What a granted token survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Durability {
    /// Ends with the process that holds the store.
    Process,
    /// Survives a crash of processes and a loss of power.
    Disk,
    /// Survives the loss of a minority of machines.
    Replicated,
}

/// Whether the ttl of a held grant can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TtlChange {
    /// By the next renewal.
    InPlace,
    /// By moving the grant.
    Move,
    /// Not at all.
    Refused,
}

/// What a store promises. Build it with [`Profile::new`] and the `with_` functions; all are `const`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The backend's name, as in its URL scheme.
    pub name: &'static str,
    /// Most renewals in one call of `renew`.
    pub batch_max: usize,
    /// Taken off every grant beside the drift: the store's granularity of time.
    pub margin: Duration,
    /// Shortest ttl.
    pub ttl_min: Duration,
    /// Longest ttl.
    pub ttl_max: Duration,
    /// A ttl is a multiple of this; others are rounded up by the store, never down.
    pub ttl_granularity: Duration,
    /// Whether the ttl of a held grant can change.
    pub ttl_change: TtlChange,
    /// How a grant runs out.
    pub expiry: Expiry,
    /// Where tokens come from.
    pub token: TokenSource,
    /// In which order waiters are granted.
    pub order: Order,
    /// How waiters learn.
    pub wait: WaitMode,
    /// What a token survives.
    pub durability: Durability,
    /// Whether [`Mode::Shared`] is possible.
    pub shared: Declared,
    /// Whether [`Mode::Permit`] is possible.
    pub permits: Declared,
    /// Whether [`Admission::Queue`] is possible.
    pub queue: Declared,
    /// Whether `keep_for` of a release is honoured.
    pub keep_for: Declared,
}

/// Whether a store declares an ability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Declared {
    /// Declared, hence tested.
    Yes,
    /// Not declared, hence tested to be refused.
    No,
}

impl Profile {
    /// The profile of a store that grants exclusive leases with a ttl in each record and polls:
    /// value tokens, no queue, batches of 512, ttl from 100 ms to 366 days, nothing durable.
    pub const fn new(name: &'static str) -> Self {
        Profile {
            name,
            batch_max: 512,
            margin: Duration::from_millis(1),
            ttl_min: Duration::from_millis(100),
            ttl_max: Duration::from_secs(366 * 24 * 3600),
            ttl_granularity: Duration::from_millis(1),
            ttl_change: TtlChange::InPlace,
            expiry: Expiry::Ttl,
            token: TokenSource::Value,
            order: Order::Unordered,
            wait: WaitMode::Poll,
            durability: Durability::Process,
            shared: Declared::No,
            permits: Declared::No,
            queue: Declared::No,
            keep_for: Declared::Yes,
        }
    }

    /// The same with another range of ttls.
    #[must_use]
    pub const fn with_ttl_range(mut self, min: Duration, max: Duration, granularity: Duration) -> Self {
        self.ttl_min = min;
        self.ttl_max = max;
        self.ttl_granularity = granularity;
        self
    }

    /// The same with another margin.
    #[must_use]
    pub const fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// The same with another largest batch.
    #[must_use]
    pub const fn with_batch_max(mut self, batch_max: usize) -> Self {
        self.batch_max = batch_max;
        self
    }

    /// The same with another way of waiting.
    #[must_use]
    pub const fn with_wait(mut self, wait: WaitMode) -> Self {
        self.wait = wait;
        self
    }

    /// The same with another durability.
    #[must_use]
    pub const fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same with or without `keep_for`.
    #[must_use]
    pub const fn with_keep_for(mut self, keep_for: Declared) -> Self {
        self.keep_for = keep_for;
        self
    }

    /// Refuses what this store did not declare. Every backend calls it first in `acquire` and
    /// `waiter`, so that an undeclared wish never reaches the store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::ConfigInvalid`] (ttl out of range), always with
    /// [`Effect::None`]: nothing was sent.
    pub fn refuse(&self, request: &AcquireRequest) -> Result<(), BackendError> {
        self.refuse_ttl(request.store_ttl).map_err(|e| e.with_name(&request.name))?;
        let missing = match (request.mode, request.admission) {
            (Mode::Shared, _) if self.shared == Declared::No => Some("shared leases"),
            (Mode::Permit { .. }, _) if self.permits == Declared::No => Some("permits (semaphores)"),
            (_, Admission::Queue) if self.queue == Declared::No => Some("a queue of waiters"),
            _ => None,
        };
        match missing {
            None => Ok(()),
            Some(_) if crate::mutant!(UndeclaredIsGranted) => Ok(()),
            Some(what) => Err(BackendError::new(
                ErrorKind::Unsupported,
                // why: refused before anything was sent.
                Effect::None,
                self.name,
                "acquire",
                format!("this store does not offer {what}; nothing was granted. Ask for a plain exclusive lease, or choose a store that declares it"),
            )
            .with_name(&request.name)),
        }
    }

    /// Refuses a ttl outside this store's range.
    ///
    /// # Errors
    /// [`ErrorKind::ConfigInvalid`] with both numbers, [`Effect::None`].
    pub fn refuse_ttl(&self, ttl: Duration) -> Result<(), BackendError> {
        let (word, bound) = if ttl < self.ttl_min {
            ("shortest", self.ttl_min)
        } else if ttl > self.ttl_max {
            ("longest", self.ttl_max)
        } else {
            return Ok(());
        };
        if crate::mutant!(UndeclaredIsGranted) {
            return Ok(());
        }
        Err(BackendError::new(
            ErrorKind::ConfigInvalid,
            // why: refused before anything was sent.
            Effect::None,
            self.name,
            "acquire",
            format!("a ttl of {ttl:?} is not possible here: the {word} is {bound:?}; nothing was granted"),
        ))
    }
}
