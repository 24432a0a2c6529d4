//! Histories: what processes did with leases and when, one JSON line an event.
//!
//! An operation is an [`Kind::Invoke`] and at most one end: [`Kind::Ok`] when it succeeded,
//! [`Kind::Fail`] when it provably had no effect, [`Kind::Info`] when nobody knows, [`Kind::Cancel`]
//! when whoever asked went away. An operation without an end is still under way for ever: its reply
//! was never received, and it returned at +∞. Losses and checks are moments: one event, without an
//! invocation.
//!
//! All times are readings of one machine's boot clock, in nanoseconds: a history holds the processes
//! of one machine. Owners are fingerprints; an owner makes one acquisition, whose attempts may be
//! many. Histories are of exclusive leases.
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
//!
//! | field | where | meaning |
//! |---|---|---|
//! | `op` | always | joins an end to its invocation |
//! | `kind` | always | `invoke`, `ok`, `fail`, `info`, `cancel` |
//! | `action` | always | `acquire`, `renew`, `release`, `revoke`, `wait`, `write`, `look`, `check`, `lost` |
//! | `name`, `owner` | always | the lease's name; who acts, by fingerprint (empty for nobody in particular) |
//! | `at_ns` | always | when, on the boot clock |
//! | `seq` | where one recorder saw all processes | orders what has one `at_ns` |
//! | `token` | a grant; a write; a revoke; a look or a refusal | the token granted, presented, revoked, or shown as the holder's; decimal text. A write that failed without one was refused for another reason |
//! | `until_ns` | a grant or a renewal; a release or a revoke | until when the holder believes; until when the name stays taken all the same |
//! | `released` | a release or a revoke that succeeded | whether the store says that it ended a grant |
//! | `holder` | a look; a refusal | the fingerprint of the holder that was shown |
//! | `waiting` | a look | how many wait, as the store says |
//! | `version` | an accepted write | one more than the version that the writer had read |
//!
//! The same as text, one line an operation, is made for people: see [`History::from_text`].

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

mod recorder;
mod text;

pub use recorder::{Open, Recorder};
pub use text::excerpt;

/// Where in an operation an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The operation begins.
    Invoke,
    /// It succeeded. For a check: the lease was said to be valid.
    Ok,
    /// It provably had no effect: refused, or never sent. For a check: the lease was said to be over.
    /// For a write with its token: the resource refused it as stale.
    Fail,
    /// It ended and nobody knows how.
    Info,
    /// Whoever asked went away before the answer. What an acquire may have got is then to be taken
    /// back within the clean-up time.
    Cancel,
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
    /// Somebody else ends a grant: a forced release, or a fault that lost the record.
    Revoke,
    /// A waiter's life, from its subscription to its end.
    Wait,
    /// A write to a resource that compares tokens.
    Write,
    /// A look at a name.
    Look,
    /// The holder asks whether the lease is valid. A moment.
    Check,
    /// The holder is told that the lease is lost. A moment.
    Lost,
}

impl Action {
    /// Every action.
    pub const ALL: [Action; 9] = [
        Action::Acquire,
        Action::Renew,
        Action::Release,
        Action::Revoke,
        Action::Wait,
        Action::Write,
        Action::Look,
        Action::Check,
        Action::Lost,
    ];

    /// Whether it is one event, without an invocation.
    pub fn is_moment(self) -> bool {
        matches!(self, Action::Check | Action::Lost)
    }

    /// The word that stands for it in lines and text.
    pub fn word(self) -> &'static str {
        match self {
            Action::Acquire => "acquire",
            Action::Renew => "renew",
            Action::Release => "release",
            Action::Revoke => "revoke",
            Action::Wait => "wait",
            Action::Write => "write",
            Action::Look => "look",
            Action::Check => "check",
            Action::Lost => "lost",
        }
    }
}

/// A place in time. What has one time and no sequence has no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// On the boot clock, in nanoseconds.
    pub ns: u64,
    /// Among what has one time.
    pub seq: u64,
}

impl At {
    /// The beginning of a nanosecond: before everything that has its time.
    pub const fn start_of(ns: u64) -> Self {
        At { ns, seq: 0 }
    }

    /// After everything.
    pub const NEVER: At = At { ns: u64::MAX, seq: u64::MAX };
}

