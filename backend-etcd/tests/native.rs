//! What the shared suite cannot see of this store: its calls, its leases, its keys, its tokens.

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::{
    Effect, ErrorKind, LeaseAdmin, LeaseBackend, LeaseClient, LostCause, ReleaseRequest, Released,
    RenewAnswer, Renewal, Settings, TryAcquire,
};
use leasehold_testkit::proxy::{Action, When};
use support::*;

/// A pair is two calls; a batch of renewals on one lease is two, however many names are on it.
#[tokio::test]
async fn acquire_and_release_are_one_call_each_and_a_batch_is_two() {
    let fixture = Fixture::new().await;
    let backend = &fixture.backend;
    // Makes the shared lease.
    let first = grant(backend, "first", TTL).await;
    let calls = || backend.counters().0;
    let before = calls();
    const PAIRS: u64 = 20;
    for _ in 0..PAIRS {
        let held = grant(backend, "n", TTL).await;
        release(backend, &held).await;
    }
    assert_eq!(calls() - before, 2 * PAIRS);
    let before = calls();
    refusal(backend, "first", TTL).await;
    assert_eq!(calls() - before, 1);

    let mut renewals = vec![Renewal::new(first.claim(), TTL, now())];
    for n in 0..99 {
        renewals.push(Renewal::new(
            grant(backend, &format!("batch {n} \u{1F402}"), TTL).await.claim(),
            TTL,
            now(),
        ));
    }
    for _ in 0..2 {
        let before = calls();
        let answers = backend.renew(&renewals).await;
        assert!(answers.iter().all(|a| matches!(a, Ok(RenewAnswer::Renewed { .. }))), "{answers:?}");
        assert_eq!(calls() - before, 2);
    }
}

/// Names of one ttl share etcd leases in chunks; other ttls have others; whole seconds, never fewer than asked.
#[tokio::test]
async fn names_of_one_ttl_share_leases() {
    let fixture = Fixture::new().await;
    let before = fixture.leases().len();
    for n in 0..130 {
        grant(&fixture.backend, &format!("n{n}"), TTL).await;
    }
    assert_eq!(fixture.leases().len() - before, 2, "130 names on leases of 128");
    let odd = grant(&fixture.backend, "odd", Duration::from_millis(2_001)).await;
    assert_eq!(odd.ttl, Duration::from_secs(3));
    assert_eq!(fixture.leases().len() - before, 3);
}

/// Nothing is left of a refused try, and nothing of a pair.
#[tokio::test]
async fn no_key_is_left_behind() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    refusal(&rival, "n", TTL).await;
    assert_eq!(fixture.keys(), [key("n")]);
    release(&fixture.backend, &held).await;
    assert!(fixture.keys().is_empty(), "{:?}", fixture.keys());
}

/// I3: a grant on a shared lease is dated by the lease's last keep-alive that was answered, not by its own acquire.
#[tokio::test]
async fn a_joined_lease_keeps_its_anchor() {
    let fixture = Fixture::new().await;
    let first = grant(&fixture.backend, "a", TTL).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = now();
    let second = grant(&fixture.backend, "b", TTL).await;
    assert_eq!(second.anchor, first.anchor, "the countdown began with the first one");
    assert!(second.anchor < asked);
    // A keep-alive that is answered moves both.
    let renewed = anchor(&renew(&fixture.backend, &first).await);
    assert!(renewed >= asked);
    assert_eq!(grant(&fixture.backend, "c", TTL).await.anchor, renewed);
}

/// I3: a queued keep-alive says nothing, and neither does a stream that hangs: without an answer no anchor moves, and
/// what is asked later is never answered by what comes late.
#[tokio::test]
async fn a_stalled_keep_alive_moves_no_anchor() {
    let fixture =
        Fixture::with(Default::default(), |config| config.op_timeout = Duration::from_millis(300)).await;
    let held = grant(&fixture.backend, "n", TTL).await;
    renew(&fixture.backend, &held).await;
    let before = grant(&fixture.backend, "other", TTL).await.anchor;
    fixture.server.freeze();
    let error = try_renew(&fixture.backend, &held).await.expect_err("nobody answers");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
    fixture.server.thaw();
    let thawed = now();
    let (third, _) = until("an acquire", Duration::from_secs(10), async || {
        try_attempt(&fixture.backend, &request("third", TTL)).await.ok()
    })
    .await;
    let leasehold_core::Attempt::Granted(third) = third else { panic!("{third:?}") };
    assert_eq!(third.anchor, before, "no keep-alive was answered");
    let (answer, _) =
        until("a renewal", Duration::from_secs(10), async || try_renew(&fixture.backend, &held).await.ok())
            .await;
    assert!(anchor(&answer) >= thawed, "an answer to an earlier question was taken for this one's");
}

