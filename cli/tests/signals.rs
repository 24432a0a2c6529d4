//! Signals to the program: handed on while the command runs, the end of a wait before that (B106).

#![cfg(feature = "sqlite")]

mod common;

use std::time::Duration;

use common::{Bench, SOON, finish_started, uptime};
use leasehold_testkit::{Proc, Process, boot_now, eventually};
use rustix::process::Signal;

const FORWARDED: [(&str, Signal); 5] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
];

#[test]
fn the_name_is_free_only_when_the_signalled_command_has_ended() {
    for (name, signal) in FORWARDED {
        let bench = Bench::new();
        let script = format!(
            "trap 'echo {name} >got; sleep 1; cat /proc/uptime >ended; exit 3' {name}; echo up >up; while :; do sleep 0.05; done"
        );
        let proc = bench.start(&["j", "--", "sh", "-c", &script]);
        bench.written("up");
        let rival = bench.start(&["j", "--", "sh", "-c", "cat /proc/uptime >began"]);
        assert!(proc.signal(signal));
        let ran = finish_started(proc);
        assert_eq!(ran.code, 3, "{name}: {ran:?}");
        assert_eq!(bench.written("got"), name);
        assert_eq!(finish_started(rival).code, 0);
        let (ended, began) = (uptime(&bench.written("ended")), uptime(&bench.written("began")));
        assert!(began >= ended, "{name}: the next command began {:?} before the end", ended - began);
    }
}

#[test]
fn a_signal_that_kills_the_command_is_told_as_it_is() {
    for (_, signal) in FORWARDED {
        let bench = Bench::new();
        // Not a shell that waits for a child: dash may lose an INT that comes while it forks.
        let proc = bench.start(&["j", "--", "sh", "-c", "echo up >up; exec sleep 60"]);
        bench.written("up");
        assert!(proc.signal(signal));
        let ran = finish_started(proc);
        assert_eq!(ran.signal, Some(signal.as_raw()), "{ran:?}");
        assert!(!bench.exists("core"), "a core of the wrapper");
        bench.assert_free("j");
    }
}

#[test]
fn a_signal_ends_a_wait_and_leaves_nothing() {
    for (_, signal) in &FORWARDED[..4] {
        let bench = Bench::new();
        let holder = bench.start(&["j", "--", "sh", "-c", "echo up >up; sleep 60"]);
        bench.written("up");
        let token = bench.token("j");
        let waiter = bench.start(&["-v", "j", "--", "touch", "ran"]);
        wait_until_waiting(&waiter);
        let sent = boot_now();
        assert!(waiter.signal(*signal));
        let ran = finish_started(waiter);
        assert_eq!(ran.code, 128 + signal.as_raw(), "{ran:?}");
        // Immediately, and a second for a busy machine.
        assert!(boot_now() - sent < Duration::from_secs(2), "{:?}", boot_now() - sent);
        assert!(!bench.exists("ran"), "the command was started after the wait was cancelled");
        assert_eq!(bench.token("j"), token, "the holder is untouched");
        drop(holder);
    }
}

#[test]
fn a_wait_that_was_cancelled_is_granted_nothing_later() {
    let bench = Bench::new();
    let holder = bench.start(&["j", "--", "sh", "-c", "echo up >up; until [ -e go ]; do sleep 0.01; done"]);
    bench.written("up");
    let waiters: Vec<Proc> = (0..4).map(|_| bench.start(&["-v", "j", "--", "touch", "ran"])).collect();
    waiters.iter().for_each(wait_until_waiting);
    // The release and the signals race: whoever was cancelled may not start its command.
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    for waiter in &waiters {
        assert!(waiter.signal(Signal::TERM));
    }
    let (mut cancelled, mut started) = (0, 0);
    for waiter in waiters {
        let ran = finish_started(waiter);
        match (ran.code, ran.stderr.contains("the command runs as")) {
            (143, false) => cancelled += 1,
            (0 | 143, true) => started += 1,
            other => panic!("{other:?}: {ran:?}"),
        }
    }
    eprintln!("{cancelled} cancelled, {started} started");
    assert_eq!(cancelled + started, 4);
    assert_eq!(finish_started(holder).code, 0);
    bench.assert_free("j");
}