/// One event. Make it with [`Event::new`]: fields are added as the checker learns more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Joins an end to its invocation; the same in both and in no other operation.
    pub op: u64,
    /// Where in the operation it stands.
    pub kind: Kind,
    /// What is done.
    pub action: Action,
    /// The lease's name.
    pub name: String,
    /// The owner's fingerprint; empty for nobody in particular.
    pub owner: String,
    /// When, on the boot clock, in nanoseconds.
    pub at_ns: u64,
    /// Orders the events of one time, where one recorder saw them all; else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// The token; text, since a reader's double would round it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "digits")]
    pub token: Option<u64>,
    /// Until when the holder believes from now on: after an acquire or a renewal that succeeded. Until
    /// when the name stays taken all the same: after a release or a revoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// For a release or a revoke that succeeded: whether the store says that it ended a grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<bool>,
    /// For a look, or an acquire that was refused: the fingerprint of the holder that was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// For a look: how many wait, as the store says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// For a write that was accepted: one more than the version that its writer had read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A `u64` as decimal text.
mod digits {
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
    /// An event with nothing more to say than this.
    pub fn new(
        op: u64,
        kind: Kind,
        action: Action,
        name: impl Into<String>,
        owner: impl Into<String>,
        at_ns: u64,
    ) -> Self {
        let (name, owner) = (name.into(), owner.into());
        Event {
            op,
            kind,
            action,
            name,
            owner,
            at_ns,
            seq: 0,
            token: None,
            until_ns: None,
            released: None,
            holder: None,
            waiting: None,
            version: None,
        }
    }

    /// When, with its order among what has the same time.
    pub fn at(&self) -> At {
        At { ns: self.at_ns, seq: self.seq }
    }

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

    /// When it ended; [`At::NEVER`] when no reply was received.
    pub fn ended(&self) -> At {
        self.end.as_ref().map_or(At::NEVER, Event::at)
    }

    /// Whether nobody knows what became of it.
    pub fn is_open(&self) -> bool {
        self.end.as_ref().is_none_or(|end| matches!(end.kind, Kind::Info | Kind::Cancel))
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
    /// What of it is about one name.
    #[must_use]
    pub fn about(&self, name: &str) -> Self {
        let operations = self.operations.iter().filter(|operation| operation.invoke.name == name);
        let moments = self.moments.iter().filter(|moment| moment.name == name);
        History { operations: operations.cloned().collect(), moments: moments.cloned().collect() }
    }

    /// Reads JSON lines, in any order of time: several processes may have written them one after the
    /// other. Empty lines, and lines that begin with `#`, are skipped.
    ///
    /// # Errors
    /// [`HistoryError`]: nothing is judged that is not understood.
    pub fn read(lines: impl BufRead) -> Result<Self, HistoryError> {
        let mut events = Vec::new();
        for (i, line) in lines.lines().enumerate() {
            let line = line.map_err(HistoryError::Io)?;
            if line.trim().is_empty() || line.starts_with('#') {
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
        events.sort_by_key(|event| (event.at(), event.kind != Kind::Invoke));
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
            if event.kind == Kind::Ok && event.action == Action::Write && event.token.is_none() {
                return wrong("is a write without a token");
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
        Event { token, ..Event::new(op, kind, action, name, owner, at_ns) }
    }

    #[test]
    fn every_field_round_trips_and_absent_ones_take_no_room() {
        let full = Event {
            seq: 3,
            token: Some(u64::MAX >> 1),
            until_ns: Some(u64::MAX),
            released: Some(true),
            holder: Some("0badcafe".to_owned()),
            waiting: Some(2),
            version: Some(9),
            ..event(7, Kind::Cancel, Action::Look, 5)
        };
        assert_eq!(serde_json::from_str::<Event>(&full.to_line()).expect("an event"), full);
        let bare = Event::new(1, Kind::Invoke, Action::Wait, "n", "a", 5).to_line();
        assert_eq!(bare, r#"{"op":1,"kind":"invoke","action":"wait","name":"n","owner":"a","at_ns":5}"#);
        for action in Action::ALL {
            let line = Event::new(1, Kind::Ok, action, "n", "a", 5).to_line();
            assert!(line.contains(&format!(r#""action":"{}""#, action.word())), "{line}");
        }
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
        let write = |kind| Event { token: None, ..event(1, kind, Action::Write, 1) };
        assert!(of(vec![write(Kind::Invoke), write(Kind::Ok)]).contains("write without a token"));
        assert!(of(vec![event(1, Kind::Info, Action::Lost, 1)]).contains("moment"));
        let error = History::read("# a comment\n{}".as_bytes()).expect_err("no event");
        assert!(error.to_string().starts_with("line 2 of the history is no event"), "{error}");
    }
}
