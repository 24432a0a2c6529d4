//! What a job of the campaign does: it writes a line whenever it runs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::boot_now;

use super::judge::REFUSED;

pub(crate) const LOG: &str = "ROUNDS_LOG";
pub(crate) const BEGUN: &str = "ROUNDS_BEGUN";
pub(crate) const ID: &str = "ROUNDS_ID";
pub(crate) const HOLD_MS: &str = "ROUNDS_HOLD_MS";
/// Set: the job leaves a process behind that goes on as long as it is let.
pub(crate) const DAEMON: &str = "ROUNDS_DAEMON";
/// Set: what the job does goes through the fence in this file.
pub(crate) const FENCE: &str = "ROUNDS_FENCE";
/// Set: this is that process.
const IS_DAEMON: &str = "ROUNDS_IS_DAEMON";

pub(crate) const BEAT: Duration = Duration::from_millis(5);
/// A daemon that nobody ends gives up, so that a defect leaves no process for ever.
const DAEMON_MAX: Duration = Duration::from_secs(60);

/// Plays the job if this process was started as one.
pub(crate) fn play() {
    let Some(log) = std::env::var_os(LOG) else { return };
    let var = |name: &str| std::env::var(name).expect("set for jobs");
    let (name, token, id) = (var("LEASEHOLD_NAME"), var("LEASEHOLD_TOKEN"), var(ID));
    let mut log = OpenOptions::new().append(true).create(true).open(log).expect("the campaign's log");
    let fence = std::env::var_os(FENCE);
    let mut say = |what: &str| {
        let _held;
        let mut what = what;
        if let Some(path) = &fence {
            let (guard, passed) = pass(path.as_ref(), token.parse().expect("a number"));
            _held = guard;
            if !passed && what != "begin" {
                what = REFUSED;
            }
        }
        // One write to a file opened for appending: lines are whole and in the order they were made.
        let line = format!("{name} {token} {id} {what} {}\n", boot_now().as_nanos());
        log.write_all(line.as_bytes()).expect("the campaign's log");
    };
    if std::env::var_os(IS_DAEMON).is_some() {
        let until = boot_now() + DAEMON_MAX;
        while boot_now() < until {
            say("daemon");
            std::thread::sleep(BEAT);
        }
        std::process::exit(0);
    }
    say("begin");
    let until = boot_now() + Duration::from_millis(var(HOLD_MS).parse().expect("a number"));
    if std::env::var_os(DAEMON).is_some() {
        daemon();
    }
    let begun = var(BEGUN);
    std::fs::write(format!("{begun}.new"), std::process::id().to_string()).expect("own directory");
    std::fs::rename(format!("{begun}.new"), begun).expect("own directory");
    while boot_now() < until {
        say("beat");
        std::thread::sleep(BEAT);
    }
    say("end");
    std::process::exit(0);
}

/// Whether the resource accepts a write under `token`: it keeps the highest one that it has seen. It is locked
/// until the file is closed, so that check and write are one step.
fn pass(path: &Path, token: u64) -> (File, bool) {
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("the fence");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let mut highest = String::new();
    file.read_to_string(&mut highest).expect("read");
    if highest.parse().unwrap_or(0) > token {
        return (file, false);
    }
    file.rewind().expect("rewound");
    // Tokens of one campaign have the same number of digits, or more than the one before.
    file.write_all(token.to_string().as_bytes()).expect("written");
    (file, true)
}

/// Starts a process that leaves this one's session and group.
#[allow(clippy::zombie_processes, reason = "it outlives its parent, which is what is tested")]
fn daemon() {
    Command::new("setsid")
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "job", "--nocapture", "--test-threads=1"])
        .env(IS_DAEMON, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("setsid (util-linux)");
}
