//! `cargo xtask test`: the parts of the test run, in order, each within its budget.

use std::time::{Duration, Instant};

use crate::cargo::{Cargo, Counts, root};
use crate::leftovers::Marked;
use crate::{Outcome, docs, features, needs, readme, table};

/// How one test run goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    quick: bool,
    all_setups: bool,
    list: bool,
    /// The parts to run; all when empty.
    only: Vec<String>,
}

/// One part. Budget and limit are for a cold build on two cores.
struct Part {
    name: &'static str,
    what: &'static str,
    /// What it should take, in seconds.
    budget_secs: u64,
    /// What it may take: ended then.
    limit_secs: u64,
    /// Left out by `--quick`.
    slow: bool,
    run: fn(&Turn<'_>) -> Result<Done, String>,
}

/// What a part gets.
struct Turn<'a> {
    options: &'a Options,
    mark: &'a Marked,
    until: Instant,
}

/// What a part did.
enum Done {
    Tests(Counts),
    Note(String),
}

/// The limits together stay below an hour, so that a run that is allowed to pass is also awaited.
const PARTS: &[Part] = &[
    Part {
        name: "needs",
        what: "system packages that the tests use",
        budget_secs: 60,
        limit_secs: 240,
        slow: false,
        run: |_| needs::install().map(|()| Done::Note("installed".to_owned())),
    },
    Part {
        name: "workspace",
        what: "unit, integration and documentation tests, and the conformance suite on every backend",
        budget_secs: 1000,
        limit_secs: 1620,
        slow: false,
        run: workspace,
    },
    Part {
        name: "mutants",
        what: "planted defects, each of which its case must find",
        budget_secs: 300,
        limit_secs: 570,
        slow: true,
        run: mutants,
    },
    Part {
        name: "shuttle",
        what: "the core's races under a scheduler that tries many orders",
        budget_secs: 90,
        limit_secs: 300,
        slow: true,
        run: shuttle,
    },
    Part {
        name: "features",
        what: "each feature alone compiles, and none brings OpenSSL",
        budget_secs: 120,
        limit_secs: 330,
        slow: true,
        run: |t| features::run(t.mark, t.until).map(|()| Done::Note("compiled".to_owned())),
    },
    Part {
        name: "pages",
        what: "transcripts come out as printed, and generated parts are up to date",
        budget_secs: 60,
        limit_secs: 240,
        slow: false,
        run: pages,
    },
];

impl Options {
    /// Reads the arguments of `cargo xtask test`.
    ///
    /// # Errors
    /// The usage, or the name of an unknown part.
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Options::default();
        for &arg in args {
            match arg {
                "--quick" => options.quick = true,
                "--all-setups" => options.all_setups = true,
                "--list" => options.list = true,
                name if PARTS.iter().any(|part| part.name == name) => options.only.push(name.to_owned()),
                other => return Err(format!("no such part or option: {other}\n\n{}", crate::USAGE)),
            }
        }
        Ok(options)
    }

    fn wants(&self, part: &Part) -> bool {
        if self.only.is_empty() {
            !(self.quick && part.slow)
        } else {
            self.only.iter().any(|n| n == part.name)
        }
    }

    /// The environment that tells the tests how thorough to be.
    fn put_on(&self, cargo: Cargo) -> Cargo {
        let cargo = if self.quick { cargo.env("LEASEHOLD_TEST_QUICK", "1") } else { cargo };
        if self.all_setups { cargo.env("LEASEHOLD_TEST_ALL_SETUPS", "1") } else { cargo }
    }
}

