//! What the shared suite cannot see of this store: its statements, its rows, its tokens.

mod support;

use std::time::Duration;

use leasehold_core::{
    Attempt, ErrorKind, ForceRelease, LeaseAdmin, LeaseBackend, LostCause, OwnerId, Page, ReleaseRequest,
    Released, RenewAnswer, Renewal, Token,
};
use sqlx::Row;
use support::*;

/// The row of a name, as a person sees it.
async fn row(fixture: &Fixture, text: &str) -> (Option<String>, i64, i64, i64) {
    let mut raw = fixture.raw().await;
    let row = sqlx::query("SELECT owner, token, seq, expires_us FROM leasehold_leases WHERE name = ?1")
        .bind(text)
        .fetch_one(&mut raw)
        .await
        .expect("a row");
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

#[tokio::test]
async fn acquire_release_and_a_batch_of_renewals_are_one_statement_each() {
    let fixture = Fixture::new().await;
    let calls = || fixture.backend.counters().calls;
    let mut before = calls();
    let mut sent = |what: &str, expected: u64| {
        let now = fixture.backend.counters().calls;
        assert_eq!(now - before, expected, "{what}");
        before = now;
    };
    let first = grant(&fixture.backend, "n", TTL).await;
    sent("an acquire of a new name", 1);
    release(&fixture.backend, &first).await;
    sent("a release", 1);
    let second = grant(&fixture.backend, "n", TTL).await;
    sent("an acquire of a known name", 1);
    refusal(&fixture.backend, "n", TTL).await;
    sent("a refused acquire, and the look at who holds it", 2);

    let mut renewals = vec![Renewal::new(second.claim(), TTL, now())];
    for n in 0..499 {
        let held = grant(&fixture.backend, &format!("batch \"{n}\" \\ 🐂"), TTL).await;
        renewals.push(Renewal::new(held.claim(), TTL, now()));
    }
    sent("499 acquires", 499);
    let answers = fixture.backend.renew(&renewals).await;
    sent("500 renewals", 1);
    assert!(answers.iter().all(|a| matches!(a, Ok(RenewAnswer::Renewed { .. }))), "{answers:?}");

    release(&fixture.backend, &second).await;
    sent("a release", 1);
    let answers = fixture.backend.renew(&renewals).await;
    sent("500 renewals, one of them too late, and the look at why", 2);
    assert!(matches!(answers[0], Ok(RenewAnswer::Lost(LostCause::ExpiredInStore))), "{:?}", answers[0]);
    assert!(answers[1..].iter().all(|a| matches!(a, Ok(RenewAnswer::Renewed { .. }))));
}

/// B09: the row of the next holder is not touched by the first one's late release or renewal.
#[tokio::test]
async fn late_calls_leave_the_next_holders_row_alone() {
    let fixture = Fixture::new().await;
    let first = grant(&fixture.backend, "n", Duration::from_millis(100)).await;
    let (second, _) = until("the first runs out", Duration::from_secs(5), async || {
        match attempt(&fixture.backend, &request("n", TTL)).await {
            Attempt::Granted(second) => Some(second),
            Attempt::Held(_) => None,
        }
    })
    .await;
    let before = row(&fixture, "n").await;
    let released = release(&fixture.backend, &first).await;
    assert!(
        matches!(&released, Released::NotHeld { by: Some(by) } if by.token == second.token),
        "{released:?}"
    );
    let RenewAnswer::Lost(LostCause::Taken { by }) = renew(&fixture.backend, &first).await else {
        panic!("not told that it was taken")
    };
    assert_eq!(by.token, second.token);
    assert_eq!(row(&fixture, "n").await, before);
}

/// B10: nobody took the name, and the renewal of a lease that has run out still does not revive it.
#[tokio::test]
async fn a_renewal_that_comes_too_late_revives_nothing() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", Duration::from_millis(100)).await;
    until("it runs out", Duration::from_secs(5), async || {
        fixture.backend.inspect(&name("n")).await.expect("inspect").free_in.is_none().then_some(())
    })
    .await;
    let before = row(&fixture, "n").await;
    let answer = renew(&fixture.backend, &held).await;
    assert!(matches!(answer, RenewAnswer::Lost(LostCause::ExpiredInStore)), "{answer:?}");
    assert_eq!(row(&fixture, "n").await, before);
}

