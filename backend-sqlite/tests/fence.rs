//! The resource's side, and what a user's transactions do to leases in the same file.

mod support;

use std::time::{Duration, Instant};

use leasehold_core::{Fenced, LeaseBackend, LeaseClient, LeaseState, Settings, TryAcquire};
use leasehold_sqlite::{FenceError, fence, prepare_fence};
use sqlx::{Connection, Executor};
use support::*;

#[tokio::test]
async fn mark_and_write_are_one_transaction_of_the_user() {
    let fixture = Fixture::new().await;
    let mut app = fixture.raw().await;
    app.execute("CREATE TABLE report (line TEXT)").await.expect("table");
    let n = name("n");
    let mut tx = app.begin().await.expect("begun");
    assert!(matches!(fence(&mut tx, &n, token(5)).await, Err(FenceError::NotPrepared)));
    tx.rollback().await.expect("rolled back");
    prepare_fence(&mut app).await.expect("prepared");
    prepare_fence(&mut app).await.expect("prepared twice");

    let mut tx = app.begin().await.expect("begun");
    fence(&mut tx, &n, token(8)).await.expect("accepted");
    tx.execute("INSERT INTO report VALUES ('eight')").await.expect("written");
    tx.commit().await.expect("committed");

    // A transaction that is rolled back leaves no mark.
    let mut tx = app.begin().await.expect("begun");
    fence(&mut tx, &n, token(100)).await.expect("accepted");
    tx.rollback().await.expect("rolled back");

    let mut tx = app.begin().await.expect("begun");
    let Err(FenceError::Stale(stale)) = fence(&mut tx, &n, token(7)).await else { panic!("accepted") };
    assert_eq!((stale.presented, stale.highest), (token(7), token(8)));
    tx.rollback().await.expect("rolled back");
    fence(&mut app, &n, token(8)).await.expect("the same token again");
    fence(&mut app, &name("another"), token(1)).await.expect("another name");
    let lines: i64 =
        sqlx::query_scalar("SELECT count(*) FROM report").fetch_one(&mut app).await.expect("count");
    assert_eq!(lines, 1);
    app.execute("PRAGMA ignore_check_constraints = ON; UPDATE leasehold_fence SET highest = 'x'")
        .await
        .expect("ok");
    assert!(matches!(fence(&mut app, &n, token(9)).await, Err(FenceError::Corrupt)));
}

#[tokio::test]
async fn fenced_values_refuse_a_late_writer() {
    let fixture = Fixture::new().await;
    let store = fixture.backend.facets().fenced.expect("declared");
    let n = name("n");
    assert!(store.get(&n, "k").await.expect("answers").is_none(), "before any table is there");
    assert_eq!(store.put(&n, "k", b"eight", token(8)).await.expect("answers"), Fenced::Accepted);
    assert!(matches!(store.put(&n, "k", b"seven", token(7)).await.expect("answers"), Fenced::Stale(_)));
    let value = store.get(&n, "k").await.expect("answers").expect("written");
    assert_eq!((value.value.as_slice(), value.token), (&b"eight"[..], token(8)));
    assert_eq!(store.advance(&n, token(9)).await.expect("answers"), Fenced::Accepted);
    assert!(matches!(store.put(&n, "k", b"eight again", token(8)).await.expect("answers"), Fenced::Stale(_)));
    for key in ["a%", "a_", "ab", "b"] {
        store.put(&n, key, b"", token(9)).await.expect("answers");
    }
    assert_eq!(store.list(&n, "a_").await.expect("answers"), ["a_"]);
    assert_eq!(store.list(&n, "a").await.expect("answers"), ["a%", "a_", "ab"]);
    assert!(matches!(store.purge(&n, token(8)).await.expect("answers"), Fenced::Stale(_)));
    assert_eq!(store.purge(&n, token(9)).await.expect("answers"), Fenced::Accepted);
    assert!(store.list(&n, "").await.expect("answers").is_empty());
    assert!(
        matches!(store.advance(&n, token(8)).await.expect("answers"), Fenced::Stale(_)),
        "the mark stays"
    );
    assert!(store.put(&n, "", b"", token(9)).await.is_err());
}

/// A transaction of the user that holds the write lock of the same file for `hold`; whether the lease outlived it.
async fn lease_beside_a_transaction(ttl: Duration, hold: Duration) -> (LeaseState, Duration) {
    let fixture = Fixture::new().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let settings = Settings::new().ttl(ttl);
    let TryAcquire::Granted(lease) = client.try_acquire(&name("n"), &settings).await.expect("answers") else {
        panic!("held")
    };
    let mut app = fixture.raw().await;
    prepare_fence(&mut app).await.expect("prepared");
    let mut tx = app.begin().await.expect("begun");
    fence(&mut tx, lease.name(), lease.token()).await.expect("accepted");
    let started = Instant::now();
    let state = tokio::select! {
        over = lease.lost() => over.state,
        () = tokio::time::sleep(hold) => lease.state(),
    };
    let took = started.elapsed();
    tx.commit().await.expect("committed");
    if !state.is_over() {
        // The next renewals get through.
        tokio::time::sleep(ttl).await;
        lease.check().expect("held for another ttl");
        lease.release().await.expect("released");
    }
    (state, took)
}

#[tokio::test]
async fn a_transaction_shorter_than_the_slack_costs_no_lease() {
    let ttl = Duration::from_millis(1_500);
    let (state, took) = lease_beside_a_transaction(ttl, Duration::from_millis(850)).await;
    println!("{state} after {took:?}");
    assert!(!state.is_over(), "{state}");
}

#[tokio::test]
async fn a_longer_transaction_loses_the_lease_and_says_so_on_time() {
    let ttl = Duration::from_millis(1_500);
    let (state, took) = lease_beside_a_transaction(ttl, Duration::from_secs(6)).await;
    println!("{state} after {took:?}");
    assert!(state.is_loss(), "{state}");
    assert!(took <= ttl + Duration::from_millis(100), "{took:?}");
}
