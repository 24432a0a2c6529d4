//! Judging recorded histories, in the time that sorting them takes.
//!
//! Tokens give the order of the grants, so that no search is needed:
//!
//! | | property |
//! |---|---|
//! | H1 | no two owners are granted one token of one name |
//! | H2 | a grant that was answered before another was asked for has the smaller token |
//! | H3 | a resource accepts tokens that never go back, refuses none but for a larger one, and no accepted write overwrites one that its writer had not read |
//! | H4 | no two holders of one name believe at once |
//! | H5 | no check succeeds, and no loss is told too late, after the deadline; a loss is told once, and never after a release began |
//! | H6 | a renewal or a release acts for the owner alone: nothing is renewed or released for one that was never granted, or after a later grant |
//! | H7 | one release of a grant ends it: it is not renewed, released or shown as the holder's any more |
//! | H9 | nobody waits for long beside a name that is free and that nobody asks for |
//! | H11 | what was given up is gone after the clean-up time: an acquire, and a place among those that wait |
//!
//! A holder believes from the answer to its acquire until the earliest of: its last deadline, its
//! loss, a check that fails, the start of its release, and the start of somebody's revoke (which is
//! for the resource to survive, not for beliefs). An operation whose reply was never received
//! returned at +∞: it comes before nothing, and nobody believes by it. A renewal that was answered
//! after the deadline extends nothing.
//!
//! H4 holds while clocks and pauses keep within their bounds. In a run that breaks them on purpose
//! overlaps are to be expected, and the resource's own log decides (H3).
//!
//! What is not certain is no violation: a name that an unanswered call may have taken is not called
//! free, and a history that leaves out what happened proves less.

use std::fmt;
use std::time::Duration;

use crate::history::{Action, History, Kind};

mod grants;
mod names;
mod witness;

/// What a run promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long after the deadline a loss may be told (H5).
    pub loss_told_within: Duration,
    /// How long somebody may wait beside a free name (H9). A name whose holder just stopped counts as
    /// free from the deadline that the holder believed in, so this is longer than what the holder
    /// gives away: drift, margin and lock delay.
    pub woken_within: Duration,
    /// How long what was given up may live (H11).
    pub cleaned_up_within: Duration,
}

impl Default for Bounds {
    /// 10 ms for the signal, 1 s for a wake-up, 5 s for a clean-up.
    fn default() -> Self {
        Bounds {
            loss_told_within: Duration::from_millis(10),
            woken_within: Duration::from_secs(1),
            cleaned_up_within: Duration::from_secs(5),
        }
    }
}

/// A duration of a bound, in nanoseconds.
fn nanos(bound: Duration) -> u64 {
    u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)
}

/// A property that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// Uniqueness of tokens.
    H1,
    /// Tokens rise in real time.
    H2,
    /// The resource's own order.
    H3,
    /// Beliefs are disjoint.
    H4,
    /// Checks and loss signals.
    H5,
    /// Only the owner renews and releases.
    H6,
    /// Releases.
    H7,
    /// Wake-ups.
    H9,
    /// Clean-ups.
    H11,
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
    /// Acquires whose caller went away.
    pub cancelled: usize,
    /// Losses that were told.
    pub losses: usize,
    /// Grants after a holder of the same name did not release: it was lost, or its process was.
    pub takeovers: usize,
    /// Writes that a resource refused as stale.
    pub stale: usize,
}

impl Verdict {
    fn count(&mut self, history: &History) {
        for operation in &history.operations {
            let end = operation.end.as_ref().map(|end| end.kind);
            match (operation.invoke.action, end) {
                // A waiter that ends is dropped: its end is no outcome.
                (Action::Wait, _) => {}
                (_, None | Some(Kind::Info)) => self.unknown += 1,
                (Action::Acquire, Some(Kind::Cancel)) => self.cancelled += 1,
                (Action::Acquire, Some(Kind::Fail)) => self.refusals += 1,
                (Action::Write, Some(Kind::Fail)) => {
                    self.stale += usize::from(operation.end.as_ref().is_some_and(|end| end.token.is_some()));
                }
                _ => {}
            }
        }
    }
}

/// Judges a history.
pub fn judge(history: &History, bounds: Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.count(history);
    for (name, log) in names::of(history) {
        verdict.grants += log.held.len();
        let mut report = |property, what: String| {
            verdict.violations.push(Violation { property, name: name.to_owned(), what });
        };
        grants::unique(&log.held, &mut report);
        grants::monotone(&log.held, &mut report);
        verdict.takeovers += grants::disjoint(&log.held, &mut report);
        for one in &log.held {
            verdict.losses += grants::told(one, bounds, &mut report);
            grants::released(one, &log, &mut report);
        }
        grants::owner_only(&log, &mut report);
        witness::resource(&log, &mut report);
        witness::woken(&log, bounds, &mut report);
        witness::cleaned_up(&log, bounds, &mut report);
    }
    verdict
}

#[cfg(test)]
mod tests;
