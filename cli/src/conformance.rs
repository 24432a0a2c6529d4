//! `leasehold conformance`: the suite against somebody's own server.
//!
//! 1. Connect once, so that a wrong URL or a store that is away ends with its own code.
//! 2. Run the cases under names that begin with a fresh random prefix; print a line for each.
//! 3. Remove what is left under the prefix; after ^C too, once the cases under way had their moment. A
//!    second signal ends the program at once.
//!
//! # What can go wrong, and where it is handled
//! * A case hangs: the suite stops it after its limit, and the clean-up knows its names all the same.
//! * Others use the store: cases that would change what holds for all names are left out.
//! * The clean-up fails, or the program is killed: grants run out by themselves; the last lines say
//!   what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::{BackendError, ConnectError, Effect, ErrorKind, Registry, StoreUrl, Watchdog};
use leasehold_conformance::{Cleaned, Outcome, Row, Store, Suite};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::admin::print;
use crate::args::ConformanceArgs;
use crate::config::{self, Surroundings};
use crate::connect::Patience;
use crate::exit::{Ending, Exit, Failure};
use crate::run::report::write_line;
use crate::show::millis;

/// The clean-up ends a few dozen names at most; a store that takes longer is not there any more.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(20);

/// Judges the store.
pub(crate) fn run(store: Option<&str>, op_timeout: Duration, args: &ConformanceArgs) -> Ending {
    judge(store, op_timeout, args).unwrap_or_else(|failure| {
        write_line(&format!("leasehold: {}", failure.message));
        failure.ending
    })
}

fn judge(store: Option<&str>, op_timeout: Duration, args: &ConformanceArgs) -> Result<Ending, Failure> {
    let cases = Suite::chosen(&args.filter);
    if cases.is_empty() {
        return Err(Failure::usage(format_args!(
            "no case's name contains {:?}: names look like mutex/second_holder_is_refused",
            args.filter
        )));
    }
    let store = Surroundings::of_process().store(store)?;
    reach(&store, op_timeout)?;
    let signals = Signals::new()?;
    let url = store.url.clone();
    let suite = Suite::new(move || Box::new(harness(url.clone())))
        .map_err(|why| Failure::new(Exit::Unavailable, format_args!("{}: {why}", store.url)))?;
    let mut talk = Talk { json: args.json, started: Instant::now(), failures: Vec::new(), counts: [0; 3] };
    talk.begin(&store.url, &suite, cases.len())?;
    let mut trouble = Ok(());
    suite.run(&cases, usize::from(args.threads), &signals.stop, |row| {
        if trouble.is_ok() {
            trouble = talk.row(&row);
        }
    });
    let cleaned = suite.clean_up(CLEAN_UP_LIMIT);
    trouble?;
    let ending = match (signals.which(), talk.failures.is_empty()) {
        (Some(signal), _) => Ending::Interrupted(signal),
        (None, true) => Exit::Ok.into(),
        (None, false) => Exit::Failed.into(),
    };
    talk.end(&suite, &cleaned, ending)?;
    Ok(ending)
}

/// Connects once, in the program's own way: its errors have codes.
fn reach(store: &config::Store, op_timeout: Duration) -> Result<(), Failure> {
    let runtime = crate::connect::runtime()?;
    let reached = runtime.block_on(async {
        let watchdog = Watchdog::start().map_err(|e| Failure::new(Exit::Internal, e))?;
        let client = crate::connect::client(store, &watchdog, op_timeout, Patience::None).await?;
        crate::connect::finish(&client, &watchdog, Duration::from_millis(500)).await;
        Ok(())
    });
    runtime.shutdown_background();
    reached
}

fn harness(url: StoreUrl) -> Store {
    let connect = move |context| {
        let url = url.clone();
        async move {
            Registry::default().connect_in(url, context).await.map_err(|error| match error {
                ConnectError::Backend(error) => error,
                // why: nothing was connected to.
                other => BackendError::new(
                    ErrorKind::ConfigInvalid,
                    Effect::None,
                    "store",
                    "connect",
                    other.to_string(),
                ),
            })
        }
    };
    Store::of_any("store", connect).shared()
}

