//! Histories: what processes did with leases and when, one JSON line an event.
//!
//! An operation is an [`Kind::Invoke`] and at most one end: [`Kind::Ok`] when it succeeded,
//! [`Kind::Fail`] when it provably had no effect, [`Kind::Info`] when nobody knows. An operation
//! without an end is still under way for ever: its reply was never received, and it returned at +∞.
//! Losses and checks are moments: one event, without an invocation.
//!
//! All times are readings of one machine's boot clock, in nanoseconds: a history holds the processes
//! of one machine. Owners are fingerprints; an owner makes one acquisition, whose attempts may be
//! many.
//!
//! ```
//! use leasehold_conformance::{checker, history::History};
//! let lines = r#"
//! {"op":1,"kind":"invoke","action":"acquire","name":"n","owner":"a1b2c3d4","at_ns":10}
//! {"op":1,"kind":"ok","action":"acquire","name":"n","owner":"a1b2c3d4","at_ns":12,"token":"7","until_ns":90}
//! "#;
//! let history = History::read(lines.as_bytes())?;
//! let verdict = checker::judge(&history, checker::Bounds::default());
//! assert!(verdict.violations.is_empty());
//! assert_eq!(verdict.grants, 1);
//! # Ok::<(), leasehold_conformance::history::HistoryError>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// Where in an operation an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The operation begins.
    Invoke,
    /// It succeeded. For a check: the lease was said to be valid.
    Ok,
    /// It provably had no effect: refused, or never sent. For a check: the lease was said to be over.
    Fail,
    /// It ended and nobody knows how.
    Info,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// An attempt at a name.
    Acquire,
    /// A renewal.
    Renew,
    /// A release.
    Release,
    /// The holder asks whether the lease is valid. A moment.
    Check,
    /// The holder is told that the lease is lost. A moment.
    Lost,
}

impl Action {
    /// Whether it is one event, without an invocation.
    pub fn is_moment(self) -> bool {
        matches!(self, Action::Check | Action::Lost)
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Joins an end to its invocation; the same in both and in no other operation.
    pub op: u64,
    /// Where in the operation it stands.
    pub kind: Kind,
    /// What is done.
    pub action: Action,
    /// The lease's name.
    pub name: String,
    /// The owner's fingerprint.
    pub owner: String,
    /// When, on the boot clock, in nanoseconds.
    pub at_ns: u64,
    /// The granted token; text, since a reader's double would round it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text")]
    pub token: Option<u64>,
    /// Until when the holder believes from now on: after an acquire or a renewal that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// For a release that succeeded: whether the store says that it ended this owner's grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<bool>,
}

/// A `u64` as decimal text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => s.collect_str(value),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

impl Event {
    /// The event as one line of JSON, without the line's end.
    pub fn to_line(&self) -> String {
        // Strings, numbers and unit enums always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// One operation: from its invocation to its end, which may never have come.
#[derive(Clone, Debug)]
pub struct Operation {
    /// How it began.
    pub invoke: Event,
    /// How it ended; none when no reply was received.
    pub end: Option<Event>,
}

impl Operation {
    /// The end, if it succeeded.
    pub fn ok(&self) -> Option<&Event> {
        self.end.as_ref().filter(|end| end.kind == Kind::Ok)
    }
}

/// A well-formed history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Operations in the order of their invocations.
    pub operations: Vec<Operation>,
    /// Checks and losses in the order of time.
    pub moments: Vec<Event>,
}

/// Why lines are no history.
#[derive(Debug)]
#[non_exhaustive]
pub enum HistoryError {
    /// The lines cannot be read.
    Io(std::io::Error),
    /// A line is no event.
    Line {
        /// Its number, from one.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// An event does not fit to those before it.
    Event {
        /// The operation's id.
        op: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HistoryError::Io(error) => write!(f, "the history cannot be read: {error}"),
            HistoryError::Line { line, why } => write!(f, "line {line} of the history is no event: {why}"),
            HistoryError::Event { op, why } => write!(f, "operation {op} of the history {why}"),
        }
    }
}

impl std::error::Error for HistoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HistoryError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl History {
    /// Reads JSON lines, in any order of time: several processes may have written them one after the
    /// other. Empty lines are skipped.
    ///
    /// # Errors
    /// [`HistoryError`]: nothing is judged that is not understood.
    pub fn read(lines: impl BufRead) -> Result<Self, HistoryError> {
        let mut events = Vec::new();
        for (i, line) in lines.lines().enumerate() {
            let line = line.map_err(HistoryError::Io)?;
            if line.trim().is_empty() {
                continue;
            }
            let event = serde_json::from_str(&line)
                .map_err(|error| HistoryError::Line { line: i + 1, why: error.to_string() })?;
            events.push(event);
        }
        Self::of(events)
    }

