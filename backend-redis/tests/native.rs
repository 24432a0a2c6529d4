//! What the shared suite cannot see of this store: its requests, its keys, its tokens.

mod support;

use std::time::Duration;

use leasehold_core::{
    Attempt, Effect, ErrorKind, ForceRelease, LeaseAdmin, LeaseBackend, LeaseClient, LostCause, Page,
    ReleaseRequest, Released, RenewAnswer, Renewal, Settings, Token, TryAcquire,
};
use leasehold_redis::RedisBackend;
use leasehold_testkit::proxy::{Action, When};
use leasehold_testkit::redis::{Keep, Persistence, RedisOptions};
use support::*;

#[tokio::test]
async fn acquire_release_and_a_batch_of_renewals_are_one_round_trip_each() {
    let fixture = Fixture::new().await;
    // Each script is sent by its text once.
    let first = grant(&fixture.backend, "n", TTL).await;
    refusal(&fixture.backend, "n", TTL).await;
    renew(&fixture.backend, &first).await;
    release(&fixture.backend, &first).await;
    fixture.server.reset_stats();
    let before = fixture.backend.counters().requests;

    const PAIRS: u64 = 50;
    for _ in 0..PAIRS {
        let held = grant(&fixture.backend, "n", TTL).await;
        release(&fixture.backend, &held).await;
    }
    assert_eq!(fixture.backend.counters().requests - before, 2 * PAIRS);
    let stats = fixture.server.command_stats();
    let calls = |command: &str| stats.get(command).map_or(0, |stat| stat.calls);
    assert_eq!(calls("evalsha"), 2 * PAIRS, "{stats:?}");
    assert_eq!(calls("eval"), 0, "{stats:?}");
    // An ordinary grant: TIME, SET, SET; a release for which nobody waits: GETRANGE, DEL.
    assert_eq!(
        [calls("time"), calls("set"), calls("getrange"), calls("del"), calls("get") + calls("publish")],
        [PAIRS, 2 * PAIRS, PAIRS, PAIRS, 0]
    );
    // The first refusal of a grant is written down, no other is, and the release is published.
    let held = grant(&fixture.backend, "n", TTL).await;
    for _ in 0..3 {
        refusal(&fixture.backend, "n", TTL).await;
    }
    release(&fixture.backend, &held).await;
    let stats = fixture.server.command_stats();
    let calls = |command: &str| stats.get(command).map_or(0, |stat| stat.calls);
    // Each attempt tries to SET; a grant sets the floor too, and the refusal its mark.
    assert_eq!([calls("set"), calls("publish")], [2 * PAIRS + 2 + 3 + 1, 1], "{stats:?}");

    let mut renewals = Vec::new();
    for n in 0..512 {
        let held = grant(&fixture.backend, &format!("batch \"{n}\" \\ 🐂"), TTL).await;
        renewals.push(Renewal::new(held.claim(), TTL, now()));
    }
    let before = fixture.server.calls("evalsha");
    let answers = fixture.backend.renew(&renewals).await;
    assert!(answers.iter().all(|a| matches!(a, Ok(RenewAnswer::Renewed { .. }))), "{answers:?}");
    assert_eq!(fixture.server.calls("evalsha") - before, 1);
}

/// B49: a server that has forgotten the scripts is told them again, at each step alike.
#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let fixture = Fixture::new().await;
    let flush = || drop(fixture.server.must(["SCRIPT", "FLUSH"]));
    let mut before = 0;
    for _ in 0..2 {
        flush();
        let held = grant(&fixture.backend, "n", TTL).await;
        flush();
        assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
        flush();
        assert!(fixture.backend.inspect(&name("n")).await.expect("inspect").holder().is_some());
        flush();
        assert!(matches!(release(&fixture.backend, &held).await, Released::Released));
        assert_eq!(fixture.value(&key("n", 'l')), None);
        let sent = fixture.server.calls("eval");
        assert_eq!(sent - before, 4, "each of the four was forgotten");
        before = sent;
    }
}