/// B72: a rival with a short ttl waits for the holder's.
#[tokio::test]
async fn the_end_is_the_records_own() {
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", TTL).await;
    for _ in 0..20 {
        let seen = refusal(&fixture.rival().await, "n", Duration::from_millis(100)).await;
        assert!(seen.remaining.expect("known") > TTL / 2, "{seen:?}");
    }
}

#[tokio::test]
async fn the_same_owner_gets_the_same_token_and_a_fresh_end() {
    let fixture = Fixture::new().await;
    let mut mine = request("n", TTL);
    let Attempt::Granted(first) = attempt(&fixture.backend, &mine).await else { panic!("held") };
    let (.., first_end) = row(&fixture, "n").await;
    let Attempt::Granted(again) = attempt(&fixture.backend, &mine).await else { panic!("held") };
    assert_eq!(first.token, again.token);
    assert!(row(&fixture, "n").await.3 > first_end);
    mine.token_floor = Some(first.token);
    let Attempt::Granted(floored) = attempt(&fixture.backend, &mine).await else { panic!("held") };
    assert!(floored.token > first.token, "a floor at the token asks for a larger one");
    mine.token_floor = Some(first.token);
    let Attempt::Granted(kept) = attempt(&fixture.backend, &mine).await else { panic!("held") };
    assert_eq!(kept.token, floored.token, "a floor below the token asks for nothing");
}

/// The rule of `Token::next`, in SQL: wall clock, epoch, floors and exhaustion.
#[tokio::test]
async fn tokens_follow_the_one_rule() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    let unix_us = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros() as u64;
    let before = unix_us();
    let held = grant(&fixture.backend, "n", TTL).await;
    // The statement's clock has milliseconds.
    assert!((before - 1_000..=unix_us() + 1_000).contains(&held.token.get()), "{:?}", held.token);
    release(&fixture.backend, &held).await;

    // The wall clock was an hour ahead when this token was granted, and stepped back: the counter orders.
    let ahead = (unix_us() + 3_600_000_000) as i64;
    sqlx::query("UPDATE leasehold_leases SET token = ?1")
        .bind(ahead)
        .execute(&mut raw)
        .await
        .expect("update");
    let next = grant(&fixture.backend, "n", Duration::from_millis(100)).await;
    assert_eq!(next.token.as_i64(), ahead + 1);
    let seen = refusal(&fixture.backend, "n", TTL).await;
    assert!(seen.remaining.expect("known") <= Duration::from_millis(100), "the end is not the wall clock's");
    release(&fixture.backend, &next).await;

    // An epoch: above everything, and the clock goes on below it.
    let epoch = fixture.backend.raise_epoch().await.expect("raised");
    assert_eq!(epoch, 1);
    let raised = grant(&fixture.backend, "n", TTL).await;
    assert_eq!(raised.token.epoch(), 1);
    assert!(raised.token.native() >= before, "{:?}", raised.token);
    let other = grant(&fixture.backend, "other", TTL).await;
    assert_eq!(other.token.epoch(), 1, "a name that is new has the epoch too");
    release(&fixture.backend, &raised).await;

    // The last token of the epoch is granted, and then none.
    let last = Token::from_parts(1, Token::NATIVE_MAX).expect("legal");
    let before_last = Token::from_parts(1, Token::NATIVE_MAX - 1).expect("legal");
    for (floor, expected) in [(before_last, Some(last)), (last, None)] {
        for text in ["n", "fresh"] {
            let mut mine = request(text, TTL);
            mine.token_floor = Some(floor);
            match (fixture.backend.acquire(&mine).await, expected) {
                (Ok(Attempt::Granted(grant)), Some(expected)) => {
                    assert_eq!(grant.token, expected);
                    release(&fixture.backend, &grant).await;
                }
                (Err(e), None) => {
                    assert_eq!(e.kind(), ErrorKind::TokenRegression, "{e}");
                    assert_eq!(e.effect(), leasehold_core::Effect::None);
                }
                (answer, _) => panic!("{text} above {floor}: {answer:?}"),
            }
        }
    }
    // Their rows hold the last token of the epoch now: exhausted without any floor in the request.
    let exhausted = fixture.backend.acquire(&request("n", TTL)).await;
    assert_eq!(exhausted.expect_err("exhausted").kind(), ErrorKind::TokenRegression);
    assert_eq!(fixture.backend.raise_epoch().await.expect("raised"), 2);
    assert_eq!(grant(&fixture.backend, "n", TTL).await.token.epoch(), 2);
}