/// Runs the parts and prints the table.
///
/// # Errors
/// Which parts failed.
pub(crate) fn run(options: Options) -> Outcome {
    if options.list {
        for part in PARTS {
            println!("{:<10} {:>5} s  {}", part.name, part.budget_secs, part.what);
        }
        return Ok(());
    }
    let started = Instant::now();
    let mut rows = vec![["part", "budget", "took", "result"].map(str::to_owned).to_vec()];
    let mut failed = Vec::new();
    let mut messages = Vec::new();
    let mut total = Counts::default();
    for part in PARTS.iter().filter(|part| options.wants(part)) {
        println!("\n=== {}: {} (budget {} s)\n", part.name, part.what, part.budget_secs);
        let began = Instant::now();
        let result = run_part(part, &options, &mut total);
        let took = began.elapsed().as_secs();
        if let Err(message) = &result {
            println!("\n{} FAILED: {message}", part.name);
            messages.push(format!("{}: {message}", part.name));
            failed.push(part.name);
        }
        let late = if took > part.budget_secs { ", over budget" } else { "" };
        let result = result.map_or_else(|_| "FAILED".to_owned(), |what| format!("ok: {what}{late}"));
        rows.push(vec![part.name.to_owned(), format!("{} s", part.budget_secs), format!("{took} s"), result]);
    }
    println!("\n{}", table::format(&rows));
    // Once more, for whoever sees only the end.
    messages.iter().for_each(|message| println!("{message}"));
    close(total, failed.is_empty(), started.elapsed());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The sum of all summary lines, in their own form, for whoever reads only the end.
fn close(total: Counts, ok: bool, took: Duration) {
    let Counts { passed, failed, ignored } = total;
    if passed + failed == 0 {
        return;
    }
    println!(
        "test result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        if ok { "ok" } else { "FAILED" },
        took.as_secs_f64(),
    );
}

fn run_part(part: &Part, options: &Options, total: &mut Counts) -> Result<String, String> {
    let mark = Marked::new(part.name);
    let until = Instant::now() + Duration::from_secs(part.limit_secs);
    let done = (part.run)(&Turn { options, mark: &mark, until });
    // Also after a failure: nothing may run on into the next part.
    let left = mark.check();
    if let Ok(Done::Tests(counts)) = &done {
        total.add(*counts);
    }
    let what = match done? {
        Done::Tests(Counts { passed: 0, .. }) => return Err("not one test was run".to_owned()),
        Done::Tests(counts) => format!("{} passed, {} ignored", counts.passed, counts.ignored),
        Done::Note(what) => what,
    };
    left?;
    if Instant::now() >= until {
        return Err(format!("it took more than its hard limit of {} s", part.limit_secs));
    }
    Ok(what)
}

fn workspace(turn: &Turn<'_>) -> Result<Done, String> {
    let cargo = Cargo::new("test").args(["--workspace", "--no-fail-fast"]);
    turn.options.put_on(cargo).run(turn.mark, turn.until).map(Done::Tests)
}

fn mutants(turn: &Turn<'_>) -> Result<Done, String> {
    let mut counts = Counts::default();
    for (package, folder) in [
        ("leasehold-conformance", "conformance-tests"),
        ("leasehold-sqlite", "backend-sqlite"),
        ("leasehold-redis", "backend-redis"),
        ("leasehold-etcd", "backend-etcd"),
    ] {
        if root().join(folder).join("tests/mutants.rs").exists() {
            let cargo = Cargo::new("test").args(["-p", package, "--test", "mutants"]);
            let cargo = cargo.with_cfg("leasehold_mutants", "mutants");
            counts.add(turn.options.put_on(cargo).run(turn.mark, turn.until)?);
        }
    }
    Ok(Done::Tests(counts))
}

fn shuttle(turn: &Turn<'_>) -> Result<Done, String> {
    let cargo = Cargo::new("test").args(["-p", "leasehold-core", "--lib"]).with_cfg("shuttle", "shuttle");
    turn.options.put_on(cargo).run(turn.mark, turn.until).map(Done::Tests)
}

fn pages(turn: &Turn<'_>) -> Result<Done, String> {
    let commands = readme::run(turn.mark, turn.until)?;
    let parts = docs::run(true, turn.mark, turn.until)?;
    Ok(Done::Note(format!("{commands} commands, {parts} generated parts")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_run_fits_its_time() {
        let budget: u64 = PARTS.iter().map(|p| p.budget_secs).sum();
        let limit: u64 = PARTS.iter().map(|p| p.limit_secs).sum();
        assert!(budget <= 28 * 60 && limit <= 55 * 60, "{budget} s, {limit} s");
        assert!(PARTS.iter().all(|p| p.budget_secs < p.limit_secs));
    }

    #[test]
    fn options_choose_parts() {
        let names = |options: &Options| -> Vec<_> {
            PARTS.iter().filter(|p| options.wants(p)).map(|p| p.name).collect()
        };
        assert_eq!(names(&Options::default()).len(), PARTS.len());
        let quick = Options::parse(&["--quick"]).expect("an option");
        assert_eq!(names(&quick), ["needs", "workspace", "pages"]);
        let one = Options::parse(&["shuttle", "--quick"]).expect("a part");
        assert_eq!(names(&one), ["shuttle"]);
        assert!(Options::parse(&["nonsense"]).is_err());
    }
}
