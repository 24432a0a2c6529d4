//! Nothing of a command outlives its lease: whoever of wrapper and guardian is killed or frozen, and
//! whatever the command does to hide.
//!
//! Each test looks at the operating system by the boot clock, and at the next holder: a second
//! `leasehold run` that waits for the name and writes down when its command began. Each shows that
//! the danger was there: the command and a grandchild in a session of its own, both deaf to TERM, were
//! alive when the fault came.

#![cfg(feature = "sqlite")]

mod common;

use std::time::Duration;

use common::{Bench, SOON, finish_started, guardian_of, uptime};
use leasehold_testkit::{ExitWatch, Proc, Process, Stat, boot_now, eventually};
use rustix::process::Signal;

/// Short enough for a test, long enough for the renewals of a busy machine (one each second).
const TTL: Duration = Duration::from_secs(3);

/// The command: deaf to TERM, with a grandchild in a session of its own that is deaf too, a fork
/// that left its parent, and a stopped process. Those that run write the boot clock down again and
/// again: what they do after the deadline is the damage.
const DEAF: &str = r#"
trap '' TERM HUP INT
beat='while :; do read up rest </proc/uptime; echo $up >>beats; sleep 0.05; done'
setsid sh -c "trap '' TERM HUP INT; echo up >grandchild; $beat" &
(setsid sh -c "trap '' TERM; echo up >orphan; $beat" &)
sh -c 'echo up >stopped; kill -STOP $$'  &
echo up >command
eval "$beat"
"#;

/// How late a look may be on a busy machine: it reads the environment of every process. The damage
/// itself is judged without any slack.
const LOOK: Duration = Duration::from_millis(500);

/// A run of [`DEAF`] with every process of it under watch.
struct Victim {
    bench: Bench,
    wrapper: Proc,
    guardian: Process,
    watches: Vec<(Stat, ExitWatch)>,
}

impl Victim {
    fn start(options: &[&str]) -> Self {
        let bench = Bench::new();
        let args = [options, &["--ttl", "3s", "j", "--", "sh", "-c", DEAF]].concat();
        let wrapper = bench.start(&args);
        for name in ["command", "grandchild", "orphan", "stopped"] {
            bench.written(name);
        }
        let guardian = guardian_of(&wrapper);
        let ours = [wrapper.pid(), guardian.pid()];
        // The sleeps come and go: whoever is left at the end is found by its mark.
        let watches: Vec<(Stat, ExitWatch)> = wrapper
            .living()
            .into_iter()
            .filter(|stat| !ours.contains(&stat.pid) && stat.comm == "sh")
            .filter_map(|stat| Some((stat.clone(), ExitWatch::start(&Process::open_same(&stat).ok()?).ok()?)))
            .collect();
        let sessions: std::collections::HashSet<i32> = watches.iter().map(|(stat, _)| stat.sid).collect();
        assert!(watches.len() >= 4, "the danger is there: {watches:?}");
        assert!(sessions.len() >= 3, "in sessions of their own: {watches:?}");
        Victim { bench, wrapper, guardian, watches }
    }

    /// A second run that waits for the name and writes down when its command begins.
    fn rival(&self) -> Proc {
        self.bench.start(&["-w", "60s", "j", "--", "sh", "-c", "cat /proc/uptime >rival"])
    }

    #[track_caller]
    fn assert_all_alive(&self) {
        for (stat, watch) in &self.watches {
            assert!(watch.ended_at().is_none(), "{stat:?} ended before the fault: nothing is proved");
        }
    }

    /// Waits until nobody of the tree is left.
    #[track_caller]
    fn ended(&self) -> Ended {
        let ours = [self.wrapper.pid(), self.guardian.pid()];
        let gone = eventually(TTL + SOON, "nobody may live longer than the lease", || {
            // The clock after the look: every end came before it.
            let nobody = self.wrapper.living().iter().all(|stat| ours.contains(&stat.pid));
            nobody.then(boot_now)
        });
        for (_, watch) in &self.watches {
            watch.wait(SOON, "no longer in the list, it has ended");
        }
        let beats = self.bench.scratch.read("beats");
        let last_beat = beats.lines().map(uptime).max().expect("they ran");
        Ended { gone, last_beat }
    }
}

/// When the tree ended.
struct Ended {
    /// Nobody was seen any more.
    gone: Duration,
    /// The last thing that any of them did.
    last_beat: Duration,
}

impl Ended {
    #[track_caller]
    fn assert_before(&self, deadline: Duration) {
        let (gone, beat) = (self.gone, self.last_beat);
        assert!(beat <= deadline, "worked {:?} beyond the deadline", beat - deadline);
        assert!(gone <= deadline + LOOK, "seen {:?} beyond the deadline", gone - deadline);
    }

