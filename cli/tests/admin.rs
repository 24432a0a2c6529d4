//! The commands that look after leases, and those that a job asks about its own.

#![cfg(feature = "sqlite")]

mod common;

use std::time::Duration;

use common::{Bench, field, finish, finish_started};

#[test]
fn lists_are_sorted_and_the_same_for_people_and_machines() {
    let bench = Bench::new();
    let script = "echo up >\"$UP\"; sleep 60";
    let holders: Vec<_> = ["b/2", "a", "b/1", "🐂"]
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let mut command = bench.program();
            command.env("UP", format!("up{i}"));
            command.args([
                "run",
                "--owner",
                &format!("owner {i}"),
                "--meta",
                "why=tests",
                name,
                "sh",
                "-c",
                script,
            ]);
            let proc = leasehold_testkit::Proc::spawn(&mut command).expect("it starts");
            bench.written(&format!("up{i}"));
            proc
        })
        .collect();
    let table = bench.ran(&["list"]);
    let names: Vec<&str> = table.stdout.lines().skip(1).filter_map(|line| line.split("  ").next()).collect();
    assert_eq!(names, ["a", "b/1", "b/2", "🐂"], "{}", table.stdout);
    assert!(table.stdout.starts_with("NAME  HOLDER     TOKEN"), "{}", table.stdout);
    assert!(table.stdout.contains("owner 2") && !table.stdout.contains('\u{1b}'), "{}", table.stdout);
    let json = bench.ran(&["list", "b/", "-o", "json"]);
    assert_eq!(json.stdout.matches("\"name\":").count(), 2, "{}", json.stdout);
    let card = bench.ran(&["inspect", "b/1"]);
    assert!(
        card.stdout.contains("owner     owner 2") && card.stdout.contains("meta      why=tests"),
        "{card:?}"
    );
    let one = bench.ran(&["inspect", "b/1", "-o", "json"]).stdout;
    let token = field(&one, "token").expect("a token");
    assert!(one.contains(&format!("\"token\": \"{token}\"")), "a token is a string: {one}");
    assert!(field(&one, "acquired_at").is_some_and(|at| at.ends_with('Z') && at.contains('T')), "{one}");
    assert!(field(&one, "remaining_ms").is_some_and(|ms| ms.parse::<u64>().is_ok_and(|ms| ms <= 30_000)));
    drop(holders);
    let empty = bench.ran(&["list", "nothing-begins-so", "-o", "json"]);
    assert_eq!((empty.code, empty.stdout.trim()), (0, "[]"));
    let free = bench.ran(&["inspect", "free"]);
    assert!(free.code == 0 && free.stdout.contains("nobody holds it"), "{free:?}");
}

#[test]
fn a_job_learns_whether_its_lease_is_still_its_own() {
    let bench = Bench::new();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "cd /; {leasehold} check && echo valid >\"$DIR/first\"; until [ -e \"$DIR/go\" ]; do sleep 0.02; done
         {leasehold} check; echo $? >\"$DIR/second\"; {leasehold} check -q; exit $?"
    );
    let mut command = bench.program();
    // Chosen by a relative URL: the job finds it from another directory.
    command.env("LEASEHOLD_STORE", "sqlite:leases.db").env("DIR", bench.scratch.path());
    command.args(["run", "--on-lost", "warn", "--ttl", "10s", "j", "--", "sh", "-c", &script]);
    let proc = leasehold_testkit::Proc::spawn(&mut command).expect("it starts");
    assert_eq!(bench.written("first"), "valid");
    let token = bench.token("j");
    assert_eq!(bench.ran(&["check", "j", "--token", &token]).code, 0);
    let wrong = bench.ran(&["check", "j", "--token", "7"]);
    assert_eq!(wrong.code, 76, "{wrong:?}");
    assert!(wrong.stderr.contains("held by tester@"), "{}", wrong.stderr);
    bench.force_release("j");
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(bench.written("second"), "76");
    let ran = finish_started(proc);
    assert_eq!(ran.code, 76);
    assert!(ran.stderr.contains("nobody holds it") && ran.stderr.contains("Stop the work"), "{}", ran.stderr);
}

