//! The program on a real Redis server: silent links, restarts, logins.

#![cfg(feature = "redis")]

mod common;

use std::time::Duration;

use common::{Bench, SOON, finish, finish_started, uptime};
use leasehold_testkit::proxy::{Action, When};
use leasehold_testkit::redis::{Keep, Persistence, RedisOptions, RedisServer};
use leasehold_testkit::{Proc, boot_now, eventually};

/// Starts `leasehold --store URL run ARGS` on a bench whose own store is not used.
fn start(bench: &Bench, url: &str, args: &[&str]) -> Proc {
    Proc::spawn(bench.program().args(["run", "--store", url]).args(args)).expect("the program starts")
}

fn ran(bench: &Bench, url: &str, args: &[&str]) -> common::Ran {
    finish(bench.program().args(["run", "--store", url]).args(args))
}

/// A shell job that writes the time over and over, with two digits.
fn beats(file: &str) -> String {
    format!(
        "trap '' TERM; while :; do read -r up rest < /proc/uptime; echo \"$up\" >> {file}; sleep 0.02; done"
    )
}

/// B20: nothing passes any more and nothing says so. The holder's command is dead before the rival, who still
/// reaches the server, starts its own.
#[test]
fn a_holder_behind_a_silent_link_is_dead_before_the_rival_starts() {
    let bench = Bench::new();
    let server = RedisServer::plain().expect("a server");
    let link = server.proxy().expect("a proxy");
    let (holders_url, url) = (server.url_at(link.addr(), None), server.url());
    let mut holder = start(&bench, &holders_url, &["--ttl", "2s", "j", "--", "sh", "-c", &beats("holder")]);
    bench.written("holder");
    let rival_job = "read -r up rest < /proc/uptime; echo \"$up\" > rival";
    let rival = start(&bench, &url, &["--ttl", "2s", "--wait", "30s", "j", "--", "sh", "-c", rival_job]);
    // It is refused once, and waits.
    eventually(SOON, "the rival waits", || (server.calls("subscribe") > 0).then_some(()));
    let cut_at = boot_now();
    link.black_hole();
    let status = holder.wait(SOON, "the lease ends within a ttl, and the farewell to the store in its limit");
    assert_eq!(status.code(), Some(76), "{status:?}");
    let ran = finish_started(rival);
    assert_eq!(ran.code, 0, "{ran:?}");
    let last = uptime(
        std::fs::read_to_string(bench.path("holder")).expect("written").lines().last().expect("a beat"),
    );
    let first = uptime(&bench.written("rival"));
    println!("cut at {cut_at:?}, last sign of the holder's command {last:?}, rival's first {first:?}");
    assert!(last > cut_at, "it went on behind the cut: that was the danger");
    assert!(last < first, "both were inside");
    // Counted from before the last renewal: never a whole ttl after the cut.
    assert!(last - cut_at < Duration::from_millis(2_000), "ended late: {:?}", last - cut_at);
    assert!(link.connections() > 0, "nobody was told by the network");
}