/// The first signal ends the run in order, the second one at once.
struct Signals {
    stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let signals = Signals { stop: Arc::default(), which: Arc::default() };
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&signals.stop))
                .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&signals.which), number))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&signals.stop)))
                .map_err(|e| Failure::new(Exit::Internal, format_args!("signals cannot be watched: {e}")))?;
        }
        Ok(signals)
    }

    /// The signal that came, if one did.
    fn which(&self) -> Option<i32> {
        i32::try_from(self.which.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}

/// Lines for people in the form of `cargo test`, or one JSON object each.
struct Talk {
    json: bool,
    started: Instant,
    failures: Vec<(&'static str, String)>,
    /// Passed, failed, ignored.
    counts: [usize; 3],
}

impl Talk {
    fn line(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let line = if self.json { json().to_string() } else { text() };
        print(&(line + "\n")).map(drop)
    }

    fn begin(&self, url: &StoreUrl, suite: &Suite, cases: usize) -> Result<(), Failure> {
        let (declares, prefix) = (suite.declares(), suite.prefix());
        self.line(
            || {
                json!({
                    "event": "store", "store": url.to_string(), "prefix": prefix, "cases": cases,
                    "declares": declares,
                })
            },
            || {
                format!(
                    "{url} declares:\n  {}\n\nrunning {cases} {}, under names that begin with {prefix}/",
                    declares.join("\n  "),
                    if cases == 1 { "case" } else { "cases" }
                )
            },
        )
    }

    fn row(&mut self, row: &Row) -> Result<(), Failure> {
        let (name, took_ms) = (row.case.name, millis(row.took));
        let (place, word, result, why) = match &row.outcome {
            Outcome::Passed => (0, "ok".to_owned(), "passed", None),
            Outcome::Failed(why) => (1, "FAILED".to_owned(), "failed", Some(why)),
            Outcome::Ignored(why) => (2, format!("ignored ({why})"), "ignored", Some(why)),
        };
        self.counts[place] += 1;
        if let Outcome::Failed(why) = &row.outcome {
            self.failures.push((name, why.clone()));
        }
        self.line(
            || json!({"event": "case", "case": name, "result": result, "reason": why, "took_ms": took_ms}),
            || format!("test {name} ... {word}"),
        )
    }

    fn end(&self, suite: &Suite, cleaned: &Cleaned, ending: Ending) -> Result<(), Failure> {
        if !self.json && !self.failures.is_empty() {
            let failures = self.failures.iter().map(|(name, why)| format!("\n---- {name} ----\n{why}\n"));
            print(&format!("\nfailures:\n{}", failures.collect::<String>()))?;
        }
        let Cleaned { freed, purged, marks, left, .. } = cleaned;
        let prefix = suite.prefix();
        self.line(
            || {
                json!({
                    "event": "cleaned", "prefix": prefix, "freed": freed, "purged": purged,
                    "marks": marks, "left": left,
                })
            },
            || {
                format!(
                    "\ncleaned up: {freed} names were still taken, {purged} had fenced values; what stays is the \
                     highest token of {marks} fences, and the token floors that the store keeps"
                )
            },
        )?;
        for what in left {
            write_line(&format!("leasehold: left under {prefix}/: {what}"));
        }
        let [passed, failed, ignored] = self.counts;
        let took = self.started.elapsed();
        self.line(
            || {
                json!({
                    "event": "exit", "code": ending.code(), "name": ending.name(), "passed": passed,
                    "failed": failed, "ignored": ignored, "took_ms": millis(took),
                })
            },
            || {
                let word = match ending {
                    Ending::Interrupted(_) => "interrupted",
                    _ if failed > 0 => "FAILED",
                    _ => "ok",
                };
                format!(
                    "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; \
                     finished in {:.2}s",
                    took.as_secs_f64()
                )
            },
        )
    }
}
