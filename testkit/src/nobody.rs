//! Running a command without rights.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Scratch;
use crate::scratch::set_mode;

/// User and group id of nobody.
pub const NOBODY: u32 = 65534;

/// Runs commands as a user who may write nowhere but where everybody may.
///
/// Root passes every permission bit, so that a test of a read-only store would test nothing when it
/// runs as root. This one drops the rights first, and [`Unprivileged::prove_cannot_write`] shows that
/// they are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprivileged {
    /// This process is root: commands go through `setpriv`.
    AsNobody,
    /// This process is a plain user already.
    AsIs,
}

impl Unprivileged {
    /// Looks who we are.
    pub fn new() -> Self {
        if rustix::process::geteuid().is_root() { Unprivileged::AsNobody } else { Unprivileged::AsIs }
    }

    /// A command that runs `program` without rights. Arguments and environment are added as usual.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Unprivileged::AsIs => Command::new(program),
            Unprivileged::AsNobody => {
                let mut command = Command::new("setpriv");
                let id = NOBODY.to_string();
                command
                    .arg(format!("--reuid={id}"))
                    .arg(format!("--regid={id}"))
                    .args(["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--"])
                    .arg(program);
                command
            }
        }
    }

    /// Copies `program` to where everybody may run it: build folders are often private.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn bring(self, program: &Path, to: &Scratch) -> io::Result<PathBuf> {
        let name = program.file_name().ok_or_else(|| io::Error::other("a program has a file name"))?;
        let copy = to.join(name);
        std::fs::copy(program, &copy)?;
        set_mode(&copy, 0o755)?;
        set_mode(to.path(), 0o755)?;
        Ok(copy)
    }

    /// Takes the right to write from `file` and proves that a command run by [`Unprivileged::command`]
    /// can read it and cannot write to it.
    ///
    /// # Panics
    /// When the command can write all the same, or cannot even read: a test built on it would prove
    /// nothing.
    #[track_caller]
    pub fn prove_cannot_write(self, file: &Path) {
        set_mode(file, 0o444).expect("own file");
        let sh = |script: &str| {
            let mut command = self.command("sh");
            command.args(["-c", script, "sh"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
            command.status().expect("setpriv (util-linux) and sh are installed").success()
        };
        assert!(sh("exec <\"$1\""), "{} cannot even be read without rights", file.display());
        assert!(!sh("exec >>\"$1\""), "{} can be written without rights", file.display());
    }
}

impl Default for Unprivileged {
    fn default() -> Self {
        Self::new()
    }
}
