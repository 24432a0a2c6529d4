//! How a lease is held.

use std::time::{Duration, SystemTime};

use crate::HolderInfo;

/// How a lease is held: one set of wishes for every store.
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::Settings;
/// let settings = Settings::new().ttl(Duration::from_secs(10)).max_hold(Duration::from_secs(3600));
/// ```
///
/// | setting | default | too small | too large |
/// |---|---|---|---|
/// | `ttl` | 30 s | lost by a hiccup of store or network | a crashed holder blocks others that long |
/// | `renew_every` | ttl/3 | more store operations | fewer tries before the lease is lost |
/// | `attempt_timeout` | ttl/6, at most 10 s | slow answers are thrown away | one hung call eats the tries of others |
/// | `retry_budget` | all the time that is left | given up early | none |
/// | `max_hold` | none | work is cut off | a job that hangs holds for ever |
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) auto_renew: bool,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) retry_budget: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) deadline: Option<SystemTime>,
    pub(crate) min_hold: Duration,
    pub(crate) holder: HolderInfo,
}

/// Settings that contradict each other. Nothing was sent to any store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Renewals so far apart that one failure loses the lease.
    #[error("renewals every {every:?} leave no second try within a ttl of {ttl:?}: renew at least every {:?}", *.ttl / 2)]
    RenewTooRare {
        /// The interval asked for.
        every: Duration,
        /// The ttl it does not fit.
        ttl: Duration,
    },
    /// A duration that must not be zero is.
    #[error("{what} must be longer than zero")]
    Zero {
        /// Which setting.
        what: &'static str,
    },
    /// The attempt timeout is not shorter than the ttl.
    #[error(
        "an attempt timeout of {timeout:?} does not fit into a ttl of {ttl:?}: a hung call would outlive the lease"
    )]
    AttemptTooLong {
        /// The timeout asked for.
        timeout: Duration,
        /// The ttl it does not fit.
        ttl: Duration,
    },
    /// The lease would have to end before it may.
    #[error("min_hold {min_hold:?} is longer than max_hold {max_hold:?}")]
    HoldsContradict {
        /// Shortest hold.
        min_hold: Duration,
        /// Longest hold.
        max_hold: Duration,
    },
    /// A hold beyond what a store can keep.
    #[error("{what} of {given:?} is beyond the limit of {limit:?}")]
    TooLong {
        /// Which setting.
        what: &'static str,
        /// What was given.
        given: Duration,
        /// The largest value.
        limit: Duration,
    },
    /// The business deadline is over already.
    #[error("the deadline lies in the past: nothing was acquired")]
    DeadlinePassed,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    /// Default ttl.
    pub const TTL: Duration = Duration::from_secs(30);
    /// Longest min_hold and max_hold: ten years.
    pub const HOLD_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

    /// A ttl of 30 s, renewed every third of it, without limits on the hold.
    pub fn new() -> Self {
        Settings {
            ttl: Self::TTL,
            auto_renew: true,
            renew_every: None,
            attempt_timeout: None,
            retry_budget: None,
            max_hold: None,
            deadline: None,
            min_hold: Duration::ZERO,
            holder: HolderInfo::default(),
        }
    }

    /// How long the store keeps the name without a renewal.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// A lease that the watchdog does not renew: it ends after one ttl, or is renewed by
    /// [`crate::Lease::renew`].
    #[must_use]
    pub fn fixed(mut self) -> Self {
        self.auto_renew = false;
        self
    }

    /// How often the watchdog renews: at most half a ttl apart. Jitter only shortens it.
    #[must_use]
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.renew_every = Some(every);
        self
    }

    /// How long one renewal call may take before it is given up and tried again.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = Some(timeout);
        self
    }

    /// How long after a first failed renewal the watchdog goes on trying. The lease then runs out.
    #[must_use]
    pub fn retry_budget(mut self, budget: Duration) -> Self {
        self.retry_budget = Some(budget);
        self
    }

    /// The longest hold: after it the lease ends, whatever its holder does.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// A point in time at which the lease ends, by this machine's wall clock when it is granted.
    #[must_use]
    pub fn deadline(mut self, deadline: SystemTime) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long the name stays taken, counted from the grant, even if it is released earlier: keeps
    /// hosts whose schedules differ a little from doing the same work twice.
    #[must_use]
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    /// What to tell others about the holder.
    #[must_use]
    pub fn holder(mut self, holder: HolderInfo) -> Self {
        self.holder = holder;
        self
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            auto_renew: self.auto_renew,
            renew_every: self.renew_every,
            attempt_timeout: self.attempt_timeout,
            retry_budget: self.retry_budget,
        }
    }

    /// Refuses what contradicts itself; the profile refuses what its store cannot do.
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        if crate::mutant!(ContradictionsTaken) {
            return Ok(());
        }
        let zero = |what, d: Option<Duration>| match d {
            Some(Duration::ZERO) => Err(SettingsError::Zero { what }),
            _ => Ok(()),
        };
        zero("ttl", Some(self.ttl))?;
        zero("renew_every", self.renew_every)?;
        zero("attempt_timeout", self.attempt_timeout)?;
        zero("max_hold", self.max_hold)?;
        if let Some(every) = self.renew_every.filter(|every| *every > self.ttl / 2) {
            return Err(SettingsError::RenewTooRare { every, ttl: self.ttl });
        }
        if let Some(timeout) = self.attempt_timeout.filter(|timeout| *timeout >= self.ttl) {
            return Err(SettingsError::AttemptTooLong { timeout, ttl: self.ttl });
        }
        for (what, given) in [("min_hold", Some(self.min_hold)), ("max_hold", self.max_hold)] {
            if let Some(given) = given.filter(|given| *given > Self::HOLD_MAX) {
                return Err(SettingsError::TooLong { what, given, limit: Self::HOLD_MAX });
            }
        }
        match self.max_hold {
            Some(max_hold) if self.min_hold > max_hold => {
                Err(SettingsError::HoldsContradict { min_hold: self.min_hold, max_hold })
            }
            _ => Ok(()),
        }
    }
}

/// The part of the settings that the watchdog needs, in a few words of memory per lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) auto_renew: bool,
    renew_every: Option<Duration>,
    attempt_timeout: Option<Duration>,
    retry_budget: Option<Duration>,
}

impl Plan {
    pub(crate) fn interval(&self, ttl: Duration) -> Duration {
        self.renew_every.unwrap_or(ttl / 3).min(ttl / 2)
    }

    pub(crate) fn attempt_timeout(&self, ttl: Duration) -> Duration {
        let default = (ttl / 6).min(Duration::from_secs(10));
        self.attempt_timeout.unwrap_or(default).min(ttl / 2)
    }

    pub(crate) fn retry_budget(&self) -> Duration {
        self.retry_budget.unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused_with_both_numbers() {
        let s = Duration::from_secs;
        let refused = |settings: Settings| settings.validate().expect_err("refused").to_string();
        assert!(refused(Settings::new().ttl(Duration::ZERO)).contains("ttl"));
        let rare = refused(Settings::new().renew_every(s(20)));
        assert!(rare.contains("20s") && rare.contains("30s") && rare.contains("15s"), "{rare}");
        assert!(refused(Settings::new().attempt_timeout(s(30))).contains("outlive"));
        assert!(refused(Settings::new().min_hold(s(9)).max_hold(s(8))).contains("min_hold 9s"));
        assert!(refused(Settings::new().max_hold(Duration::ZERO)).contains("max_hold"));
        assert!(refused(Settings::new().min_hold(Duration::MAX)).contains("beyond"));
        assert!(Settings::new().validate().is_ok());
    }
}
