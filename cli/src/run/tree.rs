//! The processes below one process: finding them, signalling them, and killing until nobody is left.
//!
//! A process that calls setsid, forks twice or changes its group stays a descendant: when its parent
//! ends it falls to the nearest subreaper, which the guardian and the wrapper are. So "everybody
//! below me" is found by walking [`Proc`], whatever they did to hide, and whoever's parent is killed
//! becomes a child of ours, where no look at `/proc` is needed to know about it.
//!
//! What can go wrong, and where it is handled:
//! * Somebody forks while we look: looks are repeated until one meets nobody. A process that has a
//!   signal to take cannot fork any more, so each look ends everybody who was not just running.
//! * Processes that do nothing but fork and exit (a storm): see [`Tree::hunt`]. Children are killed
//!   by their number alone, the youngest first, and the dead are not looked at.
//! * A pid passes to a stranger between the look and the signal: a child's pid is its own until it
//!   is reaped, which only we do; all others get signals through a pidfd, after the start time was
//!   compared again.
//! * A list of children is short because a sibling died while it was read, or a process is hidden
//!   from us: `wait` knows exactly whether a child is left, and that is what counts.
//! * A zombie leader whose other threads live on: it counts as alive.
//! * A process of another user (a setuid program): it cannot be killed; it is counted and reported.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use leasehold::{BootTime, Clock, SystemClock};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process,
    kill_process_group, pidfd_open, pidfd_send_signal, wait, waitid,
};

use super::proc::{NoProc, Proc};

/// The dead that are reaped at once: between two looks at the living.
const REAP_MAX: usize = 512;
/// How long one hunt goes on against a storm before its caller sees to other things.
const HUNT_LIMIT: Duration = Duration::from_millis(50);
/// After so many hunts that met only processes which may not be killed or seen, they are given up.
pub(crate) const FUTILE_MAX: u32 = 50;
/// So many looks that find nobody are believed where `wait` cannot tell.
const EMPTY_LOOKS: u32 = 3;
/// Nicer to ourselves than to those who are to end.
const URGENT: i32 = -20;

/// A process, named for good: a pid may pass to another, a pid with its start time does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pid: i32,
    started: u64,
}

/// What the parent of many knows about its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// No child is left: then a subreaper has no descendants either, and none can come.
    None,
    /// Some are left, and live.
    Living,
    /// More have ended than were reaped now.
    Unreaped,
}

/// Who is left after a hunt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Living descendants, as far as they were counted.
    pub(crate) living: usize,
    /// Those among them that we may not signal, or do not see.
    pub(crate) out_of_reach: usize,
    /// New ones came all the time.
    pub(crate) storm: bool,
}

impl Left {
    /// Whether somebody is left, and nobody whom another hunt would end.
    pub(crate) fn is_futile(self) -> bool {
        self.living > 0 && self.living == self.out_of_reach
    }
}

/// The descendants of this process.
#[derive(Debug)]
pub(crate) struct Tree {
    proc: Proc,
    root: i32,
    /// Children that were there before: `exec leasehold` in a shell with jobs inherits them.
    strangers: BTreeSet<i32>,
    /// Children that got a SIGKILL and have not been reaped: one is enough.
    struck: HashSet<i32>,
}

impl Tree {
    /// The descendants of this process that come from now on.
    ///
    /// # Errors
    /// `/proc` does not show them.
    pub(crate) fn below_self() -> Result<Self, NoProc> {
        let proc = Proc::open()?;
        let root = rustix::process::getpid().as_raw_pid();
        let strangers = proc.children(root).into_iter().collect();
        Ok(Tree { proc, root, strangers, struck: HashSet::new() })
    }

    /// Our children but the strangers and the dead, the youngest first.
    fn own_children(&self) -> Vec<i32> {
        let mut pids = self.proc.children(self.root);
        pids.retain(|pid| !self.strangers.contains(pid) && !is_dead_child(*pid));
        pids.reverse();
        pids
    }

    /// Every living descendant that can be seen, or those found until `limit`.
    fn living(&self, limit: BootTime) -> Vec<Id> {
        let mut found = Vec::new();
        let mut open = self.own_children();
        let mut seen: HashSet<i32> = open.iter().copied().chain([self.root]).collect();
        while let Some(pid) = open.pop() {
            if let Some(stat) = self.proc.stat(pid)
                && stat.alive
            {
                found.push(Id { pid, started: stat.started });
                open.extend(self.proc.children(pid).into_iter().filter(|child| seen.insert(*child)));
            }
            if SystemClock.now() >= limit {
                break;
            }
        }
        found
    }

