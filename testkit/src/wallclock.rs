//! Stepping the wall clock of a child while it runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Scratch;

const SOURCE: &str = include_str!("../preload/wallclock.c");

/// A library, compiled on the spot, that shifts what `clock_gettime(CLOCK_REALTIME)`,
/// `gettimeofday` and `time` give to the processes it is loaded into. The shift is read from a
/// mapped file at every call, so that it can be stepped back and forth under a running program.
///
/// It reaches what goes through the C library: Rust's `SystemTime`, SQLite, Redis, the shell's `date`, but
/// not Go. The boot clock and the monotonic clock stay as they are, whichever way they are read.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: File,
    offset_path: PathBuf,
    _scratch: Scratch,
}

impl WallClock {
    /// Compiles the library with `cc`, with a shift of zero.
    ///
    /// # Errors
    /// When there is no C compiler, or it fails.
    pub fn build() -> io::Result<Self> {
        let scratch = Scratch::readable_by_all();
        let (source, library) = (scratch.join("wallclock.c"), scratch.join("wallclock.so"));
        std::fs::write(&source, SOURCE)?;
        let cc = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .args(["-ldl"])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| io::Error::new(e.kind(), format!("cc: {e} (install a C compiler: gcc)")))?;
        if !cc.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&cc.stderr).into_owned()));
        }
        let offset_path = scratch.join("offset");
        let offset = File::create(&offset_path)?;
        let clock = WallClock { library, offset, offset_path, _scratch: scratch };
        clock.step_to(0)?;
        Ok(clock)
    }

    /// Loads the library into the program that `command` will run, and into its descendants.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", &self.library).env("LEASEHOLD_WALLCLOCK", &self.offset_path)
    }

    /// Sets the wall clock of all of them to `seconds` away from the true one, from now on.
    ///
    /// # Errors
    /// When the file cannot be written, or with more than 292 years.
    pub fn step_to(&self, seconds: i64) -> io::Result<()> {
        self.step_to_millis(seconds.saturating_mul(1000))
    }

    /// As [`WallClock::step_to`], in milliseconds.
    ///
    /// # Errors
    /// As [`WallClock::step_to`].
    pub fn step_to_millis(&self, millis: i64) -> io::Result<()> {
        let nanos = millis.checked_mul(1_000_000);
        let nanos =
            nanos.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "more than 292 years"))?;
        // One aligned word: a reader sees the old or the new shift and nothing between.
        self.offset.write_all_at(&nanos.to_ne_bytes(), 0)
    }
}
