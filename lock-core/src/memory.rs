//! The memory backend: leases among the tasks and threads of one process.
//!
//! One map under one lock. A grant is a record with an owner, a token and an expiry on the boot
//! clock. A released record is dropped at once, and the namespace's floor is raised to its token in
//! the same step, so that a clock that steps back cannot repeat it; an expired record waits for the
//! next asker or for the sweep that runs once in so many grants.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    AcquireRequest, Attempt, BackendContext, BackendError, BootTime, Contention, Declared, Durability,
    Effect, ErrorKind, Facets, Fenced, FencedStore, FencedValue, ForceRelease, Grant, HolderInfo, HolderView,
    Inspection, LeaseAdmin, LeaseBackend, LeaseName, LostCause, OwnerId, Page, Profile, ReleaseRequest,
    Released, RenewAnswer, Renewal, Stale, Token, TokenError, WaitMode, Waiter, refuse_fenced,
};

/// Expired records are swept once in so many grants, at a cost of one look at every record.
const SWEEP_EVERY_MIN: usize = 1024;
/// How many forced releases are remembered, so that their old holders learn by whom and why.
const FORCED_MAX: usize = 1024;

/// Leases in this process's memory. Clones share them.
///
/// Tokens are larger than all before them as long as the process lives; across restarts the wall
/// clock is their floor. Nothing else survives the process.
#[derive(Clone)]
pub struct MemoryBackend {
    store: Arc<Store>,
    context: BackendContext,
    profile: Profile,
    closed: Arc<AtomicBool>,
}

#[derive(Default)]
struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: HashMap<LeaseName, Record>,
    /// No later token is at or below this.
    floor: Option<Token>,
    waiting: HashMap<LeaseName, watch::Sender<()>>,
    forced: HashMap<OwnerId, (String, String)>,
    fenced: HashMap<LeaseName, FencedRecord>,
    grants_until_sweep: usize,
    /// Names whose next call is applied and not answered: a fault for tests.
    unanswered: HashSet<LeaseName>,
    /// Names whose record cannot be read: a fault for tests.
    corrupt: HashSet<LeaseName>,
}

struct Record {
    /// None when the name is kept taken without an owner.
    owner: Option<OwnerId>,
    token: Token,
    expires: BootTime,
    acquired_unix_ms: u64,
    info: HolderInfo,
}

#[derive(Default)]
struct FencedRecord {
    highest: Option<Token>,
    values: std::collections::BTreeMap<String, FencedValue>,
}

impl MemoryBackend {
    /// The profile of every memory backend.
    pub const PROFILE: Profile = Profile::new("memory")
        .with_ttl_range(
            Duration::from_millis(20),
            Duration::from_secs(366 * 24 * 3600),
            Duration::from_nanos(1),
        )
        .with_margin(Duration::ZERO)
        .with_batch_max(4096)
        .with_wait(WaitMode::Notify)
        .with_durability(Durability::Process);

    /// An empty store.
    pub fn new(context: BackendContext) -> Self {
        let profile = if mutant!(ProfileDeclaresLess) { Profile::new("memory") } else { Self::PROFILE };
        let margin = if mutant!(MarginEatsTtl) { profile.ttl_min } else { profile.margin };
        let profile = profile.with_margin(margin);
        MemoryBackend { store: Arc::default(), context, profile, closed: Arc::default() }
    }

    /// An empty store that declares another profile, and refuses what that does not declare. For tests
    /// of this and other crates.
    #[doc(hidden)]
    pub fn declaring(profile: Profile, context: BackendContext) -> Self {
        MemoryBackend { profile, ..Self::new(context) }
    }

    /// The same store for another watchdog: what a second process would see.
    #[must_use]
    pub fn shared_with(&self, context: BackendContext) -> Self {
        let mut profile = self.profile.clone();
        if mutant!(ProfileOfSecondDiffers) && Arc::strong_count(&self.store) > 1 {
            profile.batch_max += 1;
        }
        MemoryBackend { store: Arc::clone(&self.store), context, profile, closed: Arc::default() }
    }

