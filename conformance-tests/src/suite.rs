//! The table against somebody's own server: nothing is touched that the run did not make, and what it
//! made is removed again.
//!
//! 1. All names begin with a prefix that was never used before. Cases that would change what holds
//!    for all names of the store, or need faults that only a harness can bring about, are skipped.
//! 2. Every call passes through a recorder, which is kept: it knows every name, token and fenced
//!    value that was ever made, also by a case that hangs.
//! 3. At the end, and after an interruption too, everything that may be held is released by its owner,
//!    names that were kept taken are freed by their tokens, and fenced values purged.
//!
//! # What can go wrong, and where it is handled
//! * A case hangs: it is stopped after its limit, and after a few in a row the run ends
//!   ([`Outcome::Failed`]).
//! * The store goes away before the clean-up: [`Cleaned::left`] says what is left and for how long.
//! * A store without operations for people: names that were kept taken run out by themselves.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{
    Claim, Clock, FencedStore, ForceRelease, Inspection, LeaseAdmin, LeaseBackend, LeaseName, Page,
    ReleaseRequest, Released, SystemClock, Token,
};

use crate::history::{Action, Kind, Recorder};
use crate::limited::limited;
use crate::presence::Presence;
use crate::run::{CONNECT_LIMIT, HUNG_IN_A_ROW_MAX, fresh_prefix, run_limited};
use crate::{CASES, Case, Factory, Harness, Limits, report};

/// How often it is looked whether the run is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A store that takes longer for one release is not there any more.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// After an interruption so long for the cases under way, which give back what they hold.
const GRACE: Duration = Duration::from_secs(5);

/// One run of the table on a store that is there.
pub struct Suite {
    factory: Factory,
    presence: Presence,
    prefix: String,
    limits: Limits,
    made: Arc<Mutex<Vec<Recorder>>>,
}

/// What one case came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It was not run, for this reason.
    Ignored(String),
    /// It does not hold, or could not be run to its end.
    Failed(String),
}

/// A line of the result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The case.
    pub case: &'static Case,
    /// What it came to.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// What the clean-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Names that were still taken and are free now.
    pub freed: usize,
    /// Names whose fenced values were removed.
    pub purged: usize,
    /// Names for which the store keeps the highest token that was presented: a fence never forgets.
    pub marks: usize,
    /// What is left beside that, in words: names that stay taken, and until when; errors.
    pub left: Vec<String>,
}

impl Suite {
    /// Connects once, and learns what the store declares.
    ///
    /// # Errors
    /// Why nothing could be connected to, or that it took too long.
    pub fn new(harness: impl Fn() -> Box<dyn Harness> + Send + Sync + 'static) -> Result<Self, String> {
        let factory: Factory = Arc::new(harness);
        let presence = Presence::of(Arc::from(factory()), CONNECT_LIMIT);
        presence.backend.as_ref().map_err(Clone::clone)?;
        let (prefix, limits, made) = (fresh_prefix(), Limits::default(), Arc::default());
        Ok(Suite { factory, presence, prefix, limits, made })
    }

    /// The same, with another limit for each case than a minute.
    #[must_use]
    pub fn limited_to(mut self, limit: Duration) -> Self {
        self.limits.case = limit;
        self
    }

    /// The beginning of every name that this run makes.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the store declares, one property a line.
    pub fn declares(&self) -> Vec<String> {
        self.presence.backend.as_ref().map_or_else(|_| Vec::new(), |backend| report::words(&**backend))
    }

