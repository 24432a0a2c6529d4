//! What operators do, and what happens to a file behind leasehold's back: kept names, foreign floors, locks of
//! other programs.

mod support;

use std::time::{Duration, Instant};

use leasehold_core::{
    Attempt, BackendError, Effect, ErrorKind, ForceRelease, LeaseAdmin, LeaseBackend, LeaseClient, LostCause,
    Page, ReleaseRequest, Released, RenewAnswer, Settings,
};
use leasehold_sqlite::{SchemaMode, SqliteBackend, SqliteConfig};
use sqlx::{Executor, SqliteConnection};
use support::*;

async fn execute(raw: &mut SqliteConnection, sql: &str) {
    raw.execute(sqlx::AssertSqlSafe(sql.to_owned())).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

async fn keep(backend: &SqliteBackend, held: &leasehold_core::Grant, keep_for: Duration) {
    let mut request = ReleaseRequest::new(held.claim(), now());
    request.keep_for = keep_for;
    assert!(matches!(backend.release(&request).await, Ok(Released::Released)));
}

/// A name that is kept far too long is freed by the token of its last holder, or by the floor that is shown.
#[tokio::test]
async fn a_kept_name_is_freed_by_its_token() {
    let fixture = Fixture::new().await;
    let backend = &fixture.backend;
    let force = async |token| {
        let request = ForceRelease::new(name("k"), token, "ops", "kept too long", now());
        backend.force_release(&request).await.expect("an answer")
    };
    for by_floor in [false, true] {
        let held = grant(backend, "k", TTL).await;
        keep(backend, &held, Duration::from_secs(400 * 24 * 3600)).await;
        refusal(backend, "k", TTL).await;
        let mut wanted = held.token;
        if by_floor {
            let floor = token(held.token.get() + 1_000_000_000);
            backend.raise_floor(None, floor).await.expect("raised");
            wanted = backend.inspect(&name("k")).await.expect("inspect").token_floor.expect("shown");
            assert_eq!(wanted, floor);
        }
        let other = force(token(wanted.get() - 1)).await;
        assert!(matches!(other, Released::NotHeld { by: None }), "{other:?}");
        refusal(backend, "k", TTL).await;
        assert!(matches!(force(wanted).await, Released::Released));
        assert!(matches!(force(wanted).await, Released::AlreadyReleased));
        let next = grant(backend, "k", TTL).await;
        assert!(next.token > wanted);
        release(backend, &next).await;
    }
}

/// Freeing a name that a forced release keeps does not take the reason from the old holder.
#[tokio::test]
async fn a_second_forced_release_keeps_the_first_ones_reason() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let mut first = ForceRelease::new(name("n"), held.token, "ops", "host is gone", now());
    first.keep_for = Duration::from_secs(3600);
    assert!(matches!(fixture.backend.force_release(&first).await, Ok(Released::Released)));
    let second = ForceRelease::new(name("n"), held.token, "boss", "needed now", now());
    assert!(matches!(fixture.backend.force_release(&second).await, Ok(Released::Released)));
    let RenewAnswer::Lost(LostCause::Revoked { by, reason }) = renew(&fixture.backend, &held).await else {
        panic!("not told why")
    };
    assert_eq!((by.as_str(), reason.as_str()), ("ops", "host is gone"));
    grant(&fixture.backend, "n", TTL).await;
}

fn assert_bad_floor(error: &BackendError, case: &str) {
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::None), "{case}: {error}");
    assert!(error.message().contains("leasehold_meta"), "{case}: {error}");
    assert!(!error.message().contains("leasehold_leases"), "{case}: {error}");
}

/// A floor that is none is never ignored: it may have been larger than any token that is left.
#[tokio::test]
async fn a_floor_that_cannot_be_read_stops_every_grant() {
    for damage in [
        "UPDATE leasehold_meta SET value = 'many' WHERE key = 'floor'",
        "UPDATE leasehold_meta SET value = x'07' WHERE key = 'floor'",
        "UPDATE leasehold_meta SET value = 1.5 WHERE key = 'floor'",
        "UPDATE leasehold_meta SET value = -7 WHERE key = 'floor'",
        "DELETE FROM leasehold_meta WHERE key = 'floor'",
    ] {
        let fixture = Fixture::new().await;
        let backend = &fixture.backend;
        let held = grant(backend, "held", TTL).await;
        let free = grant(backend, "free", TTL).await;
        release(backend, &free).await;
        let mut raw = fixture.raw().await;
        execute(&mut raw, damage).await;
        for text in ["free", "fresh", "held"] {
            let mut asked = request(text, TTL);
            asked.token_floor = Some(free.token);
            let error = backend.acquire(&asked).await.expect_err("a floor may have been lost");
            assert_bad_floor(&error, damage);
        }
        assert_bad_floor(&backend.inspect(&name("free")).await.expect_err("not known"), damage);
        if !damage.starts_with("DELETE") {
            assert_bad_floor(&backend.raise_floor(None, token(5)).await.expect_err("not known"), damage);
        }
        assert_bad_floor(&backend.raise_epoch().await.expect_err("not known"), damage);
        // What is held goes on, and no row is collected: its token would be forgotten.
        assert!(matches!(renew(backend, &held).await, RenewAnswer::Renewed { .. }), "{damage}");
        backend.collect().await.expect("collected");
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM leasehold_leases")
            .fetch_one(&mut raw)
            .await
            .expect("count");
        assert_eq!(rows, 2, "{damage}");
    }
}

