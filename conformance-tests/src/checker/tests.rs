//! Edges of the rules. Histories of what happened in the field are in `tests/histories`.

use super::*;
use crate::history::Event;

/// Writes histories: `owner` acquires `n`, and so on; one operation an owner and action.
#[derive(Default)]
struct Story(Vec<Event>);

impl Story {
    fn event(mut self, kind: Kind, action: Action, owner: &str, op: u64, at_ns: u64) -> Self {
        self.0.push(Event::new(op, kind, action, "n", owner, at_ns));
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
        let bounds = Bounds { loss_told_within: Duration::from_nanos(5), ..Bounds::default() };
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

#[test]
fn one_sequence_orders_what_has_one_time() {
    let mut story = Story::default().grant("a", (5, 5), 2, 40).release("a", (5, 5), true);
    story = story.grant("b", (5, 5), 1, 40);
    // Without it nothing is known: b may have come first.
    assert_eq!(Story(story.0.clone()).judge().violations, []);
    for (seq, event) in story.0.iter_mut().enumerate() {
        event.seq = seq as u64 + 1;
    }
    story.bad(Property::H2);
}

#[test]
fn an_owner_whose_grant_ran_out_has_a_second_one() {
    let story = Story::default().grant("a", (0, 10), 1, 100).grant("a", (120, 130), 2, 300);
    let verdict = story.release("a", (150, 160), true).grant("b", (170, 180), 3, 400).good();
    assert_eq!(verdict.grants, 3);
}

#[test]
fn a_grant_that_is_raised_above_a_floor_goes_on_under_its_new_token() {
    let raised = || Story::default().grant("a", (0, 10), 1, 100).grant("a", (20, 30), 9, 60);
    let verdict = raised().release("a", (40, 41), true).grant("b", (50, 51), 10, 90).good();
    assert_eq!(verdict.grants, 3);
    raised().grant("b", (50, 51), 10, 90).bad(Property::H4);
}

#[test]
fn a_grant_that_is_told_again_is_believed_again() {
    let again = || Story::default().grant("a", (0, 10), 1, 100).grant("a", (50, 60), 1, 150);
    again().moment(Kind::Ok, Action::Check, "a", 140).good();
    again().grant("b", (130, 145), 2, 300).bad(Property::H4);
}

#[test]
fn a_late_renewal_that_was_refused_is_no_violation() {
    let held = Story::default().grant("a", (0, 10), 1, 100).release("a", (20, 21), true);
    let mut story = held.op(Action::Renew, "a", 30, 31);
    story.0.last_mut().expect("just pushed").kind = Kind::Fail;
    story.good();
}
