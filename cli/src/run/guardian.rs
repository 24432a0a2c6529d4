//! The guardian: a small process between wrapper and command that outlives either's trouble.
//!
//! 1. The wrapper executes its own program again with a hidden word; the guardian starts a session
//!    of its own, becomes the subreaper of all that will be below it, and reads orders from its stdin,
//!    a socketpair.
//! 2. With the start order it gets the real stdin, the command line, and two times on the boot
//!    clock. It starts the command in a process group of its own.
//! 3. It forwards signals to that group, takes later times as the lease is renewed, and reaps.
//! 4. At `term_at` it sends the first signal to the whole tree, at `kill_at` SIGKILL, by its own
//!    timer: it needs nobody for that, neither store nor wrapper.
//! 5. When the command has ended it tells the status, sends what is left of the tree the first
//!    signal, and SIGKILL after a moment. It ends when it has no child left.
//!
//! What can go wrong, and where it is handled:
//! * The wrapper dies: the socket closes, and the tree is killed at once.
//! * The wrapper is frozen: no later times come, and the timer ends the tree before the lease ends.
//! * The guardian is frozen or killed: the wrapper sees a closed socket, or its own deadline, kills
//!   the guardian and, being a subreaper too, inherits the tree.
//! * Processes are born as fast as they are killed: [`Tree::hunt`], begun at `term_at`.
//! * A process may not be killed, or is hidden: it is told as left, and counts as alive.
//! * The job's limit on file sizes is ours too: its signal is caught, so that it ends nobody here.
//! * The machine was suspended: the timer counts suspend, and fires right after the resume.
//!
//! It prints nothing: stdout and stderr belong to the command.

use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use leasehold::{BootTime, Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus, kill_process_group, set_child_subreaper, setsid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::proc::NoProc;
use super::protocol::{Order, Received, Report, Times, receive_order, send_report, unpack};
use super::tree::{Children, FUTILE_MAX, Id, Tree};

/// The hidden word that makes the program a guardian.
pub(crate) const WORD: &str = "__guardian";
/// How long what is left of the tree has between the first signal and SIGKILL.
pub(crate) const LEFTOVER_GRACE: Duration = Duration::from_millis(300);
/// Between two strikes.
const STRIKE_PAUSE_MIN: Duration = Duration::from_millis(1);
const STRIKE_PAUSE_MAX: Duration = Duration::from_millis(20);
const NEVER: Times = Times { term_at: BootTime::MAX, kill_at: BootTime::MAX };

/// Runs the guardian until nothing is left to guard.
pub(crate) fn main() -> ExitCode {
    let socket = rustix::stdio::stdin();
    match Guardian::new(socket).and_then(|mut guardian| guardian.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            let _ = send_report(socket, Report::Broken { errno: errno.raw_os_error() });
            ExitCode::from(crate::exit::Exit::Internal.code())
        }
    }
}

/// Where it stands. SIGKILL is due at the time in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The command runs, until the times that the wrapper tells.
    Running,
    /// The first signal was sent.
    Stopping(BootTime),
    /// SIGKILL is sent again and again.
    Killing,
}

struct Guardian {
    socket: BorrowedFd<'static>,
    open: bool,
    timer: OwnedFd,
    ended_children: UnixStream,
    tree: Tree,
    times: Times,
    first: Signal,
    phase: Phase,
    started: bool,
    /// The command while it has not been reaped.
    job: Option<Pid>,
    told: HashSet<Id>,
    pause: Duration,
    futile_hunts: u32,
    in_a_storm: bool,
}

impl Guardian {
    fn new(socket: BorrowedFd<'static>) -> Result<Self, Errno> {
        setsid()?;
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let ended_children = watch_children().map_err(|e| errno_of(&e))?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // Without /proc nobody below is found: refuse rather than guard with closed eyes.
        let tree = Tree::below_self().map_err(NoProc::errno)?;
        Ok(Guardian {
            socket,
            open: true,
            timer,
            ended_children,
            tree,
            times: NEVER,
            first: Signal::TERM,
            phase: Phase::Running,
            started: false,
            job: None,
            told: HashSet::new(),
            pause: STRIKE_PAUSE_MIN,
            futile_hunts: 0,
            in_a_storm: false,
        })
    }

