//! What others saw: the resource (H3), those who wait (H9), and those who look (H11).

use std::collections::{HashMap, HashSet};

use super::names::Log;
use super::{Bounds, Property, nanos};
use crate::history::{At, Event, Kind, Operation};

/// H3: a sweep over the writes, keeping the largest token accepted so far.
pub(super) fn resource(log: &Log<'_>, report: &mut impl FnMut(Property, String)) {
    let answered = |kind: Kind| {
        let writes = log.writes.iter().filter_map(|op| Some((*op, op.end.as_ref()?)));
        writes.filter(move |(_, end)| end.kind == kind)
    };
    let mut accepted: Vec<(&Operation, &Event)> = answered(Kind::Ok).collect();
    let mut asked = accepted.clone();
    accepted.sort_by_key(|(_, end)| end.at());
    asked.sort_by_key(|(op, _)| op.invoke.at());
    let mut done = accepted.iter().peekable();
    let mut largest: Option<&Event> = None;
    let mut versions: HashMap<u64, &Event> = HashMap::new();
    for (op, end) in asked {
        while let Some((_, earlier)) = done.next_if(|(_, earlier)| earlier.at() < op.invoke.at()) {
            if largest.is_none_or(|largest| largest.token < earlier.token) {
                largest = Some(earlier);
            }
        }
        if let Some(largest) = largest.filter(|largest| largest.token > end.token) {
            report(Property::H3, format!("{} was accepted after {}", write(end), write(largest)));
        }
        if let Some(version) = end.version
            && let Some(other) = versions.insert(version, end)
        {
            let both = format!("{} and {} both wrote version {version}", write(other), write(end));
            report(Property::H3, format!("{both}: one of the two updates is lost"));
        }
    }
    // The largest token presented until each beginning.
    let mut presented: Vec<(At, Option<u64>)> = Vec::new();
    presented.extend(log.writes.iter().map(|op| {
        let answered = op.end.as_ref().and_then(|end| end.token);
        (op.invoke.at(), op.invoke.token.or(answered))
    }));
    presented.sort_unstable();
    let mut highest = None;
    for (_, token) in &mut presented {
        highest = highest.max(*token);
        *token = highest;
    }
    for (_, refused) in answered(Kind::Fail).filter(|(_, refused)| refused.token.is_some()) {
        let before = presented.partition_point(|(at, _)| *at < refused.at());
        if before == 0 || presented[before - 1].1 <= refused.token {
            report(Property::H3, format!("{} was refused, and nobody had come with more", write(refused)));
        }
    }
}

fn write(end: &Event) -> String {
    format!("the write of {} with token {} at {} ns", end.owner, end.token.unwrap_or(0), end.at_ns)
}

/// Times at which the name may be taken, or is being asked for; merged and sorted.
fn busy(log: &Log<'_>) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let granted: HashSet<&str> = log.held.iter().map(|one| one.owner()).collect();
    for attempt in &log.acquires {
        // Nobody knows what an attempt got that was never answered, unless its owner was granted.
        let known = !attempt.is_open() || granted.contains(&*attempt.invoke.owner);
        let end = attempt.ended().ns;
        spans.push((attempt.invoke.at_ns, if known { end } else { u64::MAX }));
    }
    spans.extend(log.held.iter().map(|one| (one.asked.ns, one.free_from())));
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// H9.
pub(super) fn woken(log: &Log<'_>, bounds: Bounds, report: &mut impl FnMut(Property, String)) {
    if log.waits.is_empty() {
        return;
    }
    let limit = nanos(bounds.woken_within);
    let busy = busy(log);
    let ends = busy.iter().map(|(_, to)| *to);
    let begins = busy.iter().map(|(from, _)| *from).skip(1).chain([u64::MAX]);
    // Before the first attempt nobody has anything to wait for.
    let free: Vec<(u64, u64)> =
        ends.zip(begins).filter(|(from, to)| to.saturating_sub(*from) > limit).collect();
    for wait in &log.waits {
        // A waiter whose end was not recorded proves nothing after its beginning.
        let Some(end) = &wait.end else { continue };
        let first = free.partition_point(|(_, to)| *to <= wait.invoke.at_ns);
        let beside = free[first..].iter().take_while(|(from, _)| *from < end.at_ns);
        let span = |(from, to): &(u64, u64)| (*from.max(&wait.invoke.at_ns), *to.min(&end.at_ns));
        if let Some((from, to)) = beside.map(span).find(|(from, to)| to.saturating_sub(*from) > limit) {
            let who = &wait.invoke.owner;
            report(Property::H9, format!("{who} waited from {from} to {to} ns beside a free name"));
        }
    }
}

/// H11.
pub(super) fn cleaned_up(log: &Log<'_>, bounds: Bounds, report: &mut impl FnMut(Property, String)) {
    let limit = nanos(bounds.cleaned_up_within);
    let granted: HashSet<&str> = log.held.iter().map(|one| one.owner()).collect();
    let mut gone: HashMap<&str, At> = HashMap::new();
    for attempt in &log.acquires {
        let owner = &*attempt.invoke.owner;
        // What an owner is granted later it holds by right.
        if attempt.end.as_ref().is_some_and(|end| end.kind == Kind::Cancel) && !granted.contains(owner) {
            let last = gone.entry(owner).or_insert(attempt.ended());
            *last = (*last).max(attempt.ended());
        }
    }
    for (owner, since) in gone {
        let seen = log.last_seen.get(owner).filter(|asked| asked.ns > since.ns.saturating_add(limit));
        if let Some(asked) = seen {
            report(
                Property::H11,
                format!("{owner} gave up at {} ns and was shown as the holder at {} ns", since.ns, asked.ns),
            );
        }
    }
    // How many had begun to wait, less those that had ended long before.
    let mut begun: Vec<At> = log.waits.iter().map(|wait| wait.invoke.at()).collect();
    let mut ended: Vec<u64> = log.waits.iter().map(|wait| wait.ended().ns).collect();
    begun.sort_unstable();
    ended.sort_unstable();
    for look in &log.looks {
        let Some((end, waiting)) = look.end.as_ref().and_then(|end| Some((end, end.waiting?))) else {
            continue;
        };
        let since = look.invoke.at_ns.saturating_sub(limit);
        let over = ended.partition_point(|ns| *ns < since);
        let alive = begun.partition_point(|at| *at < end.at()).saturating_sub(over) as u64;
        if waiting > alive {
            report(
                Property::H11,
                format!("{waiting} are said to wait at {} ns, and {alive} waited lately", end.at_ns),
            );
        }
    }
}
