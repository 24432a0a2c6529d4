//! Processes that end with this one, however it ends.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

type Job = (Command, Sender<io::Result<Child>>);

/// A command that has the kernel kill `program` when the thread that spawned it ends.
///
/// `setpriv` asks the kernel for that and then becomes the program, so that the pid is the program's own.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Spawns `command` from a thread that lives as long as this process.
///
/// A test's own thread ends with the test, and would take a server with it that other tests still use.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    let jobs = {
        let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
        match spawner.as_ref() {
            Some(jobs) => jobs.clone(),
            None => spawner.insert(start_spawner()?).clone(),
        }
    };
    let (reply, spawned) = channel();
    let gone = || io::Error::other("the thread that spawns is gone");
    jobs.send((command, reply)).map_err(|_| gone())?;
    spawned.recv().map_err(|_| gone())?
}

fn start_spawner() -> io::Result<Sender<Job>> {
    let (jobs, todo) = channel::<Job>();
    std::thread::Builder::new().name("spawner".into()).spawn(move || {
        for (mut command, reply) in todo {
            if let Err(unheard) = reply.send(command.spawn()) {
                // Nobody waits for it any more: end it here.
                if let Ok(mut child) = unheard.0 {
                    let _ = child.kill().and_then(|()| child.wait());
                }
            }
        }
    })?;
    Ok(jobs)
}
