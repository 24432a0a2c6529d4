//! The watchdog's decisions, without threads, clocks or I/O: `step(event, now) → actions`.
//!
//! Every held lease is an entry, and every entry has exactly one timer, kept sorted in its group
//! (one group per client). The timer is the earliest of: the next renewal, the warning, the end. A
//! due renewal takes along what else of its group is due within a quarter interval, so that ten
//! thousand leases are renewed in a few calls. A renewal in flight leaves the timer at the end of
//! the lease: a call that hangs delays nobody's loss, its own included.

use std::collections::BTreeSet;
use std::sync::Arc as StdArc;
use std::time::Duration;

use super::io::Lanes;
use crate::cell::{Extended, LeaseCell};
use crate::rng::Jitter;
use crate::sync::Arc;
use crate::{BootTime, LeaseBackend, LeaseState, LostCause};

/// Most leases that one step ends or renews: the lock is free again after so many.
pub(crate) const LEASES_PER_STEP_MAX: usize = 512;
/// First pause after a failed renewal; it doubles up to a quarter of the interval.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Jitter of renewals, in percent of the interval: only ever earlier.
const RENEW_JITTER_PERCENT: u32 = 10;
/// A clock thread that comes so late was paused: scheduling alone does not take so long.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(250);

/// Names an entry; the generation tells a reused slot apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// What happens to the watchdog.
pub(crate) enum Event {
    /// Time has passed.
    Tick {
        /// How late the tick comes: the time for which nothing ran.
        late: Duration,
    },
    /// The store renewed.
    Renewed { key: Key, from: BootTime, anchor: BootTime, granted: Duration },
    /// The store says that the grant is gone.
    Gone { key: Key, cause: LostCause },
    /// No answer, or an unknown one.
    Failed { key: Key },
    /// The holder changed ttl and deadline.
    Replan { key: Key },
}

/// What the watchdog's shell is to do.
pub(crate) enum Action {
    /// Tell everybody that the lease is over.
    End { cell: Arc<LeaseCell>, state: LeaseState },
    /// End the lease because its time is over.
    EndDue { cell: Arc<LeaseCell>, paused: Option<Duration> },
    /// Warn, or take the warning back.
    Risk { cell: Arc<LeaseCell>, risk: Option<(BootTime, Duration)> },
    /// Renew these, in one call.
    Renew(Batch),
}

/// Renewals of one call.
pub(crate) struct Batch {
    pub(crate) backend: StdArc<dyn LeaseBackend>,
    pub(crate) lanes: StdArc<Lanes>,
    pub(crate) items: Vec<(Key, Arc<LeaseCell>)>,
}

struct Entry {
    cell: Arc<LeaseCell>,
    group: u32,
    generation: u32,
    /// This entry's one timer, as it stands in its group.
    timer: BootTime,
    /// When the next renewal is due; MAX while one is in flight and for a fixed lease.
    due: BootTime,
    /// When to warn if no renewal succeeded; MAX once warned.
    warn: BootTime,
    first_failure: Option<BootTime>,
    failures: u32,
}

struct Group {
    backend: StdArc<dyn LeaseBackend>,
    lanes: StdArc<Lanes>,
    timers: BTreeSet<(BootTime, u32)>,
}

/// The leases of one watchdog.
pub(crate) struct State {
    entries: Vec<Option<Entry>>,
    free: Vec<(u32, u32)>,
    groups: Vec<Option<Group>>,
    jitter: Jitter,
    held: usize,
    first_group: u32,
    pub(crate) renewals_sent: u64,
    pub(crate) batches_sent: u64,
}