/// B01, B02: whatever happens to the row, later tokens are larger.
#[tokio::test]
async fn tokens_grow_across_deleted_rows() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    let ahead = (std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros() + 3_600_000_000) as i64;
    let mut highest = token(1);
    let mut first = None;
    for round in 0..6 {
        let held = grant(&fixture.backend, "n", TTL).await;
        assert!(held.token > highest, "round {round}: {:?} after {highest:?}", held.token);
        highest = held.token;
        if round == 1 {
            // As if the wall clock stepped back by an hour now: it cannot hide a lost counter any more.
            sqlx::query("UPDATE leasehold_leases SET token = ?1")
                .bind(ahead)
                .execute(&mut raw)
                .await
                .expect("ok");
            highest = Token::try_from(ahead).expect("legal");
        }
        if round % 2 == 0 {
            release(&fixture.backend, &held).await;
        }
        sqlx::query("DELETE FROM leasehold_leases").execute(&mut raw).await.expect("deleted by a person");
        first.get_or_insert(held);
    }
    let held = grant(&fixture.backend, "n", TTL).await;
    let first = first.expect("a first grant");
    assert!(matches!(release(&fixture.backend, &first).await, Released::NotHeld { .. }));
    assert!(matches!(renew(&fixture.backend, &first).await, RenewAnswer::Lost(LostCause::Taken { .. })));
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
    sqlx::query("DELETE FROM leasehold_leases").execute(&mut raw).await.expect("deleted by a person");
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::StoreForgot { .. })));
}

/// B02: names come and go, the table stays small, and the floor goes with the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn churned_names_are_collected_and_tokens_never_regress() {
    const NAMES: usize = 40_000;
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    let held = grant(&fixture.backend, "held all the time", TTL).await;
    let mut largest_table = 0;
    let mut highest_ever = held.token;
    for n in 0..NAMES {
        let grant = grant(&fixture.backend, &format!("churn/{n}"), TTL).await;
        highest_ever = highest_ever.max(grant.token);
        release(&fixture.backend, &grant).await;
        if n % 500 == 0 {
            let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM leasehold_leases")
                .fetch_one(&mut raw)
                .await
                .expect("count");
            largest_table = largest_table.max(rows);
        }
    }
    let floor: i64 = sqlx::query_scalar("SELECT value FROM leasehold_meta WHERE key = 'floor'")
        .fetch_one(&mut raw)
        .await
        .expect("floor");
    let upkeep = fixture.backend.counters().upkeep;
    println!("{NAMES} names, at most {largest_table} rows, {upkeep} statements of upkeep");
    assert!(upkeep >= 40_000 / 256, "it was collected: {upkeep}");
    assert!(largest_table < 4_000, "bounded however many names come and go: {largest_table}");
    assert!(floor > held.token.as_i64() && floor <= highest_ever.as_i64());
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Renewed { .. }));
    // A collected name: its next token is above its last, even if the wall clock were back at zero.
    let row: Option<i64> = sqlx::query_scalar("SELECT token FROM leasehold_leases WHERE name = 'churn/1'")
        .fetch_optional(&mut raw)
        .await
        .expect("look");
    assert_eq!(row, None, "an early name was collected");
    let again = grant(&fixture.backend, "churn/1", TTL).await;
    assert!(again.token.as_i64() > floor);
}