/// B08, B51: a record is a capability of one acquisition, and never without an end.
#[tokio::test]
async fn every_record_has_an_end_and_an_owner_of_its_own() {
    let fixture = Fixture::new().await;
    let mut seen = std::collections::HashSet::new();
    for ttl in
        [Duration::from_millis(100), Duration::from_nanos(100_000_001), TTL, RedisBackend::PROFILE.ttl_max]
    {
        let held = grant(&fixture.backend, "n", ttl).await;
        let left = fixture.pttl(&key("n", 'l'));
        let ms = i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).expect("fits");
        // B66: rounded up, and never without an end. The server may have taken its time to answer.
        assert!(left <= ms && (left > ms - 90 || ttl > TTL / 2), "{left} of {ms}");
        let floor = fixture.pttl(&key("n", 'f'));
        assert!(
            floor > ms + 20 * 24 * 3_600_000 && floor <= 2 * ms + 30 * 24 * 3_600_000,
            "the floor outlives it: {floor}"
        );
        assert!(seen.insert(fixture.value(&key("n", 'l'))), "a record of an earlier acquisition");
        release(&fixture.backend, &held).await;
    }
    assert_eq!(fixture.keys(), [key("n", 'f')]);
}

/// B10: a renewal that comes too late revives nothing, whoever came after.
#[tokio::test]
async fn late_renewals_and_releases_touch_nobody() {
    let fixture = Fixture::new().await;
    let first = grant(&fixture.backend, "n", Duration::from_millis(100)).await;
    until("it runs out", TTL, async || fixture.value(&key("n", 'l')).is_none().then_some(())).await;
    let answer = renew(&fixture.backend, &first).await;
    assert!(matches!(answer, RenewAnswer::Lost(LostCause::ExpiredInStore)), "{answer:?}");
    assert_eq!(fixture.value(&key("n", 'l')), None, "revived");

    let second = grant(&fixture.rival().await, "n", TTL).await;
    let before = (fixture.value(&key("n", 'l')), fixture.value(&key("n", 'f')));
    let RenewAnswer::Lost(LostCause::Taken { by }) = renew(&fixture.backend, &first).await else {
        panic!("not told that it was taken")
    };
    assert_eq!(by.token, second.token);
    let released = release(&fixture.backend, &first).await;
    assert!(
        matches!(&released, Released::NotHeld { by: Some(by) } if by.token == second.token),
        "{released:?}"
    );
    assert_eq!((fixture.value(&key("n", 'l')), fixture.value(&key("n", 'f'))), before);
}