/// I3: the holder's deadline comes before the servers free the name, also for a name that joined late.
#[tokio::test]
async fn a_cut_off_holder_ends_before_the_servers_let_go() {
    let fixture = Fixture::new().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let settings = Settings::new().ttl(SHORT);
    let lease = |text: &'static str| {
        let (client, settings) = (client.clone(), settings.clone());
        async move {
            match client.try_acquire(&name(text), &settings).await.expect("an answer") {
                TryAcquire::Granted(lease) => lease,
                TryAcquire::Held(seen) => panic!("{seen:?}"),
            }
        }
    };
    let first = lease("first").await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let second = lease("second").await;
    fixture.proxy.black_hole();
    let (ends, key) = (second.valid_until().expect("held"), key("second"));
    let rival = fixture.rival().await;
    until("the name is free", SHORT * 4, async || {
        let is_free = rival.inspect(&name("second")).await.expect("a look").holders.is_empty();
        if is_free { Some(()) } else { None }
    })
    .await;
    let freed = now();
    assert!(!fixture.has(&key));
    assert!(second.check().is_err() && first.check().is_err(), "believed after it was free");
    assert!(ends < freed, "the deadline came {:?} after the end", ends.since(freed));
}

/// A key that somebody deleted under a shared lease is lost to its holder at the next renewal, and to nobody else; so is
/// one that was put anew.
#[tokio::test]
async fn a_deleted_key_is_noticed_though_its_lease_lives() {
    let fixture = Fixture::new().await;
    let (gone, stays) =
        (grant(&fixture.backend, "gone", TTL).await, grant(&fixture.backend, "stays", TTL).await);
    renew(&fixture.backend, &gone).await;
    fixture.server.must(["del", &key("gone")]);
    assert!(matches!(renew(&fixture.backend, &gone).await, RenewAnswer::Lost(LostCause::ExpiredInStore)));
    assert!(matches!(renew(&fixture.backend, &stays).await, RenewAnswer::Renewed { .. }));
    // Taken by somebody else meanwhile: told to whom.
    fixture.server.must(["del", &key("stays")]);
    let next = grant(&fixture.rival().await, "stays", TTL).await;
    match renew(&fixture.backend, &stays).await {
        RenewAnswer::Lost(LostCause::Taken { by }) => assert_eq!(by.token, next.token),
        other => panic!("{other:?}"),
    }
}

/// A shared lease that an operator revoked: its names are lost, and the next grant makes another.
#[tokio::test]
async fn a_revoked_lease_is_left() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    renew(&fixture.backend, &held).await;
    for lease in fixture.leases() {
        fixture.server.must(["lease", "revoke", &lease]);
    }
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(_)));
    let next = grant(&fixture.backend, "n", TTL).await;
    assert!(next.token > held.token);
    // And by a transaction that names the lease which is gone.
    for lease in fixture.leases() {
        fixture.server.must(["lease", "revoke", &lease]);
    }
    assert!(grant(&fixture.backend, "m", TTL).await.token > next.token);
}

