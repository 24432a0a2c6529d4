//! The wrapper's hold on its guardian: the process, the socket, and the tree that it would inherit.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitStatus, set_child_subreaper};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::guardian::WORD;
use super::protocol::{Order, Received, Report, receive_report, send_order};
use super::tree::{self, Tree};

/// How long the wrapper goes on killing before it says that it cannot.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// A started guardian whose command has not been started.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
    pub(crate) socket: UnixStream,
    tree: Tree,
}

impl Guardian {
    /// Executes this program again as a guardian. The command inherits `environment`.
    pub(crate) fn spawn(environment: &[(&str, Option<String>)]) -> std::io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let tree = Tree::below_self().map_err(|e| std::io::Error::other(e.to_string()))?;
        set_child_subreaper(Some(rustix::process::getpid()))?;
        // Not by its path: the file may have been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("leasehold").arg(WORD).stdin(Stdio::from(theirs));
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let process = command.spawn()?;
        let socket = std::os::unix::net::UnixStream::from(ours);
        socket.set_nonblocking(true)?;
        Ok(Guardian { process, socket: UnixStream::from_std(socket)?, tree })
    }

    /// Gives an order; false when it was not taken.
    pub(crate) fn order(&self, order: Order) -> bool {
        send_order(&self.socket, order, &[]).is_ok()
    }

    /// The guardian's next word; none when its end is closed.
    pub(crate) async fn hear(&self) -> Option<Report> {
        loop {
            self.socket.readable().await.ok()?;
            let received = self.socket.try_io(Interest::READABLE, || match receive_report(&self.socket) {
                Received::Message(report, _) => Ok(Some(report)),
                Received::Closed => Ok(None),
                Received::Nothing => Err(std::io::ErrorKind::WouldBlock.into()),
            });
            if let Ok(report) = received {
                return report;
            }
        }
    }

    /// Kills the guardian, inherits its tree, and kills that. Returns how many are left, and how
    /// `job` ended.
    pub(crate) fn take_over(&mut self, job: Option<Pid>) -> (usize, Option<WaitStatus>) {
        tree::hurry();
        self.dismiss();
        let mut ended = None;
        let left = self.tree.kill_until_gone(KILL_LIMIT, |pid, status| {
            if Some(pid) == job {
                ended = Some(status);
            }
        });
        (left, ended)
    }

    /// Whether the command has ended and the guardian has not reaped it.
    pub(crate) fn leaves_unreaped(&self, job: Pid) -> bool {
        let guardian = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        guardian.is_some_and(|guardian| self.tree.has_ended(job, guardian))
    }

    /// Ends a guardian that has nothing left to do; should it be frozen now, it is not waited for.
    pub(crate) fn dismiss(&mut self) {
        // Not reaped yet, so the pid is its own.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
