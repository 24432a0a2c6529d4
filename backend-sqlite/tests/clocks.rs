//! Rows of other clocks: containers with a boot id of their own, time namespaces, and what a reboot leaves.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_core::{Attempt, LeaseBackend, LostCause, RenewAnswer};
use support::*;

const SHORT: Duration = Duration::from_millis(200);

/// Tries until granted; never before `ttl` has passed since the first try.
async fn take_over(backend: &leasehold_sqlite::SqliteBackend, text: &str) -> Duration {
    let mine = request(text, TTL);
    let bound = Duration::from_secs(10);
    until("taken over", bound, async || {
        matches!(attempt(backend, &mine).await, Attempt::Granted(_)).then_some(())
    })
    .await
    .1
}

#[tokio::test]
async fn a_dead_holder_of_another_clock_costs_one_ttl() {
    let fixture = Fixture::new().await;
    let foreigner = fixture.foreigner("another boot+0.0").await;
    let dead = grant(&foreigner, "n", SHORT).await;
    // Its end is long past by this clock, and means nothing here.
    sqlx::query("UPDATE leasehold_leases SET expires_us = 1")
        .execute(&mut fixture.raw().await)
        .await
        .expect("ok");
    let seen = refusal(&fixture.backend, "n", TTL).await;
    assert_eq!(seen.remaining, Some(SHORT));
    let took = take_over(&fixture.backend, "n").await;
    println!("taken over {took:?} after the first look");
    assert!(took >= SHORT - Duration::from_millis(5) && took < SHORT * 10, "{took:?}");
    assert!(matches!(renew(&foreigner, &dead).await, RenewAnswer::Lost(LostCause::Taken { .. })));
}

#[tokio::test]
async fn a_live_holder_of_another_clock_is_never_taken_over() {
    let fixture = Fixture::new().await;
    let foreigner = fixture.foreigner("another boot+0.0").await;
    let held = grant(&foreigner, "n", SHORT).await;
    let started = Instant::now();
    let mut refused = 0;
    while started.elapsed() < SHORT * 8 {
        for _ in 0..4 {
            refusal(&fixture.backend, "n", TTL).await;
            refused += 1;
            tokio::time::sleep(SHORT / 16).await;
        }
        assert!(matches!(renew(&foreigner, &held).await, RenewAnswer::Renewed { .. }));
    }
    println!("refused {refused} times over eight ttls");
    assert!(refused >= 20);
    // Then it dies.
    let took = take_over(&fixture.backend, "n").await;
    assert!(took >= SHORT / 2, "{took:?}");
}

/// Two waiters with two clocks do not keep a dead holder's lease alive for each other.
#[tokio::test]
async fn waiters_of_two_clocks_do_not_prolong_what_they_wait_for() {
    let fixture = Fixture::new().await;
    let (dead, second) = (fixture.foreigner("dead+0.0").await, fixture.foreigner("second+0.0").await);
    grant(&dead, "n", SHORT).await;
    let ((), took) = until("one of two gets it", Duration::from_secs(10), async || {
        let one = attempt(&fixture.backend, &request("n", TTL)).await;
        let two = attempt(&second, &request("n", TTL)).await;
        match (one, two) {
            (Attempt::Granted(_), Attempt::Granted(_)) => panic!("both got it"),
            (Attempt::Held(_), Attempt::Held(_)) => None,
            _ => Some(()),
        }
    })
    .await;
    assert!(took < SHORT * 5, "{took:?}");
}

/// A job that looks in rarely gets over a reboot: its sightings stay in the file.
#[tokio::test]
async fn sightings_outlive_the_process_that_noted_them() {
    let fixture = Fixture::new().await;
    grant(&fixture.foreigner("before the boot+0.0").await, "n", SHORT).await;
    refusal(&fixture.rival().await, "n", TTL).await;
    tokio::time::sleep(SHORT).await; // the ttl itself has to pass
    grant(&fixture.rival().await, "n", TTL).await;
}

/// A boot id that is the same after every boot: the row is dated later than this clock can have written.
#[tokio::test]
async fn a_row_from_the_future_is_another_clocks() {
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", SHORT).await;
    let far = "UPDATE leasehold_leases SET expires_us = expires_us + 1000000000000";
    sqlx::query(far).execute(&mut fixture.raw().await).await.expect("ok");
    let took = take_over(&fixture.backend, "n").await;
    assert!(took >= SHORT / 2 && took < SHORT * 10, "{took:?}");
}

#[tokio::test]
async fn kept_names_and_sightings_of_other_clocks_are_handled_and_collected() {
    let fixture = Fixture::new().await;
    let foreigner = fixture.foreigner("another boot+0.0").await;
    let held = grant(&foreigner, "kept", TTL).await;
    let mut kept = leasehold_core::ReleaseRequest::new(held.claim(), now());
    kept.keep_for = SHORT;
    foreigner.release(&kept).await.expect("released");
    let seen = refusal(&fixture.backend, "kept", TTL).await;
    assert!(seen.holder.is_none() && seen.remaining == Some(SHORT), "{seen:?}");
    let took = take_over(&fixture.backend, "kept").await;
    assert!(took >= SHORT / 2, "{took:?}");
    // Rows that nobody asks for go too, together with their sightings.
    for n in 0..50 {
        grant(&foreigner, &format!("left behind/{n}"), SHORT).await;
    }
    let mut raw = fixture.raw().await;
    let (left, _) = until("collected", Duration::from_secs(30), async || {
        fixture.backend.collect().await.expect("collected");
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM leasehold_leases WHERE name LIKE 'left behind/%')
                  + (SELECT count(*) FROM leasehold_sightings)",
        )
        .fetch_one(&mut raw)
        .await
        .expect("count");
        (left == 0).then_some(left)
    })
    .await;
    assert_eq!(left, 0);
}

