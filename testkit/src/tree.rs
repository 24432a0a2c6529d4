//! What runs on this machine, as `/proc` tells it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The environment variable that marks a process and all its descendants.
pub const MARK: &str = "LEASEHOLD_TESTKIT_MARK";

/// The environment variable that marks everything of one part of a test run. Not one of the program's
/// own, which tests count.
pub const RUN_MARK: &str = "TESTKIT_RUN_MARK";

/// One line of `/proc/PID/stat`, as far as tests need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// Name of the executable, cut to 15 bytes by the kernel.
    pub comm: String,
    /// `R`, `S`, `D`, `T` (stopped), `Z` (zombie) …
    pub state: char,
    /// Parent.
    pub ppid: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// When it started, in clock ticks since boot: with the pid it names a process for good.
    pub started_ticks: u64,
}

/// The state of one process; none when there is no such process.
pub fn stat_of(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The states of all threads of a process that still run or are frozen; empty when there is none.
pub(crate) fn states_of_threads(pid: i32) -> Vec<char> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let stat = |path: PathBuf| parse_stat(&std::fs::read_to_string(path.join("stat")).ok()?);
    let ended = |state: &char| matches!(state, 'Z' | 'X');
    entries.flatten().filter_map(|e| stat(e.path())).map(|s| s.state).filter(|s| !ended(s)).collect()
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name stands in brackets and may itself hold brackets and blanks.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    Some(Stat {
        pid: text.get(..open)?.trim().parse().ok()?,
        comm: text.get(open + 1..close)?.to_owned(),
        state: fields.first()?.chars().next()?,
        ppid: fields.get(1)?.parse().ok()?,
        pgid: fields.get(2)?.parse().ok()?,
        sid: fields.get(3)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// All process ids of the machine.
pub fn process_ids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The children of `pid`, zombies among them.
pub fn children_of(pid: i32) -> Vec<Stat> {
    process_ids().into_iter().filter_map(stat_of).filter(|s| s.ppid == pid).collect()
}

/// `pid` and everything below it as the parents stand now, without zombies. Who was re-parented is
/// not in it: [`processes_marked`] finds those too.
pub fn tree_of(pid: i32) -> Vec<Stat> {
    let all: Vec<Stat> = process_ids().into_iter().filter_map(stat_of).collect();
    let mut found: Vec<i32> = vec![pid];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        for child in all.iter().filter(|s| s.ppid == parent) {
            if !found.contains(&child.pid) {
                found.push(child.pid);
            }
        }
        at += 1;
    }
    all.into_iter().filter(|s| found.contains(&s.pid) && s.state != 'Z').collect()
}

/// The living processes whose environment, as it was when they were executed, has `name=value`.
///
/// A descendant is found wherever it went. Zombies have no environment and run no more.
pub fn processes_marked(name: &str, value: &OsStr) -> Vec<Stat> {
    let mut wanted = name.as_bytes().to_vec();
    wanted.push(b'=');
    wanted.extend_from_slice(value.as_bytes());
    process_ids()
        .into_iter()
        .filter(|&pid| environment(pid).is_some_and(|env| env.split(|&b| b == 0).any(|pair| pair == wanted)))
        .filter_map(stat_of)
        .filter(|s| s.state != 'Z')
        .collect()
}

/// The environment of a process. In the middle of an exec there is none for a moment: looked at again,
/// or a process that is about to become another program would be overlooked.
fn environment(pid: i32) -> Option<Vec<u8>> {
    const LOOKS_MAX: u32 = 10;
    /// The parent of all threads of the kernel, which never have one.
    const KTHREADD: i32 = 2;
    for _ in 0..LOOKS_MAX {
        let env = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let stat = stat_of(pid)?;
        if !env.is_empty() || stat.state == 'Z' || pid == KTHREADD || stat.ppid == KTHREADD {
            return Some(env);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

/// One process, held by a pidfd: signals reach it or nobody.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

impl Process {
    /// Takes hold of a running process.
    ///
    /// # Errors
    /// When there is no such process, or no descriptor is left.
    pub fn open(pid: i32) -> io::Result<Self> {
        let id = Pid::from_raw(pid).ok_or_else(|| io::Error::other("a process id is not zero"))?;
        Ok(Process { pid, pidfd: pidfd_open(id, PidfdFlags::empty())? })
    }

    /// Takes hold of the process that `stat` showed, unless its pid has passed to another.
    ///
    /// # Errors
    /// As [`Process::open`].
    pub fn open_same(stat: &Stat) -> io::Result<Self> {
        let process = Self::open(stat.pid)?;
        match stat_of(stat.pid) {
            Some(now) if now.started_ticks == stat.started_ticks => Ok(process),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "the process is gone and its pid used again")),
        }
    }

    /// Its id. It may have ended since.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a signal; false when the process is gone.
    pub fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.pidfd, signal).is_ok()
    }

    /// Stops it where it stands (SIGSTOP), and returns once the kernel shows every thread of it stopped.
    ///
    /// # Panics
    /// When it neither stops nor ends within 5 s: a stop needs one scheduling of the process.
    #[track_caller]
    pub fn freeze(&self) -> bool {
        self.signal(Signal::STOP)
            && crate::eventually(std::time::Duration::from_secs(5), "the process stops", || {
                match states_of_threads(self.pid) {
                    states if !states.is_empty() && states.iter().all(|&s| s == 'T') => Some(true),
                    _ if !self.is_alive() => Some(false),
                    _ => None,
                }
            })
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) -> bool {
        self.signal(Signal::CONT)
    }

    /// Ends it at once (SIGKILL), frozen or not.
    pub fn kill(&self) -> bool {
        self.signal(Signal::KILL)
    }

    /// Whether it still runs or is frozen. A zombie does not.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
    }

    /// The working executable's path; none when it ended or is not ours to look at.
    pub fn executable(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_an_ugly_name_is_read() {
        let line = "42 (a) b (c) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1 1";
        let stat = parse_stat(line).expect("legal");
        assert_eq!(
            (stat.pid, stat.comm.as_str(), stat.state, stat.ppid, stat.pgid, stat.sid),
            (42, "a) b (c", 'S', 7, 8, 9)
        );
        assert_eq!(stat.started_ticks, 12345);
        assert_eq!(parse_stat("42 (half"), None);
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        let pid = std::process::id() as i32;
        assert!(tree_of(pid).iter().any(|s| s.pid == pid));
        assert!(Process::open(pid).expect("own process").is_alive());
    }
}