/// The rule of `Token::next`, in Lua: server clock, epoch, floors and exhaustion, without a lost digit.
#[tokio::test]
async fn tokens_follow_the_one_rule() {
    let fixture = Fixture::new().await;
    let unix_us = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros() as u64;
    let before = unix_us();
    let held = grant(&fixture.backend, "n", TTL).await;
    assert!((before..=unix_us()).contains(&held.token.get()), "{:?}", held.token);
    assert_eq!(fixture.value(&key("n", 'f')), Some(format!("{:020}", held.token.get())));
    release(&fixture.backend, &held).await;

    // The server's clock was an hour ahead when this token was granted, and stepped back: the counter orders. Its
    // digits are odd, so that rounding shows.
    let ahead = (unix_us() + 3_600_000_000) | 1;
    fixture.server.must(["SET", &key("n", 'f'), &format!("{ahead:020}")]);
    let next = grant(&fixture.backend, "n", TTL).await;
    assert_eq!(next.token.get(), ahead + 1);
    // It outlives the hour by which it is ahead.
    assert!(fixture.pttl(&key("n", 'f')) > 3_590_000 + 30 * 24 * 3_600_000);
    release(&fixture.backend, &next).await;
    assert_eq!(grant(&fixture.backend, "n", TTL).await.token.get(), ahead + 2);

    // An epoch: above everything, also of names that are new, and the clock goes on below it.
    assert_eq!(fixture.backend.raise_epoch().await.expect("raised"), 1);
    let rival = fixture.rival().await;
    for (backend, text) in [(&fixture.backend, "a"), (&rival, "b"), (&rival, "c"), (&fixture.backend, "d")] {
        let raised = grant(backend, text, TTL).await;
        assert_eq!(raised.token.epoch(), 1, "{text}");
        assert!((before..unix_us()).contains(&raised.token.native()), "{:?}", raised.token);
    }

    // The last token of the epoch is granted, and then none; what is refused leaves nothing.
    let last = Token::from_parts(1, Token::NATIVE_MAX).expect("legal");
    let before_last = Token::from_parts(1, Token::NATIVE_MAX - 1).expect("legal");
    for text in ["known", "fresh"] {
        if text == "known" {
            let held = grant(&fixture.backend, text, TTL).await;
            release(&fixture.backend, &held).await;
        }
        let mut mine = request(text, TTL);
        mine.token_floor = Some(last);
        let error = try_attempt(&fixture.backend, &mine).await.expect_err("there is none above it");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::TokenRegression, Effect::None), "{error}");
        assert_eq!(fixture.value(&key(text, 'l')), None);
        mine.token_floor = Some(before_last);
        let held = granted(&fixture.backend, &mine).await;
        assert_eq!(held.token, last);
        release(&fixture.backend, &held).await;
        let error = try_attempt(&fixture.backend, &request(text, TTL)).await.expect_err("exhausted");
        assert_eq!(error.kind(), ErrorKind::TokenRegression);
    }
    assert_eq!(fixture.backend.raise_epoch().await.expect("raised"), 2);
    assert_eq!(grant(&fixture.backend, "known", TTL).await.token.epoch(), 2);
}

#[tokio::test]
async fn the_same_owner_gets_the_same_token_and_a_fresh_end() {
    let fixture = Fixture::new().await;
    let mut mine = request("n", TTL);
    let first = granted(&fixture.backend, &mine).await;
    mine.store_ttl = TTL * 2;
    assert_eq!(granted(&fixture.backend, &mine).await.token, first.token);
    assert!(fixture.pttl(&key("n", 'l')) > 31_000);
    mine.store_ttl = TTL;
    mine.token_floor = Some(first.token);
    let floored = granted(&fixture.backend, &mine).await;
    assert!(floored.token > first.token, "a floor at the token asks for a larger one");
    assert_eq!(
        granted(&fixture.backend, &mine).await.token,
        floored.token,
        "a floor below it asks for nothing"
    );
    // A raised floor binds the next holder, and leaves this one its token.
    let raised = Token::new(floored.token.get() + 1_000_000_000).expect("legal");
    fixture.backend.raise_floor(Some(&name("n")), raised).await.expect("raised");
    mine.token_floor = None;
    assert_eq!(granted(&fixture.backend, &mine).await.token, floored.token);
    let seen = fixture.backend.inspect(&name("n")).await.expect("inspect");
    assert_eq!((seen.holder().map(|h| h.token), seen.token_floor), (Some(floored.token), Some(raised)));
    release(&fixture.backend, &floored).await;
    assert!(grant(&fixture.backend, "n", TTL).await.token > raised);
}

/// B01, B02: whatever is deleted, later tokens are larger, and a holder gets its floor back.
#[tokio::test]
async fn tokens_grow_across_deleted_keys() {
    let fixture = Fixture::new().await;
    let mut highest = token(1);
    for round in 0..12 {
        let held = grant(&fixture.backend, "n", TTL).await;
        assert!(held.token > highest, "round {round}: {:?} after {highest:?}", held.token);
        highest = held.token;
        match round % 4 {
            0 => drop(release(&fixture.backend, &held).await),
            1 => drop(fixture.server.must(["DEL", &key("n", 'l')])),
            2 => drop(fixture.server.must(["DEL", &key("n", 'l'), &key("n", 'f')])),
            _ => drop(fixture.server.must(["FLUSHALL"])),
        }
    }
    let held = grant(&fixture.backend, "n", TTL).await;
    fixture.server.must(["DEL", &key("n", 'f')]);
    let error = fixture.backend.inspect(&name("n")).await.expect_err("the token is lost with the floor");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
    let seen = fixture.backend.inspect(&name("n")).await.expect("inspect");
    assert_eq!(seen.holder().map(|h| h.token), Some(held.token), "the renewal brought it back");
}

