//! The cost of a lease beside the cost of the two commits it needs. A measurement, not a check: run it with
//! `cargo test --release -p leasehold-sqlite --test speed -- --ignored --nocapture`.

mod support;

use std::time::Instant;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};
use support::*;

const ROUNDS: usize = 9;
const PAIRS: u32 = 300;

async fn raw_pairs(connection: &mut SqliteConnection) -> f64 {
    let started = Instant::now();
    for n in 0..PAIRS {
        sqlx::query(
            "INSERT INTO plain (name, owner, n) VALUES (?1, ?2, 1)
             ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, n = n + 1 WHERE owner IS NULL RETURNING n",
        )
        .bind("name")
        .bind(n.to_string())
        .fetch_all(&mut *connection)
        .await
        .expect("upsert");
        sqlx::query("UPDATE plain SET owner = NULL WHERE name = ?1 AND owner = ?2")
            .bind("name")
            .bind(n.to_string())
            .execute(&mut *connection)
            .await
            .expect("update");
    }
    f64::from(PAIRS) / started.elapsed().as_secs_f64()
}

async fn lease_pairs(fixture: &Fixture) -> f64 {
    let started = Instant::now();
    for _ in 0..PAIRS {
        let held = grant(&fixture.backend, "name", TTL).await;
        release(&fixture.backend, &held).await;
    }
    f64::from(PAIRS) / started.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a measurement"]
async fn a_pair_beside_two_raw_statements() {
    let fixture = Fixture::on_disk().await;
    let mut raw = SqliteConnectOptions::new()
        .filename(fixture.dir.path().join("raw.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await
        .expect("connect");
    sqlx::query("CREATE TABLE plain (name TEXT PRIMARY KEY, owner TEXT, n INTEGER) WITHOUT ROWID")
        .execute(&mut raw)
        .await
        .expect("table");
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // Both take each place in turn, so that drift of the disk hits both.
        let (plain, leased) = if round % 2 == 0 {
            let plain = raw_pairs(&mut raw).await;
            (plain, lease_pairs(&fixture).await)
        } else {
            let leased = lease_pairs(&fixture).await;
            (raw_pairs(&mut raw).await, leased)
        };
        println!("raw {plain:.0} pairs/s, leases {leased:.0} pairs/s, ratio {:.3}", leased / plain);
        ratios.push(leased / plain);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3} of {ROUNDS} rounds of {PAIRS} pairs", ratios[ROUNDS / 2]);
}
