//! Stores that hang or panic where the suite first meets them, and readers that go away.

use std::future::pending;

use leasehold_core::{BackendContext, BackendError, LeaseBackend, MemoryBackend, async_trait};

use super::*;

/// For what never ends: waited for in full.
const SHORT: Duration = Duration::from_millis(100);
/// For what ends: more than it takes on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Connects {
    Well,
    Never,
    WithAPanic,
}

#[async_trait]
impl Harness for Connects {
    fn name(&self) -> &'static str {
        "odd"
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        match self {
            Connects::Well => Ok(Arc::new(MemoryBackend::new(context))),
            Connects::Never => pending().await,
            Connects::WithAPanic => panic!("no such server"),
        }
    }

    fn on_context_clock(&self) -> bool {
        true
    }
}

fn run_of(connects: Connects) -> Run {
    let factory: Factory = Arc::new(move || Box::new(connects));
    let limit = if matches!(connects, Connects::Never) { SHORT } else { LONG };
    Run::new(factory, Presence::of(Arc::new(connects), limit), Limits::default())
}

static CASE_THAT_PASSES: Case =
    Case { name: "test/passes", needs: &[], proven_by: &[], run: |_| Box::pin(async { Ok(()) }) };
static CASE_THAT_HANGS: Case =
    Case { name: "test/hangs", needs: &[], proven_by: &[], run: |_| Box::pin(pending()) };

/// Why a trial failed.
fn failure(run: &Run, case: &'static Case) -> String {
    run.outcome(case).map(drop).expect_err("a failure")
}

#[test]
fn a_first_connect_that_hangs_or_panics_fails_every_trial() {
    for (connects, word) in [(Connects::Never, "was still running"), (Connects::WithAPanic, "no such server")]
    {
        let run = run_of(connects);
        for result in [run.outcome(&CASE_THAT_PASSES).map(drop), run.list_is_exact()] {
            let why = result.expect_err("nothing was connected");
            assert!(why.starts_with("cannot connect") && why.contains(word), "{why}");
        }
    }
}

#[test]
fn a_harness_that_hangs_or_panics_is_told() {
    let panics: Factory = Arc::new(|| panic!("no room"));
    let hangs: Factory = Arc::new(|| {
        loop {
            std::thread::park();
        }
    });
    for (factory, limit, word) in [(panics, LONG, "no room"), (hangs, SHORT, "still running")] {
        for names_only in [true, false] {
            let why = introduced(&factory, names_only, limit).err().expect("no harness");
            assert!(why.contains(word), "{why}");
        }
    }
}

#[test]
fn hanging_cases_in_a_row_end_the_run_and_others_do_not() {
    let mut run = run_of(Connects::Well);
    let hang = |run: &mut Run, times| {
        run.limits.case = SHORT;
        for _ in 0..times {
            assert!(failure(run, &CASE_THAT_HANGS).contains("still running"));
        }
        run.limits.case = LONG;
    };
    hang(&mut run, HUNG_IN_A_ROW_MAX - 1);
    assert!(run.outcome(&CASE_THAT_PASSES).is_ok(), "the row is interrupted");
    hang(&mut run, HUNG_IN_A_ROW_MAX);
    for _ in 0..2 {
        let why = failure(&run, &CASE_THAT_PASSES);
        assert!(why.starts_with("not run"), "{why}");
    }
}

/// A reader that has gone.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_list_has_what_is_selected_and_survives_a_reader_that_goes_away() {
    let listed = |words: &[&str]| {
        let mut out = Vec::new();
        let arguments = Arguments::from_iter(["test", "--list"].iter().chain(words));
        list(&arguments, "odd", &mut out);
        String::from_utf8(out).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]).len(), CASES.len() + 1);
    assert_eq!(
        listed(&["--exact", "odd/clock/step_moves_no_expiry"]),
        ["odd/clock/step_moves_no_expiry: test"]
    );
    assert_eq!(listed(&["--ignored"]), Vec::<String>::new());
    list(&Arguments::from_iter(["test", "--list"]), "odd", Gone);
}