    /// Sends `signal` once to every living descendant that is not in `told` yet, and lets the stopped
    /// ones go on so that they can take it. Whoever it does not meet until `limit` gets the SIGKILL.
    pub(crate) fn tell(&self, signal: Signal, told: &mut HashSet<Id>, limit: BootTime) {
        // Who is born meanwhile is met by the second look.
        for _ in 0..2 {
            for id in self.living(limit) {
                if told.insert(id) && self.send(id, signal).is_ok() {
                    let _ = self.send(id, Signal::CONT);
                }
            }
        }
    }

    /// Kills every descendant that it meets, until a look meets nobody new or a moment is over.
    /// `group` is the command's group while its leader has not been reaped: killed in one step that
    /// no fork can slip through. `ended` gets whoever is reaped.
    ///
    /// A storm of processes that fork and exit at once is all among our children, since its parents
    /// are dead. Each round kills the children by number, and reaps a part of the dead: a few
    /// hundred system calls, in which a process that forks and has to wait for a processor gets
    /// nowhere.
    pub(crate) fn hunt(&mut self, group: Option<Pid>, mut ended: impl FnMut(Pid, WaitStatus)) -> Left {
        let until = SystemClock.now() + HUNT_LIMIT;
        let mut group = group;
        loop {
            if let Some(group) = group {
                // Gone already, or not ours: the looks see what is left.
                let _ = kill_process_group(group, Signal::KILL);
            }
            let (listed, fresh, refused) = self.strike_children();
            // A long list takes long to read: the next one is to be short.
            let children = self.reap_some(listed.max(REAP_MAX), |pid, status| {
                if Some(pid) == group {
                    group = None;
                }
                ended(pid, status);
            });
            match children {
                Children::None => return Left::default(),
                Children::Living if !fresh => return self.strike_the_rest(&refused),
                _ if SystemClock.now() >= until => {
                    return Left { living: 1.max(refused.len()), out_of_reach: 0, storm: true };
                }
                _ => {}
            }
        }
    }