/// I11: a name whose end cannot be confirmed is free within two ttls of it all the same, and its neighbour on the same
/// lease moves to another and keeps its token.
#[tokio::test]
async fn a_name_that_cannot_be_deleted_takes_no_neighbour_along() {
    let fixture = Fixture::new().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let settings = Settings::new().ttl(SHORT);
    let TryAcquire::Granted(neighbour) =
        client.try_acquire(&name("stays"), &settings).await.expect("an answer")
    else {
        panic!("held")
    };
    let stuck = grant(&fixture.backend, "stuck", SHORT).await;
    let before = fixture.leases();
    fixture.backend.keep_ends(true);
    let rival = fixture.rival().await;
    let looks =
        async || rival.inspect(&name("stuck")).await.expect("a look").holders.is_empty().then_some(());
    let (_, took) = until("the name is free", SHORT * 4, looks).await;
    assert!(took > SHORT + SHORT / 2, "the neighbour did not keep it alive: {took:?}");
    assert!(took < SHORT * 3 + Duration::from_secs(1), "{took:?}");
    neighbour.check().expect("still held");
    assert!(fixture.leases().iter().any(|lease| !before.contains(lease)), "nobody moved");
    let seen = rival.inspect(&name("stays")).await.expect("a look");
    assert_eq!(seen.holder().map(|holder| holder.token), Some(neighbour.token()));
    assert!(grant(&rival, "stuck", SHORT).await.token > stuck.token);
    neighbour.release().await.expect("released");
}

/// Streams never heal after a kill, and the client does: leases outlive a restart of the server, and go on.
#[tokio::test]
async fn leases_outlive_a_restart() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    renew(&fixture.backend, &held).await;
    fixture.server.kill();
    let error = try_renew(&fixture.backend, &held).await.expect_err("nobody is there");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(error.is_retryable());
    fixture.server.restart().expect("a start");
    let (answer, _) =
        until("a renewal", Duration::from_secs(10), async || try_renew(&fixture.backend, &held).await.ok())
            .await;
    anchor(&answer);
    assert!(matches!(release(&fixture.backend, &held).await, Released::Released));
}

/// I2: tokens go on above the wall clock after all data were lost, and whoever held is told.
#[tokio::test]
async fn tokens_rise_over_a_wipe() {
    let fixture = Fixture::new().await;
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date").as_micros() as u64;
    let held = grant(&fixture.backend, "n", TTL).await;
    assert!(held.token.native() + 10_000_000 > micros, "{} lies before the clock", held.token);
    fixture.server.restart_empty().expect("a start");
    let (answer, _) =
        until("a renewal", Duration::from_secs(10), async || try_renew(&fixture.backend, &held).await.ok())
            .await;
    assert!(matches!(answer, RenewAnswer::Lost(_)), "{answer:?}");
    let next = grant(&fixture.backend, "n", TTL).await;
    assert!(next.token > held.token, "{} after {}", next.token, held.token);
    assert!(grant(&fixture.rival().await, "m", TTL).await.token > next.token);
}

/// I2: tokens go on above all that were granted when a copy is restored that is older than 5 s, also to a client that
/// was idle all the time. The copy has the key of the tokens as every client knows it, and older revisions.
#[tokio::test]
async fn tokens_rise_over_a_restored_copy() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    // Known to both, before the copy.
    grant(&fixture.backend, "a", TTL).await;
    let idle = grant(&rival, "b", TTL).await;
    fixture.server.copy();
    let copied = now();
    let mut last = idle.token;
    while now() < copied + Duration::from_millis(5_500) {
        let held = grant(&fixture.backend, "n", TTL).await;
        assert!(held.token > last);
        last = held.token;
        release(&fixture.backend, &held).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fixture.server.restart_from_copy().expect("a start");
    let (next, _) = until("a grant", Duration::from_secs(10), async || {
        try_attempt(&rival, &request("n", TTL)).await.ok()
    })
    .await;
    let leasehold_core::Attempt::Granted(next) = next else { panic!("{next:?}") };
    assert!(next.token > last, "{} after {last}", next.token);
    assert!(grant(&fixture.backend, "m", TTL).await.token > next.token);
}