#[tokio::test]
async fn a_kept_name_has_no_owner_and_is_freed_by_time_alone() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let mut kept = ReleaseRequest::new(held.claim(), now());
    kept.keep_for = Duration::from_millis(300);
    let until_free = kept.sent_at + kept.keep_for;
    assert!(matches!(fixture.backend.release(&kept).await, Ok(Released::Released)));
    let seen = refusal(&fixture.backend, "n", TTL).await;
    assert!(seen.holder.is_none() && seen.remaining.expect("known") <= kept.keep_for, "{seen:?}");
    let again = fixture.backend.release(&ReleaseRequest::new(held.claim(), now())).await;
    assert!(matches!(again, Ok(Released::AlreadyReleased)), "{again:?}");
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::ExpiredInStore)));
    let inspection = fixture.backend.inspect(&name("n")).await.expect("inspect");
    assert!(inspection.holders.is_empty() && inspection.free_in.is_some());
    let (next, _) = until("the name is free", Duration::from_secs(5), async || {
        match attempt(&fixture.backend, &request("n", TTL)).await {
            Attempt::Granted(next) => Some(next),
            Attempt::Held(_) => None,
        }
    })
    .await;
    assert!(now() >= until_free, "it was kept for its time");
    assert!(next.token > held.token);
}

#[tokio::test]
async fn a_forced_release_compares_the_token_and_tells_why() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let wrong = ForceRelease::new(name("n"), token(7), "ops", "stuck", now());
    assert!(matches!(fixture.backend.force_release(&wrong).await, Ok(Released::NotHeld { by: Some(_) })));
    let mut right = ForceRelease::new(name("n"), held.token, "ops@host", "job hangs: \"#42\"", now());
    right.keep_for = Duration::from_millis(200);
    assert!(matches!(fixture.rival().await.force_release(&right).await, Ok(Released::Released)));
    let RenewAnswer::Lost(LostCause::Revoked { by, reason }) = renew(&fixture.backend, &held).await else {
        panic!("not told why")
    };
    assert_eq!((by.as_str(), reason.as_str()), ("ops@host", "job hangs: \"#42\""));
    refusal(&fixture.backend, "n", TTL).await;
    let (next, _) = until("the delay is over", Duration::from_secs(5), async || {
        match attempt(&fixture.backend, &request("n", TTL)).await {
            Attempt::Granted(next) => Some(next),
            Attempt::Held(_) => None,
        }
    })
    .await;
    assert!(next.token > held.token);
    // The next holder does not hide the reason from the old one.
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::Revoked { .. })));
    assert!(matches!(fixture.backend.force_release(&right).await, Ok(Released::NotHeld { .. })));
    release(&fixture.backend, &next).await;
    assert!(matches!(fixture.backend.force_release(&right).await, Ok(Released::AlreadyReleased)));
    right.reason = "x".repeat(1025);
    let refused = fixture.backend.force_release(&right).await.expect_err("too long");
    assert_eq!(refused.kind(), ErrorKind::ConfigInvalid);
}

#[tokio::test]
async fn a_list_is_sorted_paged_and_literal_about_its_prefix() {
    let fixture = Fixture::new().await;
    let names = ["a", "a%b", "a_b", "a*b", "ab", "a\u{10ffff}", "b", "é/1", "é/2", "A"];
    for text in names {
        grant(&fixture.backend, text, TTL).await;
    }
    let gone = grant(&fixture.backend, "a released", TTL).await;
    release(&fixture.backend, &gone).await;
    let listed = async |prefix: &str, page: &Page| {
        let found = LeaseAdmin::list(&fixture.backend, prefix, page).await.expect("list");
        found.into_iter().map(|i| i.name.as_str().to_owned()).collect::<Vec<_>>()
    };
    let mut sorted = names.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(listed("", &Page::first()).await, sorted);
    assert_eq!(listed("a%", &Page::first()).await, ["a%b"]);
    assert_eq!(listed("a_", &Page::first()).await, ["a_b"]);
    assert_eq!(listed("a*", &Page::first()).await, ["a*b"]);
    assert_eq!(listed("a", &Page::first()).await, ["a", "a%b", "a*b", "a_b", "ab", "a\u{10ffff}"]);
    assert_eq!(listed("é/", &Page::after(name("é/1"))).await, ["é/2"]);
    let mut two = Page::first();
    two.limit = 2;
    assert_eq!(listed("a", &two).await, ["a", "a%b"]);
}

