//! What a case gets: processes, names, and time.
//!
//! Time is the store's time. Where the store lives on the context's clock it is virtual, and an hour
//! passes in milliseconds; elsewhere the case really waits. Bounds from below are strict in both;
//! bounds from above have the patience added, so that a loaded machine fails nobody.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use leasehold_core::{
    BootTime, Clock, LeaseClient, LeaseName, ManualClock, OwnerId, Profile, SystemClock, Watchdog,
};

use crate::checker::{Bounds, Property, judge};
use crate::faulty::yield_times;
use crate::history::{Action, Recorder};
use crate::{Failed, Fault, Faulty, Harness, Node};

/// The ttl of leases that are to run out in a case, in virtual time: no whole number of seconds, so
/// that rounding shows.
const TTL_VIRTUAL: Duration = Duration::from_millis(9_137);
/// And in real time.
const TTL_REAL: Duration = Duration::from_secs(1);
/// Virtual time moves in steps of this part of a ttl: a renewal is never jumped over.
const STEPS_PER_TTL: u32 = 60;
/// Rounds of one settling before the bench gives up on calls that do not end: then they hang.
const SETTLE_ROUNDS_MAX: u32 = 2_000;

/// The tools of one case. Clones share everything.
#[derive(Clone)]
pub struct Bench(Arc<Inner>);

struct Inner {
    harness: Box<dyn Harness>,
    case: &'static str,
    prefix: String,
    names: AtomicU32,
    clock: Option<ManualClock>,
    nodes: Mutex<Vec<Node>>,
    patience: Duration,
    recorder: Recorder,
    excused: Mutex<Vec<Property>>,
    /// Set when the run was interrupted: whoever waits gives up.
    stop: OnceLock<Arc<AtomicBool>>,
}

impl Bench {
    /// The tools of `case`, whose names begin with `prefix`. They are fresh for every value, since a
    /// case may be run again.
    pub(crate) fn new(
        harness: Box<dyn Harness>,
        case: &'static str,
        prefix: &str,
        patience: Duration,
    ) -> Self {
        let clock = harness.on_context_clock().then(ManualClock::new);
        Bench(Arc::new(Inner {
            harness,
            case,
            prefix: format!("{prefix}/{case}/{}", &OwnerId::random().to_hex()[..6]),
            names: AtomicU32::new(0),
            clock,
            nodes: Mutex::default(),
            patience,
            recorder: Recorder::new(),
            excused: Mutex::default(),
            stop: OnceLock::new(),
        }))
    }

    /// Another process.
    ///
    /// # Errors
    /// [`Failed`] when the store cannot be reached.
    pub async fn node(&self) -> Result<Node, Failed> {
        self.node_with(|profile| profile).await
    }

    /// Another process, whose core believes in another profile of the store.
    ///
    /// # Errors
    /// [`Failed`] when the store cannot be reached.
    pub async fn node_with(&self, change: impl FnOnce(Profile) -> Profile) -> Result<Node, Failed> {
        self.go_on()?;
        let watchdog = match &self.0.clock {
            Some(clock) => Watchdog::with_clock(Arc::new(clock.clone())),
            None => Watchdog::start(),
        }?;
        let context = watchdog.context();
        let inner = self.0.harness.connect(context.clone()).await?;
        let profile = change(inner.profile().clone());
        let store = Faulty::new(inner, context).with_profile(profile).recording(self.0.recorder.clone());
        let client =
            LeaseClient::with_operation_timeout(Arc::new(store.clone()), &watchdog, Self::OPERATION_TIMEOUT);
        let ttl = if self.0.clock.is_some() { TTL_VIRTUAL } else { TTL_REAL };
        let node = Node { watchdog, store, client, ttl, busy_for: self.busy_for() };
        self.nodes().push(node.clone());
        Ok(node)
    }

    /// Two processes.
    ///
    /// # Errors
    /// As [`Bench::node`].
    pub async fn pair(&self) -> Result<(Node, Node), Failed> {
        Ok((self.node().await?, self.node().await?))
    }

