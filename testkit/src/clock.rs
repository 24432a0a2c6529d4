//! The boot clock, and when processes ended on it.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::{Process, eventually};

/// CLOCK_BOOTTIME: the same for every process of the machine, and never stepped.
pub fn boot_now() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    // The kernel gives both parts non-negative.
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Notes when a process ends, by a thread that sleeps on its pidfd: the time is right to the
/// scheduler's latency, also when nobody looks for a while.
///
/// A process has ended when it runs no more: a zombie that nobody has reaped has ended.
#[derive(Debug)]
pub struct ExitWatch {
    pid: i32,
    ended: Arc<OnceLock<Duration>>,
}

impl ExitWatch {
    /// Watches `process` from now on.
    ///
    /// # Errors
    /// When no descriptor or thread is to be had.
    pub fn start(process: &Process) -> io::Result<Self> {
        let ended = Arc::new(OnceLock::new());
        let (fd, noted) = (process.pidfd().try_clone_to_owned()?, Arc::clone(&ended));
        std::thread::Builder::new().name("exit-watch".into()).spawn(move || {
            loop {
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                match poll(&mut fds, None) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => break,
                    // Nothing can be told about it any more; the wait on it fails by its bound.
                    Err(_) => return,
                }
            }
            let _ = noted.set(boot_now());
        })?;
        Ok(ExitWatch { pid: process.pid(), ended })
    }

    /// When it ended, on the boot clock; none while it runs or is frozen.
    pub fn ended_at(&self) -> Option<Duration> {
        self.ended.get().copied()
    }

    /// Waits until it has ended and returns when.
    ///
    /// # Panics
    /// When it is still there after `bound`.
    #[track_caller]
    pub fn wait(&self, bound: Duration, why: &str) -> Duration {
        eventually(bound, &format!("the end of process {}: {why}", self.pid), || self.ended_at())
    }
}
