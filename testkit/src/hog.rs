//! Taking the processor away.

use std::io;
use std::process::{Command, Stdio};

use crate::Proc;

/// Processes that do nothing but compute; they end on drop.
#[derive(Debug)]
pub struct CpuHog(Vec<Proc>);

impl CpuHog {
    /// Starts `count` of them. Twice the number of processors makes every other process wait for its
    /// turn most of the time.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn start(count: usize) -> io::Result<Self> {
        let one = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
            Proc::spawn(&mut command)
        };
        (0..count).map(|_| one()).collect::<io::Result<_>>().map(CpuHog)
    }

    /// As [`CpuHog::start`], two for every processor.
    ///
    /// # Errors
    /// As [`CpuHog::start`].
    pub fn on_every_processor() -> io::Result<Self> {
        Self::start(2 * std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
