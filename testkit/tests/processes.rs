//! The helpers themselves: a helper that looks away would make every test built on it pass.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{
    CpuHog, ExitWatch, Proc, Process, Scratch, Unprivileged, boot_now, children_of, eventually, stat_of,
    tree_of,
};

/// Far above what a loaded machine needs to start or end a shell.
const BOUND: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A grandchild that left its parent, its session and its group, and closed everything.
fn daemon() -> Proc {
    let script = "setsid sh -c 'sleep 600 & sleep 600' >/dev/null 2>&1 & exit 0";
    let mut proc = Proc::spawn(&mut sh(script)).expect("sh");
    proc.wait(BOUND, "the starter leaves its daemon alone");
    eventually(BOUND, "the daemon runs two sleeps", || {
        (proc.living().iter().filter(|s| s.comm == "sleep").count() == 2).then_some(())
    });
    proc
}

#[test]
fn a_descendant_is_found_and_ended_wherever_it_went() {
    let mut proc = daemon();
    let living = proc.living();
    assert!(living.iter().all(|s| s.pid != proc.pid()), "the starter has ended");
    let watches: Vec<ExitWatch> = living
        .iter()
        .map(|s| ExitWatch::start(&Process::open_same(s).expect("lives")).expect("a thread"))
        .collect();
    assert!(watches.iter().all(|w| w.ended_at().is_none()));
    let before = boot_now();
    assert!(proc.kill_all() >= living.len());
    for watch in &watches {
        let ended = watch.wait(BOUND, "it was killed");
        assert!(ended >= before && ended <= boot_now());
    }
    proc.wait_gone(BOUND, "all were killed");
}

#[test]
fn a_drop_leaves_nothing() {
    let (mark, pids) = {
        let proc = daemon();
        (proc.mark().to_owned(), proc.living())
    };
    assert!(leasehold_testkit::processes_marked(leasehold_testkit::MARK, &mark).is_empty());
    for stat in pids {
        assert!(stat_of(stat.pid).is_none_or(|s| s.started_ticks != stat.started_ticks || s.state == 'Z'));
    }
}

#[test]
fn a_frozen_process_is_alive_and_stopped_until_it_is_thawed() {
    let mut proc = Proc::spawn(&mut sh("read line <&2; sleep 0.01")).expect("sh");
    assert!(proc.freeze());
    assert_eq!(stat_of(proc.pid()).map(|s| s.state), Some('T'));
    assert!(proc.process().is_alive() && proc.ended_at().is_none());
    assert!(proc.thaw());
    eventually(BOUND, "it runs again", || {
        (proc.ended_at().is_some() || stat_of(proc.pid()).is_none_or(|s| s.state != 'T')).then_some(())
    });
    proc.freeze();
    proc.kill();
    proc.wait(BOUND, "KILL needs no thaw");
    assert!(proc.ended_at().is_some() || proc.try_wait().is_ok());
}

#[test]
fn who_computes_has_stopped_when_the_freeze_returns() {
    let proc = Proc::spawn(&mut sh("while :; do :; done")).expect("sh");
    for round in 0..200 {
        assert!(proc.freeze());
        assert_eq!(stat_of(proc.pid()).map(|s| s.state), Some('T'), "round {round}");
        assert!(proc.thaw());
        eventually(BOUND, "it runs again", || {
            stat_of(proc.pid()).is_some_and(|s| s.state != 'T').then_some(())
        });
    }
}

#[test]
fn a_tree_is_its_parents_and_children() {
    let proc = Proc::spawn(&mut sh("sleep 600 & sleep 600 & wait")).expect("sh");
    eventually(BOUND, "two children", || (children_of(proc.pid()).len() == 2).then_some(()));
    assert_eq!(tree_of(proc.pid()).len(), 3);
}

#[test]
fn without_rights_a_plain_write_fails() {
    let scratch = Scratch::readable_by_all();
    let file = scratch.join("held");
    std::fs::write(&file, "x").expect("own directory");
    let nobody = Unprivileged::new();
    nobody.prove_cannot_write(&file);
    if nobody == Unprivileged::AsNobody {
        // Root passes the permission bits: without dropping the rights there would be nothing to see.
        std::fs::write(&file, "y").expect("root writes to a read-only file");
        let out = nobody.command("id").arg("-u").stdin(Stdio::null()).output().expect("id");
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "65534");
    }
    let ls = nobody.bring(&std::path::PathBuf::from("/bin/ls"), &scratch).expect("copied");
    assert!(nobody.command(ls).arg("/").stdout(Stdio::null()).status().expect("ls").success());
}

#[test]
fn a_hog_computes_and_ends() {
    let hog = CpuHog::start(1).expect("sh");
    assert_eq!(hog.count(), 1);
    drop(hog);
}
