//! Randomness for jitter: small, seedable, good enough to keep timers out of step.

use std::time::Duration;

/// A splitmix64 generator (Steele, Lea & Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn seeded() -> Self {
        Jitter(getrandom::u64().unwrap_or(0x5eed))
    }

    #[cfg(test)]
    pub(crate) fn with_seed(seed: u64) -> Self {
        Jitter(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `d` less up to `percent` of it.
    pub(crate) fn shorten(&mut self, d: Duration, percent: u32) -> Duration {
        let part = d / 100 * percent;
        let nanos = u64::try_from(part.as_nanos()).unwrap_or(u64::MAX);
        d - Duration::from_nanos(if nanos == 0 { 0 } else { self.next() % nanos })
    }
}