    /// The danger: they worked on after the fault.
    #[track_caller]
    fn assert_worked_after(&self, fault: Duration) {
        assert!(self.last_beat > fault, "nobody worked after the fault: nothing is proved");
    }
}

/// The tree ended before `deadline` and before the rival's command began.
#[track_caller]
fn assert_in_time(ended: &Ended, deadline: Duration, victim: &Victim, rival: Proc) {
    ended.assert_before(deadline);
    let ran = finish_started(rival);
    assert_eq!(ran.code, 0, "{ran:?}");
    let began = uptime(&victim.bench.written("rival"));
    // Both are cut to hundredths by the same clock.
    assert!(ended.last_beat <= began, "worked {:?} into the next hold", ended.last_beat - began);
    eprintln!(
        "{} processes: last work {:?} before the deadline, {:?} before the next holder began",
        victim.watches.len(),
        deadline - ended.last_beat,
        began - ended.last_beat
    );
}

#[test]
fn a_lost_lease_ends_shell_and_deaf_grandchildren() {
    // B105, by a forced release.
    let victim = Victim::start(&[]);
    let deadline = victim.bench.store_deadline("j");
    victim.assert_all_alive();
    victim.bench.force_release("j");
    let forced = boot_now();
    let ended = victim.ended();
    // Told at the next renewal (a third of the ttl), killed after --kill-after (a sixth): within the
    // time that the lease would have had, and a second for a busy machine.
    ended.assert_before(deadline.max(forced + TTL / 2 + Duration::from_secs(1)));
    let ran = finish_started(victim.wrapper);
    assert_eq!(ran.code, 76, "{ran:?}");
    assert!(ran.stderr.contains("revoked by tester@") && ran.stderr.contains("test"), "{}", ran.stderr);
}

#[test]
fn a_killed_wrapper_leaves_nobody() {
    let victim = Victim::start(&[]);
    let deadline = victim.bench.store_deadline("j");
    let rival = victim.rival();
    victim.assert_all_alive();
    let killed = boot_now();
    assert!(victim.wrapper.kill());
    let ended = victim.ended();
    // Nobody waits for the deadline: the guardian sees the closed socket.
    ended.assert_before(killed + Duration::from_secs(1));
    assert_in_time(&ended, deadline, &victim, rival);
}

#[test]
fn a_frozen_wrapper_does_not_carry_its_command_beyond_the_lease() {
    let mut victim = Victim::start(&[]);
    let rival = victim.rival();
    assert!(victim.wrapper.freeze());
    let frozen = boot_now();
    // Frozen, it renews no more: what the store says now is final.
    let deadline = victim.bench.store_deadline("j");
    victim.assert_all_alive();
    let ended = victim.ended();
    ended.assert_worked_after(frozen);
    assert_in_time(&ended, deadline, &victim, rival);
    assert!(victim.wrapper.thaw());
    let status = victim.wrapper.wait(SOON, "thawed, it sees that all is over");
    assert_eq!(status.code(), Some(76));
}

#[test]
fn a_killed_guardian_takes_the_tree_with_it() {
    let mut victim = Victim::start(&[]);
    let deadline = victim.bench.store_deadline("j");
    let rival = victim.rival();
    victim.assert_all_alive();
    let killed = boot_now();
    assert!(victim.guardian.kill());
    let ended = victim.ended();
    ended.assert_before(killed + Duration::from_secs(1));
    let status = victim.wrapper.wait(SOON, "it has nothing left to do");
    assert_eq!(status.code(), Some(70));
    assert_in_time(&ended, deadline, &victim, rival);
}

#[test]
fn a_frozen_guardian_is_replaced_by_the_wrapper_when_the_lease_is_revoked() {
    let mut victim = Victim::start(&[]);
    assert!(victim.guardian.freeze());
    let frozen = boot_now();
    victim.bench.force_release("j");
    // From here on renewals are refused: the deadline that the holder had believed in is at most a
    // whole ttl after the last one that was not.
    let believed = boot_now() + TTL;
    let ended = victim.ended();
    ended.assert_before(believed);
    ended.assert_worked_after(frozen);
    assert!(!victim.guardian.is_alive(), "the frozen guardian was left");
    let status = victim.wrapper.wait(SOON, "it has nothing left to do");
    assert_eq!(status.code(), Some(76));
}

