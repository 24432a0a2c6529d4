//! Processes that a part left behind.
//!
//! Every part runs with an environment variable of its own, which all descendants inherit, also those
//! that left their parent, session and group. What carries it after the part has ended is a leftover.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_testkit::{Process, RUN_MARK, Stat, processes_marked};

/// How long a process may take to end after the part that started it: a guardian kills with a grace
/// of at most 5 s.
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(8);
/// Rounds of killing: each kills all that is seen, and who was killed forks no more.
const KILL_ROUNDS_MAX: u32 = 100;

/// The mark of one part.
#[derive(Debug)]
pub(crate) struct Marked(OsString);

impl Marked {
    pub(crate) fn new(part: &str) -> Self {
        Marked(format!("{}-{part}", std::process::id()).into())
    }

    pub(crate) fn put_on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(RUN_MARK, &self.0)
    }

    pub(crate) fn living(&self) -> Vec<Stat> {
        processes_marked(RUN_MARK, &self.0)
    }

    /// Gives those who are about to end the time for it, and returns who did not.
    pub(crate) fn settle(&self, at_most: Duration) -> Vec<Stat> {
        let started = Instant::now();
        loop {
            let living = self.living();
            if living.is_empty() || started.elapsed() >= at_most {
                return living;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills whoever carries the mark, each by a hold on that very process.
    pub(crate) fn kill_all(&self) {
        for _ in 0..KILL_ROUNDS_MAX {
            let living = self.living();
            if living.is_empty() {
                return;
            }
            for stat in &living {
                let _ = Process::open_same(stat).map(|process| process.kill());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails when somebody is left, and ends them.
    ///
    /// # Errors
    /// Who is left.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_after(SETTLE_MAX)
    }

    fn check_after(&self, settle: Duration) -> Result<(), String> {
        let left = self.settle(settle);
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(|s| format!("{} ({})", s.comm, s.pid)).collect();
        self.kill_all();
        Err(format!("left running: {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_was_left_is_found_and_ended() {
        let mark = Marked::new("daemon");
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sleep 600 >/dev/null 2>&1 &"]);
        assert!(mark.put_on(&mut command).status().is_ok_and(|s| s.success()));
        let error = mark.check_after(Duration::from_millis(100)).expect_err("somebody is left");
        assert!(error.contains("sleep"), "{error}");
        assert_eq!(mark.check(), Ok(()));
    }
}
