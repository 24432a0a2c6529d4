//! Running the table: one trial a case, each on a thread of its own under a hard time limit.
//!
//! A store may hang or panic in every call. Nothing of it is run without a limit, not even the first
//! connection, whose failure is told by every case; `--list` connects to nothing. When several cases
//! in a row had to be stopped by force the store is given up: the others fail without being run.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::OwnerId;
use libtest_mimic::{Arguments, Completion, FormatSetting, Trial};

use crate::limited::{Stop, limited};
use crate::presence::{Presence, introduced};
use crate::{Bench, CASES, Case, Failed, Harness, report, starved};

/// In real time cases sleep most of the time: more of them than there are processors may.
const REAL_TIME_THREADS: usize = 8;
/// Making a harness and connecting for the first time may start a server: so long, and no longer.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// When so many cases in a row hang, so will the others.
pub(crate) const HUNG_IN_A_ROW_MAX: u32 = 5;

/// Makes the harness of one case.
pub type Factory = Arc<dyn Fn() -> Box<dyn Harness> + Send + Sync>;

/// How patient a run is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A case that takes longer has failed.
    pub case: Duration,
    /// What is added to every bound from above, in real time.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { case: Duration::from_secs(60), patience: Duration::from_secs(5) }
    }
}

/// Runs one case to its end, or to the limit.
///
/// # Errors
/// What the case says, what it panicked with, or that it took too long.
pub fn run_case(case: &'static Case, factory: &Factory, limits: Limits) -> Result<(), String> {
    run_limited(case, factory, limits, &fresh_prefix(), |_| {}).map_err(|stop| stop.why)
}

/// The beginning of all names of a run: never used before, also on a store that outlives it.
pub(crate) fn fresh_prefix() -> String {
    format!("conformance-{}", &OwnerId::random().to_hex()[..12])
}

/// Runs a case; `meet` gets its bench before it begins.
pub(crate) fn run_limited(
    case: &'static Case,
    factory: &Factory,
    limits: Limits,
    prefix: &str,
    meet: impl FnOnce(&Bench) + Send + 'static,
) -> Result<(), Stop> {
    let (factory, prefix) = (Arc::clone(factory), prefix.to_owned());
    let started = Instant::now();
    let body = move || {
        let bench = Bench::new(factory(), case.name, &prefix, limits.patience);
        meet(&bench);
        on_this_thread(case, bench)
    };
    limited(case.name, limits.case, body)?
        .map_err(|failed| Stop::failed(format!("after {:?}: {failed}", started.elapsed())))
}

fn on_this_thread(case: &'static Case, bench: Bench) -> Result<(), Failed> {
    // One thread: in virtual time "nothing is ready" can then be known.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on((case.run)(bench.clone()));
    let result = bench.judged(result);
    bench.audit();
    // Tasks that a failed case left behind hang in calls that are held on purpose.
    runtime.shutdown_background();
    result
}