#[test]
fn a_frozen_guardian_is_replaced_by_the_wrapper_when_the_store_is_gone() {
    let mut victim = Victim::start(&[]);
    // In this order: a renewal that the frozen guardian does not acknowledge would be another fault.
    let (lock, locked) = (victim.bench.lock_store(), boot_now());
    assert!(victim.guardian.freeze());
    // Locked, it takes no renewal: what it says to readers now is final.
    let deadline = victim.bench.store_deadline("j");
    victim.assert_all_alive();
    let ended = victim.ended();
    ended.assert_worked_after(locked);
    let rival = victim.rival();
    drop(lock);
    assert_in_time(&ended, deadline, &victim, rival);
    assert!(!victim.guardian.is_alive(), "the frozen guardian was left");
    let status = victim.wrapper.wait(SOON, "it has nothing left to do");
    assert_eq!(status.code(), Some(76));
}

#[test]
fn a_store_that_is_gone_ends_the_command_in_time() {
    let victim = Victim::start(&["--json"]);
    let (lock, locked) = (victim.bench.lock_store(), boot_now());
    let deadline = victim.bench.store_deadline("j");
    victim.assert_all_alive();
    let ended = victim.ended();
    ended.assert_before(deadline);
    ended.assert_worked_after(locked);
    drop(lock);
    let ran = finish_started(victim.wrapper);
    assert_eq!(ran.code, 76, "{ran:?}");
    assert!(ran.stderr.contains("\"event\":\"at_risk\""), "{}", ran.stderr);
    assert!(ran.stderr.contains("\"cause\":\"expired\""), "{}", ran.stderr);
}

#[test]
fn the_longest_hold_ends_the_command_and_says_so() {
    let bench = Bench::new();
    let asked = boot_now();
    let ran = bench.ran(&["run", "--json", "--max-hold", "1500ms", "j", "--", "sh", "-c", DEAF]);
    let took = boot_now() - asked;
    assert_eq!(ran.code, 76, "{ran:?}");
    assert!(ran.stderr.contains("\"cause\":\"max_hold\""), "{}", ran.stderr);
    assert!(took >= Duration::from_secs(1), "it ended {took:?} after the start, before the grace began");
    bench.assert_free("j");
    // Released in order, so that the next one does not wait for the ttl.
    assert!(boot_now() - asked < Duration::from_secs(20));
}

#[test]
fn on_lost_chooses_what_the_command_gets() {
    let trap = "trap 'echo term >term; exit 0' TERM; echo up >up; while :; do sleep 0.05; done";
    for (on_lost, saw_term) in [("terminate", true), ("kill", false)] {
        let bench = Bench::new();
        let proc = bench.start(&["--ttl", "3s", "--on-lost", on_lost, "j", "--", "sh", "-c", trap]);
        bench.written("up");
        bench.force_release("j");
        let ran = finish_started(proc);
        // Also when the command makes a clean exit of it.
        assert_eq!((ran.code, bench.exists("term")), (76, saw_term), "{on_lost}: {ran:?}");
    }
    let bench = Bench::new();
    let script = "echo up >up; until [ -e go ]; do sleep 0.05; done; echo done >done";
    let mut proc =
        bench.start(&["--ttl", "1s", "--on-lost", "warn", "--json", "j", "--", "sh", "-c", script]);
    bench.written("up");
    bench.force_release("j");
    let stderr = proc.child_mut().stderr.take().expect("piped");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr));
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("\"event\":\"lost\""))));
    // Beyond every deadline of the lease it had.
    let over = boot_now() + Duration::from_millis(1500);
    eventually(SOON, "a ttl and a half passes", || (boot_now() > over).then_some(()));
    assert!(!bench.exists("done"));
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(bench.written("done"), "done");
    assert_eq!(proc.wait(SOON, "the command has ended").code(), Some(76));
    proc.wait_gone(SOON, "nothing is left");
}

#[test]
fn what_a_command_leaves_behind_ends_with_it_and_delays_nobody() {
    // B111, with a daemon that is deaf to TERM and keeps the pipe open.
    let bench = Bench::new();
    let script = r#"setsid sh -c 'trap "" TERM; echo $$ >daemon; while :; do sleep 1; done' &
        until [ -s daemon ]; do sleep 0.01; done; cat /proc/uptime >ended; exit 5"#;
    let ran = bench.ran(&["run", "j", "--", "sh", "-c", script]);
    let (returned, ended) = (boot_now(), uptime(&bench.written("ended")));
    assert_eq!(ran.code, 5, "{ran:?}");
    // 300 ms of grace, and reading the processes' states twice; a second is promised.
    assert!(returned - ended < Duration::from_secs(1), "{:?} after the command", returned - ended);
    let daemon: i32 = bench.written("daemon").parse().expect("a pid");
    assert!(leasehold_testkit::stat_of(daemon).is_none_or(|stat| stat.state == 'Z'), "the daemon lives");
    bench.assert_free("j");
}

