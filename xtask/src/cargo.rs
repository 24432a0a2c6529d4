//! Running cargo under a time limit, with its test counts read on the way through.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::leftovers::{Marked, SETTLE_MAX};

/// The top folder of the workspace.
pub(crate) fn root() -> &'static Path {
    // The manifest lies one folder below.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// The build folder: the one cargo itself would use.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Tests that ran, as cargo's own summary lines count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`, and the `80 defects, 0 errors, …` of the
    /// mutants, where each defect that was found is a test passed.
    pub(crate) fn of_line(line: &str) -> Option<Counts> {
        if let Some((defects, rest)) = line.split_once(" defects, ") {
            let (errors, _) = rest.split_once(" errors")?;
            let (defects, failed): (u64, u64) = (defects.parse().ok()?, errors.parse().ok()?);
            return Some(Counts { passed: defects.saturating_sub(failed), failed, ignored: 0 });
        }
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut found = Counts::default();
        for part in counts.split(';') {
            match part.trim().split_once(' ') {
                Some((n, "passed")) => found.passed = n.parse().ok()?,
                Some((n, "failed")) => found.failed = n.parse().ok()?,
                Some((n, "ignored")) => found.ignored = n.parse().ok()?,
                _ => {}
            }
        }
        Some(found)
    }
}

/// One call of cargo.
#[derive(Clone, Debug)]
pub(crate) struct Cargo {
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Cargo {
    pub(crate) fn new(subcommand: &str) -> Self {
        Cargo { args: vec![subcommand.to_owned()], env: Vec::new() }
    }

    pub(crate) fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args.into_iter().map(str::to_owned));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Compiles with one more `--cfg`, in a build folder of its own, so that it neither spoils nor
    /// rebuilds the common one.
    pub(crate) fn with_cfg(self, cfg: &str, folder: &str) -> Self {
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        self.env("RUSTFLAGS", format!("{flags} --cfg {cfg}").trim_start().to_owned())
            .env("CARGO_TARGET_DIR", target_dir().join(folder).display().to_string())
    }

    /// The command, to be run in the top folder.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.args).current_dir(root()).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it with its output passed through, and ends it when `until` comes first.
    ///
    /// # Errors
    /// What failed, in one line.
    pub(crate) fn run(&self, mark: &Marked, until: Instant) -> Result<Counts, String> {
        println!("$ cargo {}", self.args.join(" "));
        let mut command = with_default_signals(self.command());
        let mut child =
            mark.put_on(&mut command).stdout(Stdio::piped()).spawn().map_err(|e| format!("cargo: {e}"))?;
        let output = child.stdout.take();
        let reader = std::thread::spawn(move || {
            output.map_or_else(Default::default, |o| pass_through(o, std::io::stdout()))
        });
        let status = loop {
            match child.try_wait().map_err(|e| format!("cargo: {e}"))? {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    mark.kill_all();
                    let _ = child.wait();
                    return Err("ended: it ran into its hard limit".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        // A descendant that was left behind may hold the pipe open: then the counts read so far are
        // lost, and the part fails for the descendant.
        let (counts, failures) = if mark.settle(SETTLE_MAX).is_empty() {
            reader.join().unwrap_or_default()
        } else {
            Default::default()
        };
        if status.success() {
            Ok(counts)
        } else {
            let what =
                format!("cargo {} failed ({status}; {} tests failed)", self.args.join(" "), counts.failed);
            Err([what].into_iter().chain(failures).collect::<Vec<_>>().join("\n  "))
        }
    }

    /// Runs it quietly and returns its standard output.
    ///
    /// # Errors
    /// What failed, with its standard error.
    pub(crate) fn output(&self) -> Result<String, String> {
        let out = self.command().output().map_err(|e| format!("cargo: {e}"))?;
        if out.status.success() {
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        } else {
            Err(format!("cargo {} failed: {}", self.args.join(" "), String::from_utf8_lossy(&out.stderr)))
        }
    }
}

/// The command with no signal ignored: a test run that was started by `nohup` or in the background would
/// hand that on to every program whose signals it tests.
fn with_default_signals(command: Command) -> Command {
    const OPTION: &str = "--default-signal=HUP,INT,QUIT,TERM,USR1,USR2,PIPE,TSTP";
    let quiet = |mut command: Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let mut probe = Command::new("env");
    probe.args([OPTION, "true"]);
    if !quiet(probe).is_ok_and(|status| status.success()) {
        // Not the env of GNU coreutils: whoever started this has to do it.
        return command;
    }
    let mut wrapped = Command::new("env");
    wrapped.arg(OPTION).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// The counts, and the lines that name what failed: few enough to be repeated at the end of a long run.
fn pass_through(output: impl std::io::Read, mut to: impl Write) -> (Counts, Vec<String>) {
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    // Bytes, not text: a test may print anything.
    while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if let Some(found) = Counts::of_line(text) {
            counts.add(found);
        }
        if failures.len() < FAILURES_MAX && names_a_failure(text) {
            failures.push(text.chars().take(FAILURE_CHARS).collect());
        }
        line.clear();
    }
    (counts, failures)
}

/// Failures that are repeated at the end, and how much of each.
const FAILURES_MAX: usize = 20;
const FAILURE_CHARS: usize = 300;

/// Whether a line names a test that failed, as libtest, the suite and the mutants write it, or says why.
fn names_a_failure(line: &str) -> bool {
    let test = line
        .strip_prefix("test ")
        .is_some_and(|rest| rest.ends_with("FAILED") && !rest.starts_with("result"));
    test || line.starts_with("ERROR: ") || (line.starts_with("thread '") && line.contains("panicked at"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 1, ignored: 3 }));
        assert_eq!(Counts::of_line("test memory/mutex ... ok"), None);
        let found = Counts { passed: 79, failed: 1, ignored: 0 };
        assert_eq!(Counts::of_line("80 defects, 1 errors, 21.552271829s"), Some(found));
        let output = "noise \u{fffd}\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n".repeat(2);
        let mut copy = Vec::new();
        assert_eq!(pass_through(output.as_bytes(), &mut copy).0.passed, 4);
        assert_eq!(copy, output.as_bytes());
    }

    #[test]
    fn what_failed_is_kept_for_the_end() {
        let output = "test a::b ... FAILED\ntest c ... ok\nERROR: d does not find E\n\
                      test result: FAILED. 1 passed; 1 failed\nthread 'a::b' (7) panicked at src/lib.rs:1:2:\n";
        let (counts, failures) = pass_through(output.as_bytes(), std::io::sink());
        assert_eq!(counts.failed, 1);
        let expected = ["test a::b ... FAILED", "ERROR: d does not find E"];
        assert_eq!(failures[..2], expected);
        assert!(failures.len() == 3 && failures[2].contains("src/lib.rs:1:2"), "{failures:?}");
        let many = "ERROR: x\n".repeat(100);
        assert_eq!(pass_through(many.as_bytes(), std::io::sink()).1.len(), FAILURES_MAX);
    }
}
