//! Is it the machine? A thread that does what a renewal does: it waits, is woken, and writes to the same
//! disk. While it stalls, a lease may be lost without a fault of ours and without any defect.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_testkit::boot_now;

const EVERY: Duration = Duration::from_millis(20);

/// Times in which the machine stood still.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<Vec<(Duration, Duration)>>);

impl Stalls {
    /// Watches until `done`; notes every turn that took longer than `least`.
    pub(crate) fn watch(&self, mut file: File, least: Duration, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            let from = boot_now();
            std::thread::sleep(EVERY);
            let written =
                file.rewind().and_then(|()| file.write_all(&[0; 4096])).and_then(|()| file.sync_data());
            written.expect("own file");
            let to = boot_now();
            if to - from >= least {
                self.0.lock().expect("nobody panics with it").push((from, to));
            }
        }
    }

    /// The longest stall that touches the time from `from` to `to`.
    pub(crate) fn between(&self, from: Duration, to: Duration) -> Option<Duration> {
        let stalls = self.0.lock().expect("nobody panics with it");
        stalls.iter().filter(|stall| stall.0 <= to && from <= stall.1).map(|stall| stall.1 - stall.0).max()
    }

    /// The longest of all.
    pub(crate) fn longest(&self) -> Duration {
        self.between(Duration::ZERO, Duration::MAX).unwrap_or_default()
    }
}
