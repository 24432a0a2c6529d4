//! Waiting for what must come true.

use std::time::{Duration, Instant};

/// Between two looks: short enough that no measured time depends on it, long enough to cost nothing.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks again and again until `look` gives a value, at most for `bound`.
///
/// `why` says what is waited for and why the bound suffices; it is the message of the failure.
///
/// # Panics
/// When `bound` passes first: the test has failed.
#[track_caller]
pub fn eventually<T>(bound: Duration, why: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(started.elapsed() < bound, "not within {bound:?}: {why}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether the long campaigns are to be short: `LEASEHOLD_TEST_QUICK=1`.
pub fn quick() -> bool {
    std::env::var_os("LEASEHOLD_TEST_QUICK").is_some_and(|v| v != "0" && !v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_value_and_fails_at_the_bound() {
        let mut looks = 0;
        let got = eventually(Duration::from_secs(5), "the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(got, 3);
        let never = std::panic::catch_unwind(|| {
            eventually(Duration::from_millis(20), "never", || None::<()>);
        });
        let message = never.expect_err("must fail");
        assert!(message.downcast_ref::<String>().is_some_and(|m| m.contains("never")));
    }
}
