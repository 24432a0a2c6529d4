//! The machine's clock, with its readings counted.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Alarm, BootTime, Clock, SystemClock};

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Counts how often its clocks are read; the time is the machine's.
#[derive(Debug, Default)]
pub struct CountingClock {
    readings: AtomicU64,
}

impl CountingClock {
    /// A clock that has not been read.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Readings of all three clocks so far, by whichever thread.
    pub fn readings(&self) -> u64 {
        self.readings.load(Ordering::Relaxed)
    }

    /// Readings by the calling thread, of every clock of this kind.
    pub fn readings_of_thread() -> u64 {
        OF_THREAD.get()
    }

    fn count(&self) {
        self.readings.fetch_add(1, Ordering::Relaxed);
        OF_THREAD.set(OF_THREAD.get() + 1);
    }
}

impl Clock for CountingClock {
    fn now(&self) -> BootTime {
        self.count();
        SystemClock.now()
    }

    fn awake(&self) -> BootTime {
        self.count();
        SystemClock.awake()
    }

    fn unix_micros(&self) -> u64 {
        self.count();
        SystemClock.unix_micros()
    }

    fn alarm(&self) -> io::Result<Arc<dyn Alarm>> {
        SystemClock.alarm()
    }
}
