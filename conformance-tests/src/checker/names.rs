//! A history name by name: the grants, with everything that became of them, and what others saw.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Action, At, Event, History, Kind, Operation};

/// One grant: what an owner was answered under one token. An owner whose grant ran out and that asked
/// again has another one.
pub(super) struct Held<'a> {
    /// The first answer.
    pub(super) grant: &'a Event,
    pub(super) token: u64,
    /// When the attempt that brought the first answer began.
    pub(super) asked: At,
    /// Later answers to the same owner under the same token.
    again: Vec<&'a Event>,
    pub(super) renewals: Vec<&'a Operation>,
    pub(super) releases: Vec<&'a Operation>,
    pub(super) moments: Vec<&'a Event>,
    /// When somebody began to end it, and when that was done.
    revoked: Option<(At, &'a Operation)>,
    /// When the same owner was granted the name under a larger token: raised above a floor, or anew.
    replaced: Option<At>,
}

impl<'a> Held<'a> {
    pub(super) fn owner(&self) -> &'a str {
        &self.grant.owner
    }

    /// When the first release began.
    pub(super) fn release_begins(&self) -> At {
        self.releases.iter().map(|release| release.invoke.at()).min().unwrap_or(At::NEVER)
    }

    /// The first release of which the store says that it ended the grant.
    pub(super) fn released(&self) -> Option<&'a Event> {
        let done = self.releases.iter().filter_map(|release| release.ok());
        done.filter(|ok| ok.released == Some(true)).min_by_key(|ok| ok.at())
    }

    /// When somebody began to end it.
    pub(super) fn revoke_begins(&self) -> At {
        self.revoked.map_or(At::NEVER, |(at, _)| at)
    }

    /// The last deadline that the holder had by answers that came in time.
    pub(super) fn deadline(&self) -> u64 {
        let mut answers: Vec<(&Event, bool)> = Vec::new();
        answers.extend(self.renewals.iter().filter_map(|renewal| Some((renewal.ok()?, false))));
        // A grant that is told again is believed again.
        answers.extend(self.again.iter().map(|again| (*again, true)));
        answers.sort_by_key(|(answer, _)| answer.at());
        let mut deadline = self.grant.until_ns.unwrap_or(u64::MAX);
        for (answer, anew) in answers {
            if anew || answer.at_ns < deadline {
                deadline = answer.until_ns.unwrap_or(deadline);
            }
        }
        deadline
    }

    /// When the holder stopped to believe.
    pub(super) fn belief_ends(&self) -> At {
        let over =
            self.moments.iter().filter(|moment| moment.action == Action::Lost || moment.kind == Kind::Fail);
        let over = over.map(|moment| moment.at()).min().unwrap_or(At::NEVER);
        let over = over.min(self.replaced.unwrap_or(At::NEVER));
        At::start_of(self.deadline()).min(over).min(self.release_begins()).min(self.revoke_begins())
    }

    /// When the name was free again, where that is certain.
    pub(super) fn free_from(&self) -> u64 {
        if let Some(replaced) = self.replaced {
            return replaced.ns;
        }
        if let Some(released) = self.released() {
            return released.at_ns.max(released.until_ns.unwrap_or(0));
        }
        if let Some(end) = self.revoked.and_then(|(_, revoke)| revoke.ok()) {
            return end.at_ns.max(end.until_ns.unwrap_or(0));
        }
        // A release that nobody knows of may keep the name, a renewal may have prolonged it.
        let open = |operations: &[&Operation]| operations.iter().any(|operation| operation.is_open());
        if open(&self.renewals) || open(&self.releases) { u64::MAX } else { self.deadline() }
    }

    pub(super) fn label(&self) -> String {
        format!("{} (token {})", self.grant.owner, self.token)
    }
}

