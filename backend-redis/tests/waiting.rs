//! Waiting over one subscription that gets lost and comes back.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Contention, LeaseBackend, LeaseClient, Released, Settings, Wait};
use leasehold_redis::Protocol;
use leasehold_testkit::proxy::{Action, When};
use leasehold_testkit::redis::RedisOptions;
use support::*;

/// A release is seen within this: far more than a round trip, far less than any ttl here.
const SOON: Duration = Duration::from_secs(5);

fn client(fixture: &Fixture) -> LeaseClient {
    LeaseClient::with_backend(Arc::new(fixture.backend.clone()), &fixture.watchdog)
}

fn settings() -> Settings {
    Settings::new().ttl(TTL)
}

/// A refusal whose holder stays longer than any test runs.
fn for_long() -> Contention {
    Contention::new(None, Some(TTL))
}

async fn woken_within(waiter: &mut Box<dyn leasehold_core::Waiter>, bound: Duration) -> bool {
    tokio::time::timeout(bound, waiter.wait(&for_long())).await.is_ok()
}

/// RESP2 and RESP3: a release in another client wakes the waiter, once for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_in_both_protocols() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let fixture = Fixture::with(RedisOptions::new(), |config| config.protocol = protocol).await;
        let rival = fixture.rival().await;
        for _ in 0..3 {
            let held = grant(&rival, "n", TTL).await;
            let mut waiter = fixture.backend.waiter(&request("n", TTL)).await.expect("subscribed");
            refusal(&fixture.backend, "n", TTL).await;
            assert!(!woken_within(&mut waiter, Duration::from_millis(50)).await, "woken by nothing");
            release(&rival, &held).await;
            assert!(woken_within(&mut waiter, SOON).await, "{protocol:?}: not woken");
            // Latching: what happens between two waits is not lost.
            let held = grant(&rival, "n", TTL).await;
            refusal(&fixture.backend, "n", TTL).await;
            release(&rival, &held).await;
            assert!(woken_within(&mut waiter, SOON).await, "{protocol:?}: not woken again");
        }
    }
}

/// B31: the holder releases while the subscription is under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_before_the_acknowledgement_is_not_missed() {
    const LATE: Duration = Duration::from_millis(300);
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let held = grant(&rival, "n", TTL).await;
    let subscribing =
        fixture.proxy.once(When::reply_to_request().containing("SUBSCRIBE"), Action::Delay(LATE));
    let client = client(&fixture);
    let acquiring =
        tokio::spawn(async move { client.acquire(&name("n"), &settings(), Wait::AtMost(TTL / 3)).await });
    subscribing.hit().await;
    release(&rival, &held).await;
    let released = Instant::now();
    let lease = acquiring.await.expect("no panic").expect("granted");
    assert!(released.elapsed() < LATE + SOON, "{:?}", released.elapsed());
    lease.release().await.expect("released");
}

/// B37: fifty wait on one name in one process, and all get it, with one subscription.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_waiters_share_one_subscription() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let held = grant(&rival, "n", TTL).await;
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let client = client(&fixture);
            // Half of them through a client of their own, so that the name's line is not all there is.
            tokio::spawn(async move {
                let lease = client.acquire(&name("n"), &settings(), Wait::AtMost(TTL)).await?;
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
                lease.release().await.expect("released");
                Ok::<(), leasehold_core::AcquireError>(())
            })
        })
        .collect();
    until("somebody waits", SOON, async || (fixture.server.calls("subscribe") > 0).then_some(())).await;
    release(&rival, &held).await;
    for task in tasks {
        task.await.expect("no panic").expect("granted");
    }
    assert_eq!(fixture.backend.channels(), 1);
    assert_eq!(fixture.backend.counters().subscription_connects, 1);
    // Nobody waits any more: the subscription is given up, and its connection with it.
    until("unsubscribed", TTL, async || (fixture.backend.channels() == 0).then_some(())).await;
    let clients = || fixture.server.must(["CLIENT", "LIST", "TYPE", "pubsub"]).text().unwrap_or_default();
    until("disconnected", TTL, async || clients().is_empty().then_some(())).await;
}