/// B02: names that nobody uses any more leave one key that ends, and nothing for ever.
#[tokio::test]
async fn used_names_leave_nothing_for_ever() {
    let fixture = Fixture::new().await;
    for n in 0..500 {
        let held = grant(&fixture.backend, &format!("n{n}"), TTL).await;
        release(&fixture.backend, &held).await;
    }
    let keys = fixture.keys();
    assert_eq!(keys.len(), 500);
    for left in keys {
        assert!(left.ends_with(":f") && fixture.pttl(&left) > 0, "{left} stays for ever");
    }
}

/// A floor's life begins anew with a grant that comes long after the one before, and not with each.
#[tokio::test]
async fn a_used_floor_stays() {
    let fixture = Fixture::new().await;
    let floor = key("n", 'f');
    let mut life = Vec::new();
    let earlier = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros() as u64 - 10_001_000_000;
    for last in [None, Some(earlier), None] {
        fixture.server.must(["PEXPIRE", &floor, "60000"]);
        if let Some(last) = last {
            fixture.server.must(["SET", &floor, &format!("{last:020}"), "KEEPTTL"]);
        }
        let held = grant(&fixture.backend, "n", TTL).await;
        life.push(fixture.pttl(&floor) > 60_000);
        release(&fixture.backend, &held).await;
    }
    assert_eq!(life[..2], [true, true], "made, and made anew after 10,000 s");
    fixture.server.must(["PEXPIRE", &floor, "60000"]);
    grant(&fixture.backend, "n", TTL * 100_000).await;
    assert!(fixture.pttl(&floor) > 60_000, "a long lease sets it each time");
}

/// A kept name is freed by its time, or by force with the token that `inspect` shows.
#[tokio::test]
async fn kept_names_have_no_owner_and_an_end() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let mut kept = ReleaseRequest::new(held.claim(), now());
    kept.keep_for = TTL;
    assert!(matches!(fixture.backend.release(&kept).await, Ok(Released::Released)));
    assert!(matches!(fixture.backend.release(&kept).await, Ok(Released::AlreadyReleased)));
    let seen = refusal(&fixture.backend, "n", TTL).await;
    assert!(seen.holder.is_none() && seen.remaining > Some(TTL / 2), "{seen:?}");
    let answer = renew(&fixture.backend, &held).await;
    assert!(matches!(answer, RenewAnswer::Lost(LostCause::ExpiredInStore)), "{answer:?}");
    let floor = fixture.backend.inspect(&name("n")).await.expect("inspect").token_floor.expect("a floor");
    assert_eq!(floor, held.token);
    let force = |token| ForceRelease::new(name("n"), token, "an operator", "a test", now());
    let wrong = fixture.backend.force_release(&force(token(7))).await.expect("answered");
    assert!(matches!(wrong, Released::NotHeld { by: None }), "{wrong:?}");
    let right = fixture.backend.force_release(&force(floor)).await.expect("answered");
    assert!(matches!(right, Released::Released), "{right:?}");
    assert!(grant(&fixture.backend, "n", TTL).await.token > floor);
}

