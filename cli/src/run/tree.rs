//! The processes below one process: finding them, signalling them, and killing until nobody is left.
//!
//! A process that calls setsid, forks twice or changes its group stays a descendant: when its parent
//! ends it falls to the nearest subreaper, which the guardian and the wrapper are. So "everybody
//! below me" is found by walking `/proc`, whatever they did to hide.
//!
//! What can go wrong, and where it is handled:
//! * Somebody forks while we look: the walk is repeated until a look finds nobody; the command's
//!   own group is killed in one step that no fork can slip through.
//! * A pid passes to a stranger between the look and the signal: signals go through a pidfd, after
//!   the parent was compared again.
//! * A list of children is short because a sibling died while it was read: whoever needs certainty
//!   asks `wait`, which knows exactly whether a child is left.
//! * A zombie leader whose other threads live on: it counts as alive.
//! * A process of another user (a setuid program): it cannot be killed; it is counted and reported.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use leasehold::{Clock, SystemClock};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, wait,
};

/// A process, named for good: a pid may pass to another, a pid with its start time does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pid: i32,
    started: u64,
}

struct Stat {
    parent: i32,
    started: u64,
    alive: bool,
}

/// What a round of signals met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Living descendants seen.
    pub(crate) seen: usize,
    /// Those among them that we may not signal.
    pub(crate) refused: usize,
}

/// The descendants of this process.
#[derive(Debug)]
pub(crate) struct Tree {
    root: i32,
    /// Children that were there before: `exec leasehold` in a shell with jobs inherits them.
    strangers: BTreeSet<i32>,
}

impl Tree {
    /// The descendants of this process that come from now on.
    pub(crate) fn below_self() -> Self {
        let root = rustix::process::getpid().as_raw_pid();
        Tree { root, strangers: children(root).into_iter().collect() }
    }

    /// Every living descendant.
    pub(crate) fn living(&self) -> Vec<Id> {
        let mut found = Vec::new();
        let mut seen = HashSet::from([self.root]);
        let mut open = vec![self.root];
        while let Some(parent) = open.pop() {
            for pid in children(parent) {
                if (parent == self.root && self.strangers.contains(&pid)) || !seen.insert(pid) {
                    continue;
                }
                if let Some(stat) = stat(pid)
                    && stat.alive
                {
                    found.push(Id { pid, started: stat.started });
                    open.push(pid);
                }
            }
        }
        found
    }

    /// Sends `signal` once to every living descendant that is not in `told` yet, and lets the stopped
    /// ones go on so that they can take it.
    pub(crate) fn tell(&self, signal: Signal, told: &mut HashSet<Id>) -> Round {
        let mut round = Round::default();
        // Who is born meanwhile is met by the second look; who is born after that, by the KILL.
        for _ in 0..2 {
            for id in self.living() {
                if told.insert(id) {
                    round.seen += 1;
                    match send(id, signal) {
                        Err(Errno::PERM) => round.refused += 1,
                        // Gone already, or told.
                        _ => _ = send(id, Signal::CONT),
                    }
                }
            }
        }
        round
    }

    /// Sends SIGKILL to every living descendant. `group` is the command's group while its leader has
    /// not been reaped: killed in one step.
    pub(crate) fn strike(&self, group: Option<Pid>) -> Round {
        if let Some(group) = group {
            // Gone already, or not ours: the walk sees what is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let mut round = Round::default();
        for id in self.living() {
            round.seen += 1;
            if send(id, Signal::KILL) == Err(Errno::PERM) {
                round.refused += 1;
            }
        }
        round
    }

    /// Kills until nobody is left, or `limit` is over. Returns who is left.
    pub(crate) fn kill_until_gone(&self, limit: Duration) -> usize {
        let until = SystemClock.now() + limit;
        let mut pause = Duration::from_micros(200);
        loop {
            let round = self.strike(None);
            reap(|_, _| ());
            let left = if round.seen == 0 { 0 } else { self.living().len() };
            let now = SystemClock.now();
            if left == 0 || round.refused == round.seen || now >= until {
                return left;
            }
            // The kernel ends them when it comes to it, and tells nobody but their parents.
            std::thread::sleep(pause.min(until.since(now)));
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }
}

/// Reaps every child that has ended. False when no child is left at all: then a subreaper has no
/// descendants either, and none can come.
pub(crate) fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn send(id: Id, signal: Signal) -> Result<(), Errno> {
    let pid = Pid::from_raw(id.pid).ok_or(Errno::SRCH)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    // From here on the handle means one process; is it the one that was seen?
    if stat(id.pid).is_none_or(|stat| stat.started != id.started) {
        return Err(Errno::SRCH);
    }
    match handle {
        Ok(handle) => pidfd_send_signal(handle, signal),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        // An old kernel, or no descriptor left: the pid was compared a moment ago.
        Err(_) => kill_process(pid, signal),
    }
}

/// The children of all threads of `pid`, zombies among them.
fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && thread.path().exists() => {
                // This kernel keeps no such lists.
                return children_by_scan().remove(&pid).unwrap_or_default();
            }
            Err(_) => {}
        }
    }
    found
}

fn children_by_scan() -> HashMap<i32, Vec<i32>> {
    let mut by_parent: HashMap<i32, Vec<i32>> = HashMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return by_parent };
    for pid in entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())) {
        if let Some(stat) = stat(pid) {
            by_parent.entry(stat.parent).or_default().push(pid);
        }
    }
    by_parent
}

fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
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
    fn children_are_found_by_both_ways_and_strangers_left_alone() {
        let me = rustix::process::getpid().as_raw_pid();
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(children(me).contains(&pid));
        assert!(children_by_scan().get(&me).is_some_and(|list| list.contains(&pid)));
        let tree = Tree::below_self();
        assert!(!tree.living().iter().any(|id| id.pid == pid), "a stranger");
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