/// A subscription that is killed comes back by itself; whoever waits looks again for what it missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_subscription_comes_back() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    for round in 0..3 {
        let held = grant(&rival, "n", TTL).await;
        let mut waiter = fixture.backend.waiter(&request("n", TTL)).await.expect("subscribed");
        let mut other = fixture.backend.waiter(&request("m", TTL)).await.expect("subscribed");
        let killed = fixture.server.must(["CLIENT", "KILL", "TYPE", "pubsub"]).integer();
        assert_eq!(killed, Some(1), "the danger was there");
        assert!(
            woken_within(&mut waiter, SOON).await && woken_within(&mut other, SOON).await,
            "round {round}"
        );
        let subscribed = || fixture.server.must(["PUBSUB", "NUMSUB", &key("n", 'c')]);
        until("subscribed again", SOON, async || {
            (subscribed().items()[1].integer() == Some(1)).then_some(())
        })
        .await;
        // The bell of the return may come a moment after the server's own count.
        assert!(woken_within(&mut waiter, SOON).await, "round {round}: no look after the return");
        refusal(&fixture.backend, "n", TTL).await;
        release(&rival, &held).await;
        assert!(woken_within(&mut waiter, SOON).await, "round {round}: not woken by the new connection");
    }
}

/// B31: what a waiter saw goes without a word (here all data), and its mark with it. Others who take and release the
/// name tell it nothing: it looks by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_vanishes_is_noticed_by_a_look() {
    /// The waiter's own look, and a loaded machine.
    const LOOKS_WITHIN: Duration = Duration::from_secs(5);
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    grant(&rival, "n", TTL).await;
    let client = client(&fixture);
    let waiting = tokio::spawn(async move {
        client.acquire(&name("n"), &settings(), Wait::AtMost(TTL)).await.map(|lease| lease.token())
    });
    until("it is refused, and waits", SOON, async || {
        let subscribed = fixture.server.must(["PUBSUB", "NUMSUB", &key("n", 'c')]);
        let record = fixture.server.must(["GET", &key("n", 'l')]).text().unwrap_or_default();
        (subscribed.items()[1].integer() == Some(1) && record.as_bytes().get(34) == Some(&b'+')).then_some(())
    })
    .await;
    let vanished = Instant::now();
    fixture.server.must(["FLUSHALL"]);
    let passer_by = grant(&rival, "n", TTL).await;
    release(&rival, &passer_by).await;
    let token = waiting.await.expect("no panic").expect("granted long before the ttl is over");
    println!("granted {token} after {:?}", vanished.elapsed());
    assert!(vanished.elapsed() < LOOKS_WITHIN + SOON, "{:?}", vanished.elapsed());
}

/// A subscription whose link has gone silent is noticed by its pings.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_subscription_is_made_anew() {
    let fixture =
        Fixture::with(RedisOptions::new(), |config| config.op_timeout = Duration::from_millis(500)).await;
    let mut waiter = fixture.backend.waiter(&request("n", TTL)).await.expect("subscribed");
    fixture.proxy.half_open(leasehold_testkit::proxy::Peer::Server);
    assert!(woken_within(&mut waiter, TTL).await, "nobody noticed");
    assert_eq!(
        fixture.proxy.counts().half_open,
        3,
        "the danger was there: two for calls, one for notifications"
    );
    let rival = fixture.rival().await;
    until("subscribed again", SOON, async || {
        let held = grant(&rival, "n", TTL).await;
        assert!(matches!(release(&rival, &held).await, Released::Released));
        woken_within(&mut waiter, Duration::from_millis(200)).await.then_some(())
    })
    .await;
}

/// B40, I9: without any message the waiter looks when the holder that it saw has run out, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn the_holders_end_wakes() {
    let fixture = Fixture::new().await;
    let mut waiter = fixture.backend.waiter(&request("n", TTL)).await.expect("subscribed");
    let left = Duration::from_millis(300);
    let started = Instant::now();
    waiter.wait(&Contention::new(None, Some(left))).await;
    assert!(started.elapsed() >= left && started.elapsed() < left + SOON, "{:?}", started.elapsed());
}

/// A waiter is refused with the right that is missing, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_subscription_says_why() {
    let options = RedisOptions::new().user("u", "pw", "~* +@all -subscribe resetchannels &*");
    let fixture = Fixture::with(options, |config| {
        config.user = Some("u".to_owned());
        config.password = Some(leasehold_redis::Secret::new("pw"));
    })
    .await;
    let error = fixture.backend.waiter(&request("n", TTL)).await.expect_err("refused");
    assert_eq!(error.kind(), leasehold_core::ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("subscribe"), "{error}");
    until("left", TTL, async || (fixture.backend.channels() == 0).then_some(())).await;
}
