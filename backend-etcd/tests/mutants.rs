//! The defects planted in this store's own transactions and leases are found by the shared suite.
//!
//! They are compiled only with `--cfg leasehold_mutants`; without it this test says how to run it.

#[cfg(not(leasehold_mutants))]
fn main() {
    println!(
        "no defects are compiled in; run:\n  RUSTFLAGS=\"--cfg leasehold_mutants\" CARGO_TARGET_DIR=target/mutants \
         cargo test -p leasehold-etcd --test mutants"
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
    const SICK: Limits = Limits { case: Duration::from_secs(12), patience: Duration::from_millis(300) };

    /// Each defect, and the cases that find it.
    const DEFECTS: &[(Mutant, &[&str])] = &[
        (Mutant::EtcdAnchorOfTheAcquire, &["expiry/second_grant_promises_no_more_than_the_store"]),
        (Mutant::EtcdEndedNameStays, &["expiry/neighbour_keeps_no_grant_alive"]),
        (Mutant::EtcdKeepAliveProvesTheKey, &["fault/lost_record_is_told_and_tokens_rise"]),
        (Mutant::EtcdReleaseIgnoresOwner, &["admin/forced_release_raises_the_floor"]),
    ];

    pub(super) fn main() -> ExitCode {
        // A planted defect may well panic somewhere: the failure that it causes is what counts.
        std::panic::set_hook(Box::new(|_| {}));
        let mut errors = Vec::new();
        for (defect, cases) in DEFECTS {
            for case in *cases {
                match CASES.iter().find(|known| known.name == *case) {
                    Some(case) => prove(*defect, case, &mut errors),
                    None => errors.push(format!("{case} is no case")),
                }
            }
        }
        for error in &errors {
            println!("ERROR: {error}");
        }
        println!("{} defects, {} errors", DEFECTS.len(), errors.len());
        if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn prove(defect: Mutant, case: &'static Case, errors: &mut Vec<String>) {
        let factory: Factory = Arc::new(|| Box::new(harness::plain()));
        plant(None);
        if let Err(why) = run_case(case, &factory, Limits::default()) {
            errors.push(format!("the healthy build fails {}: {why}", case.name));
        }
        plant(Some(defect));
        match run_case(case, &factory, SICK) {
            Err(why) => {
                let why = why.lines().next().unwrap_or_default();
                println!("{} is found by {}: {why}", defect.name(), case.name);
            }
            Ok(()) => errors.push(format!("{} does not find {}", case.name, defect.name())),
        }
        plant(None);
    }
}