/// Everything about one name.
#[derive(Default)]
pub(super) struct Log<'a> {
    /// In the order of their answers.
    pub(super) held: Vec<Held<'a>>,
    /// All attempts, whatever became of them.
    pub(super) acquires: Vec<&'a Operation>,
    /// Renewals and releases that succeeded for an owner without a grant.
    pub(super) unowned: Vec<&'a Operation>,
    pub(super) writes: Vec<&'a Operation>,
    pub(super) waits: Vec<&'a Operation>,
    pub(super) looks: Vec<&'a Operation>,
    /// When each owner was last seen as the holder: when that was asked.
    pub(super) last_seen: HashMap<&'a str, At>,
    /// When the last attempt of each owner ended.
    pub(super) last_asked: HashMap<&'a str, At>,
    by_owner: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Log<'a> {
    fn add_sightings(&mut self) {
        for shown in self.acquires.iter().chain(&self.looks) {
            let holder = shown.end.as_ref().and_then(|end| end.holder.as_deref());
            if let Some(holder) = holder {
                keep_latest(&mut self.last_seen, holder, shown.invoke.at());
            }
        }
        for attempt in &self.acquires {
            keep_latest(&mut self.last_asked, &attempt.invoke.owner, attempt.ended());
        }
    }

    /// The grant of `owner` that something at `at` is about: the last one answered before.
    fn grant_of(&mut self, owner: &str, at: At) -> Option<&mut Held<'a>> {
        let places = self.by_owner.get(owner)?;
        let before = places.partition_point(|place| self.held[*place].grant.at() <= at);
        let place = places[before.saturating_sub(1)];
        Some(&mut self.held[place])
    }

    fn add_grants(&mut self) {
        let mut answered: Vec<(&'a Operation, &'a Event, u64)> = Vec::new();
        answered.extend(self.acquires.iter().filter_map(|op| {
            let end = op.ok()?;
            Some((*op, end, end.token?))
        }));
        answered.sort_by_key(|(_, end, _)| end.at());
        let mut places: HashMap<(&str, u64), usize> = HashMap::new();
        for (operation, end, token) in answered {
            let next = self.held.len();
            let place = *places.entry((&end.owner, token)).or_insert(next);
            if place < next {
                self.held[place].again.push(end);
                continue;
            }
            let of_owner = self.by_owner.entry(&end.owner).or_default();
            if let Some(before) = of_owner.last() {
                self.held[*before].replaced.get_or_insert(end.at());
            }
            of_owner.push(next);
            self.held.push(Held {
                grant: end,
                token,
                asked: operation.invoke.at(),
                again: Vec::new(),
                renewals: Vec::new(),
                releases: Vec::new(),
                moments: Vec::new(),
                revoked: None,
                replaced: None,
            });
        }
    }

    fn add(&mut self, operation: &'a Operation) {
        let invoke = &operation.invoke;
        let Some(held) = self.grant_of(&invoke.owner, invoke.at()) else {
            let done = match operation.ok() {
                Some(ok) if invoke.action == Action::Release => ok.released == Some(true),
                ok => ok.is_some(),
            };
            if done {
                self.unowned.push(operation);
            }
            return;
        };
        match invoke.action {
            Action::Renew => held.renewals.push(operation),
            _ => held.releases.push(operation),
        }
    }

    /// A revoke ends the grant of its token, or, without one, every grant before it.
    fn revoke(&mut self, revoke: &'a Operation) {
        let refused = revoke.end.as_ref().is_some_and(|end| end.kind == Kind::Fail);
        let nothing = revoke.ok().is_some_and(|ok| ok.released == Some(false));
        if refused || nothing {
            return;
        }
        let token = revoke.invoke.token.or_else(|| revoke.end.as_ref()?.token);
        let begins = revoke.invoke.at();
        let granted = self.held.iter().any(|held| Some(held.token) == token);
        for held in &mut self.held {
            let before = held.asked <= revoke.ended();
            let meant = match token {
                Some(token) if granted => held.token == token,
                // A renewal may have raised a grant's token above a floor: nobody was told.
                Some(token) => before && held.token < token,
                None => before,
            };
            if meant && held.revoked.is_none_or(|(before, _)| begins < before) {
                held.revoked = Some((begins, revoke));
            }
        }
    }
}

fn keep_latest<'a>(of: &mut HashMap<&'a str, At>, owner: &'a str, at: At) {
    let last = of.entry(owner).or_insert(at);
    *last = (*last).max(at);
}

/// The names of a history, sorted.
pub(super) fn of(history: &History) -> BTreeMap<&str, Log<'_>> {
    let mut names: BTreeMap<&str, Log<'_>> = BTreeMap::new();
    for operation in &history.operations {
        let log = names.entry(&operation.invoke.name).or_default();
        match operation.invoke.action {
            Action::Acquire => log.acquires.push(operation),
            Action::Wait => log.waits.push(operation),
            Action::Write => log.writes.push(operation),
            Action::Look => log.looks.push(operation),
            Action::Renew | Action::Release | Action::Revoke | Action::Check | Action::Lost => {}
        }
    }
    for log in names.values_mut() {
        log.add_grants();
        log.add_sightings();
    }
    for operation in &history.operations {
        let Some(log) = names.get_mut(&*operation.invoke.name) else { continue };
        match operation.invoke.action {
            Action::Renew | Action::Release => log.add(operation),
            Action::Revoke => log.revoke(operation),
            _ => {}
        }
    }
    for moment in &history.moments {
        let held = names.get_mut(&*moment.name).and_then(|log| log.grant_of(&moment.owner, moment.at()));
        if let Some(held) = held {
            held.moments.push(moment);
        }
    }
    names
}
