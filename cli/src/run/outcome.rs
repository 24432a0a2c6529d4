//! What came of a run, and how the program ends by it.

use leasehold::LeaseState;
use rustix::io::Errno;
use rustix::process::WaitStatus;

use crate::exit::{Ending, Exit};

/// How the command ended, as far as it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobEnd {
    /// It never ran.
    NotStarted(Errno),
    /// The guardian could not do its work.
    Unguarded(Errno),
    /// With this code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
    /// Killed with its guardian.
    Unseen,
}

impl JobEnd {
    /// By the status that `wait` gave.
    pub(crate) fn of(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => JobEnd::Killed(signal),
            // Neither exited nor killed cannot be: stops are not asked for.
            None => {
                JobEnd::Exited(status.exit_status().and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX))
            }
        }
    }
}

/// What came of the run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) job: JobEnd,
    /// Why the lease was over before the command was.
    pub(crate) loss: Option<LeaseState>,
    /// How many of its processes run on.
    pub(crate) left: usize,
}

impl Outcome {
    pub(crate) fn ending(&self) -> Ending {
        match (&self.loss, self.job) {
            (Some(_), _) => Exit::Lost.into(),
            (None, JobEnd::NotStarted(Errno::NOENT)) => Exit::NotFound.into(),
            (None, JobEnd::NotStarted(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE)) => {
                Exit::Internal.into()
            }
            (None, JobEnd::NotStarted(_)) => Exit::CannotExecute.into(),
            (None, JobEnd::Unseen | JobEnd::Unguarded(_)) => Exit::Internal.into(),
            // It would be a success, with work still going on.
            (None, JobEnd::Exited(0)) if self.left > 0 => Exit::Internal.into(),
            (None, JobEnd::Exited(code)) => Ending::Command(code),
            (None, JobEnd::Killed(signal)) => Ending::CommandKilled(signal),
        }
    }
}