/// Plays a rival in a container: tries for a second, and prints what it got.
#[test]
#[ignore = "a part that other tests of this file start as a process"]
fn child() {
    let path = std::path::PathBuf::from(std::env::var(FILE).expect("a file"));
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
        let backend = connect(path, &watchdog).await;
        println!("clock {}", backend.clock_id());
        match std::env::var(ROLE).expect("a role").as_str() {
            "rival" => {
                let started = Instant::now();
                let (mut refused, mut granted) = (0, 0);
                while started.elapsed() < Duration::from_secs(1) {
                    match attempt(&backend, &request("n", TTL)).await {
                        Attempt::Granted(_) => granted += 1,
                        Attempt::Held(_) => refused += 1,
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                println!("rival granted={granted} refused={refused}");
            }
            role => panic!("no role {role}"),
        }
    });
}

/// Runs the rival through `wrapper`, a shell command that ends with `exec "$@"`, beside a live holder whose ttl
/// is far shorter than the rival's patience.
async fn a_contained_rival_is_refused(wrapper: &str) {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", SHORT).await;
    let rival = in_role("rival", &fixture.path());
    let mut contained = Command::new("unshare");
    contained.args(wrapper.split(' ').take_while(|word| *word != "sh"));
    let script = wrapper.split_once("sh -c ").map(|(_, script)| script);
    if let Some(script) = script {
        contained.args(["sh", "-c", script, "sh"]);
    }
    contained.arg(rival.get_program()).args(rival.get_args());
    contained.env(ROLE, "rival").env(FILE, fixture.path());
    contained.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let process = contained.spawn().expect("unshare is there");
    let output = tokio::task::spawn_blocking(move || process.wait_with_output());
    tokio::pin!(output);
    let output = loop {
        tokio::select! {
            output = &mut output => break output.expect("joined").expect("ran"),
            () = tokio::time::sleep(SHORT / 4) => {
                let answer = renew(&fixture.backend, &held).await;
                assert!(matches!(answer, RenewAnswer::Renewed { .. }), "the live lease was lost: {answer:?}");
            }
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let clock = text.lines().find_map(|line| line.split_once("clock ")).expect("a clock").1.to_owned();
    assert_ne!(clock, fixture.backend.clock_id(), "the rival was contained");
    let told = text.lines().find(|line| line.contains("rival granted=")).expect("an answer");
    println!("{clock}: {told}");
    assert!(told.contains("granted=0"), "{told}");
    assert!(!told.contains("refused=0"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_in_a_time_namespace_takes_over_nothing() {
    a_contained_rival_is_refused("-T --boottime 100000").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_with_an_over_mounted_boot_id_takes_over_nothing() {
    let script = "echo 00000000-0000-0000-0000-000000000000 > /tmp/leasehold-boot-id-$$ && \
                  mount --bind /tmp/leasehold-boot-id-$$ /proc/sys/kernel/random/boot_id && \
                  rm -f /tmp/leasehold-boot-id-$$ && exec \"$@\"";
    a_contained_rival_is_refused(&format!("-m sh -c {script}")).await;
}

/// The statement of an acquire or a renewal on a machine whose wall clock says `unix_seconds`.
fn at_wall_clock(statement: &str, unix_seconds: &str) -> sqlx::AssertSqlSafe<String> {
    let changed = statement.replace("unixepoch('subsec')", unix_seconds);
    assert_ne!(changed, statement, "the statement reads the wall clock in another way now");
    sqlx::AssertSqlSafe(changed)
}

/// A wall clock that no token can hold says nothing: the counter orders, and the row is one that can be read.
#[tokio::test]
async fn an_impossible_wall_clock_leaves_the_order_to_the_counter() {
    const ACQUIRE: &str = include_str!("../src/sql/acquire.sql");
    const RENEW: &str = include_str!("../src/sql/renew.sql");
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    let owner = "0123456789abcdef0123456789abcdef";
    // Before 1970; none at all, as SQLite has it beyond the year 9999; the last second of 2^52 µs; beyond it.
    for clock in ["(-86400.5)", "NULL", "4503599627.0", "4503599627.371", "9e9", "1e30"] {
        for (text, floor) in [("fresh", 0_i64), ("floored", 7), ("again", 0)] {
            let text = format!("{text} at {clock}");
            let mut last = floor;
            for round in 1..=2_i64 {
                let token: i64 = sqlx::query_scalar(at_wall_clock(ACQUIRE, clock))
                    .bind(&text)
                    .bind(owner)
                    .bind(1_000_000_i64)
                    .bind(1_000_000_i64)
                    .bind("a clock")
                    .bind("")
                    .bind(last)
                    .bind(2_000_000_i64)
                    .bind(0_i64)
                    .fetch_one(&mut raw)
                    .await
                    .unwrap_or_else(|e| panic!("{text}, round {round}: {e}"));
                assert!(token > last, "{text}: {token} after {last}");
                if clock != "4503599627.0" {
                    assert_eq!(token, last + 1, "{text}");
                }
                last = token;
            }
            let batch = format!(r#"[["{text}","{owner}",1000000,{}]]"#, last + 10);
            let renewed: Vec<(String, String)> = sqlx::query_as(at_wall_clock(RENEW, clock))
                .bind(batch)
                .bind(1_500_000_i64)
                .bind("a clock")
                .bind(1_500_000_i64)
                .fetch_all(&mut raw)
                .await
                .unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(renewed.len(), 1, "{text}");
            let found = fixture.backend.inspect(&name(&text)).await.expect("a row that can be read");
            assert!(found.holder().expect("held").token.as_i64() > last + 10, "{text}");
        }
    }
}
