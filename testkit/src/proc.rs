//! Starting programs, and ending all that came of them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::tree::{MARK, RUN_MARK};
use crate::{ExitWatch, Process, Stat, eventually, processes_marked, tied};

/// How often a drop looks for descendants that were forked while it killed: each look kills all it
/// sees, and a frozen or killed parent forks no more.
const KILL_ROUNDS_MAX: u32 = 200;

/// A started program with all its descendants. Dropped, it kills them all and reaps the program.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    process: Process,
    exit: ExitWatch,
    mark: OsString,
}

impl Proc {
    /// Starts `command` with a mark of its own in its environment.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mark = put_mark(command);
        Self::hold(command.spawn()?, mark)
    }

    /// Starts `program`, set up by `configure`, so that the kernel kills it when this process ends
    /// without dropping it: by a signal, an abort, or an exit in the middle of a test. What the program
    /// itself started is not killed then.
    ///
    /// # Errors
    /// When it cannot be started; `setpriv` (util-linux) is needed for it.
    pub fn spawn_tied(program: impl AsRef<OsStr>, configure: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut command = tied::command(program);
        configure(&mut command);
        let mark = put_mark(&mut command);
        Self::hold(tied::spawn(command)?, mark)
    }

    fn hold(mut child: Child, mark: OsString) -> io::Result<Self> {
        let held = Process::open(child.id() as i32).and_then(|p| Ok((ExitWatch::start(&p)?, p)));
        match held {
            Ok((exit, process)) => Ok(Proc { child, process, exit, mark }),
            Err(e) => {
                // Not reaped yet, so its pid is still its own.
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    /// The program's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The streams that were piped.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The value of [`MARK`] that its descendants carry.
    pub fn mark(&self) -> &OsStr {
        &self.mark
    }

    /// Everything of it that still runs or is frozen, the program among it.
    pub fn living(&self) -> Vec<Stat> {
        processes_marked(MARK, &self.mark)
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: Signal) -> bool {
        self.process.signal(signal)
    }

    /// Freezes the program alone.
    #[track_caller]
    pub fn freeze(&self) -> bool {
        self.process.freeze()
    }

    /// Lets the program go on.
    pub fn thaw(&self) -> bool {
        self.process.thaw()
    }

    /// Kills the program alone: what it started is left to whoever cares for it.
    pub fn kill(&self) -> bool {
        self.process.kill()
    }

    /// When the program ended, on the boot clock.
    pub fn ended_at(&self) -> Option<Duration> {
        self.exit.ended_at()
    }

    /// Reaps the program if it has ended.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    /// When it is still there after `bound`.
    #[track_caller]
    pub fn wait(&mut self, bound: Duration, why: &str) -> ExitStatus {
        let pid = self.pid();
        eventually(bound, &format!("process {pid} ends: {why}"), || {
            self.child.try_wait().expect("a child of this process can be waited for")
        })
    }

    /// Waits until nothing of it is left.
    ///
    /// # Panics
    /// When something is left after `bound`; the message names it.
    #[track_caller]
    pub fn wait_gone(&mut self, bound: Duration, why: &str) {
        let started = std::time::Instant::now();
        loop {
            let _ = self.child.try_wait();
            let living = self.living();
            if living.is_empty() {
                return;
            }
            assert!(started.elapsed() < bound, "left after {bound:?} ({why}): {living:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills all of it, round after round until a look finds nobody; returns how many were killed.
    pub fn kill_all(&mut self) -> usize {
        let mut killed = 0;
        for _ in 0..KILL_ROUNDS_MAX {
            let living = self.living();
            if living.is_empty() {
                break;
            }
            for stat in &living {
                killed += usize::from(Process::open_same(stat).is_ok_and(|p| p.kill()));
            }
            let _ = self.child.try_wait();
            std::thread::sleep(Duration::from_millis(1));
        }
        killed
    }
}

/// Marks what `command` will start, and returns the mark.
fn put_mark(command: &mut Command) -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mark = OsString::from(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    // A test may have cleared the environment: the mark of the whole test run goes on too.
    if let Some(run) = std::env::var_os(RUN_MARK) {
        command.env(RUN_MARK, run);
    }
    command.env(MARK, &mark);
    mark
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill_all();
        // It was forked by us and is not reaped, so this pid is its own; then reap it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