/// B83: a client with the default settings, at a file whose write lock another program holds, is told that it is
/// busy before its own time limit cuts it off: nothing is left unclear.
#[tokio::test]
async fn busy_is_told_before_the_caller_gives_up() {
    let fixture = Fixture::new().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let mut raw = fixture.raw().await;
    execute(&mut raw, "BEGIN IMMEDIATE").await;
    // The limit of an attempt is the ttl here, and the operation timeout there.
    for (ttl, limit) in
        [(Duration::from_secs(1), Duration::from_secs(1)), (TTL, LeaseClient::OPERATION_TIMEOUT)]
    {
        let started = Instant::now();
        let error = client
            .try_acquire(&name("free"), &Settings::new().ttl(ttl))
            .await
            .expect_err("the file is locked");
        let took = started.elapsed();
        let error = error.backend().expect("the store's").clone();
        println!("ttl {ttl:?}: {error} after {took:?}");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
        assert!(error.message().contains("busy") && took < limit, "{took:?}: {error}");
    }
    execute(&mut raw, "ROLLBACK").await;
    grant(&fixture.backend, "free", TTL).await;
}

/// The same for connecting: a file that another program has for itself.
#[tokio::test]
async fn connecting_to_a_locked_file_says_busy() {
    let fixture = Fixture::new().await;
    let path = fixture.dir.path().join("app.db");
    std::fs::write(&path, "").expect("made");
    let mut app = raw(path.clone()).await;
    execute(&mut app, "CREATE TABLE orders (id INTEGER)").await;
    execute(&mut app, "BEGIN EXCLUSIVE").await;
    let started = Instant::now();
    let error =
        SqliteBackend::connect(SqliteConfig::new(&path), fixture.context()).await.expect_err("locked");
    let took = started.elapsed();
    println!("{error} after {took:?}");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.message().contains("busy"), "{error}");
    assert!(took < LeaseClient::OPERATION_TIMEOUT, "{took:?}");
    execute(&mut app, "ROLLBACK").await;
    let backend =
        SqliteBackend::connect(SqliteConfig::new(&path), fixture.context()).await.expect("unlocked");
    assert!(matches!(attempt(&backend, &request("n", TTL)).await, Attempt::Granted(_)));
}

/// Links that lead nowhere, or in a circle, are a wrong path and not a store that is away.
#[tokio::test]
async fn links_that_lead_nowhere_are_a_wrong_path() {
    let fixture = Fixture::new().await;
    let dir = fixture.dir.path();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.join(name)).expect("linked");
    link("circle.db", "circle.db");
    link("circle", "circle");
    link("missing", "dangling");
    let long = "x".repeat(300);
    for (path, words) in [
        ("circle.db", "in a circle"),
        ("circle/leases.db", "in a circle"),
        ("dangling/leases.db", "leads nowhere"),
        ("leases.db/leases.db", "no directory"),
        (&long, "too long"),
    ] {
        let config = SqliteConfig::new(dir.join(path));
        let error = SqliteBackend::connect(config, fixture.context()).await.expect_err("refused");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::ConfigInvalid, Effect::None), "{error}");
        assert!(error.message().contains(words), "{path}: {error}");
    }
}

/// All that leasehold has made in a file.
async fn made(raw: &mut SqliteConnection) -> Vec<(String, String, Option<String>)> {
    sqlx::query_as("SELECT type, name, sql FROM sqlite_schema WHERE name LIKE '%leasehold%' ORDER BY name")
        .fetch_all(raw)
        .await
        .expect("schema")
}

