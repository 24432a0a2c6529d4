//! The defects planted in this store's own scripts are found by the shared suite.
//!
//! They are compiled only with `--cfg leasehold_mutants`; without it this test says how to run it.

#[cfg(not(leasehold_mutants))]
fn main() {
    println!(
        "no defects are compiled in; run:\n  RUSTFLAGS=\"--cfg leasehold_mutants\" CARGO_TARGET_DIR=target/mutants \
         cargo test -p leasehold-redis --test mutants"
    );
}

#[cfg(leasehold_mutants)]
mod harness;

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
    use leasehold_core::mutant::{Mutant, plant};

    use super::harness;

    /// A case that a defect keeps from ending is stopped early.
    const SICK: Limits = Limits { case: Duration::from_secs(8), patience: Duration::from_millis(300) };

    /// Each defect, and the one in memory whose cases find it. The clock comes first: other cases raise the floor of
    /// the whole namespace above it.
    const DEFECTS: [(Mutant, &str); 3] = [
        (Mutant::RedisTokenWithoutClock, "TokenWithoutClock"),
        (Mutant::RedisReleaseIgnoresOwner, "ReleaseIgnoresOwner"),
        (Mutant::RedisRefusalUnmarked, "WakeLost"),
    ];
    /// Cases in which somebody waits for longer than a waiter sleeps: it looks by itself then, and a wake-up that was
    /// lost may not be missed.
    const LONG_WAITS: [&str; 2] =
        ["wait/wait_may_exceed_the_ttl", "wait/waiters_of_two_processes_are_all_granted"];

    pub(super) fn main() -> ExitCode {
        // A planted defect may well panic somewhere: the failure that it causes is what counts.
        std::panic::set_hook(Box::new(|_| {}));
        let mut errors = Vec::new();
        for (defect, like) in DEFECTS {
            prove(defect, like, &mut errors);
        }
        for error in &errors {
            println!("ERROR: {error}");
        }
        println!("{} defects, {} errors", DEFECTS.len(), errors.len());
        if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn prove(defect: Mutant, like: &str, errors: &mut Vec<String>) {
        let factory: Factory = Arc::new(|| Box::new(harness::plain()));
        // What takes a fault to show is not about the scripts.
        let claimed: Vec<&'static Case> = CASES
            .iter()
            .filter(|case| case.proven_by.contains(&like) && !case.name.starts_with("fault/"))
            .filter(|case| defect != Mutant::RedisRefusalUnmarked || !LONG_WAITS.contains(&case.name))
            .collect();
        if claimed.is_empty() {
            errors.push(format!("no case claims {like}"));
        }
        for case in claimed {
            plant(None);
            if let Err(why) = run_case(case, &factory, Limits::default()) {
                errors.push(format!("the healthy build fails {}: {why}", case.name));
            }
            plant(Some(defect));
            match run_case(case, &factory, SICK) {
                Err(why) => println!("{} is found by {}: {why}", defect.name(), case.name),
                Ok(()) => errors.push(format!("{} does not find {}", case.name, defect.name())),
            }
            plant(None);
        }
    }
}
