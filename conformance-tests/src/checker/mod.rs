//! Judging recorded histories, in the time that sorting them takes.
//!
//! Tokens give the order of the grants, so that no search is needed:
//!
//! | | property |
//! |---|---|
//! | H1 | no two owners are granted one token of one name |
//! | H2 | a grant that was answered before another was asked for has the smaller token |
//! | H4 | no two holders of one name believe at once |
//! | H5 | no check succeeds, and no loss is told too late, after the deadline; a loss is told once, and never after a release began |
//! | H7 | one release of a grant ends it, and nothing of it is renewed from then on |
//!
//! A holder believes from the answer to its acquire until the earliest of: its last deadline, its
//! loss, a check that fails, and the start of its release. An operation whose reply was never
//! received returned at +∞: it comes before nothing, and nobody believes by it. A renewal that was
//! answered after the deadline extends nothing.
//!
//! H4 holds while clocks and pauses keep within their bounds. In a run that breaks them on purpose
//! overlaps are to be expected, and the resource's own log decides.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::history::{Action, Event, History, Kind, Operation};

/// What a run promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long after the deadline a loss may be told.
    pub loss_told_within: Duration,
}

impl Default for Bounds {
    /// 10 ms for the signal.
    fn default() -> Self {
        Bounds { loss_told_within: Duration::from_millis(10) }
    }
}

/// A property that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// Uniqueness of tokens.
    H1,
    /// Tokens rise in real time.
    H2,
    /// Beliefs are disjoint.
    H4,
    /// Checks and loss signals.
    H5,
    /// Releases.
    H7,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which property.
    pub property: Property,
    /// Of which name.
    pub name: String,
    /// What happened, with owners, tokens and times.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}: {}", self.property, self.name, self.what)
    }
}

/// What a history shows. A run without violations proves nothing unless the danger was there: look
/// at the counts too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What does not hold.
    pub violations: Vec<Violation>,
    /// Grants that were answered.
    pub grants: usize,
    /// Attempts that were refused.
    pub refusals: usize,
    /// Operations of unknown outcome, those without a reply among them.
    pub unknown: usize,
    /// Losses that were told.
    pub losses: usize,
    /// Grants after a holder of the same name did not release: it was lost, or its process was.
    pub takeovers: usize,
}

/// One owner's grant, pieced together.
struct Held<'a> {
    grant: &'a Event,
    token: u64,
    asked_ns: u64,
    renewals: Vec<&'a Operation>,
    releases: Vec<&'a Operation>,
    moments: Vec<&'a Event>,
}

impl<'a> Held<'a> {
    /// When the first release began.
    fn release_begins(&self) -> u64 {
        self.releases.iter().map(|release| release.invoke.at_ns).min().unwrap_or(u64::MAX)
    }

    /// The last deadline that the holder had by renewals answered in time.
    fn deadline(&self) -> u64 {
        let mut answers: Vec<&Event> = self.renewals.iter().filter_map(|renewal| renewal.ok()).collect();
        answers.sort_by_key(|answer| answer.at_ns);
        let mut deadline = self.grant.until_ns.unwrap_or(u64::MAX);
        for answer in answers {
            if answer.at_ns < deadline {
                deadline = answer.until_ns.unwrap_or(deadline);
            }
        }
        deadline
    }

    /// When the holder stopped to believe.
    fn belief_ends(&self) -> u64 {
        let over =
            self.moments.iter().filter(|moment| moment.action == Action::Lost || moment.kind == Kind::Fail);
        let over = over.map(|moment| moment.at_ns).min().unwrap_or(u64::MAX);
        self.deadline().min(over).min(self.release_begins())
    }

    fn label(&self) -> String {
        format!("{} (token {})", self.grant.owner, self.token)
    }
}

/// Judges a history.
pub fn judge(history: &History, bounds: Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    for operation in &history.operations {
        match operation.end.as_ref().map(|end| end.kind) {
            None | Some(Kind::Info) => verdict.unknown += 1,
            Some(Kind::Fail) if operation.invoke.action == Action::Acquire => verdict.refusals += 1,
            _ => {}
        }
    }
    for (name, mut held) in by_name(history) {
        verdict.grants += held.len();
        let mut report = |property, what: String| {
            verdict.violations.push(Violation { property, name: name.to_owned(), what });
        };
        unique(&mut held, &mut report);
        monotone(&held, &mut report);
        verdict.takeovers += disjoint(&mut held, &mut report);
        for one in &held {
            verdict.losses += told(one, bounds, &mut report);
            released(one, &mut report);
        }
    }
    verdict
}

/// The grants of each name, with everything that became of them.
fn by_name(history: &History) -> BTreeMap<&str, Vec<Held<'_>>> {
    let mut names: BTreeMap<&str, BTreeMap<&str, Held<'_>>> = BTreeMap::new();
    for operation in &history.operations {
        let Some((grant, token)) = operation.ok().and_then(|end| Some((end, end.token?))) else { continue };
        if operation.invoke.action != Action::Acquire {
            continue;
        }
        // Attempts of one owner are one acquisition; the first answer is its grant.
        names.entry(&grant.name).or_default().entry(&grant.owner).or_insert(Held {
            grant,
            token,
            asked_ns: operation.invoke.at_ns,
            renewals: Vec::new(),
            releases: Vec::new(),
            moments: Vec::new(),
        });
    }
    for operation in &history.operations {
        let invoke = &operation.invoke;
        let Some(held) = names.get_mut(&*invoke.name).and_then(|owners| owners.get_mut(&*invoke.owner))
        else {
            continue;
        };
        match invoke.action {
            Action::Renew => held.renewals.push(operation),
            Action::Release => held.releases.push(operation),
            _ => {}
        }
    }
    for moment in &history.moments {
        if let Some(held) = names.get_mut(&*moment.name).and_then(|owners| owners.get_mut(&*moment.owner)) {
            held.moments.push(moment);
        }
    }
    names.into_iter().map(|(name, owners)| (name, owners.into_values().collect())).collect()
}