/// Restarts: with its data the server goes on; without them held leases are told that it forgot, and tokens rise.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_is_told_from_one_that_was_away() {
    let fixture = Fixture::with(RedisOptions::new().persistence(Persistence::AppendAlways), |_| {}).await;
    let held = grant(&fixture.backend, "n", TTL).await;
    fixture.server.kill();
    fixture.server.restart(Keep::Data).expect("restarted");
    let (answer, took) =
        until("the renewal", TTL, async || try_renew(&fixture.backend, &held).await.ok()).await;
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{answer:?} after {took:?}");

    fixture.server.kill();
    fixture.server.restart(Keep::Nothing).expect("restarted");
    let (answer, _) = until("the renewal", TTL, async || try_renew(&fixture.backend, &held).await.ok()).await;
    assert!(matches!(&answer, RenewAnswer::Lost(LostCause::StoreForgot { .. })), "{answer:?}");
    let (next, _) =
        until("a grant", TTL, async || try_attempt(&fixture.backend, &request("n", TTL)).await.ok()).await;
    let Attempt::Granted(next) = next else { panic!("held by nobody: {next:?}") };
    assert!(next.token > held.token, "{:?} after {:?}", next.token, held.token);
}

/// B14, I7: a delayed acquire that arrives after its client gave up is refused by the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_acquire_leaves_nothing_behind() {
    const LIMIT: Duration = Duration::from_millis(400);
    let fixture = Fixture::with(RedisOptions::new(), |config| config.op_timeout = LIMIT).await;
    let rival = fixture.rival().await;
    let client = LeaseClient::with_operation_timeout(
        std::sync::Arc::new(fixture.backend.clone()),
        &fixture.watchdog,
        LIMIT,
    );
    // Known to the server, so that one request is one attempt.
    let warm = grant(&fixture.backend, "warm", TTL).await;
    release(&fixture.backend, &warm).await;
    for delay in [LIMIT / 2, LIMIT * 2, LIMIT * 4] {
        let text = format!("n{}", delay.as_millis());
        let late = fixture.proxy.once(
            When::request().containing("EVALSHA").containing(format!("{{{text}}}")),
            Action::Delay(delay),
        );
        let started = std::time::Instant::now();
        let tried = client.try_acquire(&name(&text), &Settings::new()).await;
        let took = started.elapsed();
        assert_eq!(late.hits(), 1, "the danger was there");
        if delay < LIMIT {
            assert!(matches!(tried, Ok(TryAcquire::Granted(_))), "{tried:?}");
            continue;
        }
        assert!(tried.is_err(), "{tried:?}");
        assert!(took < LIMIT + Duration::from_secs(2), "it took {took:?}");
        // When the request has arrived, and for a while after, the name is free.
        tokio::time::sleep((delay + LIMIT).saturating_sub(started.elapsed())).await;
        assert_eq!(fixture.value(&key(&text, 'l')), None, "delayed by {delay:?}");
        let free = grant(&rival, &text, TTL).await;
        release(&rival, &free).await;
    }
}

/// B14: the reply is lost, the client gives up, and the name is free again within the operation timeout.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_leave_nothing_behind() {
    const LIMIT: Duration = Duration::from_millis(400);
    let fixture = Fixture::with(RedisOptions::new(), |config| config.op_timeout = LIMIT).await;
    let rival = fixture.rival().await;
    let client = LeaseClient::with_operation_timeout(
        std::sync::Arc::new(fixture.backend.clone()),
        &fixture.watchdog,
        LIMIT,
    );
    let warm = grant(&fixture.backend, "warm", TTL).await;
    release(&fixture.backend, &warm).await;
    fixture.proxy.block(leasehold_testkit::proxy::Direction::ToClient);
    let tried = client.try_acquire(&name("n"), &Settings::new()).await;
    assert!(tried.is_err(), "{tried:?}");
    assert!(fixture.value(&key("n", 'f')).is_some(), "the danger was there: it was granted");
    fixture.proxy.heal();
    let (_, took) = until("the name is free", TTL, async || {
        matches!(attempt(&rival, &request("n", TTL)).await, Attempt::Granted(_)).then_some(())
    })
    .await;
    // A pause between tries, a new connection, and the call.
    assert!(took < LIMIT * 2 + Duration::from_secs(2), "{took:?}");
}

