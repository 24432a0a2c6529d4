//! Why no server runs.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why no server runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No port is to be had, or somebody else answers on the one that was asked for.
    #[error("no port for the server: {0}")]
    NoPort(#[source] io::Error),
    /// Directory, files or the program itself are not there.
    #[error("cannot start {program}: {source}")]
    Program {
        /// What was to be run.
        program: PathBuf,
        /// What stood against it.
        #[source]
        source: io::Error,
    },
    /// It ended at once.
    #[error("the server ended ({status}); its log ends with:\n{log}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// Its last words.
        log: String,
    },
    /// It runs and does not answer.
    #[error("the server is not ready after {waited:?} ({last}); its log ends with:\n{log}")]
    NotReady {
        /// How long it was waited for.
        waited: Duration,
        /// The last failure.
        last: String,
        /// Its last words.
        log: String,
    },
    /// Who answers on the port is not the process that was started.
    #[error("port {port} is answered by {found}, not by the server that was started (process {pid})")]
    NotOurs {
        /// The port.
        port: u16,
        /// The process that was started.
        pid: i32,
        /// Who was found.
        found: String,
    },
    /// A restart was to keep data that this server never writes down.
    #[error("the server runs without persistence: no restart keeps its data (set a Persistence)")]
    KeepsNothing,
}