    /// From now on the record of a name cannot be read, as if another program had written it. For tests
    /// of this and other crates.
    #[doc(hidden)]
    pub fn corrupt_record(&self, name: &LeaseName) {
        let mut state = self.store.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.corrupt.insert(name.clone());
    }

    /// Loses the record of a name, as a store that was restored or tampered with would: neither the
    /// holder nor the floor is told. For tests of this and other crates.
    #[doc(hidden)]
    pub fn lose_record(&self, name: &LeaseName) {
        let mut state = self.store.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.records.remove(name);
    }

    /// The next acquire, renewal or release of a name is applied, and its reply is lost. For tests
    /// of this and other crates.
    #[doc(hidden)]
    pub fn lose_next_reply(&self, name: &LeaseName) {
        let mut state = self.store.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.unanswered.insert(name.clone());
    }

    fn refuse_keep_for(
        &self,
        op: &'static str,
        keep_for: Duration,
        name: &LeaseName,
    ) -> Result<(), BackendError> {
        if keep_for.is_zero() || self.profile.keep_for == Declared::Yes || mutant!(KeepForNotRefused) {
            return Ok(());
        }
        let message = "this store keeps no name taken after its release; nothing was released. Release it at once, or let it run out";
        // why: refused before the store is touched.
        Err(BackendError::new(ErrorKind::Unsupported, Effect::None, "memory", op, message).with_name(name))
    }

