//! Whether the machine let this process run.
//!
//! In real time a lease of one second is rightly lost when nothing of its process runs for a
//! second. A case that fails in such a time has shown nothing: it is run again, a few times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the watching thread looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A process that is held up for longer cannot keep a lease of one second on time: a twentieth of
/// it, and more than scheduling takes on a machine that is merely busy.
const HELD_UP_MAX: Duration = Duration::from_millis(50);
/// How often a case is tried at most.
const TRIES_MAX: u32 = 4;

/// Watches how late a thread of this process wakes.
struct Watch {
    stop: Arc<AtomicBool>,
    worst_nanos: Arc<AtomicU64>,
}

impl Watch {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let worst_nanos = Arc::new(AtomicU64::new(0));
        let (stopped, worst) = (Arc::clone(&stop), Arc::clone(&worst_nanos));
        // Without the thread nothing is noticed, and a case is run once.
        let _ = std::thread::Builder::new().name("starved".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(LOOK_EVERY);
                let late = before.elapsed().saturating_sub(LOOK_EVERY);
                worst.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
            }
        });
        Watch { stop, worst_nanos }
    }

    fn worst(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        Duration::from_nanos(self.worst_nanos.load(Ordering::Relaxed))
    }
}

/// Runs a case, and again if it fails while the process was held up.
pub(crate) fn retried(name: &str, mut run: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for attempt in 1.. {
        let watch = Watch::start();
        let result = run();
        let worst = watch.worst();
        match result {
            Err(error) if worst > HELD_UP_MAX && attempt < TRIES_MAX => {
                eprintln!("{name}: held up for {worst:?}, run again ({error})");
            }
            Err(error) if worst > HELD_UP_MAX => {
                return Err(format!("{error}; this machine held the process up for {worst:?}"));
            }
            result => return result,
        }
    }
    Ok(())
}
