//! Points in time on the boot clock.
//!
//! Deadlines are counted on CLOCK_BOOTTIME, which goes on through suspend (`std::time::Instant` on
//! Linux does not). A [`BootTime`] means something on this machine until its next boot and nothing
//! anywhere else: it is never sent to another machine and never compared with a wall clock (I3).

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A reading of the boot clock, in nanoseconds since boot (suspend included).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootTime(u64);

impl BootTime {
    /// The moment of boot; earlier than every reading of a running clock.
    pub const ZERO: BootTime = BootTime(0);
    /// The end of time (584 years after boot): arithmetic saturates here.
    pub const MAX: BootTime = BootTime(u64::MAX);

    /// A reading from nanoseconds since boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        BootTime(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since boot, rounded down: the unit that stores keep.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Time from `earlier` to `self`; zero when `earlier` is not earlier.
    pub fn since(self, earlier: BootTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self − d`, or [`BootTime::ZERO`] when that lies before boot.
    pub fn before(self, d: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(nanos(d)))
    }
}

/// Durations beyond 584 years saturate: a deadline that far is no deadline.
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, d: Duration) -> BootTime {
        BootTime(self.0.saturating_add(nanos(d)))
    }
}

impl Sub<Duration> for BootTime {
    type Output = BootTime;
    fn sub(self, d: Duration) -> BootTime {
        self.before(d)
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:.6}s", self.0 as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(BootTime::MAX + Duration::from_secs(1), BootTime::MAX);
        assert_eq!(BootTime::ZERO + Duration::MAX, BootTime::MAX);
        assert_eq!(BootTime::from_nanos(5) - Duration::from_secs(1), BootTime::ZERO);
        assert_eq!(BootTime::from_nanos(5).since(BootTime::from_nanos(9)), Duration::ZERO);
    }
}
