//! Faults for single messages.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::eventually;
use crate::proxy::Direction;

/// How many messages a rule remembers the bytes of.
const CAPTURED_MAX: usize = 64;

/// Which messages a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a condition does nothing by itself"]
pub struct When {
    pub(super) what: What,
    contains: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Request,
    Reply,
    ReplyTo,
}

impl When {
    /// Requests: what a client sends.
    pub fn request() -> Self {
        When { what: What::Request, contains: Vec::new() }
    }

    /// Replies, and whatever else the server sends.
    pub fn reply() -> Self {
        When { what: What::Reply, contains: Vec::new() }
    }

    /// The replies to certain requests: what [`When::containing`] names has to be in the *request*, which
    /// itself is passed on. See [`Framing`](super::Framing) for how a reply is known to belong to it.
    pub fn reply_to_request() -> Self {
        When { what: What::ReplyTo, contains: Vec::new() }
    }

    /// Only those in which these bytes are found; of several, all have to be.
    pub fn containing(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.contains.push(bytes.as_ref().to_vec());
        self
    }

    fn matches(&self, message: &[u8]) -> bool {
        self.contains.iter().all(|wanted| contains(message, wanted))
    }
}

fn contains(message: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || message.windows(wanted.len()).any(|window| window == wanted)
}

/// What a rule does to a message. Other connections never notice; on its own one, what comes after it in
/// the same direction never overtakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Passes it on, and counts it.
    Watch,
    /// Passes it on that much later. It is delivered also when the client has closed or reset the
    /// connection meanwhile, as a packet is that was delayed in the network.
    Delay(Duration),
    /// As `Delay`, until [`Rule::release`].
    Hold,
    /// Never passes it on, nor anything after it in that direction on that connection: TCP loses no bytes
    /// from the middle of a stream. For a reply, the server has done what it was asked.
    Lose(Ending),
}

/// What becomes of the connection whose message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It stays open. The other direction goes on; in this one nothing comes through any more, not even
    /// the end of the stream.
    Hang,
    /// Both ends are closed (FIN), at once.
    Close,
    /// Both ends are reset (RST), at once.
    Reset,
}

/// A rule that was given to a proxy. Dropping this leaves the rule in force.
#[derive(Clone)]
pub struct Rule(pub(super) Arc<RuleState>);

pub(super) struct RuleState {
    when: When,
    pub(super) action: Action,
    /// How many more messages it takes.
    left: AtomicU64,
    hits: watch::Sender<u64>,
    /// Whether what was held may go.
    released: watch::Sender<bool>,
    captured: Mutex<Vec<Vec<u8>>>,
}

impl Rule {
    pub(super) fn new(when: When, action: Action, times: u64) -> Self {
        Rule(Arc::new(RuleState {
            when,
            action,
            left: AtomicU64::new(times),
            hits: watch::Sender::new(0),
            released: watch::Sender::new(false),
            captured: Mutex::new(Vec::new()),
        }))
    }

    /// How many messages it was done to.
    pub fn hits(&self) -> u64 {
        *self.0.hits.borrow()
    }

    /// Waits until it was done to `count` messages. Blocks the thread: in a test on a runtime of one
    /// thread, [`Rule::hit`] is the one that lets the client go on.
    ///
    /// # Panics
    /// When they do not come within `bound`.
    #[track_caller]
    pub fn wait_hits(&self, count: u64, bound: Duration) {
        eventually(bound, &format!("{count} messages for {self:?}"), || (self.hits() >= count).then_some(()));
    }

    /// Waits until it was done to at least one message; for any runtime. The caller limits the time.
    ///
    /// Cancel-safe: it only looks.
    pub async fn hit(&self) {
        // The sender lives in this very value, so that it cannot have gone.
        let _ = self.0.hits.subscribe().wait_for(|&hits| hits > 0).await;
    }

    /// Lets go what it holds, and what it would hold from now on.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Takes no further message. What it holds stays held.
    pub fn cancel(&self) {
        self.0.left.store(0, Ordering::SeqCst);
    }

    /// The messages that it was done to, the first 64: what a test may send once more.
    pub fn captured(&self) -> Vec<Vec<u8>> {
        self.0.captured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (when, action) = (&self.0.when, &self.0.action);
        f.debug_struct("Rule")
            .field("when", when)
            .field("action", action)
            .field("hits", &self.hits())
            .finish()
    }
}