/// B117: rows that leasehold did not write are told apart, left alone, and never granted over.
#[tokio::test]
async fn unreadable_rows_are_corrupt_and_stay_as_they_are() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    sqlx::query("PRAGMA ignore_check_constraints = ON").execute(&mut raw).await.expect("pragma");
    for (case, damage) in [
        "format = 99",
        "format = 'v0'",
        "owner = 'somebody'",
        "owner = x'00112233445566778899aabbccddeeff'",
        "owner = 'ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ'",
        "token = 0",
        "token = -5",
        "token = 'seven'",
        "token = 1.5",
        "seq = 'x'",
        "expires_us = 'never'",
        "expires_us = x'00'",
        "expires_us = -1",
        "ttl_us = 'x'",
        "ttl_us = -1",
        "clock_id = x'ff00'",
        "acquired_ms = 'x'",
        "info = x'ff'",
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!("case {case}");
        let held = grant(&fixture.backend, &text, TTL).await;
        // Every second one is free, so that nothing but the damage keeps it from being granted.
        if case % 2 == 1 || !damage.starts_with("owner") && !damage.starts_with("expires") {
            release(&fixture.backend, &held).await;
        }
        let sql = format!("UPDATE leasehold_leases SET {damage} WHERE name = '{text}'");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&mut raw)
            .await
            .unwrap_or_else(|e| panic!("{damage}: {e}"));
        let dump = "SELECT quote(format) || quote(owner) || quote(token) || quote(seq) || quote(expires_us)
                    || quote(ttl_us) || quote(clock_id) || quote(info) FROM leasehold_leases WHERE name = ?1";
        let before: String = sqlx::query_scalar(dump).bind(&text).fetch_one(&mut raw).await.expect("dump");
        let error = fixture.backend.acquire(&request(&text, TTL)).await.expect_err("not granted");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
        assert!(error.to_string().contains(&text), "{error}");
        let looked = fixture.backend.inspect(&name(&text)).await.expect_err("not readable");
        assert_eq!(looked.kind(), ErrorKind::Corrupt, "{damage}: {looked}");
        for shown in [error.to_string(), looked.to_string()] {
            assert!(!shown.contains(&held.owner.to_hex()), "an owner id is a capability");
        }
        let after: String = sqlx::query_scalar(dump).bind(&text).fetch_one(&mut raw).await.expect("dump");
        assert_eq!(before, after, "{damage}");
    }
    // Names that are none: only a list meets them.
    sqlx::query(
        "INSERT INTO leasehold_leases (name, format, owner, token, seq, expires_us, ttl_us, clock_id, acquired_ms, info)
         VALUES ('bad' || char(10), 1, NULL, 5, 1, 5, 5, 'x', 0, '')",
    )
    .execute(&mut raw)
    .await
    .expect("insert");
    let error = LeaseAdmin::list(&fixture.backend, "bad", &Page::first()).await.expect_err("no name");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // The rest goes on.
    grant(&fixture.backend, "healthy", TTL).await;
}