/// A server whose clock was set forward refuses an attempt as late once, and grants it in the same call.
#[tokio::test]
async fn a_stepped_server_clock_costs_a_second_request() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    release(&fixture.backend, &held).await;
    // As if the server's clock had been an hour behind when it was last heard of.
    fixture.backend.learn_server_time(Duration::from_secs(3600));
    let before = fixture.backend.counters().requests;
    let held = grant(&fixture.backend, "n", TTL).await;
    assert_eq!(fixture.backend.counters().requests - before, 2);
    release(&fixture.backend, &held).await;
    let held = grant(&fixture.backend, "n", TTL).await;
    assert_eq!(fixture.backend.counters().requests - before, 4, "it is known now");
    release(&fixture.backend, &held).await;
}

/// Every call of a backend ends within its time limit when the link swallows everything, and it recovers.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_link_ends_every_call_and_is_made_anew() {
    const LIMIT: Duration = Duration::from_millis(1_200);
    let fixture = Fixture::with(RedisOptions::new(), |config| config.op_timeout = LIMIT).await;
    let held = grant(&fixture.backend, "n", TTL).await;
    fixture.proxy.half_open(leasehold_testkit::proxy::Peer::Server);
    let started = std::time::Instant::now();
    let error = try_attempt(&fixture.backend, &request("m", TTL)).await.expect_err("nobody answers");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
    let error = try_renew(&fixture.backend, &held).await.expect_err("nobody answers");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
    assert!(started.elapsed() < LIMIT * 2 + Duration::from_secs(1), "{:?}", started.elapsed());
    // The silent connections were closed by that: the next calls go through.
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
    grant(&fixture.backend, "m", TTL).await;
}

/// However many call, a server that is away is asked at most once a pause.
#[tokio::test(flavor = "multi_thread")]
async fn reconnects_are_bounded() {
    const WAIT: Duration = Duration::from_secs(3);
    let fixture =
        Fixture::with(RedisOptions::new(), |config| config.op_timeout = Duration::from_secs(1)).await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let waiter = fixture.backend.waiter(&request("n", TTL)).await.expect("subscribed");
    let before = fixture.backend.counters();
    fixture.proxy.refuse();
    fixture.proxy.cut();
    let until = std::time::Instant::now() + WAIT;
    let callers: Vec<_> = (0..40)
        .map(|n| {
            let (backend, held) = (fixture.backend.clone(), held.clone());
            tokio::spawn(async move {
                let mut failures = 0;
                while std::time::Instant::now() < until {
                    failures += u32::from(match n % 2 {
                        0 => try_renew(&backend, &held).await.is_err(),
                        _ => try_attempt(&backend, &request("m", TTL)).await.is_err(),
                    });
                }
                failures
            })
        })
        .collect();
    let mut failures = 0;
    for caller in callers {
        failures += caller.await.expect("no panic");
    }
    let after = fixture.backend.counters();
    let (connects, subscriptions) =
        (after.connects - before.connects, after.subscription_connects - before.subscription_connects);
    println!("{failures} calls failed, {connects} connects, {subscriptions} for the subscription");
    assert!(failures >= 40, "the danger was there: {failures}");
    // Two links: 25, 50, … 800 ms and then once a second, each shortened by up to a half.
    assert!((4..=30).contains(&connects), "{connects} tries to connect in {WAIT:?}");
    assert!((2..=15).contains(&subscriptions), "{subscriptions} tries to subscribe in {WAIT:?}");
    fixture.proxy.heal();
    let (answer, took) =
        self::until("renewed", TTL, async || try_renew(&fixture.backend, &held).await.ok()).await;
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{answer:?}");
    assert!(took < Duration::from_secs(3), "back after {took:?}");
    drop(waiter);
}

