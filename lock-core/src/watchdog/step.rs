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
    Risk { cell: Arc<LeaseCell>, remaining: Option<Duration> },
    /// Renew these, in one call.
    Renew(Batch),
}

/// Renewals of one call.
pub(crate) struct Batch {
    pub(crate) backend: StdArc<dyn LeaseBackend>,
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
    timers: BTreeSet<(BootTime, u32)>,
}

/// The leases of one watchdog.
pub(crate) struct State {
    entries: Vec<Option<Entry>>,
    free: Vec<(u32, u32)>,
    groups: Vec<Option<Group>>,
    jitter: Jitter,
    held: usize,
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
            renewals_sent: 0,
            batches_sent: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn add_group(&mut self, backend: StdArc<dyn LeaseBackend>) -> u32 {
        let group = Some(Group { backend, timers: BTreeSet::new() });
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
            self.group(group).timers.insert((timer, index));
        } else {
            // Over already: the entry is there only to be removed.
            entry.timer = BootTime::MAX;
        }
        self.entries[index as usize] = Some(entry);
        self.held += 1;
        key
    }

    /// Forgets an entry; false when it was forgotten before.
    pub(crate) fn remove(&mut self, key: Key) -> bool {
        match self.entries.get_mut(key.index as usize) {
            Some(slot) if slot.as_ref().is_some_and(|e| e.generation == key.generation) => {
                let entry = slot.take().expect("just seen");
                self.group(entry.group).timers.remove(&(entry.timer, key.index));
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
            let set = entry.timer == BootTime::MAX || {
                let group = self.groups[entry.group as usize].as_ref().expect("group of an entry");
                group.timers.contains(&(entry.timer, index as u32))
            };
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
                if let Some(entry) = self.entry(key) {
                    let cell = Arc::clone(&entry.cell);
                    self.rest(key.index);
                    actions.push(Action::End { cell, state: LeaseState::Lost(cause) });
                }
            }
            Event::Failed { key } => self.failed(key, now, actions),
            Event::Replan { key } => {
                if self.entry(key).is_some() {
                    let State { entries, jitter, .. } = self;
                    plan_next(entries[key.index as usize].as_mut().expect("just seen"), now, jitter);
                    self.rearm(key.index);
                }
            }
        }
    }

    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(key.index as usize)?.as_mut().filter(|e| e.generation == key.generation)
    }

    fn group(&mut self, group: u32) -> &mut Group {
        self.groups[group as usize].as_mut().expect("a group outlives its entries")
    }

    /// Gives the entry the timer that its fields ask for.
    fn rearm(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let (group, old, new) = (entry.group, entry.timer, timer_of(entry).unwrap_or(BootTime::MAX));
        entry.timer = new;
        if old != new {
            let timers = &mut self.group(group).timers;
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
        self.group(group).timers.remove(&(old, index));
    }

    fn tick(&mut self, now: BootTime, late: Duration, actions: &mut Vec<Action>) {
        let paused = (late >= PAUSE_MIN).then_some(late);
        let mut budget = LEASES_PER_STEP_MAX;
        for g in 0..self.groups.len() as u32 {
            let mut due: Vec<u32> = Vec::new();
            while budget > 0 {
                let Some(group) = &self.groups[g as usize] else { break };
                let Some(&(at, index)) = group.timers.first() else { break };
                if at > now {
                    break;
                }
                budget -= 1;
                let entry = self.entries[index as usize].as_mut().expect("a timer has its entry");
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
                            actions.push(Action::Risk { cell, remaining: Some(deadline.since(now)) });
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
                self.take_along(g, first, now, &mut due, budget.min(LEASES_PER_STEP_MAX));
                self.batch(g, due, actions);
            }
        }
    }

    /// Adds to `due` what else of the group is to be renewed within a quarter interval.
    fn take_along(&mut self, g: u32, first: u32, now: BootTime, due: &mut Vec<u32>, budget: usize) {
        let cell = &self.entries[first as usize].as_ref().expect("due entry").cell;
        let horizon = now + cell.plan.interval(cell.ttl()) / 4;
        let group = self.groups[g as usize].as_ref().expect("group of a due entry");
        let early: Vec<u32> = group
            .timers
            .range(..=(horizon, u32::MAX))
            .map(|&(_, index)| index)
            .filter(|&index| self.entries[index as usize].as_ref().is_some_and(|e| e.due <= horizon))
            .take(budget)
            .collect();
        for index in early {
            self.entries[index as usize].as_mut().expect("just seen").due = BootTime::MAX;
            self.rearm(index);
            due.push(index);
        }
    }

    fn batch(&mut self, g: u32, due: Vec<u32>, actions: &mut Vec<Action>) {
        let backend = StdArc::clone(&self.groups[g as usize].as_ref().expect("group of a batch").backend);
        let chunk = backend.profile().batch_max.max(1);
        for part in due.chunks(chunk) {
            let items = part
                .iter()
                .map(|&index| {
                    let entry = self.entries[index as usize].as_ref().expect("due entry");
                    (Key { index, generation: entry.generation }, Arc::clone(&entry.cell))
                })
                .collect::<Vec<_>>();
            self.renewals_sent += items.len() as u64;
            self.batches_sent += 1;
            actions.push(Action::Renew(Batch { backend: StdArc::clone(&backend), items }));
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
        let Some(entry) = self.entry(key) else { return };
        let cell = Arc::clone(&entry.cell);
        match cell.extend(from, anchor, granted, now) {
            Extended::Yes => {
                entry.failures = 0;
                entry.first_failure = None;
                let State { entries, jitter, .. } = self;
                plan_next(entries[key.index as usize].as_mut().expect("just seen"), anchor, jitter);
                self.rearm(key.index);
                actions.push(Action::Risk { cell, remaining: None });
            }
            Extended::Superseded => {
                entry.due = now;
                self.rearm(key.index);
            }
            Extended::Over => self.rest(key.index),
        }
    }

    fn failed(&mut self, key: Key, now: BootTime, actions: &mut Vec<Action>) {
        let Some(entry) = self.entry(key) else { return };
        let cell = Arc::clone(&entry.cell);
        let Some(deadline) = cell.deadline() else { return self.rest(key.index) };
        let first = *entry.first_failure.get_or_insert(now);
        let pause_max = cell.plan.interval(cell.ttl()) / 4;
        let pause = (RETRY_PAUSE_MIN * 2u32.saturating_pow(entry.failures.min(16))).min(pause_max);
        entry.failures = entry.failures.saturating_add(1);
        let retry = now + self.jitter.shorten(pause, 50);
        let within_budget = retry.since(first) < cell.plan.retry_budget();
        let entry = self.entry(key).expect("just seen");
        entry.due = if within_budget { retry } else { BootTime::MAX };
        entry.warn = BootTime::MAX;
        self.rearm(key.index);
        actions.push(Action::Risk { cell, remaining: Some(deadline.since(now)) });
    }
}

/// Plans the next renewal after an acknowledged one: an interval after its anchor, a little early.
fn plan_next(entry: &mut Entry, anchor: BootTime, jitter: &mut Jitter) {
    let cell = &entry.cell;
    let deadline = cell.deadline().unwrap_or(BootTime::ZERO);
    let interval = cell.plan.interval(cell.ttl());
    // A deadline at the business end cannot move any more.
    let renewable = cell.plan.auto_renew && deadline < cell.hard_end;
    entry.due =
        if renewable { anchor + jitter.shorten(interval, RENEW_JITTER_PERCENT) } else { BootTime::MAX };
    entry.warn = if renewable { deadline.before(cell.ttl() / 4).max(anchor) } else { BootTime::MAX };
}

fn timer_of(entry: &Entry) -> Option<BootTime> {
    Some(entry.cell.deadline()?.min(entry.due).min(entry.warn))
}
