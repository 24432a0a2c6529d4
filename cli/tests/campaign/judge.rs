//! What the log says.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_conformance::history::{Action, Event, History, Kind};

use super::faults::Fault;
use super::job::BEAT;
use super::{Round, StoreFault, TTL};

/// The program's code for a store that cannot be reached.
pub(crate) const UNREACHABLE: i32 = 69;
/// ... and for a lease that was lost.
const LOST: i32 = 76;
/// What a job logs when the fence refuses its write.
pub(crate) const REFUSED: &str = "refused";

/// One grant as its job saw it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) name: String,
    pub(crate) id: usize,
    token: u64,
    pub(crate) begun: Duration,
    pub(crate) last: Duration,
}

struct Line<'a> {
    name: &'a str,
    token: u64,
    id: usize,
    what: &'a str,
    at: Duration,
}

fn lines(log: &str) -> impl Iterator<Item = Line<'_>> {
    log.lines().map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("a whole line: {line:?}"));
        let (name, token, id, what, at) = (word(), word(), word(), word(), word());
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("a number: {line:?}"));
        Line {
            name,
            token: number(token),
            id: number(id) as usize,
            what,
            at: Duration::from_nanos(number(at)),
        }
    })
}

/// Everything in the log that must not be: tokens that do not grow, and lines of a job whose name was
/// begun by a later one before. Where the store forgot its leases, a holder that was not told yet may have tried
/// to write, if the fence refused it.
pub(crate) fn contradictions(log: &str, store_faults: &[StoreFault]) -> Vec<String> {
    let mut highest: HashMap<&str, (u64, usize, Duration)> = HashMap::new();
    let mut begun: HashMap<usize, Duration> = HashMap::new();
    let mut found = Vec::new();
    for Line { name, token, id, what, at } in lines(log) {
        let since_begun = *begun.entry(id).or_insert(at);
        let Some(&(newest, by, since)) = highest.get(name) else {
            highest.insert(name, (token, id, at));
            continue;
        };
        if what == "begin" {
            if token <= newest {
                found
                    .push(format!("{name}: round {id} began with {token}, not above {newest} of round {by}"));
            }
            highest.insert(name, (token.max(newest), id, at));
        } else if token < newest {
            let was_not_told = |fault: &StoreFault| fault.was_not_told(since_begun, at);
            if what == REFUSED && store_faults.iter().any(was_not_told) {
                continue;
            }
            found.push(format!(
                "{name}: round {id} ({what} of {at:?}, token {token}) wrote after round {by} had begun with {newest} at {since:?}"
            ));
        }
    }
    found
}

/// Writes that the fence refused.
pub(crate) fn refused(log: &str) -> usize {
    lines(log).filter(|line| line.what == REFUSED).count()
}

/// The grants in the order of their beginnings.
pub(crate) fn grants(log: &str) -> Vec<Grant> {
    let mut at: HashMap<usize, usize> = HashMap::new();
    let mut grants: Vec<Grant> = Vec::new();
    for line in lines(log) {
        if line.what == "begin" {
            at.insert(line.id, grants.len());
            let name = line.name.to_owned();
            grants.push(Grant { name, id: line.id, token: line.token, begun: line.at, last: line.at });
        } else if let Some(&index) = at.get(&line.id) {
            grants[index].last = grants[index].last.max(line.at);
        }
    }
    grants
}

/// The grants as a history: asked for when the program was started, granted when the job began, and
/// believed in until the last sign of life of the job or of what it left behind, or until the store forgot it.
pub(crate) fn history(grants: &[Grant], rounds: &[Round], store_faults: &[StoreFault]) -> History {
    let events = grants.iter().flat_map(|grant| {
        let asked = round(rounds, grant.id).map_or(grant.begun, |round| round.spawned);
        let event = |kind, at: Duration| {
            let owner = format!("round {}", grant.id);
            let at_ns = at.as_nanos() as u64;
            let mut event = Event::new(grant.id as u64, kind, Action::Acquire, &*grant.name, owner, at_ns);
            if kind == Kind::Ok {
                let forgot = |fault: &&StoreFault| fault.was_not_told(grant.begun, grant.last);
                let forgotten = store_faults.iter().filter(forgot).map(|fault| fault.from).min();
                let last = forgotten.map_or(grant.last, |at| grant.last.min(at).max(grant.begun));
                event.token = Some(grant.token);
                event.until_ns = Some(last.as_nanos() as u64 + 1);
            }
            event
        };
        [event(Kind::Invoke, asked), event(Kind::Ok, grant.begun)]
    });
    History::of(events.collect()).expect("every grant was asked for once, before it came")
}

/// How long the job of a round that nobody disturbed wrote nothing before its wrapper's end, although it was not
/// through. A lease that is taken for lost stops no job: it kills it, and the wrapper ends with it.
pub(crate) fn silence(round: &Round, grant: &Grant) -> Option<Duration> {
    let is_through = grant.last + BEAT * 4 >= grant.begun + round.hold;
    let ended = round.ended.at.filter(|_| round.fault == Fault::None && !is_through)?;
    ended.checked_sub(grant.last)
}

