//! The deadline rule: until when a holder may believe.
//!
//! ```text
//! valid_until = anchor + min(ttl, granted − drift − margin)        (I3)
//! ```
//!
//! * `anchor` is the holder's boot clock *before* the request that last started the store's
//!   countdown: never the time of the reply, which may have waited in a buffer.
//! * `granted` is the store's countdown, a lock delay included; `ttl` is what the holder asked for.
//! * `drift` is `granted/100 + 2 ms`: fifty times what a crystal does, and the allowance that the
//!   RedLock page uses. `margin` is the store's granularity of time, from its profile.
//!
//! Sources: Gray & Cheriton, "Leases", SOSP 1989 (the client stops at ttl·(1−ρ)); Redis
//! documentation, "Distributed locks" (the drift term).

use std::time::Duration;

use crate::BootTime;

/// One part in this many of a ttl is allowed for clocks that run at different rates.
pub const DRIFT_DIVISOR: u32 = 100;
/// And so much for reading them.
pub const DRIFT_FIXED: Duration = Duration::from_millis(2);

/// How far the clocks of holder and store may drift apart within `granted`.
pub fn drift(granted: Duration) -> Duration {
    granted / DRIFT_DIVISOR + DRIFT_FIXED
}

/// The moment from which on a holder no longer believes.
///
/// Saturates: a grant too short for drift and margin is over at its anchor.
pub fn valid_until(anchor: BootTime, ttl: Duration, granted: Duration, margin: Duration) -> BootTime {
    anchor + ttl.min(granted.saturating_sub(drift(granted)).saturating_sub(margin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_rule_by_table() {
        let anchor = BootTime::from_nanos(1_000_000_000);
        // (ttl, granted, margin, validity) in ms
        for (ttl, granted, margin, validity) in [
            (30_000, 30_000, 1, 29_697), // plain: ttl − 1 % − 2 ms − 1 ms
            (1_000, 1_000, 1, 987),
            (30_000, 45_000, 1, 30_000),     // a lock delay of 15 s hides the drift
            (30_000, 30_000, 2_000, 27_698), // coarse store
            (30_000, 10_000, 1, 9_897),      // the store granted less
            (1_500, 2_000, 0, 1_500),        // rounded up by the store: the holder keeps what it asked
            (2, 2, 1, 0),                    // nothing left
            (0, 0, 0, 0),
        ] {
            let got = valid_until(anchor, MS(ttl), MS(granted), MS(margin)).since(anchor);
            assert_eq!(got, MS(validity), "ttl {ttl} granted {granted} margin {margin}");
        }
        assert_eq!(valid_until(BootTime::MAX, MS(1), MS(1_000), MS(0)), BootTime::MAX);
        assert!(valid_until(anchor, Duration::MAX, Duration::MAX, MS(1)) > anchor);
    }

    proptest! {
        #[test]
        fn never_later_than_the_store(ttl in 0u64..1 << 40, granted in 0u64..1 << 40, margin in 0u64..1 << 20) {
            let anchor = BootTime::from_nanos(77);
            let until = valid_until(anchor, Duration::from_nanos(ttl), Duration::from_nanos(granted), Duration::from_nanos(margin));
            prop_assert!(until >= anchor);
            prop_assert!(until <= anchor + Duration::from_nanos(granted));
            prop_assert!(until <= anchor + Duration::from_nanos(ttl));
        }
    }
}