    /// The cases whose names contain `filter`.
    pub fn chosen(filter: &str) -> Vec<&'static Case> {
        CASES.iter().filter(|case| case.name.contains(filter)).collect()
    }

    /// Runs cases, `threads` at a time, and hands each row over as it comes. When `stop` is set no
    /// other case begins, and those under way have a few seconds left.
    pub fn run(
        &self,
        cases: &[&'static Case],
        threads: usize,
        stop: &AtomicBool,
        mut on_row: impl FnMut(Row),
    ) {
        let (runnable, skipped): (Vec<_>, Vec<_>) =
            cases.iter().map(|case| (*case, self.presence.skips(case))).partition(|(_, why)| why.is_none());
        for (case, why) in skipped {
            on_row(Row { case, outcome: Outcome::Ignored(why.unwrap_or_default()), took: Duration::ZERO });
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let work = Arc::new(Work {
            queue: Mutex::new(runnable.into_iter().map(|(case, _)| case).collect()),
            stop: Arc::clone(&stopped),
            hung: AtomicU32::new(0),
            factory: Arc::clone(&self.factory),
            limits: self.limits,
            prefix: self.prefix.clone(),
            made: Arc::clone(&self.made),
        });
        let (rows, arrivals) = channel();
        for _ in 0..threads.max(1) {
            let (work, rows) = (Arc::clone(&work), rows.clone());
            // With no thread at all the channel is closed at once, and nothing was run.
            let _ = std::thread::Builder::new().name("suite".to_owned()).spawn(move || work.go(&rows));
        }
        drop(rows);
        let mut until: Option<Instant> = None;
        loop {
            match arrivals.recv_timeout(LOOK_EVERY) {
                Ok(row) => on_row(row),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.load(Ordering::Relaxed) {
                stopped.store(true, Ordering::Relaxed);
                if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + GRACE) {
                    return;
                }
            }
        }
    }

    /// Removes what the run made, as far as the store lets it, within `limit`.
    pub fn clean_up(&self, limit: Duration) -> Cleaned {
        let Ok(backend) = &self.presence.backend else { return Cleaned::default() };
        let (backend, prefix) = (Arc::clone(backend), self.prefix.clone());
        let (made, claims) = (self.made(), self.claims());
        let cleaned = limited("clean-up", limit, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            Ok::<Cleaned, String>(runtime.block_on(clean(&*backend, &prefix, &made, claims)))
        });
        match cleaned {
            Ok(Ok(cleaned)) => cleaned,
            Ok(Err(why)) => Cleaned { left: vec![why], ..Cleaned::default() },
            Err(stop) => {
                Cleaned { left: vec![format!("the clean-up was {}", stop.why)], ..Cleaned::default() }
            }
        }
    }

    /// What may still be held.
    fn claims(&self) -> Vec<Claim> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.iter().flat_map(Recorder::claims).collect()
    }

    /// Every name that was made, with all that is known of it.
    fn made(&self) -> BTreeMap<String, Made> {
        let mut made: BTreeMap<String, Made> = BTreeMap::new();
        for recorder in self.made.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            recorder.each(|event| {
                let of_name = made.entry(event.name.clone()).or_default();
                match (event.action, event.kind, event.token) {
                    // A renewal may have raised it: then a look shows it.
                    (Action::Acquire | Action::Look, _, Some(token)) => of_name.granted.push(token),
                    (Action::Release, Kind::Ok, _) => {
                        of_name.kept_until_ns = of_name.kept_until_ns.max(event.until_ns);
                    }
                    (Action::Write, _, Some(token)) => {
                        of_name.presented = of_name.presented.max(Some(token));
                    }
                    _ => {}
                }
            });
        }
        made
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What the threads of a run share.
struct Work {
    queue: Mutex<VecDeque<&'static Case>>,
    stop: Arc<AtomicBool>,
    /// How many cases in a row were stopped by force.
    hung: AtomicU32,
    factory: Factory,
    limits: Limits,
    prefix: String,
    made: Arc<Mutex<Vec<Recorder>>>,
}

impl Work {
    fn go(&self, rows: &Sender<Row>) {
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(case) = next else { return };
            let started = Instant::now();
            let outcome = self.outcome(case);
            // What an interruption cut short has shown nothing, and then nobody may listen any more.
            if self.stop.load(Ordering::Relaxed) && outcome != Outcome::Passed {
                return;
            }
            let _ = rows.send(Row { case, outcome, took: started.elapsed() });
        }
    }

    fn outcome(&self, case: &'static Case) -> Outcome {
        if self.hung.load(Ordering::Relaxed) >= HUNG_IN_A_ROW_MAX {
            return Outcome::Failed("not run: too many cases before it were stopped by force".to_owned());
        }
        let result = crate::starved::retried(case.name, || {
            let (made, stop) = (Arc::clone(&self.made), Arc::clone(&self.stop));
            run_limited(case, &self.factory, self.limits, &self.prefix, move |bench| {
                bench.obey(stop);
                made.lock().unwrap_or_else(PoisonError::into_inner).push(bench.recorder());
            })
        });
        match result {
            Ok(()) => {
                self.hung.store(0, Ordering::Relaxed);
                Outcome::Passed
            }
            Err(stop) => {
                let hung = if stop.hung { self.hung.load(Ordering::Relaxed) + 1 } else { 0 };
                self.hung.store(hung, Ordering::Relaxed);
                Outcome::Failed(stop.why)
            }
        }
    }
}

/// What a run did with a name.
#[derive(Clone, Debug, Default)]
struct Made {
    /// Tokens that it was granted under, or shown to be.
    granted: Vec<u64>,
    /// The highest token that was presented to its fence.
    presented: Option<u64>,
    /// Until when a release kept it taken.
    kept_until_ns: Option<u64>,
}

