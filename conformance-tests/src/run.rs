//! Running the table: one trial a case, each on a thread of its own under a hard time limit.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use leasehold_core::{LeaseBackend, Watchdog};
use libtest_mimic::{Arguments, Completion, FormatSetting, Trial};

use crate::{Bench, CASES, Case, Failed, Harness, report, starved};

/// In real time cases sleep most of the time: more of them than there are processors may.
const REAL_TIME_THREADS: usize = 8;

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
    let (done, outcome) = channel();
    let factory = Arc::clone(factory);
    let started = Instant::now();
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| on_this_thread(case, &factory, limits)));
        // The receiver is gone when the limit passed.
        let _ = done.send(outcome);
    };
    let thread = std::thread::Builder::new().name(case.name.to_owned()).spawn(body);
    if let Err(error) = thread {
        return Err(format!("no thread for the case: {error}"));
    }
    match outcome.recv_timeout(limits.case) {
        Ok(Ok(result)) => result.map_err(|failed| format!("{failed} after {:?}", started.elapsed())),
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(format!("panicked: {text}"))
        }
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("still running after {:?}: stopped by force", started.elapsed()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the case's thread is gone".to_owned()),
    }
}

fn on_this_thread(case: &'static Case, factory: &Factory, limits: Limits) -> Result<(), Failed> {
    // One thread: in virtual time "nothing is ready" can then be known.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bench = Bench::new(factory(), case.name, limits.patience);
    let result = runtime.block_on((case.run)(bench.clone()));
    bench.audit();
    // Tasks that a failed case left behind hang in calls that are held on purpose.
    runtime.shutdown_background();
    result
}

/// The store as it presents itself, connected once before the cases.
pub(crate) struct Presence {
    pub(crate) harness: Box<dyn Harness>,
    pub(crate) backend: Result<Arc<dyn LeaseBackend>, String>,
    _watchdog: Option<Watchdog>,
}

impl Presence {
    pub(crate) fn of(factory: &Factory) -> Self {
        let harness = factory();
        let connected = || {
            let watchdog = Watchdog::start().map_err(|e| e.to_string())?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| e.to_string())?;
            let backend = runtime.block_on(harness.connect(watchdog.context())).map_err(|e| e.to_string())?;
            Ok((backend, watchdog))
        };
        let (backend, watchdog) = match connected() {
            Ok((backend, watchdog)) => (Ok(backend), Some(watchdog)),
            Err(error) => (Err(error), None),
        };
        Presence { harness, backend, _watchdog: watchdog }
    }

    /// Why a case is skipped here.
    pub(crate) fn skips(&self, case: &Case) -> Option<String> {
        let backend = self.backend.as_ref().ok()?;
        case.needs.iter().find_map(|need| need.met(&*self.harness, &**backend).err())
    }
}

/// The `main` of [`crate::conformance_main!`]: runs the whole table under the command line of
/// libtest (`--list`, filters, `--test-threads`, `--format json`).
pub fn main(factory: impl Fn() -> Box<dyn Harness> + Send + Sync + 'static) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let factory: Factory = Arc::new(factory);
    let harness = factory();
    if !harness.on_context_clock() {
        arguments.test_threads.get_or_insert(REAL_TIME_THREADS);
    }
    let name = harness.name();
    if let Some(reason) = harness.unavailable() {
        return unavailable(&arguments, name, &reason);
    }
    drop(harness);
    let presence = Arc::new(Presence::of(&factory));
    let listed = listed(presence.harness.ignored());
    let mut trials: Vec<Trial> =
        CASES.iter().map(|case| trial(name, case, &factory, &presence, listed.contains(case.name))).collect();
    let listing = Arc::clone(&presence);
    trials.push(Trial::test(format!("{name}/config/ignored_list_is_exact"), move || {
        Ok(exact(&listed, &listing)?)
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        // JSON lines keep standard output to themselves.
        let text = report::text(&presence);
        match arguments.format {
            Some(FormatSetting::Json) => eprint!("{text}"),
            _ => print!("{text}"),
        }
    }
    conclusion.exit_code()
}

fn trial(
    harness: &str,
    case: &'static Case,
    factory: &Factory,
    presence: &Arc<Presence>,
    listed: bool,
) -> Trial {
    let (factory, presence) = (Arc::clone(factory), Arc::clone(presence));
    Trial::ignorable_test(format!("{harness}/{}", case.name), move || {
        if let Err(error) = &presence.backend {
            return Err(format!("cannot connect: {error}").into());
        }
        match presence.skips(case) {
            Some(reason) if listed => Ok(Completion::ignored_with(reason)),
            Some(reason) => Err(format!(
                "skipped ({reason}) and not in the harness's list of ignored cases: add the line {:?} to it, \
                 or mend the store",
                case.name
            )
            .into()),
            None => {
                let run = || run_case(case, &factory, Limits::default());
                let result = match presence.harness.on_context_clock() {
                    true => run(),
                    false => starved::retried(case.name, run),
                };
                Ok(result.map(|()| Completion::Completed)?)
            }
        }
    })
}

/// The names of a list of ignored cases.
fn listed(text: &'static str) -> BTreeSet<&'static str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Refuses a list that names a case which is not skipped, or not a case.
fn exact(listed: &BTreeSet<&'static str>, presence: &Presence) -> Result<(), String> {
    let skipped: BTreeSet<&str> =
        CASES.iter().filter(|case| presence.skips(case).is_some()).map(|case| case.name).collect();
    match listed.iter().find(|name| !skipped.contains(*name)) {
        Some(name) => Err(format!("{name:?} is listed as ignored and is not skipped: take it off the list")),
        None => Ok(()),
    }
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
