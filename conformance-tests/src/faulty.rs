//! A combinator that counts what passes through it and breaks it on order.
//!
//! A request goes out, is applied, and its reply comes back; each of the two ways can be cut or held
//! up. A held request that is let through later is the delayed packet that arrives after its sender
//! gave up; a lost reply is the outcome that nobody knows.
//!
//! What the store was asked and what it answered is recorded behind the faults, where the store is:
//! see [`crate::history`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, BootTime, Contention, Effect, ErrorKind, Facets,
    Inspection, LeaseBackend, LeaseName, Profile, ReleaseRequest, Released, RenewAnswer, Renewal, Token,
    Waiter, async_trait,
};
use tokio::sync::watch;

use crate::history::Recorder;
use crate::recorded::Recorded;

/// What is asked of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`LeaseBackend::acquire`].
    Acquire,
    /// [`LeaseBackend::renew`].
    Renew,
    /// [`LeaseBackend::release`].
    Release,
}

/// What becomes of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fate {
    /// Nothing happens to them.
    #[default]
    Pass,
    /// The request is lost, and no reply ever comes.
    DropRequest,
    /// The request is applied, and no reply ever comes.
    LoseReply,
    /// The request is applied, and the caller is told that nobody knows.
    BreakReply,
    /// The request is refused on its way: the store provably never saw it.
    Refuse,
    /// The request waits until [`Faulty::open`], then it is applied.
    HoldRequest,
    /// The reply waits until [`Faulty::open`].
    HoldReply,
    /// The reply takes so much longer, by the clock of the watchdogs.
    LateReply(Duration),
    /// Request and reply take so many polls each.
    Slow(u32),
}

/// One request that came by.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What was asked.
    pub op: Op,
    /// For which name; one entry for each renewal of a batch.
    pub name: LeaseName,
    /// When.
    pub at: BootTime,
}

#[derive(Default)]
struct Control {
    /// What the next calls meet, and how many of them.
    fates: HashMap<Op, VecDeque<(Fate, u32)>>,
    log: Vec<Seen>,
    batches: Vec<usize>,
    /// Calls that are neither answered nor held up on purpose.
    running: usize,
    wakes_lost: bool,
    token: Option<Token>,
}

struct Shared {
    control: Mutex<Control>,
    /// Counts the openings: what is held goes on at the next one.
    opened: watch::Sender<u64>,
}

/// Any backend, with its requests counted and its faults on order. Clones share everything.
#[derive(Clone)]
pub struct Faulty {
    inner: Recorded,
    profile: Profile,
    context: BackendContext,
    shared: Arc<Shared>,
}

impl Faulty {
    /// Wraps a backend; `context` is the one that it was made with.
    pub fn new(inner: Arc<dyn LeaseBackend>, context: BackendContext) -> Self {
        let shared = Shared { control: Mutex::default(), opened: watch::Sender::new(0) };
        let profile = inner.profile().clone();
        let inner = Recorded::new(inner, context.clone(), Recorder::new());
        Faulty { inner, profile, context, shared: Arc::new(shared) }
    }

    /// The same, recording what the store is asked and answers together with others.
    #[must_use]
    pub fn recording(mut self, recorder: Recorder) -> Self {
        self.inner = self.inner.with_recorder(recorder);
        self
    }

    /// The same, declaring another profile.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// From now on every `op` meets this fate.
    pub fn set(&self, op: Op, fate: Fate) {
        self.set_times(op, fate, u32::MAX);
    }

    /// The next `times` calls of `op` meet this fate, later ones pass.
    pub fn set_times(&self, op: Op, fate: Fate, times: u32) {
        self.control().fates.insert(op, VecDeque::from([(fate, times)]));
    }

    /// When what was ordered before is used up, every later `op` meets this fate.
    pub fn then(&self, op: Op, fate: Fate) {
        self.control().fates.entry(op).or_default().push_back((fate, u32::MAX));
    }

    /// Lets through what is held, and everything after it.
    pub fn open(&self) {
        self.control().fates.clear();
        self.shared.opened.send_modify(|n| *n += 1);
    }

    /// From now on no waiter is woken but by the time that its holder has left.
    pub fn lose_wakes(&self) {
        self.control().wakes_lost = true;
    }

    /// From now on every grant shows this token, as a store that lost data might grant; none shows
    /// the store's own again.
    pub fn fake_tokens(&self, token: Option<Token>) {
        self.control().token = token;
    }

    /// How many calls of `op` came by; renewals are counted one by one, however they are batched.
    pub fn count(&self, op: Op) -> usize {
        self.control().log.iter().filter(|seen| seen.op == op).count()
    }

    /// How many requests came by, of all kinds.
    pub fn calls(&self) -> usize {
        self.control().log.len()
    }

    /// What came by, in order.
    pub fn log(&self) -> Vec<Seen> {
        self.control().log.clone()
    }

    /// Sizes of the batches of renewals, in order.
    pub fn batches(&self) -> Vec<usize> {
        self.control().batches.clone()
    }

