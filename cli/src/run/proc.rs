//! `/proc`, opened once, before anything runs that could hide it.
//!
//! Everything is read below one open directory: a command that mounts over `/proc`, or unmounts it,
//! changes nothing here. A `/proc` of another pid namespace would show strangers under our numbers,
//! and none of ours: it is refused.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;

/// The process list of this process's own pid namespace.
#[derive(Debug)]
pub(crate) struct Proc {
    root: OwnedFd,
}

/// Why `/proc` is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoProc {
    /// It cannot be read.
    Unreadable(Errno),
    /// It is the one of another pid namespace.
    Foreign,
}

impl fmt::Display for NoProc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProc::Unreadable(errno) => write!(
                f,
                "/proc is not mounted, or cannot be read ({errno}): without it a command's processes are not found, and cannot be stopped in time. Nothing was started. Mount it (mount -t proc proc /proc)"
            ),
            NoProc::Foreign => f.write_str(
                "/proc belongs to another pid namespace: a command's processes would not be found in it, and not be stopped in time. Nothing was started. Mount this namespace's own (unshare --mount-proc, or mount -t proc proc /proc)",
            ),
        }
    }
}

impl NoProc {
    /// As the guardian's report carries it.
    pub(crate) fn errno(self) -> Errno {
        match self {
            NoProc::Unreadable(errno) => errno,
            NoProc::Foreign => Errno::XDEV,
        }
    }
}

/// A process, as its `stat` file has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) parent: i32,
    pub(crate) started: u64,
    /// Not a zombie, or one whose other threads live on.
    pub(crate) alive: bool,
}

impl Proc {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// It is not there, or not this pid namespace's.
    pub(crate) fn open() -> Result<Self, NoProc> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/proc", flags, Mode::empty()).map_err(NoProc::Unreadable)?;
        let proc = Proc { root };
        let me = rustix::process::getpid().as_raw_pid();
        let named = readlinkat(&proc.root, "self", Vec::new()).map_err(NoProc::Unreadable)?;
        if named.to_bytes() != me.to_string().as_bytes() || proc.is_of_an_outer_namespace() {
            return Err(NoProc::Foreign);
        }
        proc.stat(me).map(|_| proc).ok_or(NoProc::Unreadable(Errno::NOENT))
    }

    /// Whether a process has a number of its own in a namespace below: two of them may be equal.
    fn is_of_an_outer_namespace(&self) -> bool {
        let status = self.read("self/status").unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() > 1)
    }

    fn read(&self, path: &str) -> std::io::Result<String> {
        let mut text = String::new();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        File::from(openat(&self.root, path, flags, Mode::empty())?).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Asks for more of the processors for this session, where the kernel shares them by session.
    pub(crate) fn hurry(&self) {
        // Root's right, and not everywhere: without it everything goes on as it did.
        if let Ok(file) =
            openat(&self.root, "self/autogroup", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        {
            let _ = rustix::io::write(file, b"-20");
        }
    }

    /// The entries of a directory that are numbers.
    fn numbers(&self, path: &str) -> rustix::io::Result<Vec<i32>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = Dir::new(openat(&self.root, path, flags, Mode::empty())?)?;
        let names = directory.flatten();
        Ok(names.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect())
    }

    /// What is known of a process; none when it is gone, or hidden from us.
    pub(crate) fn stat(&self, pid: i32) -> Option<Stat> {
        parse_stat(&self.read(&format!("{pid}/stat")).ok()?)
    }

    /// The children of all threads of `pid`, zombies among them, the youngest last.
    pub(crate) fn children(&self, pid: i32) -> Vec<i32> {
        let Ok(threads) = self.numbers(&format!("{pid}/task")) else { return Vec::new() };
        let mut found = Vec::new();
        for thread in threads {
            match self.read(&format!("{pid}/task/{thread}/children")) {
                Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok())),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && self.has_thread(pid, thread) => {
                    // This kernel keeps no such lists.
                    return self.children_by_scan().remove(&pid).unwrap_or_default();
                }
                Err(_) => {}
            }
        }
        found
    }

    fn has_thread(&self, pid: i32, thread: i32) -> bool {
        statat(&self.root, format!("{pid}/task/{thread}"), AtFlags::empty()).is_ok()
    }

    fn children_by_scan(&self) -> HashMap<i32, Vec<i32>> {
        let mut by_parent: HashMap<i32, Vec<i32>> = HashMap::new();
        for pid in self.numbers(".").unwrap_or_default() {
            if let Some(stat) = self.stat(pid) {
                by_parent.entry(stat.parent).or_default().push(pid);
            }
        }
        by_parent
    }
}

/// Reads `/proc/PID/stat`. The name in parentheses may hold anything, parentheses among it.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        alive: !matches!(*fields.first()?, "Z" | "X" | "x") || threads > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn stat_lines_are_read_whatever_the_name() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 4242 0 0")
        };
        let stat = parse_stat(&line("a) Z 1 (b", "S", 1)).expect("readable");
        assert_eq!((stat.parent, stat.started, stat.alive), (3, 4242, true));
        assert!(!parse_stat(&line("x", "Z", 1)).expect("readable").alive);
        assert!(parse_stat(&line("x", "Z", 2)).expect("readable").alive);
        assert!(parse_stat("7 (x").is_none());
    }

    #[test]
    fn children_are_found_by_both_ways() {
        let proc = Proc::open().expect("/proc is mounted");
        let me = rustix::process::getpid().as_raw_pid();
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(proc.children(me).contains(&pid));
        assert!(proc.children_by_scan().get(&me).is_some_and(|list| list.contains(&pid)));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
