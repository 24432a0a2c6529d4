//! Goal: the wall clock decides nothing. Stepped by an hour forth and back under a holder, and under
//! its rivals, it neither ends a lease nor gives it away, and tokens go on rising.
//!
//! Method: real processes on one SQLite file; a preloaded library shifts what they take for the wall
//! clock while they run. The job writes down what it reads, which proves that the steps arrived.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{Proc, Scratch, WallClock, boot_now, eventually};

const TTL: Duration = Duration::from_millis(1500);
const HOUR: i64 = 3600;
/// For what should take milliseconds, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn leasehold(scratch: &Scratch, clock: Option<&WallClock>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env("LEASEHOLD_STORE", format!("sqlite://{}", scratch.join("leases.db").display()));
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
    if let Some(clock) = clock {
        clock.apply(&mut command);
    }
    command
}

/// Runs a rival that does not wait; its exit code, and its token when it was granted.
fn rival(scratch: &Scratch, clock: Option<&WallClock>) -> (Option<i32>, Option<u64>) {
    let output = leasehold(scratch, clock)
        .args(["run", "-n", "--ttl", "1500ms", "clock", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"])
        .stdout(Stdio::piped())
        .output()
        .expect("the program starts");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().parse().ok())
}

#[test]
fn stepping_the_wall_clock_by_an_hour_changes_nothing() {
    let scratch = Scratch::new();
    let holders_clock = WallClock::build().expect("a C compiler");
    let rivals = [HOUR, -HOUR].map(|offset| {
        let clock = WallClock::build().expect("a C compiler");
        clock.step_to(offset).expect("the offset file");
        clock
    });
    let first = rival(&scratch, None);
    assert_eq!(first.0, Some(0));

    let (log, stop) = (scratch.join("log"), scratch.join("stop"));
    let script = format!(
        "until [ -e {stop} ]; do date +%s; sleep 0.05; done >> {log}",
        stop = stop.display(),
        log = log.display()
    );
    let mut holder = Proc::spawn(
        leasehold(&scratch, Some(&holders_clock))
            .args(["run", "--ttl", "1500ms", "clock", "--", "sh", "-c", &script]),
    )
    .expect("the program starts");
    eventually(PATIENCE, "the job runs", || log.exists().then_some(()));

    let (mut refusals, began) = (0, boot_now());
    for step in [0, HOUR, -HOUR, HOUR, 0] {
        holders_clock.step_to(step).expect("the offset file");
        let until = boot_now() + TTL;
        while boot_now() < until {
            for clock in [None, Some(&rivals[0]), Some(&rivals[1])] {
                assert_eq!(rival(&scratch, clock), (Some(75), None), "a rival got a held lease, step {step}");
                refusals += 1;
            }
        }
    }
    let held = boot_now() - began;
    std::fs::write(&stop, "").expect("scratch");
    assert_eq!(holder.wait(PATIENCE, "the job was told to stop").code(), Some(0), "the lease was not kept");

    let read: Vec<i64> = scratch.read("log").lines().filter_map(|l| l.parse().ok()).collect();
    let steps = read.windows(2).filter(|w| (w[1] - w[0]).abs() > HOUR / 2).count();
    println!("held {held:?} with a ttl of {TTL:?}, {steps} steps of the clock seen, {refusals} refusals");
    assert!(steps >= 3, "the job did not see the steps");
    assert!(held > 4 * TTL && refusals >= 15);

    // An hour behind, and still a larger token than one that was granted an hour ahead.
    let ahead = rival(&scratch, Some(&rivals[0]));
    let behind = rival(&scratch, Some(&rivals[1]));
    let now = rival(&scratch, None);
    assert_eq!([ahead.0, behind.0, now.0], [Some(0); 3]);
    assert!(
        first.1 < ahead.1 && ahead.1 < behind.1 && behind.1 < now.1,
        "{first:?} {ahead:?} {behind:?} {now:?}"
    );
}