#[test]
fn a_fence_refuses_whoever_comes_late() {
    // B11: the guard of a resource, with two jobs' tokens.
    let bench = Bench::new();
    let token = |name: &str| {
        let ran = bench.ran(&["run", name, "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]);
        ran.stdout.trim().to_owned()
    };
    let (old, new) = (token("j"), token("j"));
    assert!(old.parse::<u64>().expect("numeric") < new.parse::<u64>().expect("numeric"));
    let fence = |token: &str| bench.ran(&["fence", "the resource", "--token", token]);
    assert_eq!(fence(&old).code, 0);
    assert_eq!(fence(&new).code, 0);
    assert_eq!(fence(&new).code, 0, "the same token again is no stale one");
    let stale = fence(&old);
    assert_eq!(stale.code, 76, "{stale:?}");
    assert!(stale.stderr.contains(&old) && stale.stderr.contains(&new), "{}", stale.stderr);
    let inside = bench.ran(&["run", "j", "--", env!("CARGO_BIN_EXE_leasehold"), "fence", "the resource"]);
    assert_eq!(inside.code, 0, "{inside:?}");
    assert_eq!(fence(&new).code, 76, "a newer one was there");
    let broken = finish(bench.program().env("LEASEHOLD_TOKEN", "ten").args(["fence", "the resource"]));
    assert_eq!(broken.code, 64, "{broken:?}");
}

#[test]
fn a_forced_release_compares_and_tells() {
    let bench = Bench::new();
    let holder = bench.start(&["--ttl", "2s", "j", "--", "sh", "-c", "echo up >up; sleep 60"]);
    bench.written("up");
    let token = bench.token("j");
    let force =
        |args: &[&str]| bench.ran(&[&["force-release", "j", "--reason", "host is gone"], args].concat());
    for wrong in [&["--token", "7"][..], &["--holder", "00000000"]] {
        let ran = force(wrong);
        assert_eq!(ran.code, 76, "{ran:?}");
        assert!(ran.stderr.contains("Nothing changed"), "{}", ran.stderr);
    }
    assert_eq!(bench.token("j"), token, "a wrong guess ended it");
    let json = bench.ran(&["inspect", "j", "-o", "json"]).stdout;
    let fingerprint = field(&json, "fingerprint").expect("held");
    let ran = force(&["--holder", &fingerprint, "--by", "alice", "--keep-for", "2s"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("not told before its next renewal"), "{}", ran.stdout);
    assert!(ran.stdout.contains("stays taken for 2.0s"), "{}", ran.stdout);
    assert_eq!(bench.ran(&["run", "-n", "j", "--", "true"]).code, 75, "kept");
    let told = finish_started(holder);
    assert_eq!(told.code, 76, "{told:?}");
    assert!(told.stderr.contains("revoked by alice: host is gone"), "{}", told.stderr);
    let waited = bench.ran(&["run", "-w", "20s", "j", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert!(waited.stdout.trim().parse::<u64>().ok() > token.parse::<u64>().ok(), "the next token is larger");
    let again = force(&["--token", &token]);
    assert!(again.code == 0 && again.stdout.contains("Nobody holds"), "{again:?}");
}

#[test]
fn a_shortest_hold_keeps_the_name() {
    let bench = Bench::new();
    let asked = leasehold_testkit::boot_now();
    assert_eq!(bench.ran(&["run", "--min-hold", "1500ms", "j", "--", "true"]).code, 0);
    assert_eq!(bench.ran(&["run", "-n", "j", "--", "true"]).code, 75);
    let list = bench.ran(&["list"]);
    assert!(list.stdout.contains("(kept)"), "{}", list.stdout);
    assert_eq!(bench.ran(&["run", "-w", "20s", "j", "--", "true"]).code, 0);
    assert!(leasehold_testkit::boot_now() - asked >= Duration::from_millis(1450), "free too early");
}

#[test]
fn a_name_that_is_kept_too_long_is_freed_by_its_token() {
    let bench = Bench::new();
    let kept = bench.ran(&["run", "--min-hold", "300d", "k", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]);
    assert_eq!(kept.code, 0, "{kept:?}");
    assert_eq!(bench.ran(&["run", "-n", "k", "--", "true"]).code, 75);
    let force = |token: &str| bench.ran(&["force-release", "k", "--reason", "typo", "--token", token]);
    let wrong = force("7");
    assert!(wrong.code == 76 && wrong.stderr.contains("nobody holds it, and it stays taken"), "{wrong:?}");
    let ran = force(kept.stdout.trim());
    assert!(ran.code == 0 && ran.stdout.contains("Nobody held \"k\""), "{ran:?}");
    assert_eq!(bench.ran(&["run", "-n", "k", "--", "true"]).code, 0);
}

#[test]
fn a_list_shows_the_rest_beside_what_cannot_be_read() {
    let bench = Bench::new();
    for name in ["a", "b", "c"] {
        assert_eq!(bench.ran(&["run", "--min-hold", "1h", name, "--", "true"]).code, 0);
    }
    bench.alter("UPDATE leasehold_leases SET format = 7 WHERE name = 'b'");
    for output in ["table", "json"] {
        let ran = bench.ran(&["list", "-o", output]);
        assert_eq!(ran.code, 70, "{ran:?}");
        assert!(ran.stderr.contains("\"b\"") && ran.stderr.contains("format is 7"), "{ran:?}");
        assert!(ran.stderr.contains("the list is not complete"), "{ran:?}");
    }
    let table = bench.ran(&["list"]).stdout;
    let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["a", "c"], "{table}");
    assert_eq!(bench.ran(&["list", "c"]).code, 0, "nothing is wrong with this one");
}

#[test]
fn a_store_is_prepared_once_and_again() {
    let bench = Bench::new();
    for _ in 0..2 {
        let ran = bench.ran(&["init"]);
        assert!(ran.code == 0 && ran.stdout.contains("ready"), "{ran:?}");
    }
    let strict = format!("{}?schema=refuse", bench.url());
    assert_eq!(bench.ran(&["--store", &strict, "run", "j", "--", "true"]).code, 0);
    let missing = bench.ran(&["--store", "sqlite:other.db?schema=refuse", "run", "j", "--", "touch", "ran"]);
    assert!(matches!(missing.code, 69 | 77 | 78), "{missing:?}");
    assert!(!bench.exists("ran") && !bench.exists("other.db"));
}

#[test]
fn a_job_frozen_with_both_its_keepers_is_stopped_by_the_fence() {
    // B11: nobody is left to kill it in time, so the resource has to refuse it.
    let bench = Bench::new();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "{leasehold} fence resource && echo accepted >first; until [ -e go ]; do sleep 0.02; done
         {leasehold} fence resource; echo $? >late"
    );
    let mut proc = bench.start(&["--ttl", "1s", "j", "--", "sh", "-c", &script]);
    assert_eq!(bench.written("first"), "accepted");
    let guardian = common::guardian_of(&proc);
    assert!(proc.freeze() && guardian.freeze());
    let keepers = [proc.pid(), guardian.pid()];
    let job = || {
        let living = proc.living().into_iter().filter(|stat| !keepers.contains(&stat.pid));
        living.filter_map(|stat| leasehold_testkit::Process::open_same(&stat).ok()).collect::<Vec<_>>()
    };
    for process in job() {
        process.freeze();
    }
    // The next holder comes when the ttl is over, and shows its token to the resource.
    let next = bench.ran(&["run", "-w", "20s", "j", "--", leasehold, "fence", "resource"]);
    assert_eq!(next.code, 0, "{next:?}");
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    // The danger: the old job works on, and its keepers do not.
    for process in job() {
        process.thaw();
    }
    assert_eq!(bench.written("late"), "76", "a late writer was accepted");
    assert!(guardian.thaw() && proc.thaw());
    assert_eq!(proc.wait(common::SOON, "thawed, it sees that all is over").code(), Some(76));
    proc.wait_gone(common::SOON, "nothing is left");
}

#[test]
fn a_raised_epoch_lifts_every_later_token() {
    let bench = Bench::new();
    let token = |name: &str| {
        let ran = bench.ran(&["run", name, "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"]);
        ran.stdout.trim().parse::<u64>().unwrap_or_else(|e| panic!("{e}: {ran:?}"))
    };
    let before = token("j");
    let raised = bench.ran(&["epoch", "raise"]);
    assert_eq!(raised.code, 0, "{raised:?}");
    assert!(raised.stdout.starts_with("Epoch 1:"), "{raised:?}");
    let after = token("j");
    assert_eq!((before >> 52, after >> 52), (0, 1), "{before} {after}");
    assert!(token("other") >> 52 == 1);
    assert_eq!(bench.ran(&["epoch"]).code, 64);
}

#[test]
fn a_loss_that_only_the_release_finds_is_told_all_the_same() {
    // The ttl is so long that no renewal comes before the command has ended.
    let bench = Bench::new();
    let proc = bench.start(&[
        "--ttl",
        "60s",
        "--json",
        "j",
        "--",
        "sh",
        "-c",
        "echo >begun; until [ -e go ]; do sleep 0.02; done",
    ]);
    bench.written("begun");
    let inspected = bench.ran(&["inspect", "j", "-o", "json"]);
    let token = common::field(&inspected.stdout, "token").expect("held");
    let forced = bench.ran(&["force-release", "j", "--token", &token, "--reason", "test"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    // The danger: another command runs and ends, and all its own way.
    assert_eq!(bench.ran(&["run", "-n", "j", "--", "true"]).code, 0);
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    let ran = common::finish_started(proc);
    assert_eq!(ran.code, 76, "{ran:?}");
    assert!(ran.stderr.contains("\"event\":\"lost\""), "{ran:?}");
}