impl State {
    pub(crate) fn new(jitter: Jitter) -> Self {
        State {
            entries: Vec::new(),
            free: Vec::new(),
            groups: Vec::new(),
            jitter,
            held: 0,
            first_group: 0,
            renewals_sent: 0,
            batches_sent: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn add_group(&mut self, backend: StdArc<dyn LeaseBackend>, lanes: StdArc<Lanes>) -> u32 {
        let group = Some(Group { backend, lanes, timers: BTreeSet::new() });
        let slot = self.groups.iter().position(Option::is_none).unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[slot] = group;
        slot as u32
    }

    pub(crate) fn remove_group(&mut self, group: u32) {
        debug_assert!(self.groups[group as usize].as_ref().is_some_and(|g| g.timers.is_empty()));
        self.groups[group as usize] = None;
    }

    /// Takes over a fresh grant whose anchor is `anchor`.
    pub(crate) fn add(&mut self, group: u32, cell: Arc<LeaseCell>, anchor: BootTime) -> Key {
        let (index, generation) = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() as u32 - 1, 0)
        });
        let mut entry = Entry {
            cell,
            group,
            generation,
            timer: BootTime::MAX,
            due: BootTime::MAX,
            warn: BootTime::MAX,
            first_failure: None,
            failures: 0,
        };
        plan_next(&mut entry, anchor, &mut self.jitter);
        let key = Key { index, generation };
        if let Some(timer) = timer_of(&entry) {
            entry.timer = timer;
            self.timers(group).insert((timer, index));
        }
        self.entries[index as usize] = Some(entry);
        self.held += 1;
        key
    }

    /// Forgets an entry; false when it was forgotten before.
    pub(crate) fn remove(&mut self, key: Key) -> bool {
        match self.entries.get_mut(key.index as usize) {
            Some(slot) if slot.as_ref().is_some_and(|e| e.generation == key.generation) => {
                if let Some(entry) = slot.take() {
                    self.timers(entry.group).remove(&(entry.timer, key.index));
                }
                self.free.push((key.index, key.generation.wrapping_add(1)));
                self.held -= 1;
                true
            }
            _ => false,
        }
    }

    /// When the next step is due.
    pub(crate) fn next_wake(&self) -> BootTime {
        self.groups
            .iter()
            .flatten()
            .filter_map(|g| g.timers.first().map(|(at, _)| *at))
            .min()
            .unwrap_or(BootTime::MAX)
    }

    /// Every entry that is not over has its one timer, and no group has another.
    pub(crate) fn check_timers(&self) {
        let timers: usize = self.groups.iter().flatten().map(|g| g.timers.len()).sum();
        let live = self.entries.iter().flatten().filter(|e| e.timer != BootTime::MAX).count();
        assert_eq!(timers, live, "every held entry has exactly one timer");
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let group = self.groups[entry.group as usize].as_ref();
            let set = entry.timer == BootTime::MAX
                || group.is_some_and(|g| g.timers.contains(&(entry.timer, index as u32)));
            assert!(set, "the timer of {:?} is lost", entry.cell);
        }
    }

    /// One decision. Adds what is to be done to `actions`.
    pub(crate) fn step(&mut self, event: Event, now: BootTime, actions: &mut Vec<Action>) {
        match event {
            Event::Tick { late } => self.tick(now, late, actions),
            Event::Renewed { key, from, anchor, granted } => {
                self.renewed(key, from, anchor, granted, now, actions)
            }
            Event::Gone { key, cause } => {
                if let Some(entry) = find(&mut self.entries, key) {
                    let cell = Arc::clone(&entry.cell);
                    self.rest(key.index);
                    actions.push(Action::End { cell, state: LeaseState::Lost(cause) });
                }
            }
            Event::Failed { key } => self.failed(key, now, actions),
            Event::Replan { key } => {
                if let Some(entry) = find(&mut self.entries, key) {
                    plan_next(entry, now, &mut self.jitter);
                    self.rearm(key.index);
                }
            }
        }
    }

    fn timers(&mut self, group: u32) -> &mut BTreeSet<(BootTime, u32)> {
        // A client removes its group when its last guard is gone.
        &mut self.groups[group as usize].as_mut().expect("a group outlives its entries").timers
    }

    /// Gives the entry the timer that its fields ask for.
    fn rearm(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let (group, old, new) = (entry.group, entry.timer, timer_of(entry).unwrap_or(BootTime::MAX));
        entry.timer = new;
        if old != new {
            let timers = self.timers(group);
            timers.remove(&(old, index));
            if new != BootTime::MAX {
                timers.insert((new, index));
            }
        }
    }

    /// Takes the timer of an entry that is over; the entry itself waits for its guard.
    fn rest(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let (group, old) = (entry.group, entry.timer);
        entry.timer = BootTime::MAX;
        entry.due = BootTime::MAX;
        entry.warn = BootTime::MAX;
        self.timers(group).remove(&(old, index));
    }

    fn tick(&mut self, now: BootTime, late: Duration, actions: &mut Vec<Action>) {
        let paused = (late >= PAUSE_MIN).then_some(late);
        let mut budget = LEASES_PER_STEP_MAX;
        // Each group comes first in turn: one with many leases must not use up every step.
        self.first_group = self.first_group.wrapping_add(1);
        let groups = self.groups.len() as u32;
        let first = self.first_group;
        for g in (0..groups).map(move |n| (n + first % groups) % groups) {
            let mut due: Vec<u32> = Vec::new();
            while budget > 0 {
                let Some(group) = &self.groups[g as usize] else { break };
                let Some(&(at, index)) = group.timers.first() else { break };
                if at > now {
                    break;
                }
                budget -= 1;
                let Some(entry) = self.entries[index as usize].as_mut() else { break };
                let cell = Arc::clone(&entry.cell);
                match cell.deadline() {
                    // Released, or ended by a check, and about to be removed.
                    None => self.rest(index),
                    Some(deadline) if now >= deadline => {
                        self.rest(index);
                        actions.push(Action::EndDue { cell, paused });
                    }
                    Some(deadline) => {
                        if now >= entry.warn {
                            entry.warn = BootTime::MAX;
                            actions.push(Action::Risk { cell, risk: Some((deadline, deadline.since(now))) });
                        }
                        if now >= entry.due {
                            entry.due = BootTime::MAX;
                            due.push(index);
                        }
                        self.rearm(index);
                    }
                }
            }
            if let Some(&first) = due.first() {
                let early = self.take_along(g, first, now, budget);
                budget -= early.len();
                due.extend(early);
                self.batch(g, due, actions);
            }
        }
    }

    /// What else of the group is to be renewed within a quarter interval.
    fn take_along(&mut self, g: u32, first: u32, now: BootTime, budget: usize) -> Vec<u32> {
        let (Some(entry), Some(group)) = (&self.entries[first as usize], &self.groups[g as usize]) else {
            return Vec::new();
        };
        let horizon = now + entry.cell.plan.interval(entry.cell.believed()) / 4;
        let early: Vec<u32> = group
            .timers
            .range(..=(horizon, u32::MAX))
            .map(|&(_, index)| index)
            .filter(|&index| self.entries[index as usize].as_ref().is_some_and(|e| e.due <= horizon))
            .take(budget)
            .collect();
        for &index in &early {
            if let Some(entry) = self.entries[index as usize].as_mut() {
                entry.due = BootTime::MAX;
            }
            self.rearm(index);
        }
        early
    }

    fn batch(&mut self, g: u32, due: Vec<u32>, actions: &mut Vec<Action>) {
        let Some(group) = &self.groups[g as usize] else { return };
        let (backend, lanes) = (StdArc::clone(&group.backend), StdArc::clone(&group.lanes));
        let chunk = if mutant!(BatchMaxIgnored) { usize::MAX } else { backend.profile().batch_max.max(1) };
        for part in due.chunks(chunk) {
            let items = part
                .iter()
                .filter_map(|&index| {
                    let entry = self.entries[index as usize].as_ref()?;
                    Some((Key { index, generation: entry.generation }, Arc::clone(&entry.cell)))
                })
                .collect::<Vec<_>>();
            self.renewals_sent += items.len() as u64;
            self.batches_sent += 1;
            if mutant!(RenewalBurst) {
                for _ in 0..2 {
                    let items = items.clone();
                    actions.push(Action::Renew(Batch {
                        backend: StdArc::clone(&backend),
                        lanes: StdArc::clone(&lanes),
                        items,
                    }));
                }
            }
            actions.push(Action::Renew(Batch {
                backend: StdArc::clone(&backend),
                lanes: StdArc::clone(&lanes),
                items,
            }));
        }
    }

    fn renewed(
        &mut self,
        key: Key,
        from: BootTime,
        anchor: BootTime,
        granted: Duration,
        now: BootTime,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = find(&mut self.entries, key) else { return };
        let cell = Arc::clone(&entry.cell);
        match cell.extend(from, anchor, granted, now) {
            Extended::Yes => {
                entry.failures = 0;
                entry.first_failure = None;
                plan_next(entry, anchor, &mut self.jitter);
                self.rearm(key.index);
                actions.push(Action::Risk { cell, risk: None });
            }
            Extended::Superseded => {
                if is_renewable(&cell) {
                    entry.due = now;
                }
                self.rearm(key.index);
            }
            Extended::Over => self.rest(key.index),
        }
    }

    fn failed(&mut self, key: Key, now: BootTime, actions: &mut Vec<Action>) {
        let Some(entry) = find(&mut self.entries, key) else { return };
        let cell = Arc::clone(&entry.cell);
        if mutant!(FailedRenewalLoses) {
            self.rest(key.index);
            return actions.push(Action::End { cell, state: LeaseState::Lost(LostCause::Expired) });
        }
        let Some(deadline) = cell.deadline() else { return self.rest(key.index) };
        let first = *entry.first_failure.get_or_insert(now);
        let pause_max = cell.plan.interval(cell.believed()) / 4;
        let pause = (RETRY_PAUSE_MIN * 2u32.saturating_pow(entry.failures.min(16))).min(pause_max);
        entry.failures = entry.failures.saturating_add(1);
        let retry = now + self.jitter.shorten(pause, 50);
        let within_budget = retry.since(first) < cell.plan.retry_budget();
        entry.due = if within_budget { retry } else { BootTime::MAX };
        entry.warn = BootTime::MAX;
        self.rearm(key.index);
        actions.push(Action::Risk { cell, risk: Some((deadline, deadline.since(now))) });
    }
}