    /// Kills our children. How many were listed, whether one of them is new, and those that may not be
    /// killed.
    fn strike_children(&mut self) -> (usize, bool, Vec<i32>) {
        let mut fresh = false;
        let mut refused = Vec::new();
        let listed = self.proc.children(self.root);
        // The youngest come last in the list, and are the most likely to be running.
        for &pid in listed.iter().rev() {
            if self.strangers.contains(&pid) || self.struck.contains(&pid) {
                continue;
            }
            // Not reaped since it was listed: the number is still its own.
            match Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL)) {
                Some(Err(Errno::PERM)) if !is_dead_child(pid) => refused.push(pid),
                Some(_) => fresh |= self.struck.insert(pid),
                None => {}
            }
        }
        (listed.len(), fresh, refused)
    }

    /// Kills the descendants that are no children of ours yet, and counts who is left.
    fn strike_the_rest(&self, refused: &[i32]) -> Left {
        let mut left = Left { living: refused.len(), out_of_reach: refused.len(), storm: false };
        for id in self.living(SystemClock.now() + HUNT_LIMIT) {
            if refused.contains(&id.pid) {
                continue;
            }
            match self.send(id, Signal::KILL) {
                Err(Errno::PERM) => left.out_of_reach += 1,
                Err(Errno::SRCH) => continue,
                _ => {}
            }
            left.living += 1;
        }
        if left.living == 0 && self.has_unseen_children() {
            left = Left { living: 1, out_of_reach: 1, storm: false };
        }
        left
    }

    /// Whether a child is left that is no stranger and that no list shows. Called when none is seen.
    fn has_unseen_children(&self) -> bool {
        let anybody =
            waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
        let listed = self.proc.children(self.root);
        // Living strangers are children too: if all of them are listed, they explain it.
        let mut strangers = self.strangers.iter().filter(|pid| is_living_child(**pid)).peekable();
        anybody.is_ok() && (strangers.peek().is_none() || strangers.any(|pid| !listed.contains(pid)))
    }

    /// Kills until nobody is left, or `limit` is over, or nobody who is left can be killed. Returns
    /// how many are left. `ended` gets whoever is reaped.
    pub(crate) fn kill_until_gone(
        &mut self,
        limit: Duration,
        mut ended: impl FnMut(Pid, WaitStatus),
    ) -> usize {
        let until = SystemClock.now() + limit;
        let mut pause = Duration::from_micros(200);
        let (mut futile, mut empty) = (0, 0);
        loop {
            let left = self.hunt(None, &mut ended);
            futile = if left.is_futile() { futile + 1 } else { 0 };
            empty = if left.living == 0 { empty + 1 } else { 0 };
            // With strangers about, one look at a list that changes is no proof.
            let is_empty = empty > 0 && (self.strangers.is_empty() || empty >= EMPTY_LOOKS);
            let now = SystemClock.now();
            if is_empty || futile > FUTILE_MAX {
                return left.living;
            }
            if now >= until {
                // In a storm they were not counted, and may all be dead.
                return if left.storm { self.living(BootTime::MAX).len() } else { left.living };
            }
            if !left.storm {
                // The kernel ends them when it comes to it, and tells nobody but their parents.
                std::thread::sleep(pause.min(until.since(now)));
                pause = (pause * 2).min(Duration::from_millis(10));
            }
        }
    }

    /// Reaps children that have ended, many at once, but not for ever in a storm.
    pub(crate) fn reap(&mut self, ended: impl FnMut(Pid, WaitStatus)) -> Children {
        self.reap_some(REAP_MAX, ended)
    }

    fn reap_some(&mut self, most: usize, mut ended: impl FnMut(Pid, WaitStatus)) -> Children {
        for _ in 0..most {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    // The number may pass to anybody now.
                    self.strangers.remove(&pid.as_raw_pid());
                    self.struck.remove(&pid.as_raw_pid());
                    ended(pid, status);
                }
                Ok(None) => return Children::Living,
                Err(Errno::INTR) => {}
                Err(_) => return Children::None,
            }
        }
        Children::Unreaped
    }

    /// Puts this thread before those who are to end, if it may, and its session before theirs where
    /// the kernel shares processors between sessions: the session must be this process's own.
    pub(crate) fn hurry(&self) {
        hurry();
        self.proc.hurry();
    }

    /// Whether `pid` is a child of `parent` that has ended and was not reaped.
    pub(crate) fn has_ended(&self, pid: Pid, parent: Pid) -> bool {
        let stat = self.proc.stat(pid.as_raw_pid());
        stat.is_some_and(|stat| stat.parent == parent.as_raw_pid() && !stat.alive)
    }

    fn send(&self, id: Id, signal: Signal) -> Result<(), Errno> {
        let pid = Pid::from_raw(id.pid).ok_or(Errno::SRCH)?;
        let handle = pidfd_open(pid, PidfdFlags::empty());
        // From here on the handle means one process; is it the one that was seen?
        if self.proc.stat(id.pid).is_none_or(|stat| stat.started != id.started) {
            return Err(Errno::SRCH);
        }
        match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            Err(Errno::SRCH) => Err(Errno::SRCH),
            // An old kernel, or no descriptor left: the pid was compared a moment ago.
            Err(_) => kill_process(pid, signal),
        }
    }
}

/// Puts this thread before those who are to end, if it may.
pub(crate) fn hurry() {
    let _ = rustix::process::setpriority_process(None, URGENT);
}

/// A child's state, as `wait` would tell it: Some(true) when it has ended. None for no child of ours.
fn child_has_ended(pid: i32) -> Option<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_raw(pid)?), options).ok().map(|status| status.is_some())
}

fn is_dead_child(pid: i32) -> bool {
    child_has_ended(pid) == Some(true)
}

fn is_living_child(pid: i32) -> bool {
    child_has_ended(pid) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn strangers_are_left_alone_and_explain_themselves() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(is_living_child(pid));
        let tree = Tree::below_self().expect("/proc is mounted");
        assert!(!tree.living(BootTime::MAX).iter().any(|id| id.pid == pid), "a stranger");
        assert!(!tree.has_unseen_children(), "the one child is a stranger that the list shows");
        // Taken for one of the tree that no list shows, it is noticed.
        let blind = Tree { strangers: BTreeSet::new(), ..tree };
        assert!(blind.has_unseen_children());
        assert!(blind.living(BootTime::MAX).iter().any(|id| id.pid == pid));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