/// Whatever is dropped, `init` and the next connection make it anew, and tokens go on rising: by the floor, by
/// what is left of the tokens, and by the clock.
#[tokio::test]
async fn what_was_dropped_is_made_anew_and_tokens_go_on() {
    let whole = made(&mut Fixture::new().await.raw().await).await;
    assert!(whole.len() >= 4, "{whole:?}");
    for (damage, by_init) in [
        "DROP TABLE leasehold_leases",
        "DROP TABLE leasehold_sightings",
        "DROP TRIGGER leasehold_leases_deleted",
        "DROP TABLE leasehold_meta",
        "DELETE FROM leasehold_meta",
        "DELETE FROM leasehold_meta WHERE key = 'floor'",
        "DELETE FROM leasehold_meta WHERE key = 'schema'",
        "DROP TABLE leasehold_leases; DROP TABLE leasehold_meta",
        "DROP TABLE leasehold_leases; DROP TABLE leasehold_sightings",
        "DROP TABLE leasehold_leases; DROP TABLE leasehold_sightings; DROP TABLE leasehold_meta",
    ]
    .into_iter()
    .flat_map(|damage| [(damage, false), (damage, true)])
    {
        let fixture = Fixture::new().await;
        let backend = &fixture.backend;
        // Granted while the wall clock was an hour ahead: only what is in the file can be above it now.
        let ahead = token(grant(backend, "held", TTL).await.token.get() + 3_600_000_000);
        let mut asked = request("ahead", TTL);
        asked.token_floor = Some(ahead);
        let Attempt::Granted(held) = attempt(backend, &asked).await else { panic!("held") };
        // The floor tells of it where the leases are dropped, and a sighting where both are.
        if damage == "DROP TABLE leasehold_leases" || damage.ends_with("DROP TABLE leasehold_sightings") {
            backend.raise_floor(None, held.token).await.expect("raised");
        }
        refusal(&fixture.foreigner("another clock+0.0").await, "ahead", TTL).await;
        let mut raw = fixture.raw().await;
        execute(&mut raw, damage).await;

        let mut refuse = SqliteConfig::new(fixture.path());
        refuse.schema = SchemaMode::Refuse;
        let error = SqliteBackend::connect(refuse.clone(), fixture.context()).await.expect_err("not whole");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::ConfigInvalid, Effect::None), "{error}");
        assert!(error.message().contains("leasehold init"), "{damage}: {error}");
        if by_init {
            backend.prepare().await.unwrap_or_else(|e| panic!("{damage}: {e}"));
        } else {
            fixture.rival().await.probe().await.unwrap_or_else(|e| panic!("{damage}: {e}"));
        }
        assert_eq!(made(&mut raw).await, whole, "{damage}");
        SqliteBackend::connect(refuse, fixture.context()).await.expect("whole again");

        let next = grant(backend, "fresh", TTL).await;
        if damage.contains("sightings; DROP TABLE leasehold_meta") {
            // Nothing is left that could tell: the clock alone.
            assert!(next.token < held.token, "{damage}");
        } else {
            assert!(next.token > held.token, "{damage}: {:?} after {:?}", next.token, held.token);
        }
        let answer = renew(backend, &held).await;
        if damage.contains("leasehold_leases;") || damage == "DROP TABLE leasehold_leases" {
            assert!(
                matches!(answer, RenewAnswer::Lost(LostCause::StoreForgot { .. })),
                "{damage}: {answer:?}"
            );
        } else {
            assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{damage}: {answer:?}");
        }
    }
}

/// One foreign row does not hide the rest: it is in the list, taken by nobody for ever, on whatever page.
#[tokio::test]
async fn a_list_shows_the_rest_beside_what_cannot_be_read() {
    let fixture = Fixture::new().await;
    let names = ["a", "b", "c", "d", "e"];
    for text in names {
        grant(&fixture.backend, text, TTL).await;
    }
    let mut raw = fixture.raw().await;
    execute(&mut raw, "UPDATE leasehold_leases SET format = 7 WHERE name IN ('b', 'e')").await;
    // Names that are none, between the others and after them.
    execute(
        &mut raw,
        "INSERT INTO leasehold_leases (name, format, owner, token, seq, expires_us, ttl_us, clock_id, acquired_ms, info)
         SELECT column1 || char(10), 1, NULL, 5, 1, 5, 5, 'x', 0, '' FROM (VALUES ('a'), ('b'), ('b2'), ('e'))",
    )
    .await;
    for limit in [1, 2, 3, 100] {
        let (mut found, mut page) = (Vec::new(), Page::first());
        loop {
            page.limit = limit;
            let piece = match fixture.backend.list("", &page).await {
                Ok(piece) => piece,
                // Only names that are none are left.
                Err(e) if e.kind() == ErrorKind::Corrupt && found.len() == names.len() => break,
                Err(e) => panic!("{e}"),
            };
            let full = piece.len() >= limit;
            found.extend(piece);
            match found.last() {
                Some(last) if full => page = Page::after(last.name.clone()),
                _ => break,
            }
        }
        let shown: Vec<&str> = found.iter().map(|inspection| inspection.name.as_str()).collect();
        assert_eq!(shown, names, "pages of {limit}");
        for inspection in &found {
            let is_foreign = ["b", "e"].contains(&inspection.name.as_str());
            assert_eq!(inspection.holders.is_empty(), is_foreign, "{inspection:?}");
            assert_eq!(inspection.free_in == Some(Duration::MAX), is_foreign, "{inspection:?}");
        }
    }
    let error = fixture.backend.inspect(&name("b")).await.expect_err("tells what is wrong");
    assert!(error.message().contains("format is 7"), "{error}");
    execute(&mut raw, "UPDATE leasehold_meta SET value = 'x' WHERE key = 'floor'").await;
    assert_bad_floor(&fixture.backend.list("", &Page::first()).await.expect_err("no floor"), "list");
}
