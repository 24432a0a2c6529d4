//! The defects planted in this store's own statements are found.
//!
//! They are compiled only with `--cfg leasehold_mutants`; without it this test says how to run it. The shared
//! suite knows one clock only: what a row of another clock may do is asked here.

#[cfg(not(leasehold_mutants))]
fn main() {
    println!(
        "no defects are compiled in; run:\n  RUSTFLAGS=\"--cfg leasehold_mutants\" CARGO_TARGET_DIR=target/mutants \
         cargo test -p leasehold-sqlite --test mutants"
    );
}

#[cfg(leasehold_mutants)]
#[path = "conformance/harness.rs"]
mod harness;
#[cfg(leasehold_mutants)]
mod support;

#[cfg(leasehold_mutants)]
fn main() -> std::process::ExitCode {
    prove::main()
}

#[cfg(leasehold_mutants)]
mod prove {
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold_conformance::{CASES, Case, Factory, Limits, run_case};
    use leasehold_core::Attempt;
    use leasehold_core::mutant::{Mutant, plant};

    use super::harness::Sqlite;
    use super::support::{Fixture, TTL, attempt, grant, request};

    /// A case that a defect keeps from ending is stopped early.
    const SICK: Limits = Limits { case: Duration::from_secs(8), patience: Duration::from_millis(300) };

    pub(super) fn main() -> ExitCode {
        // A planted defect may well panic somewhere: the failure that it causes is what counts.
        std::panic::set_hook(Box::new(|_| {}));
        let mut errors = Vec::new();
        release_ignores_owner(&mut errors);
        takeover_of_a_foreign_clock(&mut errors);
        for error in &errors {
            println!("ERROR: {error}");
        }
        println!("2 defects, {} errors", errors.len());
        if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The cases that find it in memory find it in the SQL.
    fn release_ignores_owner(errors: &mut Vec<String>) {
        let factory: Factory = Arc::new(|| Box::new(Sqlite::default()));
        let claimed: Vec<&'static Case> =
            CASES.iter().filter(|case| case.proven_by.contains(&"ReleaseIgnoresOwner")).collect();
        if claimed.is_empty() {
            errors.push("no case claims ReleaseIgnoresOwner".to_owned());
        }
        for case in claimed {
            plant(None);
            if let Err(why) = run_case(case, &factory, Limits::default()) {
                errors.push(format!("the healthy build fails {}: {why}", case.name));
            }
            plant(Some(Mutant::SqliteReleaseIgnoresOwner));
            match run_case(case, &factory, SICK) {
                Err(why) => println!("SqliteReleaseIgnoresOwner is found by {}: {why}", case.name),
                Ok(()) => errors.push(format!("{} does not find SqliteReleaseIgnoresOwner", case.name)),
            }
            plant(None);
        }
    }

    /// A rival whose boot clock is far ahead of the holder's asks for a live lease.
    fn takeover_of_a_foreign_clock(errors: &mut Vec<String>) {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let is_taken = || {
            runtime.block_on(async {
                let fixture = Fixture::new().await;
                let young = fixture.foreigner("a machine that has just booted+0.0").await;
                grant(&young, "n", TTL).await;
                let just_booted = "UPDATE leasehold_leases SET expires_us = ttl_us + 1";
                sqlx::query(just_booted).execute(&mut fixture.raw().await).await.expect("a young clock");
                matches!(attempt(&fixture.backend, &request("n", TTL)).await, Attempt::Granted(_))
            })
        };
        if is_taken() {
            errors.push("the healthy build takes a live lease of another clock".to_owned());
        }
        plant(Some(Mutant::SqliteTakeoverOfForeignClock));
        match is_taken() {
            true => {
                println!("SqliteTakeoverOfForeignClock is found: a live lease of another clock was taken")
            }
            false => errors.push("SqliteTakeoverOfForeignClock is not found".to_owned()),
        }
        plant(None);
    }
}
