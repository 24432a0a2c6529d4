//! Processes that are hard to reach: those that fork faster than they are looked at, those that
//! `/proc` does not show, and those of another user.
//!
//! What needs namespaces or another user needs root, and says so when it is skipped.

#![cfg(feature = "sqlite")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Bench, SOON, field, finish};
use leasehold_testkit::{Process, Scratch, Unprivileged, boot_now, eventually, stat_of};

/// Compiles one of the programs beside this file.
#[track_caller]
fn compiled(name: &str, to: &Scratch) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = to.join(name.trim_end_matches(".c"));
    let cc = Command::new("cc").arg("-O2").arg("-o").args([&program, &source]).output();
    let cc = cc.expect("a C compiler is installed (gcc)");
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    program
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this needs root");
    }
    root
}

/// The program on the bench's store, started by a shell script as root in namespaces of its own:
/// the script finds it as `$L`.
fn in_namespaces(bench: &Bench, flags: &[&str], script: &str) -> Command {
    let program = bench.program();
    let mut command = Command::new("unshare");
    command.args(flags).args(["--", "sh", "-c", script]).env_clear();
    command.env("L", program.get_program());
    for (name, value) in program.get_envs() {
        command.env(name, value.expect("set"));
    }
    command.current_dir(bench.scratch.path()).stdin(Stdio::null());
    command
}

/// How often the lines of the storm in `log` wrote, and when the last one did.
fn storm_in(log: &str) -> (usize, Duration) {
    let stamps = log.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok());
    let last = stamps.clone().max().expect("the storm wrote");
    (stamps.count(), Duration::from_millis(last))
}

#[test]
fn a_storm_of_forks_is_over_before_the_lease_is() {
    let bench = Bench::new();
    let storm = compiled("storm.c", &bench.scratch);
    let (storm, hold) = (storm.to_str().expect("UTF-8"), Duration::from_secs(3));
    // Many sessions: where the kernel shares processors by session, the guardian is one of so many.
    let chains = 40;
    let asked = boot_now();
    let ran = bench.ran(&[
        "run",
        "--ttl",
        "3s",
        "--max-hold",
        "3s",
        "j",
        "--",
        storm,
        &chains.to_string(),
        "20",
        "stamps",
    ]);
    let returned = boot_now();
    assert_eq!(ran.code, 76, "{ran:?}");
    let log = bench.scratch.read("stamps");
    let (count, last) = storm_in(&log);
    // The danger: every line went on for generations, until the signals came.
    let generations = log.lines().filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok()).max();
    assert!(count > chains && generations.is_some_and(|g| g > 100), "{count} stamps, {generations:?}");
    assert!(last > asked + hold / 2, "it blew until the end came near");
    // The lease began after `asked`.
    assert!(last < asked + hold, "it blew {:?} into the next hold", last - (asked + hold));
    eprintln!(
        "{count} stamps, {generations:?} generations at most; the last {:?} before the deadline, all told {:?} before",
        asked + hold - last,
        (asked + hold).saturating_sub(returned),
    );
    bench.assert_free("j");
}

