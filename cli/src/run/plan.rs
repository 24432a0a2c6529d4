//! When a command is stopped, relative to the deadline of its lease.

use std::time::Duration;

use leasehold::BootTime;
use rustix::process::Signal;

use super::protocol::Times;
use crate::args::OnLost;
use crate::duration::show;
use crate::exit::Failure;

/// The shortest ttl and hold that leave time for stop and renewals without a `--kill-after`.
const SHORTEST: Duration = Duration::from_millis(60);

/// The order of events before the deadline; see [`super::supervise`] for the picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) on_lost: OnLost,
    pub(crate) signal: Signal,
    pub(crate) kill_after: Duration,
    pub(crate) margin: Duration,
}

impl Plan {
    /// The times for a lease of this ttl.
    ///
    /// # Errors
    /// Usage: a grace that leaves no time for renewals.
    pub(crate) fn new(
        ttl: Duration,
        max_hold: Option<Duration>,
        kill_after: Option<Duration>,
        signal: Signal,
        on_lost: OnLost,
    ) -> Result<Self, Failure> {
        let base = max_hold.map_or(ttl, |max_hold| max_hold.min(ttl));
        let margin = (base / 10).clamp(Duration::from_millis(20), Duration::from_millis(500));
        let kill_after_given = kill_after.is_some();
        let kill_after = kill_after.unwrap_or((base / 6).min(Duration::from_secs(5)));
        let grace = match on_lost {
            OnLost::Warn => None,
            OnLost::Kill => Some(margin),
            OnLost::Terminate => Some(kill_after.saturating_add(margin)),
        };
        if grace.is_some_and(|grace| grace > base / 2) {
            let what = if base < ttl { "--max-hold" } else { "--ttl" };
            if !kill_after_given || on_lost == OnLost::Kill {
                return Err(Failure::usage(format_args!(
                    "{what} {} is too short: a command cannot be stopped in so little time. Give it {} at least",
                    show(base),
                    show(SHORTEST),
                )));
            }
            return Err(Failure::usage(format_args!(
                "--kill-after {} does not fit: the command is stopped that long and {} more before the lease ends, which may take half of {what} {} at most. Shorten --kill-after or lengthen {what}",
                show(kill_after),
                show(margin),
                show(base),
            )));
        }
        Ok(Plan { on_lost, signal, kill_after, margin })
    }

    /// What must be left of a lease for a command to be started under it.
    pub(crate) fn least(&self) -> Duration {
        match self.on_lost {
            OnLost::Warn => Duration::ZERO,
            OnLost::Kill => self.margin * 2,
            OnLost::Terminate => self.kill_after + self.margin * 2,
        }
    }

    pub(crate) fn times(&self, valid_until: BootTime) -> Times {
        let kill_at = valid_until - self.margin;
        match self.on_lost {
            OnLost::Warn => Times { term_at: BootTime::MAX, kill_at: BootTime::MAX },
            OnLost::Kill => Times { term_at: BootTime::MAX, kill_at },
            OnLost::Terminate => Times { term_at: kill_at - self.kill_after, kill_at },
        }
    }

    pub(crate) fn act_at(&self, kill_at: BootTime) -> BootTime {
        if kill_at == BootTime::MAX { kill_at } else { kill_at + self.margin / 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn plan(ttl_ms: u64, kill_ms: Option<u64>) -> Result<Plan, Failure> {
        let ms = Duration::from_millis;
        Plan::new(ms(ttl_ms), None, kill_ms.map(ms), Signal::TERM, OnLost::Terminate)
    }

    #[test]
    fn the_times_stand_in_order_before_the_deadline() {
        for (ttl, kill_after) in [(30_000, None), (1_000, None), (300, None), (10_000, Some(4_000))] {
            let plan = plan(ttl, kill_after).expect("fits");
            let until = BootTime::from_nanos(1_000_000_000_000);
            let times = plan.times(until);
            assert!(times.term_at < times.kill_at && times.kill_at < plan.act_at(times.kill_at), "{ttl}");
            assert!(plan.act_at(times.kill_at) < until, "{ttl}");
            // What a lease has left after a renewal on time is more than the command's stop takes.
            assert!(plan.kill_after + plan.margin <= Duration::from_millis(ttl) / 2, "{ttl}");
        }
        assert_eq!(plan(30_000, None).expect("fits").kill_after, Duration::from_secs(5));
        assert_eq!(plan(6_000, None).expect("fits").kill_after, Duration::from_secs(1));
    }

    #[test]
    fn a_ttl_that_is_too_short_is_named_as_it_was_given() {
        assert!(Plan::new(SHORTEST, None, None, Signal::TERM, OnLost::Terminate).is_ok());
        for on_lost in [OnLost::Terminate, OnLost::Kill] {
            let nano = Duration::from_nanos(1);
            let failure = Plan::new(nano, None, None, Signal::TERM, on_lost).expect_err("too short");
            assert_eq!(failure.ending, Exit::Usage.into());
            assert!(failure.message.starts_with("--ttl 1ns is too short"), "{}", failure.message);
            assert!(!failure.message.contains("kill-after"), "{}", failure.message);
        }
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_with_both_numbers() {
        let failure = plan(10_000, Some(6_000)).expect_err("does not fit");
        assert_eq!(failure.ending, Exit::Usage.into());
        assert!(failure.message.contains("6.0s") && failure.message.contains("10.0s"), "{}", failure.message);
        assert!(plan(100, Some(40)).is_err());
        assert!(Plan::new(Duration::from_millis(30), None, None, Signal::TERM, OnLost::Kill).is_err());
        let ms = Duration::from_millis;
        let warn = Plan::new(ms(1_000), None, Some(ms(9_000)), Signal::TERM, OnLost::Warn);
        assert_eq!(warn.expect("no grace is needed").times(BootTime::ZERO).kill_at, BootTime::MAX);
    }
}
