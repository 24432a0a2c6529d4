//! Whether the machine let this process run.
//!
//! In real time a lease of one second is rightly lost when nothing of its process runs for a
//! second. A case that fails in such a time has shown nothing: it is run again, a few times.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limited::Stop;

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

/// Whether a case that stopped so, at its try number `attempt`, has shown nothing. One that had to be
/// stopped by force had time enough.
fn shows_nothing(stop: &Stop, worst: Duration, attempt: u32) -> bool {
    !stop.hung && worst > HELD_UP_MAX && attempt < TRIES_MAX
}

/// Runs a case, and again if it fails while the process was held up.
pub(crate) fn retried(name: &str, mut run: impl FnMut() -> Result<(), Stop>) -> Result<(), Stop> {
    for attempt in 1.. {
        let watch = Watch::start();
        let result = run();
        let worst = watch.worst();
        match result {
            Err(stop) if shows_nothing(&stop, worst, attempt) => {
                // Nobody may read it.
                let _ =
                    writeln!(std::io::stderr(), "{name}: held up for {worst:?}, run again ({})", stop.why);
            }
            Err(stop) if worst > HELD_UP_MAX => {
                let why = format!("{}; this machine held the process up for {worst:?}", stop.why);
                return Err(Stop { why, ..stop });
            }
            result => return result,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_a_process_that_was_held_up_are_run_again_and_not_for_ever() {
        let (failed, hung) = (Stop::failed("late"), Stop { why: "stuck".to_owned(), hung: true });
        assert!(shows_nothing(&failed, HELD_UP_MAX * 2, 1));
        assert!(!shows_nothing(&failed, HELD_UP_MAX, 1));
        assert!(!shows_nothing(&failed, HELD_UP_MAX * 2, TRIES_MAX));
        assert!(!shows_nothing(&hung, HELD_UP_MAX * 2, 1));
        let mut runs = 0;
        let result = retried("test", || {
            runs += 1;
            Err(hung.clone())
        });
        assert!(result.is_err_and(|stop| stop.hung) && runs == 1, "{runs} runs");
    }
}