    fn state(&self, op: &'static str) -> Result<MutexGuard<'_, State>, BackendError> {
        if self.closed.load(Ordering::Acquire) && !mutant!(CloseForgotten) {
            // why: the store is not touched any more.
            return Err(BackendError::new(
                ErrorKind::Closed,
                Effect::None,
                "memory",
                op,
                "the store was closed",
            ));
        }
        Ok(self.store.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl State {
    /// The record of `name` if it has not run out.
    fn live(&self, name: &LeaseName, now: BootTime) -> Option<&Record> {
        self.records.get(name).filter(|r| r.is_live(now))
    }

    /// Drops a record and raises the floor to its token.
    fn collect(&mut self, name: &LeaseName) {
        if let Some(record) = self.records.remove(name)
            && !mutant!(ReleasedTokenForgotten)
        {
            self.floor = self.floor.max(Some(record.token));
        }
    }

    /// Ends a record; the name stays taken for `keep_for`.
    fn free(&mut self, name: &LeaseName, keep_for: Duration, now: BootTime) {
        let kept = keep_for > Duration::ZERO && !mutant!(ReleaseIgnoresKeepFor);
        if kept && let Some(record) = self.records.get_mut(name) {
            record.owner = None;
            record.info = HolderInfo::default();
            record.expires = now + keep_for;
        } else {
            self.collect(name);
        }
        if let Some(waiting) = self.waiting.get(name)
            && !mutant!(WakeLost)
        {
            waiting.send_replace(());
        }
    }

    /// The error of a call on `name` whose reply is lost, if that was ordered.
    fn unanswered(&mut self, op: &'static str, name: &LeaseName) -> Result<(), BackendError> {
        if self.unanswered.is_empty() || !self.unanswered.remove(name) {
            return Ok(());
        }
        let effect = if mutant!(LostReplyCalledNoEffect) { Effect::None } else { Effect::Unknown };
        let message = "the reply was lost on purpose: ask again, or release, with the same owner";
        Err(BackendError::new(ErrorKind::Unavailable, effect, "memory", op, message).with_name(name))
    }

    /// The error of a call on `name` whose record cannot be read, if that was ordered.
    fn readable(&self, op: &'static str, name: &LeaseName) -> Result<(), BackendError> {
        if self.corrupt.is_empty() || !self.corrupt.contains(name) {
            return Ok(());
        }
        let message = "the record was spoilt on purpose: it is left alone";
        // why: nothing was read that could have been changed.
        Err(BackendError::new(ErrorKind::Corrupt, Effect::None, "memory", op, message).with_name(name))
    }

    fn sweep(&mut self, now: BootTime) {
        if self.grants_until_sweep > 0 {
            self.grants_until_sweep -= 1;
            return;
        }
        let State { records, floor, .. } = self;
        records.retain(|_, record| {
            let live = record.is_live(now);
            if !live && !mutant!(SweptTokenForgotten) {
                *floor = (*floor).max(Some(record.token));
            }
            live
        });
        self.waiting.retain(|_, waiting| waiting.receiver_count() > 0);
        self.grants_until_sweep = self.records.len().max(SWEEP_EVERY_MIN);
    }

    fn lost(&self, claim: &crate::Claim, now: BootTime) -> LostCause {
        if let Some((by, reason)) = self.forced.get(&claim.owner) {
            return LostCause::Revoked { by: by.clone(), reason: reason.clone() };
        }
        match self.records.get(&claim.name) {
            Some(record) if record.owner == Some(claim.owner) => LostCause::ExpiredInStore,
            Some(record) if now < record.expires => match record.view(now) {
                Some(view) => LostCause::taken(&view),
                None => LostCause::ExpiredInStore,
            },
            _ => LostCause::ExpiredInStore,
        }
    }

    fn fence(&mut self, name: &LeaseName, token: Token) -> Result<&mut FencedRecord, Stale> {
        let record = self.fenced.entry(name.clone()).or_default();
        match record.highest {
            Some(highest) if highest > token && !mutant!(FenceAcceptsLower) => {
                Err(Stale { presented: token, highest })
            }
            Some(highest) if mutant!(FenceRefusesEqual) && highest == token => {
                Err(Stale { presented: token, highest })
            }
            _ => {
                record.highest = Some(token);
                Ok(record)
            }
        }
    }
}

impl Record {
    fn is_live(&self, now: BootTime) -> bool {
        now < self.expires || mutant!(ExpiryNeverFires)
    }

    fn left(&self, now: BootTime) -> Duration {
        self.expires.since(if mutant!(InspectOverstatesRemaining) { BootTime::ZERO } else { now })
    }

    /// The token that the next one must exceed.
    fn last_token(&self, now: BootTime) -> Option<Token> {
        (self.is_live(now) || !mutant!(ExpiredTokenForgotten)).then_some(self.token)
    }

    /// Whether `renewal` comes from the owner and in time.
    fn is_renewed_by(&self, renewal: &Renewal, now: BootTime) -> bool {
        let owner = self.owner == Some(renewal.claim.owner) || mutant!(RenewIgnoresOwner);
        let in_time = self.is_live(now) || mutant!(RenewRevivesExpired);
        owner && in_time
    }

    /// Whether a planted defect lets a rival pass this record.
    fn is_stolen(&self, request: &AcquireRequest, now: BootTime) -> bool {
        let rival = self.owner != Some(request.owner);
        let shorter = request.store_ttl < self.expires.since(now);
        (mutant!(GrantsTwice) && rival) || (mutant!(ShorterTtlSteals) && shorter)
    }

    fn view(&self, now: BootTime) -> Option<HolderView> {
        let mut view = HolderView::new(&self.owner?, self.token);
        if mutant!(InspectLeaksOwner) {
            view.fingerprint = self.owner?.to_hex();
        }
        view.info = self.info.clone();
        view.acquired_unix_ms = Some(self.acquired_unix_ms);
        view.remaining = Some(self.left(now));
        Some(view)
    }

    fn contention(&self, now: BootTime) -> Contention {
        if mutant!(RefusalTellsNothing) {
            return Contention::default();
        }
        Contention::new(self.view(now), Some(self.left(now)))
    }
}

/// When a countdown that starts now is over.
fn end(now: BootTime, ttl: Duration) -> BootTime {
    let end = now + ttl;
    if mutant!(ExpiryInWholeSeconds) {
        return BootTime::from_nanos(end.as_nanos() / 1_000_000_000 * 1_000_000_000);
    }
    end
}

/// The grant of a request: its anchor is the reading that the caller took before it asked.
fn granted(request: &AcquireRequest, token: Token) -> Attempt {
    let mut grant = Grant::of(request, token);
    if mutant!(GrantAnchorLate) {
        grant.anchor = grant.anchor + Duration::from_millis(50);
    }
    Attempt::Granted(grant)
}

/// The answer to a renewal, with the anchor that its caller gave it.
fn renewed(renewal: &Renewal) -> RenewAnswer {
    if mutant!(RenewAnchorLate) {
        let anchor = renewal.sent_at + Duration::from_millis(50);
        return RenewAnswer::Renewed { anchor, ttl: renewal.store_ttl, revoke: None };
    }
    RenewAnswer::renewed(renewal)
}

/// A batch as a store takes it that looks at its first renewal alone.
#[cfg(leasehold_mutants)]
fn like_the_first(renewals: &[Renewal]) -> Vec<Renewal> {
    let mut all = renewals.to_vec();
    for renewal in &mut all {
        if mutant!(RenewUsesFirstTtl) {
            renewal.store_ttl = renewals[0].store_ttl;
        }
        if mutant!(RenewUsesFirstFloor) {
            renewal.token_floor = renewals[0].token_floor;
        }
    }
    all
}

/// The name that a store with too little room for names, or too little care, takes for this one.
fn name_in_store(name: &LeaseName) -> LeaseName {
    const ROOM: usize = 200;
    let text = name.as_str();
    let kept = if mutant!(NamesCollapse) {
        LeaseName::new(text.trim_end().to_lowercase())
    } else if mutant!(NamesCutBehind) {
        LeaseName::new(&text[..text.floor_char_boundary(ROOM)])
    } else if mutant!(NamesCutInFront) {
        LeaseName::new(&text[text.ceil_char_boundary(text.len().saturating_sub(ROOM))..])
    } else {
        return name.clone();
    };
    kept.unwrap_or_else(|_| name.clone())
}

fn exhausted(error: TokenError, name: &LeaseName) -> BackendError {
    // why: the grant is refused before the record is written.
    BackendError::new(ErrorKind::TokenRegression, Effect::None, "memory", "acquire", error.to_string())
        .with_name(name)
}

#[async_trait]
impl LeaseBackend for MemoryBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        self.profile.refuse(request)?;
        let (now, clock_us) = (self.context.now(), self.context.clock().unix_micros());
        let clock_us = if mutant!(TokenWithoutClock) { 1 } else { clock_us };
        let mut state = self.state("acquire")?;
        if mutant!(CorruptIsGranted) && state.corrupt.remove(&request.name) {
            state.records.remove(&request.name);
        }
        state.readable("acquire", &request.name)?;
        let raced = mutant!(GrantsOnRace) && state.live(&request.name, now).is_none();
        if raced {
            drop(state);
            std::thread::sleep(Duration::from_micros(50));
            state = self.state("acquire")?;
        }
        state.sweep(now);
        let floor = if mutant!(TokenFloorIgnored) { None } else { request.token_floor };
        let floor = state.floor.max(floor);
        let ttl = if mutant!(ExpiryTooEarly) { request.store_ttl / 2 } else { request.store_ttl };
        let expires = end(now, ttl);
        let name = &name_in_store(&request.name);
        match state.records.get_mut(name) {
            Some(record) if record.is_live(now) && !raced && !record.is_stolen(request, now) => {
                if record.owner != Some(request.owner) {
                    if mutant!(RefusedTryLeavesTrace) {
                        record.expires = record.expires.max(expires);
                    }
                    return Ok(Attempt::Held(record.contention(now)));
                }
                if mutant!(ReacquireNewToken) {
                    record.token = Token::next(Some(record.token), clock_us, floor)
                        .map_err(|e| exhausted(e, &request.name))?;
                }
                // The same owner asks again: same token, fresh expiry. A floor above it is honoured.
                if request.token_floor.is_some_and(|floor| floor >= record.token)
                    && !mutant!(RepeatedFloorIgnored)
                {
                    record.token = Token::next(Some(record.token), clock_us, floor)
                        .map_err(|e| exhausted(e, &request.name))?;
                }
                if !mutant!(ReacquireKeepsExpiry) {
                    record.expires = expires;
                }
                let answer = granted(request, record.token);
                state.unanswered("acquire", &request.name).map(|()| answer)
            }
            found => {
                let last = found.as_ref().and_then(|record| record.last_token(now));
                let token = match last.max(floor) {
                    Some(stuck) if mutant!(StuckToken) => stuck,
                    Some(own)
                        if mutant!(OwnExpiredKeepsToken)
                            && found.as_ref().is_some_and(|record| record.owner == Some(request.owner)) =>
                    {
                        own
                    }
                    _ => Token::next(last, clock_us, floor).map_err(|e| exhausted(e, &request.name))?,
                };
                let record = Record {
                    owner: Some(request.owner),
                    token,
                    expires,
                    acquired_unix_ms: clock_us / 1_000,
                    info: if mutant!(HolderInfoDropped) {
                        HolderInfo::default()
                    } else {
                        request.holder_info.clone()
                    },
                };
                match found {
                    Some(slot) => *slot = record,
                    None => drop(state.records.insert(name.clone(), record)),
                }
                state.unanswered("acquire", &request.name).map(|()| granted(request, token))
            }
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        let now = self.context.now();
        let clock_us = self.context.clock().unix_micros();
        let mut state = match self.state("renew") {
            Ok(state) => state,
            Err(e) => return renewals.iter().map(|_| Err(e.clone())).collect(),
        };
        #[cfg(leasehold_mutants)]
        let renewals = &like_the_first(renewals)[..];
        let unreadable: Vec<_> =
            renewals.iter().map(|r| state.readable("renew", &r.claim.name).err()).collect();
        let mut answer = |renewal: &Renewal| match state.records.get_mut(&renewal.claim.name) {
            Some(record) if record.is_renewed_by(renewal, now) => {
                if mutant!(RenewChangesToken)
                    || renewal.token_floor.is_some_and(|floor| floor >= record.token)
                        && !mutant!(RenewFloorIgnored)
                {
                    record.token = Token::next(Some(record.token), clock_us, renewal.token_floor)
                        .map_err(|e| exhausted(e, &renewal.claim.name))?;
                }
                if !mutant!(RenewExtendsNothing) {
                    record.expires = end(now, renewal.store_ttl);
                }
                Ok(renewed(renewal))
            }
            None if mutant!(RenewRecreates) => {
                let token = renewal
                    .claim
                    .token
                    .ok_or_else(|| exhausted(TokenError::OutOfRange, &renewal.claim.name))?;
                let record = Record {
                    owner: Some(renewal.claim.owner),
                    token,
                    expires: now + renewal.store_ttl,
                    acquired_unix_ms: 0,
                    info: HolderInfo::default(),
                };
                state.records.insert(renewal.claim.name.clone(), record);
                Ok(RenewAnswer::renewed(renewal))
            }
            _ => Ok(RenewAnswer::Lost(state.lost(&renewal.claim, now))),
        };
        let answers = renewals.iter().zip(unreadable).map(|(renewal, error)| match error {
            Some(error) => Err(error),
            None => answer(renewal),
        });
        let mut answers: Vec<_> = answers.collect();
        if mutant!(RenewReversesBatch) {
            answers.reverse();
        }
        let lost = renewals.iter().find_map(|r| state.unanswered("renew", &r.claim.name).err());
        match lost {
            None => answers,
            Some(error) if mutant!(FailedBatchIsShort) => vec![Err(error)],
            Some(_) if mutant!(FailedRenewalIsLost) => {
                renewals.iter().map(|_| Ok(RenewAnswer::Lost(LostCause::ExpiredInStore))).collect()
            }
            // One call carried them all: nobody knows of any.
            Some(error) => renewals.iter().map(|r| Err(error.clone().with_name(&r.claim.name))).collect(),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        self.refuse_keep_for("release", request.keep_for, &request.claim.name)?;
        let mut state = self.state("release")?;
        let claim = &request.claim;
        state.readable("release", &claim.name)?;
        match state.records.get(&claim.name) {
            Some(record)
                if record.owner == Some(claim.owner)
                    || mutant!(ReleaseIgnoresOwner)
                    || (mutant!(KeptNameIsFreedAgain) && record.owner.is_none()) =>
            {
                state.free(&claim.name, request.keep_for, request.sent_at);
                state.unanswered("release", &claim.name).map(|()| Released::Released)
            }
            Some(record) => {
                let now = self.context.now();
                match record.view(now).filter(|_| record.is_live(now)) {
                    Some(view) => Ok(Released::NotHeld { by: Some(view) }),
                    None => Ok(Released::AlreadyReleased),
                }
            }
            None if mutant!(ReleaseAlwaysReleased) => Ok(Released::Released),
            None => Ok(Released::AlreadyReleased),
        }
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let now = self.context.now();
        let state = self.state("inspect")?;
        match state.readable("inspect", name) {
            Err(_) if mutant!(CorruptIsFree) => return Ok(Inspection::free(name.clone())),
            readable => readable?,
        }
        Ok(inspection(&state, name, now))
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        self.profile.refuse(request)?;
        let mut state = self.state("waiter")?;
        let waiting = state.waiting.entry(request.name.clone()).or_insert_with(|| watch::Sender::new(()));
        if mutant!(WaiterLeaks) {
            std::mem::forget(waiting.subscribe());
        }
        Ok(Box::new(MemoryWaiter {
            woken: waiting.subscribe(),
            name: request.name.clone(),
            store: Arc::clone(&self.store),
            context: self.context.clone(),
        }))
    }

    fn facets(&self) -> Facets<'_> {
        Facets { admin: Some(self), fenced: Some(self) }
    }

    async fn close(&self) {
        // The store itself stays for handles made by `shared_with`.
        self.closed.store(true, Ordering::Release);
    }
}

fn inspection(state: &State, name: &LeaseName, now: BootTime) -> Inspection {
    let mut inspection = Inspection::free(name.clone());
    inspection.token_floor = state.floor;
    if let Some(record) = state.live(name, now) {
        inspection.holders.extend(record.view(now));
        inspection.free_in = Some(record.left(now));
        inspection.token_floor = state.floor.max(Some(record.token));
    }
    inspection.waiting = state.waiting.get(name).map(|w| w.receiver_count() as u64);
    inspection
}

/// Woken by a release of its name; looks again when the holder it saw has run out.
struct MemoryWaiter {
    woken: watch::Receiver<()>,
    name: LeaseName,
    store: Arc<Store>,
    context: BackendContext,
}

#[async_trait]
impl Waiter for MemoryWaiter {
    async fn wait(&mut self, seen: &Contention) {
        let mut end = self.context.now() + seen.remaining.unwrap_or(Duration::from_millis(250));
        if mutant!(WakeNotLatched) {
            self.woken.mark_unchanged();
        }
        if mutant!(WaiterSleepsThroughExpiry) {
            end = BootTime::MAX;
        }
        // An error means that the sender is gone, and it lives as long as this waiter.
        let changed = std::pin::pin!(self.woken.changed());
        futures_util::future::select(changed, self.context.sleep_until(end)).await;
    }
}

impl Drop for MemoryWaiter {
    fn drop(&mut self) {
        let mut state = self.store.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.waiting.get(&self.name).is_some_and(|w| w.receiver_count() <= 1) {
            state.waiting.remove(&self.name);
        }
    }
}

impl fmt::Debug for MemoryWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWaiter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

#[async_trait]
impl LeaseAdmin for MemoryBackend {
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        let now = self.context.now();
        let state = self.state("list")?;
        let mut names: Vec<&LeaseName> = state
            .records
            .iter()
            .filter(|(name, record)| {
                record.is_live(now)
                    && (name.as_str().is_ascii() || !mutant!(ListHidesNames))
                    && (name.as_str().starts_with(prefix) || mutant!(ListIgnoresPrefix))
                    && page.after.as_ref().is_none_or(|after| *name > after)
            })
            .map(|(name, _)| name)
            .collect();
        names.sort_unstable();
        names.truncate(page.limit.min(Page::LIMIT_MAX));
        Ok(names.into_iter().map(|name| inspection(&state, name, now)).collect())
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        self.refuse_keep_for("force_release", request.keep_for, &request.name)?;
        let now = self.context.now();
        let mut state = self.state("force_release")?;
        let Some(record) = state.live(&request.name, now) else { return Ok(Released::AlreadyReleased) };
        if record.token != request.token && !mutant!(ForceReleaseBlind) {
            return Ok(Released::NotHeld { by: record.view(now) });
        }
        if let Some(owner) = record.owner
            && !mutant!(ForceReleaseSilent)
        {
            if state.forced.len() >= FORCED_MAX {
                state.forced.clear();
            }
            state.forced.insert(owner, (request.by.clone(), request.reason.clone()));
        }
        let floor = state.floor;
        state.free(&request.name, request.keep_for, now);
        state.floor = state.floor.max(Some(request.token));
        if mutant!(ForcedTokenForgotten) {
            state.floor = floor;
        }
        Ok(Released::Released)
    }

    async fn raise_floor(&self, name: Option<&LeaseName>, token: Token) -> Result<(), BackendError> {
        // One floor serves the whole namespace: raising it for all is raising it for one.
        let _ = name;
        let mut state = self.state("raise_floor")?;
        if mutant!(RaisedFloorIgnored) {
            return Ok(());
        }
        state.floor = state.floor.max(Some(token));
        Ok(())
    }

    async fn raise_epoch(&self) -> Result<u64, BackendError> {
        let mut state = self.state("raise_epoch")?;
        let highest = state.records.values().map(|r| r.token).max().max(state.floor);
        let epoch = highest.map_or(0, Token::epoch) + 1;
        let token = Token::from_parts(epoch, 0).map_err(|e| {
            // why: refused before the floor is written.
            BackendError::new(
                ErrorKind::TokenRegression,
                Effect::None,
                "memory",
                "raise_epoch",
                e.to_string(),
            )
        })?;
        if !mutant!(RaisedEpochIgnored) {
            state.floor = state.floor.max(Some(token));
        }
        Ok(epoch)
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        if mutant!(PrepareEmpties) {
            self.state("prepare")?.records.clear();
        }
        Ok(())
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.state("probe").map(drop)
    }
}

#[async_trait]
impl FencedStore for MemoryBackend {
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        Ok(self.state("advance")?.fence(name, token).map_or_else(Fenced::Stale, |_| Fenced::Accepted))
    }

    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError> {
        refuse_fenced("memory", key, value)?;
        Ok(match self.state("put")?.fence(name, token) {
            Err(stale) => Fenced::Stale(stale),
            Ok(record) => {
                record.values.insert(key.to_owned(), FencedValue { value: value.to_vec(), token });
                Fenced::Accepted
            }
        })
    }

    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError> {
        Ok(self.state("get")?.fenced.get(name).and_then(|r| r.values.get(key)).cloned())
    }

    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError> {
        Ok(self.state("list")?.fenced.get(name).map_or_else(Vec::new, |r| {
            r.values.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
        }))
    }

    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        Ok(match self.state("purge")?.fence(name, token) {
            Err(stale) => Fenced::Stale(stale),
            Ok(record) => {
                record.values.clear();
                if mutant!(PurgeForgetsMark) {
                    record.highest = None;
                }
                Fenced::Accepted
            }
        })
    }
}
