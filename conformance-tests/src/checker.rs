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
mod tests {
    use super::*;

    /// Writes histories: `owner` acquires `n`, and so on; one operation an owner and action.
    #[derive(Default)]
    struct Story(Vec<Event>);

    impl Story {
        fn event(mut self, kind: Kind, action: Action, owner: &str, op: u64, at_ns: u64) -> Self {
            let (name, owner) = ("n".to_owned(), owner.to_owned());
            let event =
                Event { op, kind, action, name, owner, at_ns, token: None, until_ns: None, released: None };
            self.0.push(event);
            self
        }

        fn op(self, action: Action, owner: &str, from: u64, to: u64) -> Self {
            let op = self.0.len() as u64;
            self.event(Kind::Invoke, action, owner, op, from).event(Kind::Ok, action, owner, op, to)
        }

        fn grant(mut self, owner: &str, (from, to): (u64, u64), token: u64, until: u64) -> Self {
            self = self.op(Action::Acquire, owner, from, to);
            let end = self.0.last_mut().expect("just pushed");
            (end.token, end.until_ns) = (Some(token), Some(until));
            self
        }

        fn renew(mut self, owner: &str, (from, to): (u64, u64), until: u64) -> Self {
            self = self.op(Action::Renew, owner, from, to);
            self.0.last_mut().expect("just pushed").until_ns = Some(until);
            self
        }

        fn release(mut self, owner: &str, (from, to): (u64, u64), released: bool) -> Self {
            self = self.op(Action::Release, owner, from, to);
            self.0.last_mut().expect("just pushed").released = Some(released);
            self
        }

        fn unanswered(self, action: Action, owner: &str, from: u64) -> Self {
            let op = self.0.len() as u64;
            self.event(Kind::Invoke, action, owner, op, from)
        }

        fn moment(self, kind: Kind, action: Action, owner: &str, at: u64) -> Self {
            let op = self.0.len() as u64;
            self.event(kind, action, owner, op, at)
        }

        fn judge(self) -> Verdict {
            let bounds = Bounds { loss_told_within: Duration::from_nanos(5) };
            // As the program reads it: through lines.
            let lines: String = self.0.iter().map(|event| event.to_line() + "\n").collect();
            judge(&History::read(lines.as_bytes()).expect("well formed"), bounds)
        }

        fn good(self) -> Verdict {
            let verdict = self.judge();
            assert_eq!(verdict.violations, [], "{:#?}", verdict.violations);
            verdict
        }

        fn bad(self, property: Property) {
            let verdict = self.judge();
            let found: Vec<Property> = verdict.violations.iter().map(|v| v.property).collect();
            assert_eq!(found, [property], "{:#?}", verdict.violations);
        }
    }

    #[test]
    fn one_after_the_other_is_good() {
        let verdict = Story::default()
            .grant("a", (0, 10), 1, 100)
            .renew("a", (30, 40), 130)
            .moment(Kind::Ok, Action::Check, "a", 120)
            .release("a", (125, 127), true)
            .grant("b", (126, 128), 2, 200)
            .good();
        assert_eq!((verdict.grants, verdict.takeovers), (2, 0));
    }

    #[test]
    fn takeover_after_a_loss_is_good_and_counted() {
        let verdict = Story::default()
            .grant("a", (0, 10), 1, 100)
            .unanswered(Action::Renew, "a", 30)
            .moment(Kind::Ok, Action::Lost, "a", 103)
            .moment(Kind::Fail, Action::Check, "a", 104)
            .grant("b", (90, 110), 2, 200)
            .good();
        assert_eq!((verdict.takeovers, verdict.losses, verdict.unknown), (1, 1, 1));
    }

    #[test]
    fn concurrent_grants_may_be_answered_in_any_order() {
        // b asked before a was answered: no order in real time, and a's belief is over in time.
        Story::default()
            .grant("a", (0, 30), 2, 40)
            .moment(Kind::Ok, Action::Lost, "a", 40)
            .grant("b", (5, 50), 1, 60)
            .good();
    }