#[test]
fn a_healthy_command_survives_a_short_silence_of_the_store() {
    // B108: 3 s of silence within a ttl of 10 s, at a renewal each 3.3 s.
    let bench = Bench::new();
    let script = "echo up >up; until [ -e go ]; do sleep 0.05; done; exit 0";
    let mut proc = bench.start(&["--ttl", "6s", "j", "--", "sh", "-c", script]);
    bench.written("up");
    let lock = bench.lock_store();
    let stderr = proc.child_mut().stderr.take().expect("piped");
    let (line, rest) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for text in std::io::BufRead::lines(std::io::BufReader::new(stderr)).map_while(Result::ok) {
            let _ = line.send(text);
        }
    });
    // The danger: a renewal failed.
    let warned = rest.recv_timeout(SOON).expect("a warning comes after the first failed renewal");
    assert!(warned.contains("could not be renewed"), "{warned}");
    drop(lock);
    // Held beyond the deadline that it had when the store fell silent: it was renewed after all.
    let over = boot_now() + Duration::from_secs(6);
    eventually(SOON, "a ttl passes", || (boot_now() > over).then_some(()));
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(proc.wait(SOON, "it was told to end").code(), Some(0));
    let more: Vec<String> = rest.iter().collect();
    assert!(more.is_empty(), "one warning is enough: {more:?}");
}

#[test]
fn a_command_that_was_stopped_by_hand_is_ended_too() {
    let bench = Bench::new();
    let proc = bench.start(&["--ttl", "2s", "j", "--", "sh", "-c", "echo $$ >pid; exec sleep 60"]);
    let pid: i32 = bench.written("pid").parse().expect("a pid");
    assert!(proc.signal(Signal::TSTP));
    eventually(SOON, "TSTP is handed on", || {
        leasehold_testkit::stat_of(pid).filter(|stat| stat.state == 'T')
    });
    bench.force_release("j");
    let ran = finish_started(proc);
    assert_eq!(ran.code, 76, "{ran:?}");
}

#[test]
fn a_frozen_guardian_does_not_hide_that_the_command_has_ended() {
    let bench = Bench::new();
    let script = "echo up >up; until [ -e go ]; do sleep 0.02; done; exit 7";
    // No deadline comes near while this test waits.
    let mut proc = bench.start(&["--ttl", "10m", "j", "--", "sh", "-c", script]);
    bench.written("up");
    let guardian = guardian_of(&proc);
    assert!(guardian.freeze());
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    // A second until the guardian is given up, and another between two looks.
    let status = proc.wait(SOON, "the command has ended");
    assert_eq!(status.code(), Some(7), "its own code, all the same");
    proc.wait_gone(SOON, "nothing is left");
    bench.assert_free("j");
}

#[test]
fn a_frozen_guardian_is_not_relied_on_however_often_the_lease_is_renewed() {
    let mut victim = Victim::start(&["--json"]);
    assert!(victim.guardian.freeze());
    let frozen = boot_now();
    victim.assert_all_alive();
    let ended = victim.ended();
    ended.assert_worked_after(frozen);
    // The last time that it acknowledged was a ttl ahead at most.
    ended.assert_before(frozen + TTL);
    let status = victim.wrapper.wait(SOON, "it has nothing left to do");
    assert_eq!(status.code(), Some(70));
    let mut said = String::new();
    let stderr = victim.wrapper.child_mut().stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut { stderr }, &mut said).expect("readable");
    assert!(said.contains("\"event\":\"guardian_lost\"") && !said.contains("\"event\":\"lost\""), "{said}");
    // The lease itself was fine, and was given back.
    assert!(said.contains("\"release\":\"released\""), "{said}");
    victim.bench.assert_free("j");
}

#[test]
fn a_guardian_that_was_only_slow_costs_nothing() {
    let bench = Bench::new();
    let script = "echo up >up; until [ -e go ]; do sleep 0.05; done; exit 0";
    let proc = bench.start(&["--json", "--ttl", "6s", "j", "--", "sh", "-c", script]);
    bench.written("up");
    let (guardian, before) = (guardian_of(&proc), bench.store_deadline("j"));
    assert!(guardian.freeze());
    // The danger: a renewal that it was not told of in time.
    eventually(SOON, "a renewal comes after a third of the ttl", || {
        (bench.store_deadline("j") > before + Duration::from_secs(1)).then_some(())
    });
    assert!(guardian.thaw());
    // Beyond every deadline that it knew when it was frozen.
    let over = boot_now() + Duration::from_secs(7);
    eventually(SOON, "a ttl passes", || (boot_now() > over).then_some(()));
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    let ran = finish_started(proc);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.stderr.contains("guardian_lost") && !ran.stderr.contains("\"lost\""), "{}", ran.stderr);
}