fn find(entries: &mut [Option<Entry>], key: Key) -> Option<&mut Entry> {
    entries.get_mut(key.index as usize)?.as_mut().filter(|e| e.generation == key.generation)
}

/// Plans the next renewal after an acknowledged one: an interval after its anchor, a little early.
fn plan_next(entry: &mut Entry, anchor: BootTime, jitter: &mut Jitter) {
    let cell = &entry.cell;
    let deadline = cell.deadline().unwrap_or(BootTime::ZERO);
    let interval = cell.plan.interval(cell.believed());
    let renewable = is_renewable(cell);
    entry.due =
        if renewable { anchor + jitter.shorten(interval, RENEW_JITTER_PERCENT) } else { BootTime::MAX };
    entry.warn = if renewable { deadline.before(cell.believed() / 4).max(anchor) } else { BootTime::MAX };
}

/// Whether the watchdog renews it: not a fixed one, and not beyond its business end.
fn is_renewable(cell: &LeaseCell) -> bool {
    let auto_renew = (cell.plan.auto_renew || mutant!(FixedIsRenewed)) && !mutant!(WatchdogNeverRenews);
    auto_renew && cell.deadline().is_some_and(|deadline| deadline < cell.hard_end)
}

fn timer_of(entry: &Entry) -> Option<BootTime> {
    Some(entry.cell.deadline()?.min(entry.due).min(entry.warn))
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::{
        AcquireRequest, Attempt, BackendError, Facets, Inspection, LeaseBackend, LeaseName, Profile,
        ReleaseRequest, Released, RenewAnswer, Renewal, Waiter, async_trait,
    };

    /// Only its profile is looked at: the step itself never calls a backend.
    #[derive(Debug)]
    pub(crate) struct ProfileOnly(Profile);

    impl ProfileOnly {
        pub(crate) fn new() -> Self {
            ProfileOnly(Profile::new("test"))
        }
    }

    #[async_trait]
    impl LeaseBackend for ProfileOnly {
        fn profile(&self) -> &Profile {
            &self.0
        }
        async fn acquire(&self, _: &AcquireRequest) -> Result<Attempt, BackendError> {
            unreachable!("the step makes no calls")
        }
        async fn renew(&self, _: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
            unreachable!("the step makes no calls")
        }
        async fn release(&self, _: &ReleaseRequest) -> Result<Released, BackendError> {
            unreachable!("the step makes no calls")
        }
        async fn inspect(&self, _: &LeaseName) -> Result<Inspection, BackendError> {
            unreachable!("the step makes no calls")
        }
        async fn waiter(&self, _: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
            unreachable!("the step makes no calls")
        }
        fn facets(&self) -> Facets<'_> {
            Facets::default()
        }
        async fn close(&self) {}
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::testing::ProfileOnly;
    use super::*;
    use crate::settings::Settings;
    use crate::{Claim, EndReason, LeaseName, OwnerId, Token, deadline};

    const TTL: Duration = Duration::from_secs(30);
    const START: BootTime = BootTime::from_nanos(1_000_000_000_000);

    struct World {
        state: State,
        group: u32,
        now: BootTime,
        actions: Vec<Action>,
        steps: u64,
    }

    impl World {
        fn new(seed: u64) -> Self {
            let mut state = State::new(Jitter::with_seed(seed));
            let group = state
                .add_group(StdArc::new(ProfileOnly::new()), StdArc::new(Lanes::new(Duration::from_secs(5))));
            World { state, group, now: START, actions: Vec::new(), steps: 0 }
        }

        fn hold(&mut self, settings: &Settings) -> (Key, Arc<LeaseCell>) {
            let name: LeaseName = "n".parse().expect("legal");
            let token = Token::new(1).expect("legal");
            let until = deadline::valid_until(self.now, settings.ttl, settings.ttl, Duration::from_millis(1));
            let hard = settings.max_hold.map_or(BootTime::MAX, |d| self.now + d);
            let cell = Arc::new(LeaseCell::new(
                Claim::new(name, OwnerId::random(), Some(token)),
                token,
                settings.plan(),
                Duration::from_millis(1),
                settings.ttl,
                self.now,
                (hard, EndReason::MaxHold),
                until,
            ));
            (self.state.add(self.group, Arc::clone(&cell), self.now), cell)
        }

        /// Goes to the next wake and makes the step; returns the keys to renew.
        fn wake(&mut self) -> Vec<(Key, BootTime)> {
            self.now = self.now.max(self.state.next_wake());
            self.tick(Duration::ZERO)
        }

        fn tick(&mut self, late: Duration) -> Vec<(Key, BootTime)> {
            self.state.step(Event::Tick { late }, self.now, &mut self.actions);
            self.check();
            let mut renew = Vec::new();
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Renew(batch) => renew
                        .extend(batch.items.iter().filter_map(|(key, cell)| Some((*key, cell.deadline()?)))),
                    Action::EndDue { cell, paused } => assert!(cell.end_if_due(self.now, paused)),
                    Action::End { cell, state } => assert!(cell.end(state)),
                    Action::Risk { cell, risk } => cell.set_at_risk(risk),
                }
            }
            renew
        }

        fn answer(&mut self, event: Event) {
            self.state.step(event, self.now, &mut self.actions);
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::End { cell, state } => assert!(cell.end(state)),
                    Action::Risk { cell, risk } => cell.set_at_risk(risk),
                    _ => unreachable!("an answer orders no renewal by itself"),
                }
            }
            self.check();
        }

        /// Looks at every entry: for many of them, only now and then.
        fn check(&mut self) {
            self.steps += 1;
            if self.steps.is_multiple_of(self.state.held().max(1) as u64) {
                self.state.check_timers();
            }
        }
    }

    #[test]
    fn a_year_of_renewals_loses_nothing_and_renews_three_times_a_ttl() {
        let mut world = World::new(7);
        let (_, cell) = world.hold(&Settings::new());
        let year = START + Duration::from_secs(365 * 24 * 3600);
        let mut renewals = 0u64;
        while world.now < year {
            for (key, from) in world.wake() {
                assert!(world.now < from, "renewed before the deadline");
                renewals += 1;
                let (anchor, granted) = (world.now, TTL);
                world.now = world.now + Duration::from_millis(3);
                world.answer(Event::Renewed { key, from, anchor, granted });
            }
        }
        assert_eq!(cell.state(world.now), LeaseState::Held);
        let per_ttl = renewals as f64 * 30.0 / (365.0 * 24.0 * 3600.0);
        assert!((3.0..3.5).contains(&per_ttl), "{per_ttl} renewals a ttl");
    }

    #[test]
    fn without_answers_the_lease_warns_and_then_ends_exactly_at_its_deadline() {
        let mut world = World::new(1);
        let (_, cell) = world.hold(&Settings::new());
        let deadline = cell.deadline().expect("held");
        let mut warned = None;
        while cell.deadline().is_some() {
            world.wake(); // the renewal is sent and nobody ever answers
            if matches!(cell.state(world.now), LeaseState::AtRisk { .. }) {
                warned.get_or_insert(world.now);
            }
        }
        assert_eq!(world.now, deadline);
        assert_eq!(cell.state(world.now), LeaseState::Lost(LostCause::Expired));
        assert_eq!(warned, Some(deadline.before(TTL / 4)));
        assert_eq!(world.state.next_wake(), BootTime::MAX);
    }

    #[test]
    fn failures_are_tried_again_until_the_deadline_and_one_success_heals() {
        let mut world = World::new(2);
        let (_, cell) = world.hold(&Settings::new());
        let mut tries = 0;
        while world.now < START + Duration::from_secs(25) {
            for (key, _) in world.wake() {
                tries += 1;
                world.answer(Event::Failed { key });
                assert!(matches!(cell.state(world.now), LeaseState::AtRisk { .. }));
            }
        }
        assert!((6..60).contains(&tries), "{tries} tries in 15 s: neither given up nor a tight loop");
        let due = loop {
            let due = world.wake();
            if !due.is_empty() {
                break due;
            }
        };
        for (key, from) in due {
            let anchor = world.now;
            world.answer(Event::Renewed { key, from, anchor, granted: TTL });
        }
        assert_eq!(cell.state(world.now), LeaseState::Held);
        assert!(cell.deadline().expect("held") > world.now + TTL * 9 / 10);
    }

    #[test]
    fn a_spent_retry_budget_lets_the_lease_run_out() {
        let mut world = World::new(3);
        let (_, cell) = world.hold(&Settings::new().retry_budget(Duration::from_secs(2)));
        let mut last = world.now;
        while cell.deadline().is_some() {
            for (key, _) in world.wake() {
                last = world.now;
                world.answer(Event::Failed { key });
            }
        }
        assert!(last < START + Duration::from_secs(13), "tried until {last:?}");
        assert_eq!(cell.state(world.now), LeaseState::Lost(LostCause::Expired));
    }

    #[test]
    fn a_reply_after_the_deadline_resurrects_nothing() {
        let mut world = World::new(4);
        let (_, cell) = world.hold(&Settings::new());
        let due = world.wake();
        let anchor = world.now;
        world.now = cell.deadline().expect("held");
        for (key, from) in due {
            world.answer(Event::Renewed { key, from, anchor, granted: TTL });
        }
        assert_eq!(cell.deadline(), None);
        assert_eq!(cell.state(world.now), LeaseState::Lost(LostCause::Expired));
        assert!(!cell.is_valid(START, |_| None), "a failing check is final, even for an older reading");
    }

    #[test]
    fn a_reply_to_a_renewal_from_before_a_shorter_ttl_does_not_lengthen_it() {
        let mut world = World::new(5);
        let (key, cell) = world.hold(&Settings::new());
        let due = world.wake();
        let anchor = world.now;
        cell.set_ttl(Duration::from_secs(2));
        cell.shorten(world.now + Duration::from_secs(2));
        world.answer(Event::Replan { key });
        for (key, from) in due {
            world.answer(Event::Renewed { key, from, anchor, granted: TTL });
        }
        assert_eq!(cell.deadline(), Some(anchor + Duration::from_secs(2)));
        assert!(!world.wake().is_empty(), "it is renewed again at once");
    }

    #[test]
    fn max_hold_ends_the_lease_and_stops_its_renewals() {
        let mut world = World::new(6);
        let (_, cell) = world.hold(&Settings::new().max_hold(Duration::from_secs(100)));
        while cell.deadline().is_some() {
            for (key, from) in world.wake() {
                let anchor = world.now;
                world.answer(Event::Renewed { key, from, anchor, granted: TTL });
            }
        }
        assert_eq!(world.now, START + Duration::from_secs(100));
        assert_eq!(cell.state(world.now), LeaseState::Ended(EndReason::MaxHold));
    }

    #[test]
    fn a_late_tick_says_for_how_long_nothing_ran() {
        let mut world = World::new(8);
        let (_, cell) = world.hold(&Settings::new());
        world.now = world.now + Duration::from_secs(90);
        assert!(world.tick(Duration::from_secs(80)).is_empty(), "what is over is not renewed");
        let paused = Duration::from_secs(80);
        assert_eq!(cell.state(world.now), LeaseState::Lost(LostCause::Paused { paused }));
    }

    #[test]
    fn ten_thousand_leases_are_renewed_in_full_batches_and_none_is_forgotten() {
        let mut world = World::new(9);
        let held: Vec<_> = (0..10_000).map(|_| world.hold(&Settings::new())).collect();
        let end = START + TTL * 3;
        while world.now < end {
            let anchor = world.now;
            for (key, from) in world.wake() {
                let anchor = anchor.max(world.now);
                world.answer(Event::Renewed { key, from, anchor, granted: TTL });
            }
        }
        for (key, cell) in held {
            assert_eq!(cell.state(world.now), LeaseState::Held);
            assert!(world.state.remove(key) && !world.state.remove(key));
        }
        let periods = world.state.renewals_sent as f64 / 10_000.0;
        let per_period = world.state.batches_sent as f64 / periods;
        assert!(per_period <= 40.0, "{per_period} calls a period for 10,000 leases");
        assert_eq!((world.state.held(), world.state.next_wake()), (0, BootTime::MAX));
    }

    #[test]
    fn a_reused_slot_is_not_touched_by_answers_for_its_former_lease() {
        let mut world = World::new(10);
        let (old, _) = world.hold(&Settings::new());
        assert!(world.state.remove(old));
        let (new, cell) = world.hold(&Settings::new());
        assert_eq!(old.index, new.index);
        world.answer(Event::Gone { key: old, cause: LostCause::SessionEnded });
        assert_eq!(cell.state(world.now), LeaseState::Held);
        assert!(!world.state.remove(old));
    }
}