#[test]
fn a_second_term_kills_a_deaf_command() {
    for signal in [Signal::TERM, Signal::INT] {
        let bench = Bench::new();
        let script = "trap '' TERM INT; echo up >up; while :; do sleep 1; done";
        let proc = bench.start(&["j", "--", "sh", "-c", script]);
        bench.written("up");
        assert!(proc.signal(signal));
        // The first one was taken: `-v` would tell; here the handler's flag is seen to be cleared
        // because the process sleeps again.
        settle(&proc);
        assert!(proc.process().is_alive(), "the danger: the command is deaf");
        assert!(proc.signal(signal));
        let ran = finish_started(proc);
        assert_eq!(ran.signal, Some(9), "{ran:?}");
        bench.assert_free("j");
    }
}

#[test]
fn stop_and_continue_reach_the_command_while_the_lease_is_renewed() {
    let bench = Bench::new();
    let fifo = std::process::Command::new("mkfifo").arg(bench.scratch.join("go")).status();
    assert!(fifo.is_ok_and(|status| status.success()));
    // One process that forks no other: a shell that is stopped while it forks shows another state.
    let proc = bench.start(&["--ttl", "1s", "j", "--", "sh", "-c", "echo $$ >pid; exec cat go"]);
    let pid: i32 = bench.written("pid").parse().expect("a pid");
    let state = |wanted: &'static [char]| {
        eventually(SOON, "the signal is handed on", || {
            leasehold_testkit::stat_of(pid).filter(|stat| wanted.contains(&stat.state))
        })
    };
    assert!(proc.signal(Signal::TSTP));
    state(&['T']);
    // Longer than the ttl: a wrapper that had stopped itself would have lost the lease.
    let over = boot_now() + Duration::from_millis(1500);
    eventually(SOON, "a ttl and a half passes", || (boot_now() > over).then_some(()));
    state(&['T']);
    assert!(proc.signal(Signal::CONT));
    state(&['S', 'R']);
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(finish_started(proc).code, 0);
}

#[test]
fn a_second_term_does_not_wait_for_a_frozen_guardian() {
    let bench = Bench::new();
    let script = "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done";
    // Renewed again and again within the time that the guardian gets: that must not prolong it.
    let mut proc = bench.start(&["--ttl", "1s", "j", "--", "sh", "-c", script]);
    bench.written("pid");
    let guardian = common::guardian_of(&proc);
    assert!(guardian.freeze());
    assert!(proc.signal(Signal::TERM));
    settle(&proc);
    assert!(proc.signal(Signal::TERM));
    let status = proc.wait(SOON, "half a second is what the guardian gets");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status:?}");
    proc.wait_gone(SOON, "nothing is left");
    bench.assert_free("j");
}

#[test]
fn a_hangup_that_nohup_ignored_stays_ignored() {
    let bench = Bench::new();
    let command = bench.program();
    let program = command.get_program().to_owned();
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(program).args(["run", "j", "--", "sh", "-c"]);
    nohup.arg("echo up >up; until [ -e go ]; do sleep 0.02; done; exit 4");
    for (name, value) in command.get_envs() {
        nohup.env(name, value.expect("set"));
    }
    nohup.current_dir(bench.scratch.path()).stdin(std::process::Stdio::null());
    nohup.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let proc = Proc::spawn(&mut nohup).expect("it starts");
    bench.written("up");
    for stat in proc.living() {
        if let Ok(process) = Process::open_same(&stat) {
            process.signal(Signal::HUP);
        }
    }
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(finish_started(proc).code, 4);
}

/// A waiter has told who holds the name, or sleeps in its wait.
#[track_caller]
fn wait_until_waiting(proc: &Proc) {
    // It opens the store, is refused, and then sleeps on its timers with the store's directory under
    // watch: all threads asleep for a while.
    eventually(SOON, "it opens the store and waits", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", proc.pid())).ok()?.count();
        let watching = std::fs::read_dir(format!("/proc/{}/fd", proc.pid()))
            .ok()?
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("inotify")));
        (threads >= 3 && watching).then_some(())
    });
}

/// A caught signal has been dealt with: the process sleeps with none pending.
#[track_caller]
fn settle(proc: &Proc) {
    let asleep = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", proc.pid())).ok()?;
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:\t"))?;
        let stat = leasehold_testkit::stat_of(proc.pid())?;
        (pending.bytes().all(|b| b == b'0') && stat.state == 'S').then_some(())
    };
    // Ten looks in a row: between two steps of the program there is no sleep that long.
    let mut looks = 0;
    eventually(SOON, "the signal is dealt with in microseconds", || {
        looks = if asleep().is_some() { looks + 1 } else { 0 };
        (looks >= 10).then_some(())
    });
}