/// Each grant with the one before it of the same name.
fn successions(grants: &[Grant]) -> impl Iterator<Item = (&Grant, &Grant)> {
    let mut last: HashMap<&str, &Grant> = HashMap::new();
    grants.iter().filter_map(move |grant| Some((last.insert(&grant.name, grant)?, grant)))
}

fn round(rounds: &[Round], id: usize) -> Option<&Round> {
    rounds.iter().find(|round| round.id == id)
}

/// Grants that were asked for while the one before was held.
pub(crate) fn contended(grants: &[Grant], rounds: &[Round]) -> usize {
    let waited = |(before, next): &(&Grant, &Grant)| {
        round(rounds, next.id).is_some_and(|round| round.spawned < before.last)
    };
    successions(grants).filter(waited).count()
}

/// Grants after one whose holder could not give the name back.
pub(crate) fn taken_over(grants: &[Grant], rounds: &[Round]) -> usize {
    let after_fault = |(before, _): &(&Grant, &Grant)| {
        round(rounds, before.id).is_some_and(|round| round.ended.hit && round.fault.leaves_name_taken())
    };
    successions(grants).filter(after_fault).count()
}

/// How often each fault ended with each code.
pub(crate) fn endings(rounds: &[Round]) -> String {
    let mut counts: BTreeMap<(Fault, i32, bool), usize> = BTreeMap::new();
    for round in rounds {
        *counts.entry((round.fault, round.ended.code, round.ended.hit)).or_default() += 1;
    }
    let line = |((fault, code, hit), count): (&(Fault, i32, bool), &usize)| {
        let late = if *hit || *fault == Fault::None { "" } else { " (came too late)" };
        format!("  {count:>3} × {fault:?}{late}: exit {code}")
    };
    counts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What is wrong with a round's end, if anything is.
pub(crate) fn wrong_ending(
    round: &Round,
    grant: Option<&Grant>,
    store_faults: &[StoreFault],
) -> Option<String> {
    let Round { fault, hold, ended, .. } = round;
    if let Some(late) = ended.late {
        return Some(format!("round {} ({fault:?}): its job outlived the lease by {late:?}", round.id));
    }
    let legal: &[i32] = match (fault, ended.hit) {
        // Nobody disturbed it, however long it held.
        (Fault::None, _) => &[0],
        (Fault::KillJob, true) => &[137],
        (Fault::KillWrapper | Fault::KillWaiting, true) => &[137],
        (Fault::KillGuardian, true) => &[70],
        // The job may have ended by itself before its keeper went on.
        (Fault::FreezeWrapper | Fault::FreezeWrapperAndJob | Fault::FreezeAll, true) => &[0, 76],
        (Fault::FreezeGuardian, true) => &[0, 76],
        // The job had ended: the fault hit nobody.
        (_, false) => &[0],
    };
    let may_end = |fault: &StoreFault| grant.is_some_and(|grant| fault.may_end(grant.begun, grant.last));
    if ended.code == LOST && store_faults.iter().any(may_end) {
        return None;
    }
    if ended.code == UNREACHABLE && store_faults.iter().any(|fault| fault.kept_out(round.spawned)) {
        return None;
    }
    let lost = ended.code == LOST && *fault == Fault::None;
    (!legal.contains(&ended.code)).then(|| {
        let beyond = if *hold > TTL { " beyond the ttl" } else { "" };
        format!(
            "round {} ({fault:?}, held{beyond}) ended with {}{}, not one of {legal:?}",
            round.id,
            ended.code,
            if lost { " (lost undisturbed)" } else { "" },
        )
    })
}

#[test]
fn an_overlap_and_a_stuck_token_are_found() {
    let ok = "n 5 1 begin 1\nn 5 1 beat 2\nn 6 2 begin 3\nm 1 3 begin 4\nn 6 2 end 5\n";
    assert_eq!(contradictions(ok, &[]), Vec::<String>::new());
    assert_eq!(grants(ok).len(), 3);
    let overlap = format!("{ok}n 5 1 daemon 6\n");
    assert_eq!(contradictions(&overlap, &[]).len(), 1);
    let stuck = format!("{ok}n 6 4 begin 7\n");
    assert_eq!(contradictions(&stuck, &[]).len(), 1);
}

/// A late write is excused by a store that forgot, when the fence refused it, and by nothing else.
#[test]
fn a_refused_write_is_excused_by_a_store_that_forgot_only() {
    let ms = Duration::from_millis;
    let line = |what: &str| {
        format!("n 5 1 begin 1\nn 6 2 begin {}\nn 5 1 {what} {}\n", ms(50).as_nanos(), ms(60).as_nanos())
    };
    let forgot =
        StoreFault { what: "", from: ms(40), to: ms(45), ends_leases: true, is_down: true, forgets: true };
    assert_eq!(contradictions(&line(REFUSED), &[forgot]), Vec::<String>::new());
    assert_eq!(contradictions(&line(REFUSED), &[StoreFault { forgets: false, ..forgot }]).len(), 1);
    assert_eq!(contradictions(&line("beat"), &[forgot]).len(), 1, "it was not refused");
    let later = StoreFault { from: ms(70), to: ms(70), ..forgot };
    assert_eq!(contradictions(&line(REFUSED), &[later]).len(), 1);
    assert_eq!(refused(&line(REFUSED)), 1);
}