    /// Joins events to operations.
    ///
    /// # Errors
    /// [`HistoryError::Event`] for an end without a beginning, a second beginning or end, and an end
    /// before its beginning or of something else.
    pub fn of(mut events: Vec<Event>) -> Result<Self, HistoryError> {
        // An invocation comes before its own end when both have one time.
        events.sort_by_key(|event| (event.at_ns, event.kind != Kind::Invoke));
        let mut history = History::default();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for event in events {
            let wrong = |why| Err(HistoryError::Event { op: event.op, why });
            if event.action.is_moment() {
                if !matches!(event.kind, Kind::Ok | Kind::Fail) {
                    return wrong("is a moment and neither ok nor fail");
                }
                history.moments.push(event);
                continue;
            }
            if event.kind == Kind::Invoke {
                if places.insert(event.op, history.operations.len()).is_some() {
                    return wrong("begins twice");
                }
                history.operations.push(Operation { invoke: event, end: None });
                continue;
            }
            let Some(place) = places.get(&event.op) else { return wrong("ends before it begins") };
            let operation = &mut history.operations[*place];
            let invoke = &operation.invoke;
            if (invoke.action, &invoke.name, &invoke.owner) != (event.action, &event.name, &event.owner) {
                return wrong("ends as something else");
            }
            if event.kind == Kind::Ok && event.action == Action::Acquire && event.token.is_none() {
                return wrong("is a grant without a token");
            }
            if operation.end.is_some() {
                return wrong("ends twice");
            }
            operation.end = Some(event);
        }
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: u64, kind: Kind, action: Action, at_ns: u64) -> Event {
        let token = (kind == Kind::Ok).then_some(u64::MAX >> 1);
        let (name, owner) = ("n \"\u{1F402}\"".to_owned(), "a1b2c3d4".to_owned());
        Event { op, kind, action, name, owner, at_ns, token, until_ns: None, released: None }
    }

    #[test]
    fn lines_round_trip_with_every_digit() {
        let events = [
            event(1, Kind::Invoke, Action::Acquire, u64::MAX - 1),
            event(1, Kind::Ok, Action::Acquire, u64::MAX),
            event(2, Kind::Fail, Action::Check, 5),
        ];
        let lines: String = events.iter().map(|e| e.to_line() + "\n").collect();
        assert!(lines.contains(r#""token":"9223372036854775807""#), "{lines}");
        let history = History::read(lines.as_bytes()).expect("well formed");
        assert_eq!(history.operations[0].ok(), Some(&events[1]));
        assert_eq!(history.moments, [events[2].clone()]);
    }

    #[test]
    fn what_is_no_history_says_where() {
        let of = |events: Vec<Event>| History::of(events).expect_err("malformed").to_string();
        let begin = event(1, Kind::Invoke, Action::Acquire, 1);
        let end = event(1, Kind::Ok, Action::Acquire, 2);
        assert!(of(vec![end.clone()]).contains("ends before it begins"));
        assert!(of(vec![begin.clone(), begin.clone()]).contains("begins twice"));
        assert!(of(vec![begin.clone(), end.clone(), end.clone()]).contains("ends twice"));
        let other = Event { action: Action::Release, ..end.clone() };
        assert!(of(vec![begin.clone(), other]).contains("something else"));
        let bare = Event { token: None, ..end };
        assert!(of(vec![begin, bare]).contains("without a token"));
        assert!(of(vec![event(1, Kind::Info, Action::Lost, 1)]).contains("moment"));
        let error = History::read("\n{}".as_bytes()).expect_err("no event");
        assert!(error.to_string().starts_with("line 2 of the history is no event"), "{error}");
    }
}