    /// Whether no call is under way but those that are held.
    pub fn is_idle(&self) -> bool {
        self.control().running == 0
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.shared.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call and draws its fate.
    fn enter(&self, op: Op, names: impl Iterator<Item = LeaseName>) -> (Fate, Running) {
        let at = self.context.now();
        let mut control = self.control();
        control.log.extend(names.map(|name| Seen { op, name, at }));
        let fates = control.fates.entry(op).or_default();
        let fate = fates.front().map_or(Fate::Pass, |(fate, _)| *fate);
        if let Some((_, left)) = fates.front_mut() {
            *left -= 1;
            if *left == 0 {
                fates.pop_front();
            }
        }
        drop(control);
        (fate, self.running())
    }

    /// A call under way from now on.
    fn running(&self) -> Running {
        self.control().running += 1;
        Running { shared: Arc::clone(&self.shared), parked: false }
    }

    fn broken(&self, op: &'static str, effect: Effect) -> BackendError {
        // why: with `Effect::None` the request was refused before the store saw it.
        let message = "the connection was cut on purpose";
        BackendError::new(ErrorKind::Unavailable, effect, self.inner.profile().name, op, message)
    }

    /// One call under its fate. `call` is not polled before the request is let through.
    async fn carry<T>(
        &self,
        fate: Fate,
        mut running: Running,
        op: &'static str,
        call: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        let mut opened = self.shared.opened.subscribe();
        match fate {
            Fate::Pass => Ok(call.await),
            Fate::DropRequest => running.forever().await,
            Fate::Refuse => Err(self.broken(op, Effect::None)),
            Fate::LoseReply => {
                call.await;
                running.forever().await
            }
            Fate::BreakReply => {
                call.await;
                Err(self.broken(op, Effect::Unknown))
            }
            Fate::HoldRequest => {
                running.held(&mut opened).await;
                Ok(call.await)
            }
            Fate::HoldReply => {
                let answer = call.await;
                running.held(&mut opened).await;
                Ok(answer)
            }
            Fate::LateReply(late) => {
                let answer = call.await;
                running.park(true);
                self.context.sleep_until(self.context.now() + late).await;
                running.park(false);
                Ok(answer)
            }
            Fate::Slow(polls) => {
                yield_times(polls).await;
                let answer = call.await;
                yield_times(polls).await;
                Ok(answer)
            }
        }
    }
}

/// Lets everything else that is ready on this runtime run, so many times.
pub(crate) async fn yield_times(polls: u32) {
    for _ in 0..polls {
        tokio::task::yield_now().await;
    }
}

/// A call under way, counted unless it is held up on purpose.
struct Running {
    shared: Arc<Shared>,
    parked: bool,
}

impl Running {
    fn park(&mut self, parked: bool) {
        if self.parked != parked {
            let mut control = self.shared.control.lock().unwrap_or_else(PoisonError::into_inner);
            control.running = if parked { control.running - 1 } else { control.running + 1 };
            self.parked = parked;
        }
    }

    async fn held(&mut self, opened: &mut watch::Receiver<u64>) {
        self.park(true);
        // The sender lives in `shared`.
        let _ = opened.changed().await;
        self.park(false);
    }

    async fn forever<T>(&mut self) -> T {
        self.park(true);
        std::future::pending().await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.park(true);
    }
}

#[async_trait]
impl LeaseBackend for Faulty {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        let (fate, running) = self.enter(Op::Acquire, std::iter::once(request.name.clone()));
        let mut answer = self.carry(fate, running, "acquire", self.inner.acquire(request)).await?;
        if let (Ok(Attempt::Granted(grant)), Some(fake)) = (&mut answer, self.control().token) {
            grant.token = fake;
        }
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        let (fate, running) = self.enter(Op::Renew, renewals.iter().map(|r| r.claim.name.clone()));
        self.control().batches.push(renewals.len());
        match self.carry(fate, running, "renew", self.inner.renew(renewals)).await {
            Ok(answers) => answers,
            Err(error) => renewals.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        let (fate, running) = self.enter(Op::Release, std::iter::once(request.claim.name.clone()));
        self.carry(fate, running, "release", self.inner.release(request)).await?
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let _running = self.running();
        self.inner.inspect(name).await
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        let _running = self.running();
        let inner = self.inner.waiter(request).await?;
        Ok(match self.control().wakes_lost {
            true => Box::new(Deaf { _inner: inner, context: self.context.clone() }),
            false => inner,
        })
    }

    fn facets(&self) -> Facets<'_> {
        self.inner.facets()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A waiter whose notifications are lost.
#[derive(Debug)]
struct Deaf {
    _inner: Box<dyn Waiter>,
    context: BackendContext,
}

#[async_trait]
impl Waiter for Deaf {
    async fn wait(&mut self, seen: &Contention) {
        let end = self.context.now() + seen.remaining.unwrap_or(Duration::from_millis(250));
        self.context.sleep_until(end).await;
    }
}
