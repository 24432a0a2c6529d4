//! What the program does at the limits of its surroundings: files, disks and durations.

#![cfg(feature = "sqlite")]

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Bench, Ran, SOON, finish, finish_started};
use leasehold_testkit::{boot_now, eventually};

/// Runs a shell script that finds the program as `$L`.
#[track_caller]
fn shell(bench: &Bench, wrap: &[&str], script: &str) -> Ran {
    let program = bench.program();
    let words: Vec<&str> = [wrap, &["sh", "-c", script]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_clear().env("L", program.get_program());
    for (name, value) in program.get_envs() {
        command.env(name, value.expect("set"));
    }
    finish(command.current_dir(bench.scratch.path()).stdin(Stdio::null()))
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_kills_nobody_but_the_command() {
    const XFSZ: i32 = 25;
    let mut refused = 0;
    // In blocks of 512 bytes: below the size of the store's first page, of its tables, of its log.
    for blocks in [0, 1, 8, 16, 32, 64] {
        let bench = Bench::new();
        let ran = shell(&bench, &[], &format!(r#"ulimit -f {blocks}; exec "$L" run -n j -- true"#));
        assert_ne!(ran.code, 128 + XFSZ, "{blocks}: {ran:?}");
        if ran.code != 0 {
            refused += 1;
            assert!(!ran.stderr.is_empty(), "{blocks}: without a word: {ran:?}");
        }
    }
    assert!(refused > 0, "the limit was never felt");
    // The command meets the signal as it would without us.
    let bench = Bench::new();
    let script = r#"exec "$L" run j -- sh -c 'ulimit -f 1; exec dd if=/dev/zero of=big bs=4096 count=4'"#;
    let ran = shell(&bench, &[], script);
    assert_eq!((ran.code, ran.signal), (128 + XFSZ, Some(XFSZ)), "{ran:?}");
}

#[test]
fn too_few_descriptors_are_named_with_their_limit() {
    let mut named = 0;
    for limit in 3..40 {
        let bench = Bench::new();
        let script = format!(r#"ulimit -n {limit}; exec "$L" run -n j -- touch ran"#);
        let ran = shell(&bench, &[], &script);
        assert!(!ran.stderr.contains("panicked"), "{limit}: {ran:?}");
        assert_eq!(ran.code == 0, bench.exists("ran"), "{limit}: {ran:?}");
        if ran.stderr.contains("no runtime could be started") {
            named += 1;
            assert!(ran.code == 70 && ran.stderr.contains("ulimit -n"), "{limit}: {ran:?}");
        }
    }
    assert!(named > 0, "the limit was never felt by the runtime");
}

#[test]
fn a_full_disk_is_told_as_a_lease_that_was_not_released() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: this needs root, for a disk that can be filled");
        return;
    }
    let bench = Bench::new();
    std::fs::create_dir(bench.scratch.join("disk")).expect("made");
    let script = r#"mount -t tmpfs -o size=256k none disk && export LEASEHOLD_STORE=sqlite://$PWD/disk/l.db
        exec "$L" run --json --ttl 3s j -- sh -c 'cat /dev/zero >disk/fill; echo full >full; exit 4' 2>said"#;
    let ran = shell(&bench, &["unshare", "--mount", "--"], script);
    assert!(bench.exists("full"), "the danger was there: {ran:?}");
    let said = bench.scratch.read("said");
    assert_eq!(ran.code, 4, "{said}");
    assert!(said.contains("\"release\":\"not_released\""), "{said}");
    assert!(!said.contains("unknown"), "{said}");
}

#[test]
fn durations_that_cannot_be_are_refused_by_name() {
    let bench = Bench::new();
    let ran = bench.ran(&["run", "--ttl", "1ns", "j", "--", "touch", "ran"]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.stderr.contains("--ttl 1ns is too short") && !ran.stderr.contains("kill-after"), "{ran:?}");
    // A name that is kept for longer than the store keeps anything.
    let ran = bench.ran(&["run", "--min-hold", "400d", "j", "--", "touch", "ran"]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.stderr.contains("--min-hold"), "{ran:?}");
    assert!(!bench.exists("ran"));
    bench.assert_free("j");
}

#[test]
fn a_kept_name_is_not_said_to_be_renewed() {
    let bench = Bench::new();
    assert_eq!(bench.ran(&["run", "--min-hold", "20s", "j", "--", "true"]).code, 0);
    let ran = bench.ran(&["run", "-n", "j", "--", "true"]);
    assert_eq!(ran.code, 75, "{ran:?}");
    assert!(ran.stderr.contains("kept free of holders, for "), "{ran:?}");
    assert!(ran.stderr.contains(" at most") && !ran.stderr.contains("renewed"), "{ran:?}");
}

#[test]
fn a_pause_is_told_in_short() {
    let bench = Bench::new();
    let proc = bench.start(&["--ttl", "1s", "j", "--", "sh", "-c", "echo up >up; sleep 60"]);
    bench.written("up");
    assert!(proc.freeze());
    let over = boot_now() + Duration::from_millis(1500);
    eventually(SOON, "a ttl and a half passes", || (boot_now() > over).then_some(()));
    assert!(proc.thaw());
    let ran = finish_started(proc);
    assert_eq!(ran.code, 76, "{ran:?}");
    // No more than one digit behind a point.
    let long = ran
        .stderr
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .any(|number| number.split_once('.').is_some_and(|(_, digits)| digits.len() > 1));
    assert!(!long, "{}", ran.stderr);
}
