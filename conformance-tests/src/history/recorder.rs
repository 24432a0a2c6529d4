//! Recording a history as it happens.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{BackendContext, Claim, LeaseName, OwnerId, Token};

use super::{Action, Event, History, HistoryError, Kind};

/// Records what all processes of one run do, in one sequence. Clones share it.
///
/// An invocation is written before the call starts and its end after the reply is there, both under
/// one lock: what the sequence shows one after the other did happen one after the other.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    ops: u64,
    /// Events that came when the log was full.
    dropped: u64,
    /// What may be held: asked for, and neither refused nor released. Never shown: owner ids are
    /// capabilities.
    claims: HashMap<(LeaseName, OwnerId), Claim>,
}

impl Recorder {
    /// Longest recording, in events: some hundred megabytes.
    pub const EVENTS_MAX: usize = 400_000;

    /// An empty recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// An operation begins, under a token where one is presented. It ends by one of [`Open`]'s
    /// functions, or never.
    pub fn begin(
        &self,
        context: &BackendContext,
        action: Action,
        name: &LeaseName,
        owner: &str,
        token: Option<Token>,
    ) -> Open {
        let mut log = self.log();
        log.ops += 1;
        let op = log.ops;
        // Read under the lock: time and sequence agree.
        let now = context.now().as_nanos();
        let mut event = Event::new(op, Kind::Invoke, action, name.as_str(), owner, now);
        event.token = token.map(Token::get);
        log.push(event.clone());
        drop(log);
        Open { recorder: self.clone(), context: context.clone(), invoke: event }
    }

    /// A check, or a loss that is told.
    pub fn moment(
        &self,
        context: &BackendContext,
        action: Action,
        kind: Kind,
        name: &LeaseName,
        owner: &str,
    ) {
        let mut log = self.log();
        log.ops += 1;
        let (op, at_ns) = (log.ops, context.now().as_nanos());
        log.push(Event::new(op, kind, action, name.as_str(), owner, at_ns));
    }

    /// What was recorded so far; `None` when the log was full, since a history with holes proves
    /// nothing.
    ///
    /// # Errors
    /// [`HistoryError`] when what was recorded is no history.
    pub fn history(&self) -> Result<Option<History>, HistoryError> {
        let log = self.log();
        if log.dropped > 0 {
            return Ok(None);
        }
        let events = log.events.clone();
        drop(log);
        History::of(events).map(Some)
    }

    /// Somebody asks, and may hold the name from now on.
    pub(crate) fn claim(&self, claim: Claim) {
        self.log().claims.insert((claim.name.clone(), claim.owner), claim);
    }

    /// Whoever asked holds nothing any more.
    pub(crate) fn unclaim(&self, claim: &Claim) {
        self.log().claims.remove(&(claim.name.clone(), claim.owner));
    }

    /// What may still be held.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.log().claims.values().cloned().collect()
    }

    /// Shows what was recorded so far, event by event.
    pub(crate) fn each(&self, look: impl FnMut(&Event)) {
        self.log().events.iter().for_each(look);
    }

    /// The recording as JSON lines.
    pub fn to_lines(&self) -> String {
        self.log().events.iter().map(|event| event.to_line() + "\n").collect()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn push(&mut self, mut event: Event) {
        if self.events.len() >= Recorder::EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        event.seq = self.events.len() as u64 + 1;
        self.events.push(event);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("events", &self.log().events.len()).finish_non_exhaustive()
    }
}

/// An operation that was begun. Dropped without an end, it is one whose reply was never received.
#[derive(Debug)]
#[must_use = "dropped, its reply was never received"]
pub struct Open {
    recorder: Recorder,
    context: BackendContext,
    invoke: Event,
}

impl Open {
    /// It succeeded; `more` says what came of it.
    pub fn ok(self, more: impl FnOnce(&mut Event)) {
        self.end(Kind::Ok, more);
    }

    /// It provably had no effect.
    pub fn fail(self, more: impl FnOnce(&mut Event)) {
        self.end(Kind::Fail, more);
    }

    /// It ended and nobody knows how.
    pub fn info(self) {
        self.end(Kind::Info, |_| {});
    }

    /// Whoever asked went away.
    pub fn cancel(self) {
        self.end(Kind::Cancel, |_| {});
    }

    fn end(self, kind: Kind, more: impl FnOnce(&mut Event)) {
        let mut log = self.recorder.log();
        let mut event = Event { kind, at_ns: self.context.now().as_nanos(), ..self.invoke.clone() };
        more(&mut event);
        log.push(event);
    }
}