impl RuleState {
    /// Takes this message, if it is one for this rule and any is left to take.
    pub(super) fn claims(&self, what: What, message: &[u8]) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        self.when.what == what
            && self.when.matches(message)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// Gives back a request whose reply will never come.
    pub(super) fn unclaim(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that it is being done to `message`.
    pub(super) fn hit(&self, message: &[u8]) {
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        if captured.len() < CAPTURED_MAX {
            captured.push(message.to_vec());
        }
        drop(captured);
        self.hits.send_modify(|hits| *hits += 1);
    }

    /// Opens when what it holds may go.
    pub(super) fn gate(&self) -> watch::Receiver<bool> {
        self.released.subscribe()
    }

    pub(super) fn end(&self) {
        self.left.store(0, Ordering::SeqCst);
        self.released.send_replace(true);
    }

    pub(super) fn is_used_up(&self) -> bool {
        // A claimed request may be given back only by whoever holds the rule too.
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// The rules of a proxy, in the order in which they were given.
#[derive(Default)]
pub(super) struct Rules(Mutex<Vec<Rule>>);

/// What the rules say about one message.
pub(super) struct Verdict {
    /// What is to be done to it now.
    pub(super) doing: Option<Rule>,
    /// What is to be done to the reply, if it is a request.
    pub(super) to_reply: Vec<Rule>,
}

impl Rules {
    pub(super) fn add(&self, rule: &Rule) {
        let mut rules = self.lock();
        rules.retain(|old| !(old.0.is_used_up() && Arc::strong_count(&old.0) == 1));
        rules.push(rule.clone());
    }

    /// Ends all of them, and lets go what they hold.
    pub(super) fn end(&self) {
        for rule in self.lock().drain(..) {
            rule.0.end();
        }
    }

    /// Asks all of them. Those that only watch see every message of theirs; of the others the first takes it.
    pub(super) fn judge(&self, direction: Direction, message: &[u8]) -> Verdict {
        let mut verdict = Verdict { doing: None, to_reply: Vec::new() };
        let now = if direction == Direction::ToServer { What::Request } else { What::Reply };
        for rule in self.lock().iter() {
            let watches = rule.0.action == Action::Watch;
            if (watches || verdict.doing.is_none()) && rule.0.claims(now, message) {
                rule.0.hit(message);
                if !watches {
                    verdict.doing = Some(rule.clone());
                }
            } else if now == What::Request && rule.0.claims(What::ReplyTo, message) {
                verdict.to_reply.push(rule.clone());
            }
        }
        verdict
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_takes_as_many_as_it_was_given() {
        let rules = Rules::default();
        let rule = Rule::new(When::request().containing("a").containing("b"), Action::Hold, 2);
        rules.add(&rule);
        let taken = |message: &[u8]| rules.judge(Direction::ToServer, message).doing.is_some();
        assert!(!taken(b"a") && taken(b"b..a") && taken(b"ab") && !taken(b"ab"));
        assert!(rules.judge(Direction::ToClient, b"ab").doing.is_none());
        assert_eq!((rule.hits(), rule.captured()), (2, vec![b"b..a".to_vec(), b"ab".to_vec()]));
    }

    #[test]
    fn watching_takes_nothing_from_others() {
        let rules = Rules::default();
        let watch = Rule::new(When::request(), Action::Watch, u64::MAX);
        let first = Rule::new(When::request(), Action::Hold, 1);
        let second = Rule::new(When::request(), Action::Lose(Ending::Reset), 1);
        for rule in [&watch, &first, &second] {
            rules.add(rule);
        }
        for wanted in [Some(Action::Hold), Some(Action::Lose(Ending::Reset)), None] {
            let doing = rules.judge(Direction::ToServer, b"x").doing;
            assert_eq!(doing.map(|rule| rule.0.action), wanted);
        }
        assert_eq!((watch.hits(), first.hits(), second.hits()), (3, 1, 1));
    }

    #[test]
    fn a_reply_is_awaited_by_its_request() {
        let rules = Rules::default();
        let rule = Rule::new(When::reply_to_request().containing("key"), Action::Lose(Ending::Hang), 1);
        rules.add(&rule);
        assert!(rules.judge(Direction::ToClient, b"key").to_reply.is_empty());
        assert_eq!(rules.judge(Direction::ToServer, b"GET key").to_reply.len(), 1);
        assert!(rules.judge(Direction::ToServer, b"GET key").to_reply.is_empty(), "it was for one");
        rule.0.unclaim();
        assert_eq!(rules.judge(Direction::ToServer, b"GET key").to_reply.len(), 1);
        assert_eq!(rule.hits(), 0, "no reply has come");
    }

    #[test]
    fn an_end_lets_go_and_takes_no_more() {
        let rules = Rules::default();
        let rule = Rule::new(When::request(), Action::Hold, 5);
        rules.add(&rule);
        let gate = rule.0.gate();
        rules.end();
        assert!(*gate.borrow() && rules.judge(Direction::ToServer, b"x").doing.is_none());
    }
}