    #[test]
    fn an_answer_that_never_came_orders_nothing() {
        // a may have been granted token 9 at any time; nobody believes by it.
        let verdict = Story::default()
            .unanswered(Action::Acquire, "a", 0)
            .grant("b", (10, 20), 1, 100)
            .unanswered(Action::Release, "b", 90)
            .grant("c", (91, 95), 2, 200)
            .good();
        assert_eq!((verdict.unknown, verdict.grants), (2, 2));
    }

    #[test]
    fn late_answer_that_is_not_believed_is_good() {
        Story::default()
            .grant("a", (0, 10), 1, 100)
            .renew("a", (90, 105), 190)
            .moment(Kind::Fail, Action::Check, "a", 106)
            .grant("b", (100, 110), 2, 200)
            .good();
    }

    #[test]
    fn repeated_release_and_repeated_attempt_are_good() {
        Story::default()
            .unanswered(Action::Acquire, "a", 0)
            .grant("a", (5, 10), 1, 100)
            .release("a", (50, 51), true)
            .release("a", (52, 53), false)
            .good();
    }

    #[test]
    fn shared_token_is_found() {
        Story::default()
            .grant("a", (0, 10), 1, 40)
            .release("a", (8, 9), true)
            .grant("b", (5, 50), 1, 60)
            .bad(Property::H1);
    }

    #[test]
    fn regressed_token_is_found() {
        let story = Story::default().grant("a", (0, 10), 5, 40).release("a", (20, 21), true);
        story.grant("b", (30, 35), 4, 60).bad(Property::H2);
    }

    #[test]
    fn overlapping_beliefs_are_found() {
        // The reply in the socket buffer: a counts its deadline from the reply.
        Story::default().grant("a", (0, 90), 1, 190).grant("b", (100, 110), 2, 200).bad(Property::H4);
    }

    #[test]
    fn belief_without_a_deadline_overlaps_whatever_comes_later() {
        let mut story = Story::default().grant("a", (0, 10), 1, 0);
        story.0.last_mut().expect("just pushed").until_ns = None;
        story.grant("b", (1_000, 1_010), 2, 2_000).bad(Property::H4);
    }

    #[test]
    fn long_belief_is_compared_with_every_later_grant() {
        let story = Story::default().grant("a", (0, 10), 1, 1_000).grant("b", (20, 30), 2, 40);
        let verdict = story.grant("c", (50, 60), 3, 70).judge();
        let with_a = |v: &Violation| v.property == Property::H4 && v.what.starts_with("a (token 1)");
        assert_eq!(verdict.violations.len(), 2, "{:#?}", verdict.violations);
        assert!(verdict.violations.iter().all(with_a), "{:#?}", verdict.violations);
    }

    #[test]
    fn resurrected_lease_is_found() {
        Story::default()
            .grant("a", (0, 10), 1, 100)
            .renew("a", (90, 105), 190)
            .moment(Kind::Ok, Action::Check, "a", 106)
            .bad(Property::H5);
    }

    #[test]
    fn late_double_and_needless_loss_signals_are_found() {
        let held = || Story::default().grant("a", (0, 10), 1, 100);
        held().moment(Kind::Ok, Action::Lost, "a", 106).bad(Property::H5);
        let twice = held().moment(Kind::Ok, Action::Lost, "a", 50);
        twice.moment(Kind::Ok, Action::Lost, "a", 51).bad(Property::H5);
        held().release("a", (20, 30), true).moment(Kind::Ok, Action::Lost, "a", 25).bad(Property::H5);
        let over = held().moment(Kind::Fail, Action::Check, "a", 50);
        over.moment(Kind::Ok, Action::Check, "a", 60).bad(Property::H5);
    }

    #[test]
    fn immortal_lease_and_double_release_are_found() {
        let held = || Story::default().grant("a", (0, 10), 1, 100).release("a", (20, 21), true);
        held().renew("a", (30, 31), 130).bad(Property::H7);
        held().release("a", (22, 23), true).bad(Property::H7);
    }
}