/// H1.
fn unique(held: &mut [Held<'_>], report: &mut impl FnMut(Property, String)) {
    held.sort_by_key(|one| one.token);
    for pair in held.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        report(Property::H1, format!("{} and {} share a token", pair[0].label(), pair[1].label()));
    }
}

/// H2: a sweep over invocations and answers, keeping the largest token answered so far.
fn monotone(held: &[Held<'_>], report: &mut impl FnMut(Property, String)) {
    let mut answers: Vec<&Held<'_>> = held.iter().collect();
    answers.sort_by_key(|one| one.grant.at_ns);
    let mut asked: Vec<&Held<'_>> = held.iter().collect();
    asked.sort_by_key(|one| one.asked_ns);
    let mut answered = answers.into_iter().peekable();
    let mut largest: Option<&Held<'_>> = None;
    for one in asked {
        // Strictly before: what has one time has no order.
        while let Some(earlier) = answered.next_if(|earlier| earlier.grant.at_ns < one.asked_ns) {
            if largest.is_none_or(|largest| largest.token < earlier.token) {
                largest = Some(earlier);
            }
        }
        if let Some(largest) = largest.filter(|largest| largest.token >= one.token) {
            report(
                Property::H2,
                format!(
                    "{} was answered at {} ns and {} asked at {} ns",
                    largest.label(),
                    largest.grant.at_ns,
                    one.label(),
                    one.asked_ns
                ),
            );
        }
    }
}

/// H4; returns how many grants followed a holder that did not release.
fn disjoint(held: &mut [Held<'_>], report: &mut impl FnMut(Property, String)) -> usize {
    held.sort_by_key(|one| one.grant.at_ns);
    let takeovers = held.windows(2).filter(|pair| pair[0].releases.is_empty()).count();
    // The belief that ends last among those before.
    let mut latest: Option<(&Held<'_>, u64)> = None;
    for one in held.iter() {
        if let Some((earlier, end)) = latest {
            let begin = one.grant.at_ns;
            if begin < end {
                report(
                    Property::H4,
                    format!("{} believed until {end} ns, {} from {begin} ns", earlier.label(), one.label()),
                );
            }
        }
        let end = one.belief_ends();
        if latest.is_none_or(|(_, latest)| latest <= end) {
            latest = Some((one, end));
        }
    }
    takeovers
}

/// H5; returns how many losses were told.
fn told(one: &Held<'_>, bounds: Bounds, report: &mut impl FnMut(Property, String)) -> usize {
    let (deadline, release) = (one.deadline(), one.release_begins());
    let slack = u64::try_from(bounds.loss_told_within.as_nanos()).unwrap_or(u64::MAX);
    let mut over_since: Option<u64> = None;
    let mut losses = 0;
    for moment in &one.moments {
        let at = moment.at_ns;
        let mut wrong = |what: String| report(Property::H5, format!("{} {what}", one.label()));
        match (moment.action, moment.kind) {
            (Action::Lost, _) => {
                losses += 1;
                if losses > 1 {
                    wrong(format!("was told of its loss a second time at {at} ns"));
                }
                if at > release {
                    wrong(format!("was told of a loss at {at} ns, after its release at {release} ns"));
                }
                if at > deadline.saturating_add(slack) {
                    wrong(format!("was told of its loss at {at} ns, its deadline being {deadline} ns"));
                }
                over_since.get_or_insert(at);
            }
            (_, Kind::Ok) if at > deadline => {
                wrong(format!("was called valid at {at} ns, its deadline being {deadline} ns"));
            }
            (_, Kind::Ok) if at > release => {
                wrong(format!("was called valid at {at} ns, after its release at {release} ns"));
            }
            (_, Kind::Ok) => {
                if let Some(over) = over_since.filter(|over| *over < at) {
                    wrong(format!("was called valid at {at} ns, being over since {over} ns"));
                }
            }
            (_, _) => _ = over_since.get_or_insert(at),
        }
    }
    losses
}

/// H7.
fn released(one: &Held<'_>, report: &mut impl FnMut(Property, String)) {
    let done = |release: &&&Operation| release.ok().is_some_and(|ok| ok.released == Some(true));
    let times = one.releases.iter().filter(done).count();
    if times > 1 {
        report(Property::H7, format!("{} was released {times} times", one.label()));
    }
    let begins = one.release_begins();
    if let Some(late) = one.renewals.iter().find(|renewal| renewal.invoke.at_ns > begins) {
        let at = late.invoke.at_ns;
        report(
            Property::H7,
            format!("{} was renewed at {at} ns, after its release at {begins} ns", one.label()),
        );
    }
}

#[cfg(test)]
mod tests;
