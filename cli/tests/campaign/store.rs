//! What was done to the store, and what that excuses.

use std::time::Duration;

use crate::campaign::TTL;

/// A keeper kills with a grace of a sixth of the ttl; the rest is for a loaded machine.
const AFTERMATH: Duration = Duration::from_millis(1_000);

/// One fault of the store or of the way to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFault {
    /// For a person.
    pub(crate) what: &'static str,
    /// When it began and ended, by the boot clock.
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// So long that no holder could renew in time, or the leases are gone.
    pub(crate) ends_leases: bool,
    /// Who connects meanwhile finds nobody.
    pub(crate) is_down: bool,
    /// The store has forgotten its leases: it may grant a name whose holder was not told yet.
    pub(crate) forgets: bool,
}

impl StoreFault {
    /// Whether a lease that was held in this time may have ended by it.
    pub(crate) fn may_end(&self, from: Duration, to: Duration) -> bool {
        self.ends_leases && from <= self.to + TTL && self.from <= to + AFTERMATH
    }

    /// Whether it kept a program that was started then from reaching the store.
    pub(crate) fn kept_out(&self, spawned: Duration) -> bool {
        self.is_down && spawned <= self.to + AFTERMATH && self.from <= spawned + AFTERMATH
    }

    /// Whether a holder of a grant that was begun then could believe in it at `at`, though the store
    /// had forgotten it: until its next renewal, and until its job was ended.
    pub(crate) fn was_not_told(&self, begun: Duration, at: Duration) -> bool {
        self.forgets && begun <= self.to && self.from <= at && at <= self.to + TTL + AFTERMATH
    }
}