/// A base that somebody lifted is compared by every grant, and floors and epochs hold for all names.
#[tokio::test]
async fn floors_and_epochs_are_compared_by_every_grant() {
    let fixture = Fixture::new().await;
    let (mine, rival) = (&fixture.backend, fixture.rival().await);
    let first = grant(mine, "a", TTL).await;
    let floor = leasehold_core::Token::new(first.token.get() + 60_000_000).expect("legal");
    rival.raise_floor(None, floor).await.expect("raised");
    let second = grant(mine, "b", TTL).await;
    assert!(second.token > floor);
    assert_eq!(rival.raise_epoch().await.expect("raised"), 1);
    let third = grant(mine, "c", TTL).await;
    assert_eq!(third.token.epoch(), 1);
    // What is held keeps its token.
    let seen = rival.inspect(&name("a")).await.expect("a look");
    assert_eq!(seen.holder().map(|holder| holder.token), Some(first.token));
    let mut asking = request("d", TTL);
    asking.token_floor = leasehold_core::Token::from_parts(2, 5).ok();
    assert_eq!(granted(mine, &asking).await.token.epoch(), 2);
}

/// I7: an attempt that arrives after its owner was released is refused, however late it is.
#[tokio::test]
async fn a_late_attempt_of_a_released_owner_is_refused() {
    let fixture =
        Fixture::with(Default::default(), |config| config.op_timeout = Duration::from_millis(700)).await;
    grant(&fixture.backend, "warm", TTL).await;
    let late = fixture.proxy.once(When::request().containing(key("n")), Action::Hold);
    let asking = request("n", TTL);
    let error = try_attempt(&fixture.backend, &asking).await.expect_err("held back");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    let (answer, _) = until("a release", Duration::from_secs(10), async || {
        fixture.backend.release(&ReleaseRequest::new(asking.claim(), now())).await.ok()
    })
    .await;
    assert!(matches!(answer, Released::AlreadyReleased), "{answer:?}");
    assert!(fixture.keys().iter().any(|key| key.starts_with("leasehold/gone/")), "{:?}", fixture.keys());
    let rival = fixture.rival().await;
    late.release();
    assert_eq!(late.hits(), 1);
    // Long enough for what was held back.
    for _ in 0..40 {
        assert!(rival.inspect(&name("n")).await.expect("a look").holders.is_empty(), "granted to nobody");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Another owner is granted.
    grant(&rival, "n", TTL).await;
}

/// A waiter outlives a restart of the server and a compaction of what it has not seen.
#[tokio::test]
async fn a_watch_outlives_restart_and_compaction() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let held = grant(&rival, "n", TTL).await;
    let asking = request("n", TTL);
    let mut waiter = fixture.backend.waiter(&asking).await.expect("a waiter");
    let seen = refusal(&fixture.backend, "n", TTL).await;
    fixture.server.kill();
    tokio::time::timeout(Duration::from_secs(5), waiter.wait(&seen)).await.expect("the break is told");
    fixture.server.restart().expect("a start");
    for n in 0..20 {
        fixture.server.must(["put", "elsewhere", &n.to_string()]);
    }
    let status = fixture.server.must(["get", "elsewhere", "-w", "fields"]);
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).expect("a revision");
    fixture.server.must(["compact", revision]);
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        until("a release", Duration::from_secs(10), async || {
            rival.release(&ReleaseRequest::new(held.claim(), now())).await.ok()
        })
        .await
    };
    let waiting = until("the end is told", Duration::from_secs(10), async || {
        let _ = tokio::time::timeout(Duration::from_secs(5), waiter.wait(&seen)).await;
        match try_attempt(&fixture.backend, &asking).await {
            Ok(leasehold_core::Attempt::Granted(grant)) => Some(grant),
            _ => None,
        }
    });
    let (_, (_, took)) = tokio::join!(releasing, waiting);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A full database grants nothing, says so, and lets what is held be renewed and released.
#[tokio::test]
async fn a_full_database_is_told() {
    let fixture = Fixture::with(
        leasehold_testkit::etcd::EtcdOptions::new().arg("--quota-backend-bytes=400000"),
        |_| {},
    )
    .await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let filler = "x".repeat(100_000);
    let (_, _) = until("the alarm", Duration::from_secs(20), async || {
        fixture.server.ctl(["put", "filler", &filler]).is_err().then_some(())
    })
    .await;
    let error = try_attempt(&fixture.backend, &request("m", TTL)).await.expect_err("full");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.message().contains("NOSPACE"), "{error}");
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
    assert!(matches!(release(&fixture.backend, &held).await, Released::Released));
}
