//! What came of a run, and how the program ends by it.

use leasehold::LeaseState;
use rustix::io::Errno;

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

/// What came of the run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) job: JobEnd,
    /// Why the lease was over before the command was.
    pub(crate) loss: Option<LeaseState>,
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
            (None, JobEnd::Exited(code)) => Ending::Command(code),
            (None, JobEnd::Killed(signal)) => Ending::CommandKilled(signal),
        }
    }
}
