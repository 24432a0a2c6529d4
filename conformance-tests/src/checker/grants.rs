//! What grants say about each other, and about themselves: H1, H2, H4, H5, H6, H7.

use std::collections::HashMap;

use super::names::{Held, Log};
use super::{Bounds, Property, nanos};
use crate::history::{Action, At, Kind};

/// H1.
pub(super) fn unique(held: &[Held<'_>], report: &mut impl FnMut(Property, String)) {
    let mut by_token: Vec<&Held<'_>> = held.iter().collect();
    by_token.sort_by_key(|one| one.token);
    for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        report(Property::H1, format!("{} and {} share a token", pair[0].label(), pair[1].label()));
    }
}

/// H2: a sweep over invocations and answers, keeping the largest token answered so far.
pub(super) fn monotone(held: &[Held<'_>], report: &mut impl FnMut(Property, String)) {
    // In the order of their answers already.
    let mut answered = held.iter().peekable();
    let mut asked: Vec<&Held<'_>> = held.iter().collect();
    asked.sort_by_key(|one| one.asked);
    let mut largest: Option<&Held<'_>> = None;
    for one in asked {
        // Strictly before: what has one place in time has no order.
        while let Some(earlier) = answered.next_if(|earlier| earlier.grant.at() < one.asked) {
            if largest.is_none_or(|largest| largest.token < earlier.token) {
                largest = Some(earlier);
            }
        }
        // Equal tokens are H1's.
        if let Some(largest) = largest.filter(|largest| largest.token > one.token) {
            report(
                Property::H2,
                format!(
                    "{} was answered at {} ns and {} asked at {} ns",
                    largest.label(),
                    largest.grant.at_ns,
                    one.label(),
                    one.asked.ns
                ),
            );
        }
    }
}

/// H4; returns how many grants followed a holder that did not release.
pub(super) fn disjoint(held: &[Held<'_>], report: &mut impl FnMut(Property, String)) -> usize {
    let takeovers = held.windows(2).filter(|pair| pair[0].releases.is_empty()).count();
    // The belief that ends last among those before.
    let mut latest: Option<(&Held<'_>, At)> = None;
    for one in held {
        if let Some((earlier, end)) = latest {
            let begin = one.grant.at();
            // One owner under two tokens is one holder, whose grant was raised above a floor.
            if begin < end && earlier.owner() != one.owner() {
                report(
                    Property::H4,
                    format!(
                        "{} believed until {} ns, {} from {} ns",
                        earlier.label(),
                        end.ns,
                        one.label(),
                        begin.ns
                    ),
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
pub(super) fn told(one: &Held<'_>, bounds: Bounds, report: &mut impl FnMut(Property, String)) -> usize {
    let (deadline, release) = (one.deadline(), one.release_begins());
    let slack = nanos(bounds.loss_told_within);
    let mut over_since: Option<At> = None;
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
                if moment.at() > release {
                    wrong(format!("was told of a loss at {at} ns, after its release at {} ns", release.ns));
                }
                if at > deadline.saturating_add(slack) {
                    wrong(format!("was told of its loss at {at} ns, its deadline being {deadline} ns"));
                }
                over_since.get_or_insert(moment.at());
            }
            (_, Kind::Ok) if at > deadline => {
                wrong(format!("was called valid at {at} ns, its deadline being {deadline} ns"));
            }
            (_, Kind::Ok) if moment.at() > release => {
                wrong(format!("was called valid at {at} ns, after its release at {} ns", release.ns));
            }
            (_, Kind::Ok) => {
                if let Some(over) = over_since.filter(|over| *over < moment.at()) {
                    wrong(format!("was called valid at {at} ns, being over since {} ns", over.ns));
                }
            }
            (_, _) => _ = over_since.get_or_insert(moment.at()),
        }
    }
    losses
}

/// H6: owners without a grant, and owners whose grant must be over because a later one was answered.
pub(super) fn owner_only(log: &Log<'_>, report: &mut impl FnMut(Property, String)) {
    // An attempt without an answer may have been granted.
    let mut open: HashMap<&str, At> = HashMap::new();
    for attempt in log.acquires.iter().filter(|attempt| attempt.is_open()) {
        let since = open.entry(&attempt.invoke.owner).or_insert(attempt.invoke.at());
        *since = (*since).min(attempt.invoke.at());
    }
    for operation in &log.unowned {
        let end = operation.ended();
        if open.get(&*operation.invoke.owner).is_some_and(|since| *since < end) {
            continue;
        }
        let (owner, word) = (&operation.invoke.owner, operation.invoke.action.word());
        report(
            Property::H6,
            format!("a {word} at {} ns succeeded for {owner}, which was never granted", end.ns),
        );
    }
    // The first grant of another owner above each token, by the time of its answer.
    let mut by_token: Vec<&Held<'_>> = log.held.iter().collect();
    by_token.sort_by_key(|one| std::cmp::Reverse(one.token));
    let mut earliest: Option<&Held<'_>> = None;
    for one in by_token {
        if let Some(later) = earliest.filter(|later| later.owner() != one.owner()) {
            let acted = one.renewals.iter().chain(&one.releases).filter(|operation| {
                let acted = operation.ok().is_some_and(|ok| ok.released != Some(false));
                acted && operation.invoke.at() > later.grant.at()
            });
            for operation in acted {
                let (word, at) = (operation.invoke.action.word(), operation.invoke.at_ns);
                report(
                    Property::H6,
                    format!(
                        "a {word} of {} that began at {at} ns succeeded after {} was granted",
                        one.label(),
                        later.label()
                    ),
                );
            }
        }
        if earliest.is_none_or(|earliest| one.grant.at() < earliest.grant.at()) {
            earliest = Some(one);
        }
    }
}

/// H7.
pub(super) fn released(one: &Held<'_>, log: &Log<'_>, report: &mut impl FnMut(Property, String)) {
    let done = one.releases.iter().filter(|op| op.ok().is_some_and(|ok| ok.released == Some(true)));
    let times = done.count();
    if times > 1 {
        report(Property::H7, format!("{} was released {times} times", one.label()));
    }
    let Some(released) = one.released() else { return };
    let at = released.at();
    let late = one.renewals.iter().find(|renewal| renewal.ok().is_some() && renewal.invoke.at() > at);
    if let Some(late) = late {
        let asked = late.invoke.at_ns;
        report(
            Property::H7,
            format!("{} was renewed at {asked} ns, after its release at {} ns", one.label(), at.ns),
        );
    }
    // Asked again after its release an owner may hold again, under another token.
    let again = log.last_asked.get(one.owner()).is_some_and(|last| *last > at);
    let seen = log.last_seen.get(one.owner()).filter(|seen| **seen > at && !again);
    if let Some(seen) = seen {
        report(
            Property::H7,
            format!(
                "{} was shown as the holder at {} ns, after its release at {} ns",
                one.label(),
                seen.ns,
                at.ns
            ),
        );
    }
}