/// A user's runtime may come and go: its connection goes with it, and the next one makes its own.
#[test]
fn runtimes_come_and_go() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let fixture = first.block_on(Fixture::new());
    let held = first.block_on(grant(&fixture.backend, "n", TTL));
    // The first runtime is there, and nobody drives it.
    let second = runtime();
    second.block_on(async {
        assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }))
    });
    second.block_on(refusal(&fixture.backend, "n", TTL));
    drop(second);
    drop(first);
    for _ in 0..20 {
        let next = runtime();
        next.block_on(refusal(&fixture.backend, "n", TTL));
    }
    runtime().block_on(release(&fixture.backend, &held));
    let open: usize = fixture.proxy.connections();
    assert!(open <= 12, "{open} connections are left");
}

/// A runtime that was built without I/O and timers takes leases all the same.
#[test]
fn a_bare_runtime_takes_leases() {
    let fixture = tokio::runtime::Runtime::new().expect("a runtime").block_on(Fixture::new());
    let bare = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    bare.block_on(async {
        let held = grant(&fixture.backend, "n", TTL).await;
        assert!(matches!(release(&fixture.backend, &held).await, Released::Released));
        assert!(fixture.backend.waiter(&request("n", TTL)).await.is_ok());
    });
}

/// B90: whenever the caller goes away, nothing is left: another client gets the name within the operation timeout.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_attempts_leave_nothing_behind() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let client = LeaseClient::with_backend(std::sync::Arc::new(fixture.backend.clone()), &fixture.watchdog);
    fixture.proxy.latency(
        leasehold_testkit::proxy::Direction::ToClient,
        Duration::from_millis(4),
        Duration::ZERO,
    );
    let (mut dropped, mut granted) = (0, 0);
    for round in 0..60_u64 {
        let text = format!("n{round}");
        let tried = tokio::time::timeout(
            Duration::from_micros(round * 200),
            client.try_acquire(&name(&text), &Settings::new().ttl(TTL * 2)),
        )
        .await;
        match tried {
            Err(_) => dropped += 1,
            Ok(tried) => {
                granted += 1;
                drop(tried.expect("granted"));
            }
        }
        let (_, took) = until("the name is free", TTL, async || {
            matches!(attempt(&rival, &request(&text, TTL)).await, Attempt::Granted(_)).then_some(())
        })
        .await;
        assert!(took < Duration::from_secs(2), "round {round}: {took:?}");
    }
    println!("{dropped} dropped, {granted} granted");
    assert!(dropped >= 10 && granted >= 10, "the danger was there: {dropped} dropped, {granted} granted");
}

/// Names of all kinds are listed as they are, page by page, beside what leasehold did not write.
#[tokio::test]
async fn lists_show_what_is_there() {
    let fixture = Fixture::new().await;
    let names = ["a", "a/b", "a%2Fb", "{a}", "a*", "a?", "é", "🐂", "[a-z]", "lh:default:{a}:l"];
    for text in names {
        grant(&fixture.backend, text, TTL).await;
    }
    fixture.server.must(["SET", &key("broken", 'l'), "garbage"]);
    fixture.server.must(["LPUSH", &key("wrong-type", 'l'), "x"]);
    fixture.server.must(["SET", "lh:default:{a b}:l", "no name of ours"]);
    fixture.server.must(["SET", "lh:other:{a}:l", "another namespace"]);
    let listed = fixture.backend.list("", &Page::first()).await.expect("listed");
    let mut expected: Vec<&str> = names.to_vec();
    expected.extend(["broken", "wrong-type"]);
    expected.sort_unstable();
    assert_eq!(listed.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), expected);
    for shown in &listed {
        let is_ours = names.contains(&shown.name.as_str());
        assert_eq!(shown.holder().is_some(), is_ours, "{shown:?}");
        assert_eq!(shown.free_in == Some(Duration::MAX), !is_ours, "{shown:?}");
    }
    let mut page = Page::first();
    page.limit = 5;
    page.after = Some(name("a"));
    let listed = fixture.backend.list("a", &page).await.expect("listed");
    assert_eq!(listed.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["a%2Fb", "a*", "a/b", "a?"]);
}