/// The `main` of [`crate::conformance_main!`]: runs the whole table under the command line of
/// libtest (`--list`, filters, `--test-threads`, `--format json`).
pub fn main(factory: impl Fn() -> Box<dyn Harness> + Send + Sync + 'static) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let factory: Factory = Arc::new(factory);
    let said = match introduced(&factory, arguments.list, CONNECT_LIMIT) {
        Ok(said) => said,
        Err(why) => {
            say(std::io::stderr(), &format!("the harness cannot be made: it {why}\n"));
            return ExitCode::FAILURE;
        }
    };
    let name = said.harness.name();
    if arguments.list {
        list(&arguments, name, std::io::stdout());
        return ExitCode::SUCCESS;
    }
    if !said.harness.on_context_clock() {
        arguments.test_threads.get_or_insert(REAL_TIME_THREADS);
    }
    if let Some(reason) = said.unavailable {
        return unavailable(&arguments, name, &reason);
    }
    let run = Arc::new(Run::new(factory, Presence::of(said.harness, CONNECT_LIMIT), Limits::default()));
    let trial = |case: &'static Case| {
        let run = Arc::clone(&run);
        Trial::ignorable_test(format!("{name}/{}", case.name), move || Ok(run.outcome(case)?))
    };
    let mut trials: Vec<Trial> = CASES.iter().map(trial).collect();
    let listing = Arc::clone(&run);
    trials.push(Trial::test(format!("{name}/{LIST_IS_EXACT}"), move || Ok(listing.list_is_exact()?)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    let text = report::text(&run.presence);
    match arguments.format {
        // JSON lines keep standard output to themselves.
        Some(FormatSetting::Json) => say(std::io::stderr(), &text),
        _ => say(std::io::stdout(), &text),
    }
    conclusion.exit_code()
}

/// The trial that is no case: it looks at the harness's list.
const LIST_IS_EXACT: &str = "config/ignored_list_is_exact";

/// Prints; whoever reads may have gone (`| head`), which is no failure of the store.
fn say(mut out: impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// The names that the command line selects, as libtest prints them. Nothing is connected to.
fn list(arguments: &Arguments, harness: &str, out: impl Write) {
    let names = CASES.iter().map(|case| case.name).chain([LIST_IS_EXACT]);
    let trials = names.map(|name| Trial::test(format!("{harness}/{name}"), || Ok(())));
    let chosen = trials.filter(|trial| !arguments.is_filtered_out(trial));
    let lines: String = chosen.map(|trial| format!("{}: test\n", trial.name())).collect();
    say(out, &lines);
}

/// One run of the table.
struct Run {
    factory: Factory,
    presence: Presence,
    listed: BTreeSet<&'static str>,
    limits: Limits,
    prefix: String,
    /// How many cases in a row were stopped by force; never less again once it is too many.
    hung: AtomicU32,
}

impl Run {
    fn new(factory: Factory, presence: Presence, limits: Limits) -> Self {
        let listed = listed(presence.harness.ignored());
        Run { factory, presence, listed, limits, prefix: fresh_prefix(), hung: AtomicU32::new(0) }
    }

    /// What one trial says.
    fn outcome(&self, case: &'static Case) -> Result<Completion, String> {
        if let Err(error) = &self.presence.backend {
            return Err(format!("cannot connect: {error}"));
        }
        match self.presence.skips(case) {
            Some(reason) if self.listed.contains(case.name) => Ok(Completion::ignored_with(reason)),
            Some(reason) => Err(format!(
                "skipped ({reason}) and not in the harness's list of ignored cases: add the line {:?} to it \
                 (the end of the report has all of them), or mend the store",
                case.name
            )),
            None => self.run(case).map(|()| Completion::Completed),
        }
    }

    fn run(&self, case: &'static Case) -> Result<(), String> {
        if self.hung.load(Ordering::Relaxed) >= HUNG_IN_A_ROW_MAX {
            return Err(format!(
                "not run: {HUNG_IN_A_ROW_MAX} cases in a row were stopped by force, so this store hangs; \
                 see the first of them"
            ));
        }
        let run = || run_limited(case, &self.factory, self.limits, &self.prefix, |_| {});
        let result = match self.presence.harness.on_context_clock() {
            true => run(),
            false => starved::retried(case.name, run),
        };
        let hung = result.as_ref().is_err_and(|stop| stop.hung);
        let count = |before: u32| match before {
            HUNG_IN_A_ROW_MAX.. => None,
            _ if hung => Some(before + 1),
            _ => Some(0),
        };
        let before = self.hung.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        if hung && before == Ok(HUNG_IN_A_ROW_MAX - 1) {
            let text =
                format!("{HUNG_IN_A_ROW_MAX} cases in a row were stopped by force: the run ends here\n");
            say(std::io::stderr(), &text);
        }
        result.map_err(|stop| stop.why)
    }

    /// Refuses a list that names a case which is not skipped, or not a case.
    fn list_is_exact(&self) -> Result<(), String> {
        if let Err(error) = &self.presence.backend {
            return Err(format!("cannot connect: {error}"));
        }
        let skipped: BTreeSet<&str> =
            CASES.iter().filter(|case| self.presence.skips(case).is_some()).map(|case| case.name).collect();
        match self.listed.iter().find(|name| !skipped.contains(*name)) {
            Some(name) => {
                Err(format!("{name:?} is listed as ignored and is not skipped: take it off the list"))
            }
            None => Ok(()),
        }
    }
}

/// The names of a list of ignored cases.
fn listed(text: &'static str) -> BTreeSet<&'static str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect()
}

/// A store that is not there is loud: all cases are ignored with the reason, or fail when required.
fn unavailable(arguments: &Arguments, name: &str, reason: &str) -> ExitCode {
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|wanted| wanted.trim() == name);
    let trials = CASES.iter().map(|case| {
        let reason = reason.to_owned();
        Trial::ignorable_test(format!("{name}/{}", case.name), move || match required {
            true => Err(format!("required by LEASEHOLD_REQUIRE, and not there: {reason}").into()),
            false => Ok(Completion::ignored_with(reason)),
        })
    });
    libtest_mimic::run(arguments, trials.collect()).exit_code()
}

#[cfg(test)]
mod tests;