    fn serve(&mut self) -> Result<(), Errno> {
        loop {
            // Orders first: a later time that is waiting in the socket counts (after a freeze).
            self.take_orders();
            let children = self.reap();
            self.keep_up(children == Children::Unreaped);
            let nothing_to_come = self.started || !self.open;
            if nothing_to_come && self.job.is_none() && children == Children::None {
                self.tell(Report::Done { left: 0 });
                return Ok(());
            }
            if let Some(left) = self.act(SystemClock.now()) {
                self.tell(Report::Done { left });
                return Ok(());
            }
            if children != Children::Unreaped {
                self.sleep()?;
            }
        }
    }

    fn take_orders(&mut self) {
        while self.open {
            match receive_order(self.socket) {
                Received::Message(order, descriptors) => self.obey(order, descriptors),
                Received::Nothing => return,
                Received::Closed => {
                    self.open = false;
                    self.kill();
                }
            }
        }
    }

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) {
        match order {
            Order::Start { times, signal } if !self.started => {
                self.times = times;
                self.first = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                self.start(descriptors);
            }
            Order::Start { .. } => {}
            Order::Times(times) => {
                self.times = times;
                self.tell(Report::Heard { kill_at: times.kill_at });
            }
            Order::Forward(signal) => {
                // While it has not been reaped its group is its own.
                if let (Some(group), Some(signal)) = (self.job, Signal::from_named_raw(signal)) {
                    let _ = kill_process_group(group, signal);
                }
            }
            Order::Terminate { kill_at } => self.stop(kill_at),
            Order::Kill => self.kill(),
        }
    }

    fn kill(&mut self) {
        if self.phase != Phase::Killing {
            self.phase = Phase::Killing;
            self.tree.hurry();
        }
    }

    fn start(&mut self, descriptors: Vec<OwnedFd>) {
        self.started = true;
        let mut descriptors = descriptors.into_iter();
        let (Some(stdin), Some(argv)) = (descriptors.next(), descriptors.next()) else {
            return self.tell(Report::Broken { errno: Errno::INVAL.raw_os_error() });
        };
        let spawned = unpack(argv).and_then(|argv| {
            let (program, arguments) =
                argv.split_first().ok_or_else(|| std::io::Error::from(Errno::INVAL))?;
            // The standard library gives it an empty signal mask and default dispositions, and every
            // descriptor of ours but these three is closed on execution.
            Command::new(program).args(arguments).stdin(Stdio::from(stdin)).process_group(0).spawn()
        });
        match spawned {
            Ok(child) => {
                let pid = i32::try_from(child.id()).unwrap_or(0);
                self.job = Pid::from_raw(pid);
                self.tell(Report::Started { pid });
            }
            Err(e) => self.tell(Report::Failed { errno: errno_of(&e).raw_os_error() }),
        }
    }

    /// Reaps; tells when the command has ended.
    fn reap(&mut self) -> Children {
        let (job, mut ended) = (self.job, None);
        let children = self.tree.reap(|pid, status| {
            if Some(pid) == job {
                ended = Some(status);
            }
        });
        self.see_end(ended);
        children
    }

    /// In a storm they end faster than they are reaped, as only processes do that are made for nothing
    /// else. When it is to be stopped it gets no grace: it could not be ended in time.
    fn keep_up(&mut self, in_a_storm: bool) {
        if in_a_storm && !std::mem::replace(&mut self.in_a_storm, in_a_storm) {
            self.tree.hurry();
        }
        self.in_a_storm = in_a_storm;
        if in_a_storm && matches!(self.phase, Phase::Stopping(_)) {
            self.kill();
        }
    }

    fn see_end(&mut self, ended: Option<WaitStatus>) {
        if let Some(status) = ended {
            self.job = None;
            self.exited(status);
        }
    }

    fn exited(&mut self, status: WaitStatus) {
        self.tell(match status.terminating_signal() {
            Some(signal) => Report::Killed { signal },
            // Neither exited nor killed cannot be: stops are not asked for.
            None => Report::Exited { code: status.exit_status().unwrap_or(i32::from(u8::MAX)) },
        });
        let soon = SystemClock.now() + LEFTOVER_GRACE;
        match self.phase {
            Phase::Running => self.stop(soon),
            Phase::Stopping(kill_at) => self.phase = Phase::Stopping(kill_at.min(soon)),
            Phase::Killing => {}
        }
    }

    /// The first signal to the whole tree, and SIGKILL at `kill_at`.
    fn stop(&mut self, kill_at: BootTime) {
        if self.phase == Phase::Killing {
            return;
        }
        if self.in_a_storm {
            return self.kill();
        }
        let before = match self.phase {
            Phase::Stopping(before) => before,
            _ => BootTime::MAX,
        };
        let kill_at = kill_at.min(before);
        self.phase = Phase::Stopping(kill_at);
        self.tree.hurry();
        self.tree.tell(self.first, &mut self.told, kill_at.min(self.times.kill_at));
    }

    /// Does what is due. Some when only processes are left that may not be killed.
    fn act(&mut self, now: BootTime) -> Option<i32> {
        if self.phase == Phase::Running && now >= self.times.term_at {
            self.tell(Report::TimeOver);
            self.stop(self.times.kill_at);
        }
        let due = match self.phase {
            Phase::Running => self.times.kill_at,
            Phase::Stopping(kill_at) => kill_at.min(self.times.kill_at),
            Phase::Killing => BootTime::ZERO,
        };
        if now < due {
            return None;
        }
        if self.phase == Phase::Running {
            self.tell(Report::TimeOver);
        }
        self.kill();
        let (job, mut ended) = (self.job, None);
        let left = self.tree.hunt(job, |pid, status| {
            if Some(pid) == job {
                ended = Some(status);
            }
        });
        self.see_end(ended);
        self.futile_hunts = if left.is_futile() { self.futile_hunts + 1 } else { 0 };
        if left.storm {
            self.pause = Duration::ZERO;
        }
        let out_of_reach = i32::try_from(left.out_of_reach).unwrap_or(i32::MAX);
        (self.futile_hunts > FUTILE_MAX).then_some(out_of_reach)
    }

    /// Sleeps until an order, the end of a child, or the next time.
    fn sleep(&mut self) -> Result<(), Errno> {
        let wake = match self.phase {
            Phase::Running => self.times.term_at.min(self.times.kill_at),
            Phase::Stopping(kill_at) => kill_at.min(self.times.kill_at),
            Phase::Killing => {
                let pause = self.pause;
                self.pause = (pause * 2).clamp(STRIKE_PAUSE_MIN, STRIKE_PAUSE_MAX);
                SystemClock.now() + pause
            }
        };
        set_timer(&self.timer, wake)?;
        let mut descriptors =
            vec![PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.ended_children, PollFlags::IN)];
        if self.open {
            descriptors.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        match poll(&mut descriptors, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        drain(&self.ended_children);
        Ok(())
    }

    fn tell(&mut self, report: Report) {
        // A wrapper that is gone needs no report, and a frozen one has room for these few.
        let _ = send_report(self.socket, report);
    }
}

/// A socket that becomes readable when a child ends. Other signals do nothing here: the wrapper
/// decides what they mean. The handlers are gone in the command, which gets the defaults.
fn watch_children() -> std::io::Result<UnixStream> {
    use signal_hook::consts::{
        SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXFSZ,
    };
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, writer)?;
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGALRM, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXFSZ] {
        signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored))?;
    }
    if !super::signals::is_ignored(SIGHUP) {
        signal_hook::flag::register(SIGHUP, ignored)?;
    }
    Ok(reader)
}

fn drain(mut stream: &UnixStream) {
    use std::io::Read;
    let mut bytes = [0u8; 256];
    while matches!(stream.read(&mut bytes), Ok(n) if n > 0) {}
}

fn set_timer(timer: &OwnedFd, at: BootTime) -> Result<(), Errno> {
    let spec = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        // All zero would disarm it; a time in the past fires at once.
        it_value: Timespec {
            tv_sec: i64::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (at.as_nanos() % 1_000_000_000).max(1) as _,
        },
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec).map(drop)
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