#[test]
fn a_storm_that_a_command_leaves_behind_delays_nobody() {
    let bench = Bench::new();
    let storm = compiled("storm.c", &bench.scratch);
    let script = format!("{} 40 20 stamps & sleep 0.5; cat /proc/uptime >ended; exit 3", storm.display());
    let ran = bench.ran(&["run", "--ttl", "10s", "j", "--", "sh", "-c", &script]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let (count, last) = storm_in(&bench.scratch.read("stamps"));
    let ended = common::uptime(&bench.written("ended"));
    assert!(count > 40, "it blew");
    // 300 ms of grace and 500 ms for the kill, and a second for a busy machine.
    assert!(last < ended + Duration::from_millis(1800), "{:?} after the command", last - ended);
    bench.assert_free("j");
}

#[test]
fn without_its_own_proc_nothing_is_started_or_held() {
    if !is_root() {
        return;
    }
    let run = r#""$L" run -n j -- touch ran"#;
    let cases: [(&[&str], String); 3] = [
        // The processes of a new pid namespace are not in the old one's list under their numbers.
        (&["--pid", "--fork"], run.to_owned()),
        (&["--mount"], format!("umount -l /proc && {run}")),
        (&["--mount"], format!("mount -t tmpfs none /proc && {run}")),
    ];
    for (flags, script) in cases {
        let bench = Bench::new();
        let ran = finish(&mut in_namespaces(&bench, flags, &script));
        assert_eq!(ran.code, 70, "{script}: {ran:?}");
        assert!(ran.stderr.contains("leasehold: /proc "), "{script}: {ran:?}");
        assert!(ran.stderr.contains("Nothing was started"), "{script}: {ran:?}");
        assert!(!bench.exists("ran"), "{script}: the command ran");
        bench.assert_free("j");
    }
    // In a pid namespace with its own /proc all is well.
    let bench = Bench::new();
    let ran = finish(&mut in_namespaces(&bench, &["--pid", "--fork", "--mount-proc"], run));
    assert_eq!((ran.code, bench.exists("ran")), (0, true), "{ran:?}");
}

#[test]
fn a_command_that_covers_proc_does_not_hide_what_it_leaves() {
    if !is_root() {
        return;
    }
    for cover in ["mount -t tmpfs none /proc", "umount -l /proc"] {
        let bench = Bench::new();
        let script = format!(
            r#"setsid sh -c 'trap "" TERM; cat /proc/self/stat >daemon; while :; do sleep 1; done' &
            until [ -s daemon ]; do sleep 0.01; done; {cover}; echo covered >covered; exit 5"#
        );
        std::fs::write(bench.scratch.join("job.sh"), script).expect("written");
        let run = r#"exec "$L" run j -- sh job.sh"#;
        // `finish` shows that nothing is left.
        let ran = finish(&mut in_namespaces(&bench, &["--mount"], run));
        assert_eq!(ran.code, 5, "{cover}: {ran:?}");
        assert!(bench.exists("daemon") && bench.exists("covered"), "{cover}: the danger was there");
        assert!(!ran.stderr.contains("run on"), "{cover}: {ran:?}");
        bench.assert_free("j");
    }
}

#[test]
fn whoever_may_not_be_killed_keeps_the_lease_until_its_ttl() {
    if !is_root() {
        return;
    }
    let nobody = Unprivileged::new();
    for hide in [false, true] {
        let shared = Scratch::readable_by_all();
        let program = nobody.bring(Path::new(env!("CARGO_BIN_EXE_leasehold")), &shared).expect("copied");
        let other = compiled("other.c", &shared);
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o4755)).expect("own");
        let open = shared.join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).expect("own");
        let hiding = if hide { "mount -t proc -o hidepid=2 proc /proc && " } else { "" };
        let script = format!(
            r#"{hiding}exec setpriv --reuid=65534 --regid=65534 --clear-groups "$L" run --json --ttl 4s j -- \
                sh -c '"$O" other >/dev/null 2>&1 & until [ -s other ]; do sleep 0.01; done; exit 0'"#
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", &script]).current_dir(&open).stdin(Stdio::null());
        command.env("L", &program).env("O", &other).env("HOME", "/nonexistent");
        command.env("LEASEHOLD_STORE", format!("sqlite://{}/leases.db", open.display()));
        let output = command.output().expect("unshare (util-linux) is installed");
        let ended = boot_now();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let pid: i32 =
            std::fs::read_to_string(open.join("other")).expect("it ran").trim().parse().expect("a pid");
        let left = Process::open(pid);
        let was_alive = stat_of(pid).is_some_and(|stat| stat.state != 'Z');
        let bench = Bench::new();
        let ask = || {
            let url = format!("sqlite://{}/leases.db", open.display());
            finish(bench.program().env("LEASEHOLD_STORE", url).args(["run", "-n", "j", "--", "true"]))
        };
        let while_valid = ask();
        let asked = boot_now();
        let free_again =
            eventually(SOON, "the lease ends within its ttl", || (ask().code == 0).then(boot_now));
        // Ended here in any case, before anything is judged.
        if let Ok(process) = left {
            process.kill();
        }
        assert!(was_alive, "hidden {hide}: the danger was there: {stderr}");
        assert_eq!(output.status.code(), Some(70), "hidden {hide}: {stderr}");
        assert!(stderr.contains("\"event\":\"left_behind\""), "hidden {hide}: {stderr}");
        assert_eq!(field(&stderr, "processes").as_deref(), Some("1"), "hidden {hide}: {stderr}");
        assert_eq!(field(&stderr, "release").as_deref(), Some("not_released"), "hidden {hide}: {stderr}");
        assert!(asked < ended + Duration::from_secs(2), "too slow to judge");
        assert_eq!(while_valid.code, 75, "hidden {hide}: released with a process left: {stderr}");
        assert!(free_again < ended + Duration::from_secs(5), "hidden {hide}: after {:?}", free_again - ended);
    }
}