async fn clean(
    backend: &dyn LeaseBackend,
    prefix: &str,
    made: &BTreeMap<String, Made>,
    claims: Vec<Claim>,
) -> Cleaned {
    let mut cleaned = Cleaned::default();
    release(backend, claims, &mut cleaned).await;
    let facets = backend.facets();
    if let Some(fenced) = facets.fenced {
        purge(fenced, made, &mut cleaned).await;
    }
    match facets.admin {
        Some(admin) => free(admin, prefix, made, &mut cleaned).await,
        None => {
            let now_ns = SystemClock.now().as_nanos();
            let kept = made.values().filter_map(|of| of.kept_until_ns?.checked_sub(now_ns));
            if let Some(longest) = kept.max().map(Duration::from_nanos) {
                cleaned
                    .left
                    .push(format!("names that were kept taken run out by themselves, in {longest:?}"));
            }
        }
    }
    cleaned
}

/// Releases everything that may be held, by its owner: that leaves the least behind.
async fn release(backend: &dyn LeaseBackend, claims: Vec<Claim>, cleaned: &mut Cleaned) {
    let all = claims.len();
    for (done, claim) in claims.into_iter().enumerate() {
        let request = ReleaseRequest::new(claim, SystemClock.now());
        let answer = tokio::time::timeout(RELEASE_LIMIT, backend.release(&request)).await;
        match answer {
            Ok(Ok(Released::Released)) => cleaned.freed += 1,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => cleaned.left.push(format!("{:?}: {error}", request.claim.name)),
            Err(_) => {
                let left = all - done;
                cleaned
                    .left
                    .push(format!("the store answers no release: {left} grants run out by themselves"));
                return;
            }
        }
    }
}

/// Purges fenced values; the mark of the highest token stays.
async fn purge(fenced: &dyn FencedStore, made: &BTreeMap<String, Made>, cleaned: &mut Cleaned) {
    let presented = made.iter().filter_map(|(name, of)| Some((name, of.presented?)));
    for (name, token) in presented {
        let (Ok(name), Ok(token)) = (LeaseName::new(name), Token::new(token)) else { continue };
        let purged = async {
            cleaned.marks += 1;
            let had_values = !fenced.list(&name, "").await?.is_empty();
            if had_values {
                fenced.purge(&name, token).await?;
                cleaned.purged += 1;
            }
            Ok::<(), leasehold_core::BackendError>(())
        };
        if let Err(error) = purged.await {
            cleaned.left.push(format!("fenced values of {name:?}: {error}"));
        }
    }
}

/// Ends what is still taken under the prefix, compared by its token.
async fn free(admin: &dyn LeaseAdmin, prefix: &str, made: &BTreeMap<String, Made>, cleaned: &mut Cleaned) {
    let prefix = format!("{prefix}/");
    let mut page = Page::first();
    loop {
        let taken = match admin.list(&prefix, &page).await {
            Ok(taken) => taken,
            Err(error) => return cleaned.left.push(format!("names under {prefix}: {error}")),
        };
        let Some(last) = taken.last() else { return };
        page.after = Some(last.name.clone());
        for seen in &taken {
            // A store that lists others than it was asked for must not make us end theirs.
            if !seen.name.as_str().starts_with(&prefix) {
                continue;
            }
            match end(admin, seen, made.get(seen.name.as_str())).await {
                Ok(true) => cleaned.freed += 1,
                Ok(false) => {
                    let free_in = seen.free_in.unwrap_or_default();
                    cleaned.left.push(format!("{:?} stays taken for {free_in:?}", seen.name));
                }
                Err(error) => cleaned.left.push(format!("{:?}: {error}", seen.name)),
            }
        }
    }
}

/// Ends one grant, or one kept name, of which only the run knows under which token it was granted.
async fn end(
    admin: &dyn LeaseAdmin,
    seen: &Inspection,
    made: Option<&Made>,
) -> Result<bool, leasehold_core::BackendError> {
    let shown = seen.holder().map(|holder| holder.token).or(seen.token_floor);
    let granted = made.into_iter().flat_map(|made| made.granted.iter().rev());
    let tokens = shown.into_iter().chain(granted.filter_map(|token| Token::new(*token).ok()));
    for token in tokens {
        let (by, reason) = ("leasehold conformance", "the run has ended");
        let request = ForceRelease::new(seen.name.clone(), token, by, reason, SystemClock.now());
        match admin.force_release(&request).await? {
            Released::NotHeld { .. } => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}
