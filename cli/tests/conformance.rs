//! `leasehold conformance` judges a store that others use, and leaves theirs alone.

#![cfg(feature = "sqlite")]

mod common;

use std::collections::BTreeMap;

use common::{Bench, Ran, SOON, finish_started};
use leasehold_testkit::{Proc, eventually};
use serde_json::Value;
use sqlx::{Column, Connection, Row, TypeInfo, ValueRef};

/// Every row of every table that is not the run's, as text, byte for byte.
fn rows(bench: &Bench) -> BTreeMap<String, Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut raw = sqlx::SqliteConnection::connect(&bench.url()).await.expect("the store's file");
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut raw).await.expect("a schema");
        let mut found = BTreeMap::new();
        for table in tables {
            let sql = format!("SELECT * FROM \"{table}\"");
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut raw).await.expect("rows");
            let mut rows: Vec<String> = rows.iter().map(text).collect();
            rows.sort();
            found.insert(table, rows);
        }
        found
    })
}

fn text(row: &sqlx::sqlite::SqliteRow) -> String {
    let value = |at: usize| {
        let raw = row.try_get_raw(at).expect("a column");
        let (name, kind) = (row.column(at).name(), raw.type_info().name().to_owned());
        if raw.is_null() {
            return format!("{name}:NULL=");
        }
        let bytes = row.try_get_unchecked::<Vec<u8>, _>(at).unwrap_or_default();
        format!("{name}:{kind}={bytes:?}")
    };
    (0..row.columns().len()).map(value).collect::<Vec<_>>().join(" ")
}

fn lines(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("JSON: {line}"))).collect()
}

fn event<'a>(lines: &'a [Value], word: &str) -> &'a Value {
    lines.iter().find(|line| line["event"] == word).unwrap_or_else(|| panic!("no {word} in {lines:?}"))
}

#[test]
fn the_whole_table_passes_and_what_others_made_stays_byte_for_byte() {
    let bench = Bench::new();
    // Others: a holder, a name kept taken, a fence, and a name that looks like ours.
    let holders = ["theirs", "conformance", "conformance-0123456789ab/x"].map(|name| {
        let up = format!("up-{}", name.len());
        let job =
            bench.start(&["--ttl", "1h", name, "--", "sh", "-c", &format!("echo up >{up}; exec sleep 600")]);
        bench.written(&up);
        job
    });
    assert_eq!(bench.ran(&["run", "--min-hold", "1h", "kept", "--", "true"]).code, 0);
    assert_eq!(bench.ran(&["fence", "theirs", "--token", "77"]).code, 0);
    let before = rows(&bench);
    // Longer than other commands: it waits for many leases to run out.
    let ran: Ran = bench.program().args(["conformance", "--json"]).output().expect("it starts").into();
    let said = lines(&ran.stdout);
    let failed: Vec<_> = said.iter().filter(|line| line["result"] == "failed").collect();
    assert_eq!((ran.code, failed.as_slice()), (0, &[][..]), "{}", ran.stderr);
    let (store, exit) = (event(&said, "store"), event(&said, "exit"));
    let cases = said.iter().filter(|line| line["event"] == "case").count();
    assert_eq!(store["cases"], cases, "{exit}");
    assert!(exit["passed"].as_u64() > Some(90) && exit["name"] == "ok", "{exit}");
    for ignored in said.iter().filter(|line| line["result"] == "ignored") {
        assert!(ignored["reason"].as_str().is_some_and(|why| !why.is_empty()), "{ignored}");
    }
    let whole = ["floor_of_all_binds_every_name", "raised_epoch_lifts_every_token"];
    for case in whole {
        let row = said.iter().find(|line| line["case"] == format!("admin/{case}")).expect("a row");
        assert_eq!(row["result"], "ignored", "{row}");
    }
    let cleaned = event(&said, "cleaned");
    assert_eq!(cleaned["left"], Value::Array(Vec::new()));
    let prefix = store["prefix"].as_str().expect("text");
    let listed = bench.ran(&["list", prefix, "-o", "json"]);
    assert_eq!(listed.stdout.trim(), "[]", "taken under the prefix");
    // What others made is there as it was; what came is the run's, or a floor.
    let after = rows(&bench);
    for (table, rows) in &before {
        if table == "leasehold_meta" {
            continue;
        }
        for row in rows {
            assert!(after[table].contains(row), "{table} had {row}");
        }
    }
    // What came are free rows, if any: they keep a floor until they are collected.
    let came: Vec<&String> =
        after["leasehold_leases"].iter().filter(|row| !before["leasehold_leases"].contains(row)).collect();
    let ours = format!("name:TEXT={}", format!("{:?}", prefix.as_bytes()).trim_end_matches(']'));
    let strange = came.iter().find(|row| !row.starts_with(&ours));
    assert_eq!(strange, None, "of another prefix than {prefix}");
    let held = came.iter().find(|row| !row.contains("owner:NULL="));
    assert_eq!(held, None, "left held");
    drop(holders);
}

#[test]
fn a_filter_chooses_and_lines_are_those_of_a_test_run() {
    let bench = Bench::new();
    let ran = bench.ran(&["conformance", "--filter", "mutex/second_holder"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("declares:\n  expiry: a time to live in each record"), "{}", ran.stdout);
    assert!(ran.stdout.contains("\ntest mutex/second_holder_is_refused ... ok\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("\ntest result: ok. 1 passed; 0 failed; 0 ignored; finished in "));
    let ran = bench.ran(&["conformance", "--filter", "no/such_case"]);
    assert_eq!(ran.code, 64, "{ran:?}");
    for store in ["nosuch://x", "sqlite:///dev/null/leases.db", "sqlite:///proc/leases.db"] {
        let ran = bench.ran(&["conformance", "--store", store]);
        assert!(matches!(ran.code, 69 | 77 | 78) && ran.stdout.is_empty(), "{store}: {ran:?}");
    }
}

#[test]
fn a_store_that_breaks_a_promise_fails_with_what_it_was_asked() {
    let bench = Bench::new();
    assert_eq!(bench.ran(&["init"]).code, 0);
    // A release is acknowledged, and the name stays taken.
    bench.alter(
        "CREATE TRIGGER keeps AFTER UPDATE OF owner ON leasehold_leases WHEN NEW.owner IS NULL
         BEGIN UPDATE leasehold_leases SET expires_us = OLD.expires_us WHERE name = NEW.name; END",
    );
    let ran = bench.ran(&["conformance", "--filter", "mutex/second_holder"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("... FAILED\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("lines of the history"), "{}", ran.stdout);
    assert!(ran.stdout.contains("test result: FAILED. 0 passed; 1 failed;"), "{}", ran.stdout);
}

#[test]
fn an_interrupted_run_cleans_up_too() {
    let bench = Bench::new();
    let mut program = bench.program();
    program.args(["conformance", "--json", "--filter", "release/"]);
    let run = Proc::spawn(&mut program).expect("the program starts");
    let taken = || {
        let listed = bench.ran(&["list", "conformance-"]);
        (listed.code == 0 && listed.stdout.contains("conformance-")).then_some(())
    };
    eventually(SOON, "a case holds something; most do for a second", taken);
    run.signal(rustix::process::Signal::INT);
    let ran = finish_started(run);
    assert_eq!(ran.code, 130, "{ran:?}");
    let said = lines(&ran.stdout);
    assert_eq!(event(&said, "exit")["name"], "interrupted");
    assert_eq!(event(&said, "cleaned")["left"], Value::Array(Vec::new()));
    assert!(bench.ran(&["list", "conformance-", "-o", "json"]).stdout.trim() == "[]", "taken afterwards");
}