    /// Time limit of one store operation in every client here.
    pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);

    /// How long a waiter may sleep beside a name that the store says is free: a wake-up, and what a
    /// holder that just stopped gave away of its countdown.
    pub(crate) const WOKEN_WITHIN: Duration = Duration::from_secs(2);

    /// A name that nobody has used.
    pub fn name(&self) -> LeaseName {
        self.named("")
    }

    /// A fresh name that ends with `tail`.
    pub fn named(&self, tail: &str) -> LeaseName {
        let n = self.0.names.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}-{n}{tail}", self.0.prefix);
        LeaseName::new(text).expect("the suite's names are legal")
    }

    /// Brings a fault about.
    ///
    /// # Errors
    /// The injector's.
    pub async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), Failed> {
        let Some(injector) = self.0.harness.fault() else {
            return Err(Failed::new("the harness has no fault hooks"));
        };
        let context = self.nodes().first().map(Node::context);
        let ends = matches!(fault, Fault::LoseRecord | Fault::CorruptRecord);
        // Whoever holds the name is as good as revoked.
        let revoke =
            context.filter(|_| ends).map(|c| self.0.recorder.begin(&c, Action::Revoke, name, "", None));
        injector.inject(fault, name).await.map_err(Failed::new)?;
        if let Some(revoke) = revoke {
            revoke.ok(|end| end.released = Some(true));
        }
        Ok(())
    }

    /// From now on the history of this case is not judged by this property: the case breaks what it
    /// rests on.
    pub fn excuse(&self, property: Property) {
        self.0.excused.lock().unwrap_or_else(PoisonError::into_inner).push(property);
    }

    /// Judges what the store was asked and answered, beside what the case says: a failure shows it.
    pub(crate) fn judged(&self, result: Result<(), Failed>) -> Result<(), Failed> {
        let Some(history) = self.0.recorder.history().map_err(|e| Failed::new(e.to_string()))? else {
            // With holes it proves nothing.
            return result;
        };
        result.map_err(|failed| failed.with_history(&history))?;
        let bounds = Bounds {
            woken_within: self.patient(Self::WOKEN_WITHIN),
            cleaned_up_within: self.patient(Self::OPERATION_TIMEOUT * 2),
            ..Bounds::default()
        };
        let excused = self.0.excused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let verdict = judge(&history, bounds);
        match verdict.violations.iter().find(|found| !excused.contains(&found.property)) {
            None => Ok(()),
            Some(found) => {
                let message = format!("the history of this case breaks {found}");
                Err(Failed::new(message).with_history(&history.about(&found.name)))
            }
        }
    }

    /// From now on the case ends soon after this is set.
    pub(crate) fn obey(&self, stop: Arc<AtomicBool>) {
        // Only the first one is obeyed; there is no second.
        let _ = self.0.stop.set(stop);
    }

    fn go_on(&self) -> Result<(), Failed> {
        match self.0.stop.get() {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(Failed::new("the run was interrupted")),
            _ => Ok(()),
        }
    }

    /// What the store was asked in this case.
    pub(crate) fn recorder(&self) -> Recorder {
        self.0.recorder.clone()
    }

    /// How long a store that others use may answer that it is busy before a case takes it for an
    /// answer.
    fn busy_for(&self) -> Duration {
        if self.is_shared() { self.0.patience } else { Duration::ZERO }
    }

    /// A bound from above, as this run is patient. In virtual time it is exact.
    pub(crate) fn patient(&self, bound: Duration) -> Duration {
        if self.0.clock.is_some() { bound } else { bound + self.0.patience }
    }

    /// The harness's name.
    pub fn harness(&self) -> &'static str {
        self.0.harness.name()
    }

    /// Whether others use the store too.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.harness.is_shared()
    }

    /// The manual clock, where time is virtual.
    pub fn manual(&self) -> Option<&ManualClock> {
        self.0.clock.as_ref()
    }

    /// Now, on the clock of the watchdogs.
    pub fn now(&self) -> BootTime {
        self.0.clock.as_ref().map_or_else(|| SystemClock.now(), Clock::now)
    }

    /// Lets `d` pass, and everything happen that is due meanwhile.
    pub async fn pass(&self, d: Duration) {
        let Some(clock) = &self.0.clock else {
            // The suite's only wait without an event: it is the store's time that must pass.
            return tokio::time::sleep(d).await;
        };
        let end = clock.now() + d;
        self.settle().await;
        while clock.now() < end {
            clock.advance(self.step().min(end.since(clock.now())));
            self.settle().await;
        }
    }

    /// Lets `d` pass at once, as a process sees it that did not run meanwhile.
    pub async fn jump(&self, d: Duration) {
        match &self.0.clock {
            Some(clock) => clock.suspend(d),
            None => tokio::time::sleep(d).await,
        }
    }

    /// Waits until everything that is due has been done: the clock threads sleep, no call is under
    /// way but those held on purpose, and no task of the case is ready. In real time there is
    /// nothing to wait for.
    pub async fn settle(&self) {
        let Some(clock) = &self.0.clock else { return tokio::task::yield_now().await };
        let nodes = self.nodes().clone();
        let mut before = None;
        for _ in 0..SETTLE_ROUNDS_MAX {
            for node in &nodes {
                clock.settle();
                // Each yield lets the I/O thread take its orders and run all that is ready: one for
                // the order that the clock thread just sent, one for the task that it starts, one
                // for what that leaves behind.
                let _ = node.watchdog.context().io().spawn(yield_times(3)).await;
            }
            // The case has one thread: what is ready runs before this goes on.
            yield_times(3).await;
            clock.settle();
            let now: Vec<_> = nodes.iter().map(Node::activity).collect();
            let quiet = before.as_ref() == Some(&now) && nodes.iter().all(|node| node.store.is_idle());
            if quiet {
                return;
            }
            if nodes.iter().any(|node| !node.store.is_idle()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            before = Some(now);
        }
    }

    /// Lets time pass until `look` finds something, for `within` at most; returns it and the time
    /// it took. After `within` time stands, and what is on its way has the patience left.
    ///
    /// # Errors
    /// [`Failed`] when nothing was found, or by `look` itself.
    #[allow(clippy::manual_async_fn)] // `track_caller` does not reach into an async fn
    #[track_caller]
    pub fn until<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl AsyncFnMut() -> Result<Option<T>, Failed>,
    ) -> impl Future<Output = Result<(T, Duration), Failed>> {
        let missing = Failed::new(format!("{what}: not within {within:?}"));
        async move {
            let start = self.now();
            let patience_from = loop {
                self.go_on()?;
                self.settle().await;
                if let Some(found) = look().await? {
                    return Ok((found, self.now().since(start)));
                }
                let passed = self.now().since(start);
                match &self.0.clock {
                    _ if passed >= within => break std::time::Instant::now(),
                    Some(clock) => clock.advance(self.step().min(within - passed)),
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            while patience_from.elapsed() < self.0.patience {
                self.go_on()?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                if let Some(found) = look().await? {
                    return Ok((found, self.now().since(start)));
                }
            }
            Err(missing)
        }
    }

    /// As [`Bench::until`], for a condition.
    ///
    /// # Errors
    /// [`Failed`] when it did not come.
    #[track_caller]
    pub fn until_true(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut() -> bool,
    ) -> impl Future<Output = Result<Duration, Failed>> {
        let waited = self.until(what, within, async move || Ok(look().then_some(())));
        async move { Ok(waited.await?.1) }
    }

    /// Asserts that every watchdog kept its books.
    pub(crate) fn audit(&self) {
        for node in self.nodes().iter() {
            // Asserts that every held entry has exactly one timer.
            let _ = node.watchdog.stats();
        }
    }

    /// What virtual time moves by; nothing where it is real.
    pub(crate) fn step(&self) -> Duration {
        if self.0.clock.is_some() { TTL_VIRTUAL / STEPS_PER_TTL } else { Duration::ZERO }
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, Vec<Node>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("case", &self.0.case).finish_non_exhaustive()
    }
}
