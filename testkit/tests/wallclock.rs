//! The wall clock of a child is stepped while it runs, and no other clock of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_testkit::{Proc, WallClock, boot_now};

const CHILD: &str = "LEASEHOLD_WALLCLOCK_CHILD";
const HOUR: i64 = 3600;

fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// Not a test of its own: the child of the one below. It answers each line with its clocks.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for line in std::io::stdin().lines() {
        line.expect("a line");
        println!("clocks {} {}", unix_now(), boot_now().as_nanos());
    }
}

#[test]
fn an_hour_forth_and_back_under_a_running_program() {
    let clock = WallClock::build().expect("a C compiler");
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // It complains when its output is closed, which is how it is ended.
        .stderr(Stdio::null());
    let mut proc = Proc::spawn(clock.apply(&mut command)).expect("this test");
    let mut input = proc.child_mut().stdin.take().expect("piped");
    let mut output = BufReader::new(proc.child_mut().stdout.take().expect("piped")).lines();
    let mut ask = || {
        let before = (unix_now(), boot_now());
        writeln!(input, "now").expect("the child reads");
        let answer = output
            .by_ref()
            .map(|line| line.expect("utf-8"))
            .find_map(|line| line.split_once("clocks ").map(|(_, rest)| rest.to_owned()))
            .expect("the child answers");
        let (wall, boot) = answer.split_once(' ').expect("two clocks");
        let boot = Duration::from_nanos(boot.parse().expect("a number"));
        assert!(boot >= before.1 && boot <= boot_now(), "the boot clock is nobody's to step");
        wall.parse::<i64>().expect("a number") - before.0
    };
    // A second may tick between the two readings, and the child may wait for its turn.
    let near = |away: i64, wanted: i64| assert!((wanted..wanted + 30).contains(&away), "{away} for {wanted}");
    near(ask(), 0);
    for shift in [HOUR, -HOUR, 24 * HOUR, 0] {
        clock.step_to(shift).expect("own file");
        near(ask(), shift);
    }
}

#[test]
fn other_programs_are_reached_too() {
    let clock = WallClock::build().expect("a C compiler");
    clock.step_to(HOUR).expect("own file");
    let mut command = Command::new("date");
    command.arg("+%s").stdin(Stdio::null());
    let out = clock.apply(&mut command).output().expect("date");
    let shown: i64 = String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number");
    assert!((HOUR - 1..HOUR + 30).contains(&(shown - unix_now())));
}