/// A link that is silent for less than the ttl costs nothing (B15, B108).
#[test]
fn a_command_survives_a_silence_shorter_than_its_ttl() {
    let bench = Bench::new();
    let server = RedisServer::plain().expect("a server");
    let link = server.proxy().expect("a proxy");
    let url = server.url_at(link.addr(), None);
    let job = "echo up > up; while [ ! -e done ]; do sleep 0.02; done";
    // At worst a renewal was due just before the link fell silent: the command goes on for 5.3 s without one, of
    // the 6.5 s that it has before it is asked to end.
    let holder = start(&bench, &url, &["--ttl", "8s", "j", "--", "sh", "-c", job]);
    bench.written("up");
    for _ in 0..2 {
        let renewed = server.calls("evalsha");
        link.black_hole();
        // As long as the interval: a renewal is due meanwhile.
        std::thread::sleep(Duration::from_millis(2_700));
        link.heal();
        eventually(SOON, "it is renewed again", || (server.calls("evalsha") > renewed + 1).then_some(()));
    }
    std::fs::write(bench.path("done"), "").expect("written");
    let ran = finish_started(holder);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// Whoever is going to wait anyway waits for a server that is being started too; whoever is not is told at once.
#[test]
fn a_waiting_run_outlasts_a_restart_of_the_server() {
    let bench = Bench::new();
    let server = RedisOptions::new().persistence(Persistence::AppendAlways).start().expect("a server");
    let url = server.url();
    server.kill();
    let refused = ran(&bench, &url, &["-n", "j", "--", "true"]);
    assert_eq!(refused.code, 69, "{refused:?}");
    let waiting = start(&bench, &url, &["j", "--", "true"]);
    // Long enough for it to be refused: a connection to a port without a server is within a millisecond.
    std::thread::sleep(Duration::from_millis(500));
    server.restart(Keep::Data).expect("restarted");
    let ran_ = finish_started(waiting);
    assert_eq!(ran_.code, 0, "{ran_:?}");
}

/// A grant whose answer comes when its time is nearly over is given back, and whoever waits is granted the name anew.
#[test]
fn a_late_grant_is_given_back_by_a_run_that_waits() {
    let bench = Bench::new();
    let server = RedisServer::plain().expect("a server");
    let link = server.proxy().expect("a proxy");
    let url = server.url_at(link.addr(), None);
    // The answer of the first grant only. Of two seconds, a third is what a command needs at least.
    let late = link.once(
        When::reply_to_request().containing("EVAL").containing("{j}"),
        Action::Delay(Duration::from_millis(1_800)),
    );
    let began = boot_now();
    let ran_ = ran(&bench, &url, &["--ttl", "2s", "j", "--", "true"]);
    assert_eq!(ran_.code, 0, "{ran_:?}");
    assert_eq!(late.hits(), 1, "the answer was late");
    assert!(boot_now() - began > Duration::from_millis(1_800));
}

/// A server that stays away is 69 within the operation timeout, also for who would wait for ever.
#[test]
fn a_server_that_stays_away_is_unavailable_in_time() {
    let bench = Bench::new();
    let server = RedisServer::plain().expect("a server");
    let url = server.url();
    server.kill();
    for args in [&["j", "--", "true"][..], &["-w", "1h", "j", "--", "true"]] {
        let began = boot_now();
        let refused = finish(bench.program().args(["--op-timeout", "1s", "run", "--store", &url]).args(args));
        let took = boot_now() - began;
        assert_eq!(refused.code, 69, "{refused:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}

/// B81: passwords of every kind get through the URL, a wrong one is 77, and none is ever shown.
#[test]
fn passwords_get_through_and_are_never_shown() {
    let bench = Bench::new();
    for (password, encoded) in [
        ("p@ss:w", "p%40ss%3Aw"),
        ("a#b?c", "a%23b%3Fc"),
        ("x/y=", "x%2Fy%3D"),
        ("100%", "100%25"),
        ("ü", "%C3%BC"),
    ] {
        let server = RedisOptions::new().password(password).start().expect("a server");
        let at = server.addr();
        let right = ran(&bench, &format!("redis://:{encoded}@{at}"), &["-v", "-n", "j", "--", "true"]);
        assert_eq!(right.code, 0, "{password}: {right:?}");
        let wrong =
            ran(&bench, &format!("redis://:s3ntinel{encoded}@{at}"), &["-v", "-n", "j", "--", "true"]);
        assert_eq!(wrong.code, 77, "{password}: {wrong:?}");
        for text in [&right.stdout, &right.stderr, &wrong.stdout, &wrong.stderr] {
            assert!(
                !text.contains("s3ntinel") && !text.contains(password) && !text.contains(encoded),
                "{text}"
            );
        }
        let missing = ran(&bench, &format!("redis://{at}"), &["-n", "j", "--", "true"]);
        assert_eq!(missing.code, 77, "{missing:?}");
    }
}

/// A command sees the kind of its store, and nothing of the way to it (I12).
#[test]
fn the_command_is_not_told_the_way_to_the_store() {
    let bench = Bench::new();
    let server = RedisOptions::new().password("s3ntinel").start().expect("a server");
    let url = format!("redis://:s3ntinel@{}", server.addr());
    let ran = ran(&bench, &url, &["-n", "j", "--", "sh", "-c", "env; tr '\\0' ' ' < /proc/$PPID/cmdline"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("LEASEHOLD_BACKEND=redis"), "{ran:?}");
    assert!(!ran.stdout.contains("s3ntinel"), "{ran:?}");
}

/// Every key as the server would dump it, but for those under `prefix`.
fn dumped(server: &RedisServer, prefix: &str) -> std::collections::BTreeMap<String, String> {
    let keys = server.must(["KEYS", "*"]);
    let keys = keys.items().iter().filter_map(|key| key.text()).filter(|key| !key.contains(prefix));
    keys.map(|key| (key.clone(), format!("{:?}", server.must(["DUMP", &key])))).collect()
}

/// The suite, run on a server that others use, leaves every key of theirs as it was.
#[test]
fn the_suite_leaves_what_others_made_byte_for_byte() {
    let bench = Bench::new();
    let server = RedisServer::plain().expect("a server");
    let url = server.url();
    // Others: leases held for long and kept taken, a fence, another namespace, and keys of other programs.
    for name in ["theirs", "conformance-0123456789ab/x"] {
        assert_eq!(ran(&bench, &url, &["--min-hold", "1h", name, "--", "true"]).code, 0);
    }
    let fence = finish(bench.program().args(["fence", "--store", &url, "theirs", "--token", "77"]));
    assert_eq!(fence.code, 0, "{fence:?}");
    let elsewhere = format!("{url}?namespace=other");
    assert_eq!(ran(&bench, &elsewhere, &["--min-hold", "1h", "theirs", "--", "true"]).code, 0);
    server.must(["SET", "conformance", "x"]);
    server.must(["HSET", "lh:default:strange", "a", "b"]);
    server.must(["SET", "lh:default:{garbage}:f", "no token"]);
    server.must(["RPUSH", "queue", "1", "2"]);
    let before = dumped(&server, "\n");
    assert!(before.len() >= 10, "{before:?}");

    // Longer than other commands: it waits for many leases to run out.
    let mut suite = bench.program();
    let ran: common::Ran =
        suite.args(["conformance", "--json", "--store", &url]).output().expect("it starts").into();
    let said: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let failed: Vec<_> = said.iter().filter(|line| line["result"] == "failed").collect();
    assert_eq!((ran.code, failed.as_slice()), (0, &[][..]), "{}", ran.stderr);
    let store = said.iter().find(|line| line["event"] == "store").expect("it says what it judges");
    let prefix = store["prefix"].as_str().expect("text");
    let after = dumped(&server, "\n");
    assert!(after.len() > before.len(), "it made floors of its own: the danger was there");
    for (key, value) in &before {
        assert_eq!(after.get(key), Some(value), "{key}");
    }
    // What came carries the run's prefix.
    assert_eq!(dumped(&server, prefix), before);
}