#[tokio::test]
async fn a_renewal_writes_a_larger_floor() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let floor = Token::new(held.token.get() + 3_600_000_000).expect("legal");
    let mut renewal = Renewal::new(held.claim(), TTL, now());
    renewal.token_floor = Some(floor);
    let answer = fixture.backend.renew(&[renewal.clone()]).await.remove(0);
    assert!(matches!(answer, Ok(RenewAnswer::Renewed { .. })), "{answer:?}");
    let inspection = fixture.backend.inspect(&name("n")).await.expect("inspect");
    assert!(inspection.holder().expect("held").token > floor);
    // One exhausted floor in a batch refuses that one only.
    let other = grant(&fixture.backend, "other", TTL).await;
    renewal.token_floor = Some(Token::from_parts(3, Token::NATIVE_MAX).expect("legal"));
    let batch = [Renewal::new(other.claim(), TTL, now()), renewal];
    let answers = fixture.backend.renew(&batch).await;
    assert!(matches!(answers[0], Ok(RenewAnswer::Renewed { .. })), "{answers:?}");
    assert_eq!(answers[1].as_ref().expect_err("exhausted").kind(), ErrorKind::TokenRegression);
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let fixture = Fixture::new().await;
    let (a, b) = (grant(&fixture.backend, "a", TTL).await, grant(&fixture.backend, "b", TTL).await);
    let ghost = leasehold_core::Claim::new(name("nobody's"), OwnerId::random(), None);
    let forged = leasehold_core::Claim::new(name("a"), OwnerId::random(), None);
    let claims = [ghost, b.claim(), forged, a.claim()];
    let batch: Vec<Renewal> = claims.into_iter().map(|claim| Renewal::new(claim, TTL, now())).collect();
    let answers = fixture.backend.renew(&batch).await;
    assert!(matches!(answers[0], Ok(RenewAnswer::Lost(LostCause::StoreForgot { .. }))), "{answers:?}");
    assert!(matches!(answers[1], Ok(RenewAnswer::Renewed { .. })));
    assert!(matches!(answers[2], Ok(RenewAnswer::Lost(LostCause::Taken { .. }))));
    assert!(matches!(answers[3], Ok(RenewAnswer::Renewed { .. })));
    assert!(fixture.backend.renew(&[]).await.is_empty());
}

#[tokio::test]
async fn a_closed_backend_answers_closed() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    fixture.backend.close().await;
    fixture.backend.close().await;
    let error = fixture.backend.acquire(&request("n", TTL)).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    let renewal = Renewal::new(held.claim(), TTL, now());
    assert_eq!(
        fixture.backend.renew(&[renewal]).await.remove(0).expect_err("closed").kind(),
        ErrorKind::Closed
    );
    assert_eq!(fixture.backend.probe().await.expect_err("closed").kind(), ErrorKind::Closed);
    // The grant stands.
    refusal(&fixture.rival().await, "n", TTL).await;
}

/// B51: from its first write on, a row says when it ends.
#[tokio::test]
async fn no_row_is_without_an_end() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    renew(&fixture.backend, &held).await;
    let mut raw = fixture.raw().await;
    let schema: String = sqlx::query_scalar("SELECT sql FROM sqlite_schema WHERE name = 'leasehold_leases'")
        .fetch_one(&mut raw)
        .await
        .expect("schema");
    assert!(schema.contains("expires_us  INTEGER NOT NULL"), "{schema}");
    let refused = sqlx::query("UPDATE leasehold_leases SET expires_us = NULL").execute(&mut raw).await;
    assert!(refused.is_err());
}

/// The capability table of the documentation says what the profile says.
#[test]
fn the_documentation_tells_the_profile() {
    let profile = leasehold_sqlite::SqliteBackend::PROFILE;
    let docs = include_str!("../docs.md");
    let days = profile.ttl_max.as_secs() / 86_400;
    for row in [
        format!("| name | `{}` |", profile.name),
        format!(
            "| expiry | ttl, {:?} to {days} days, in steps of {:?} |",
            profile.ttl_min, profile.ttl_granularity
        ),
        format!("| margin | {:?} |", profile.margin),
        format!("| renewals in one call | {} |", profile.batch_max),
    ] {
        let row = row.replace("ms", " ms").replace("µs", " µs");
        assert!(docs.contains(&row), "docs.md has no row {row:?}");
    }
    for parameter in leasehold_sqlite::SqliteConfig::PARAMS {
        assert!(docs.contains(&format!("| `{parameter}` |")), "docs.md does not tell of {parameter}");
    }
}
