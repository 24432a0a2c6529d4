//! The suite proves itself: every planted defect is found by the cases that claim it.
//!
//! The defects are compiled only with `--cfg leasehold_mutants`; without it this test says how to
//! run it.

#[cfg(not(leasehold_mutants))]
fn main() {
    println!(
        "no defects are compiled in; run:\n  RUSTFLAGS=\"--cfg leasehold_mutants\" CARGO_TARGET_DIR=target/mutants \
         cargo test -p leasehold-conformance --test mutants"
    );
}

#[cfg(leasehold_mutants)]
#[path = "memory/harness.rs"]
mod memory;

#[cfg(leasehold_mutants)]
#[path = "plain/harness.rs"]
mod plain;

#[cfg(leasehold_mutants)]
fn main() -> std::process::ExitCode {
    prove::main()
}

#[cfg(leasehold_mutants)]
mod prove {
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use leasehold_conformance::{CASES, Case, Factory, Limits, run_case};
    use leasehold_core::mutant::{Mutant, plant};

    use super::memory::Memory;
    use super::plain::Plain;

    /// Cases that no defect proves: none, and a new one is written with its defect.
    const UNPROVEN: &[&str] = &[];
    /// Threads that run the cases of one defect.
    const THREADS: usize = 4;
    /// A case that a defect keeps from ending is stopped early.
    const SICK: Limits = Limits { case: Duration::from_secs(8), patience: Duration::from_millis(300) };

    /// Cases that search, on real threads: what one run meets depends on their interleaving, so that a busy
    /// machine may hide a defect from it. The search then goes on, so many times at most.
    const SEARCHES: &[&str] = &["history/contention_under_faults_breaks_no_property"];
    const SEARCHES_MAX: usize = 10;

    /// Defects of other stores, by the beginning of their names: their own crates show that the cases
    /// find them.
    const ELSEWHERE: &[&str] = &["Sqlite", "Redis", "Etcd"];

    /// Defects in what a store refuses: found on one that declares as little as it may.
    const PLAIN: &[Mutant] = &[Mutant::KeepForNotRefused];

    pub(super) fn main() -> ExitCode {
        // A planted defect may well panic somewhere: the failure that it causes is what counts.
        std::panic::set_hook(Box::new(|_| {}));
        let started = Instant::now();
        let factory: Factory = Arc::new(|| Box::new(Memory::default()));
        let plain: Factory = Arc::new(|| Box::new(Plain::default()));
        let mut errors = misnamed();

        let runnable: Vec<&'static Case> = CASES.iter().collect();
        plant(None);
        for (case, result) in run_all(&runnable, &factory, Limits::default()) {
            if let Err(error) = result {
                errors.push(format!("the healthy build fails {}: {error}", case.name));
            }
        }

        let mut proven = std::collections::BTreeSet::new();
        println!("{:<28} {:>5}  cases that find it", "defect", "found");
        let elsewhere = |mutant: &Mutant| ELSEWHERE.iter().any(|store| mutant.name().starts_with(store));
        let planted: Vec<Mutant> = Mutant::ALL.iter().copied().filter(|mutant| !elsewhere(mutant)).collect();
        for &mutant in &planted {
            let claimed: Vec<&'static Case> =
                runnable.iter().copied().filter(|case| case.proven_by.contains(&mutant.name())).collect();
            if claimed.is_empty() {
                errors.push(format!("no case claims {mutant:?}: {}", mutant.sentence()));
            }
            plant(Some(mutant));
            let factory = if PLAIN.contains(&mutant) { &plain } else { &factory };
            let mut results = run_all(&claimed, factory, SICK);
            for (case, result) in &mut results {
                let mut runs = 1;
                while result.is_ok() && SEARCHES.contains(&case.name) && runs < SEARCHES_MAX {
                    *result = run_case(case, factory, SICK);
                    runs += 1;
                }
                if runs > 1 {
                    println!("{:37}{}: {runs} searches", "", case.name);
                }
            }
            plant(None);
            let found: Vec<_> = results.iter().filter(|(_, result)| result.is_err()).collect();
            println!("{:<28} {:>2}/{:<2}  {}", mutant.name(), found.len(), claimed.len(), mutant.sentence());
            for (case, result) in &results {
                match result {
                    Err(why) => {
                        proven.insert(case.name);
                        let why = why.lines().next().unwrap_or_default();
                        println!("{:37}{}: {why}", "", case.name);
                    }
                    Ok(()) => errors.push(format!("{} does not find {mutant:?}", case.name)),
                }
            }
        }

        let unproven: Vec<_> = CASES.iter().filter(|case| !proven.contains(case.name)).collect();
        println!("\n{} cases count, {} do not:", proven.len(), unproven.len());
        for case in unproven {
            println!("  {}", case.name);
            if !UNPROVEN.contains(&case.name) {
                errors.push(format!("no defect proves {}", case.name));
            }
        }
        for error in &errors {
            println!("ERROR: {error}");
        }
        println!("{} defects, {} errors, {:?}", planted.len(), errors.len(), started.elapsed());
        if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Names in the table that are no defect.
    fn misnamed() -> Vec<String> {
        let known: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        let claims = CASES.iter().flat_map(|case| case.proven_by.iter().map(|name| (case.name, *name)));
        claims
            .filter(|(_, name)| !known.contains(name))
            .map(|(case, name)| format!("{case} is proven by {name}, which is no defect"))
            .collect()
    }

    /// Runs cases on a few threads, in any order.
    fn run_all(
        cases: &[&'static Case],
        factory: &Factory,
        limits: Limits,
    ) -> Vec<(&'static Case, Result<(), String>)> {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(cases.len()))
                .map(|_| {
                    scope.spawn(|| {
                        let mut results = Vec::new();
                        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                            results.push((*case, run_case(case, factory, limits)));
                        }
                        results
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("run_case catches panics")).collect()
        })
    }
}
