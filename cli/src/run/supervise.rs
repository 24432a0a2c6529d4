//! The wrapper's side of a running command: the guardian is started, told every new deadline, and
//! not trusted.
//!
//! ```text
//!                 kill_after        margin/2     margin/2
//!  ── held ──┤ TERM ───────────┤ KILL ──────┤ wrapper kills ──────┤ lease ends
//!         term_at            kill_at     act_at            valid_until
//! ```
//!
//! The guardian acts at the first two times; at the third the wrapper kills the guardian, inherits
//! the tree as a subreaper, and kills until nobody is left. The same happens at once when the
//! guardian's end of the socket closes. The times are those that the guardian *acknowledged*: one
//! that is frozen is not relied on longer than it would have acted by itself, however often the lease
//! is renewed meanwhile. A command that has ended and is not reaped for a second is the same sign. All times are of the boot clock and are waited for on the
//! watchdog's timers, which count suspend.

use std::time::Duration;

use leasehold::{BackendContext, BootTime, EndReason, Lease, LeaseState};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::Pid;
use serde_json::json;

use super::guardian::LEFTOVER_GRACE;
use super::handle::Guardian;
use super::outcome::{JobEnd, Outcome};
use super::plan::Plan;
use super::protocol::{Order, Received, Report, pack, receive_report, send_order};
use super::report::{Talk, Weight, in_words};
use super::signals::{self, Bell, Signals};
use crate::args::{OnLost, signal_name};
use crate::duration::show;

/// How long the guardian has, beside its grace, to end what the command left behind.
const TIDY_LIMIT: Duration = Duration::from_millis(500);
/// How long a guardian may take to see that its command has ended.
const REAP_LIMIT: Duration = Duration::from_secs(1);
/// How often the deadline is compared with what the guardian was told, at least and at most.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Watches over one command.
pub(crate) struct Supervisor<'a> {
    pub(crate) lease: &'a Lease,
    pub(crate) context: &'a BackendContext,
    pub(crate) plan: Plan,
    pub(crate) talk: Talk,
    pub(crate) signals: &'a Signals,
    pub(crate) bell: &'a Bell,
    guardian: Guardian,
    /// The deadline that the guardian knows.
    told: Option<BootTime>,
    /// When the guardian is no longer waited for.
    act_at: BootTime,
    /// The last moment that the guardian has acknowledged.
    acknowledged: BootTime,
    /// The command's process, since it was started.
    pid: Option<Pid>,
    /// Since when it has been seen ended, while the guardian says nothing.
    unreaped_since: Option<BootTime>,
    job: Option<JobEnd>,
    loss: Option<LeaseState>,
    insisted: bool,
    at_risk: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        lease: &'a Lease,
        context: &'a BackendContext,
        plan: Plan,
        talk: Talk,
        (signals, bell): (&'a Signals, &'a Bell),
        guardian: Guardian,
    ) -> Self {
        Supervisor {
            lease,
            context,
            plan,
            talk,
            signals,
            bell,
            guardian,
            told: None,
            act_at: BootTime::MAX,
            acknowledged: BootTime::ZERO,
            pid: None,
            unreaped_since: None,
            job: None,
            loss: None,
            insisted: false,
            at_risk: false,
        }
    }

    /// Starts the command and stays with it to its end.
    ///
    /// # Errors
    /// The start order could not be given: nothing was started.
    pub(crate) async fn run(mut self, argv: &[std::ffi::OsString]) -> Result<Outcome, std::io::Error> {
        let mut states = self.lease.states();
        self.start(argv)?;
        loop {
            let look = (self.context.now() + self.pace()).min(self.due());
            tokio::select! {
                biased;
                report = self.guardian.hear() => match report {
                    Some(Report::Done { left }) => return Ok(self.done(left)),
                    Some(report) => self.heard(report),
                    None => return Ok(self.abandoned()),
                },
                changed = states.changed() => if changed.is_ok() {
                    let state = states.borrow_and_update().clone();
                    self.on_state(state);
                },
                () = self.bell.rung() => self.forward(),
                () = self.context.sleep_until(look) => {}
            }
            self.look();
            // This process may have been frozen: what the guardian said meanwhile counts.
            if self.is_due() {
                if let Some(left) = self.drain() {
                    return Ok(self.done(left));
                }
                if self.is_due() {
                    return Ok(self.act());
                }
            }
        }
    }

    fn start(&mut self, argv: &[std::ffi::OsString]) -> Result<(), std::io::Error> {
        let file = pack(argv)?;
        let until = self.lease.valid_until().unwrap_or(BootTime::ZERO);
        let times = self.plan.times(until);
        let order = Order::Start { times, signal: self.plan.signal.as_raw() };
        send_order(&self.guardian.socket, order, &[rustix::stdio::stdin(), file.as_fd()])?;
        self.told = Some(until);
        self.act_at = self.plan.act_at(times.kill_at);
        self.acknowledged = times.kill_at;
        Ok(())
    }

    /// When the guardian is no longer waited for.
    fn due(&self) -> BootTime {
        self.unreaped_since.map_or(self.act_at, |since| self.act_at.min(since + REAP_LIMIT))
    }

    fn is_due(&self) -> bool {
        self.context.now() >= self.due()
    }

    fn pace(&self) -> Duration {
        (self.lease.ttl() / 20).clamp(LOOK_MIN, LOOK_MAX)
    }

    /// Tells the guardian a deadline that moved, until it has heard it.
    fn look(&mut self) {
        if self.job.is_some() {
            return;
        }
        let has_ended = self.pid.is_some_and(|pid| self.guardian.leaves_unreaped(pid));
        let since = self.unreaped_since.unwrap_or_else(|| self.context.now());
        self.unreaped_since = has_ended.then_some(since);
        if self.loss.is_some() {
            return;
        }
        match self.lease.valid_until() {
            None => self.on_state(self.lease.state()),
            Some(until) => {
                let times = self.plan.times(until);
                // A frozen guardian takes no more after a while; it is told again at the next look.
                if Some(until) != self.told || self.acknowledged != times.kill_at {
                    self.guardian.order(Order::Times(times));
                    self.told = Some(until);
                }
            }
        }
    }

    /// The guardian knows until when the command may run.
    fn acknowledged(&mut self, kill_at: BootTime) {
        self.acknowledged = kill_at;
        // A loss, an end or a second signal has set a nearer time.
        if self.loss.is_none() && self.job.is_none() && !self.insisted {
            self.act_at = self.plan.act_at(kill_at);
        }
    }

    fn on_state(&mut self, state: LeaseState) {
        let name = self.lease.name();
        match state {
            LeaseState::AtRisk { remaining } if !self.at_risk => {
                self.at_risk = true;
                self.talk.say(
                    Weight::Warning,
                    "at_risk",
                    json!({ "lease": name.as_str(), "remaining_ms": crate::show::millis(remaining) }),
                    format_args!(
                        "warning: the lease {name:?} could not be renewed; it is lost in {} unless a renewal succeeds",
                        show(remaining)
                    ),
                );
            }
            LeaseState::Held if self.at_risk => {
                self.at_risk = false;
                self.talk.say(
                    Weight::Detail,
                    "held",
                    json!({ "lease": name.as_str() }),
                    format_args!("the lease {name:?} was renewed after all"),
                );
            }
            state if state.is_loss() && self.loss.is_none() && self.job.is_none() => self.lost(state),
            _ => {}
        }
    }

    /// The lease is over: stops the command as `--on-lost` says.
    fn lost(&mut self, state: LeaseState) {
        let now = self.context.now();
        // No later than the deadline that held until now: by then somebody else may start.
        let last = self.told.map_or(now, |until| self.plan.times(until).kill_at.max(now));
        let (kill_at, order) = match self.plan.on_lost {
            OnLost::Warn => (BootTime::MAX, None),
            OnLost::Kill => (now, Some(Order::Kill)),
            OnLost::Terminate => {
                let kill_at = (now + self.plan.kill_after).min(last);
                (kill_at, Some(Order::Terminate { kill_at }))
            }
        };
        if let Some(order) = order {
            self.guardian.order(order);
        }
        self.act_at = self.act_at.min(self.plan.act_at(kill_at));
        self.say_lost(&state, kill_at.since(now));
        self.loss = Some(state);
    }

    /// The guardian began to stop the command because the deadline came near.
    fn time_over(&mut self) {
        if self.loss.is_some() || self.job.is_some() {
            return;
        }
        let state = match self.lease.state() {
            state if state.is_over() => state,
            // The deadline that came near is that of a limit.
            _ if self.lease.limit().is_some_and(|(end, _)| self.lease.valid_until() == Some(end)) => {
                LeaseState::Ended(self.lease.limit().map_or(EndReason::MaxHold, |(_, reason)| reason))
            }
            _ => LeaseState::Lost(leasehold::LostCause::Expired),
        };
        self.say_lost(&state, self.plan.kill_after);
        self.loss = Some(state);
    }

    fn say_lost(&self, state: &LeaseState, grace: Duration) {
        let name = self.lease.name();
        let consequence = match self.plan.on_lost {
            OnLost::Warn => "the command runs on without it (--on-lost warn)".to_owned(),
            OnLost::Kill => "the command is killed".to_owned(),
            // As when both were frozen: its grace is over.
            OnLost::Terminate if grace.is_zero() => "the command is killed".to_owned(),
            OnLost::Terminate => format!(
                "the command gets {}, and SIGKILL within {}",
                signal_name(self.plan.signal.as_raw()),
                show(grace)
            ),
        };
        self.talk.say(
            Weight::Error,
            "lost",
            json!({
                "lease": name.as_str(),
                "token": self.lease.token().to_string(),
                "cause": state.word(),
                "message": in_words(state),
            }),
            format_args!("the lease {name:?} is over ({}): {consequence}", in_words(state)),
        );
    }

    fn heard(&mut self, report: Report) {
        match report {
            Report::Started { pid } => {
                self.pid = Pid::from_raw(pid);
                self.talk.say(
                    Weight::Detail,
                    "started",
                    json!({ "pid": pid }),
                    format_args!("the command runs as process {pid}"),
                );
            }
            Report::Heard { kill_at } => self.acknowledged(kill_at),
            Report::Failed { errno } => {
                self.job = Some(JobEnd::NotStarted(Errno::from_raw_os_error(errno)));
                self.wait_for_the_rest();
            }
            Report::Broken { errno } => {
                self.job = Some(JobEnd::Unguarded(Errno::from_raw_os_error(errno)));
            }
            Report::TimeOver => self.time_over(),
            Report::Exited { code } => {
                self.ended(JobEnd::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            Report::Killed { signal } => self.ended(JobEnd::Killed(signal)),
            Report::Done { .. } => {}
        }
    }

    fn ended(&mut self, job: JobEnd) {
        // Over by the clock, though nobody had looked: then it was lost while it ran.
        if self.loss.is_none()
            && let Err(over) = self.lease.check()
        {
            self.say_lost(&over.state, Duration::ZERO);
            self.loss = Some(over.state);
        }
        self.job = Some(job);
        self.unreaped_since = None;
        self.wait_for_the_rest();
    }

    /// The command has ended: its leftovers get a moment, and no longer than the lease.
    fn wait_for_the_rest(&mut self) {
        self.act_at = self.act_at.min(self.context.now() + LEFTOVER_GRACE + TIDY_LIMIT);
    }

    /// Hands caught signals on.
    fn forward(&mut self) {
        for signal in self.signals.take() {
            let insisted = signals::insists(signal) && std::mem::replace(&mut self.insisted, true);
            let (order, what) = if insisted {
                (Order::Kill, "SIGKILL follows: it came a second time")
            } else {
                (Order::Forward(signal), "handed on to the command")
            };
            self.guardian.order(order);
            if insisted {
                // A guardian that does not even do this is not waited for.
                self.act_at = self.act_at.min(self.context.now() + TIDY_LIMIT);
            }
            // Stopping stops only the command: the lease is renewed, or it would be lost.
            let (weight, what) = match signal {
                signal_hook::consts::SIGTSTP => (
                    Weight::Progress,
                    format!("{what}; the lease goes on. `kill -CONT {}` lets it go on", std::process::id()),
                ),
                _ => (Weight::Detail, what.to_owned()),
            };
            self.talk.say(
                weight,
                "signal",
                json!({ "signal": signal_name(signal), "number": signal, "killed": insisted }),
                format_args!("{}: {what}", signal_name(signal)),
            );
        }
    }

    fn done(mut self, left: i32) -> Outcome {
        self.guardian.dismiss();
        self.outcome(usize::try_from(left).unwrap_or(0))
    }

    /// The guardian is gone without a word.
    fn abandoned(mut self) -> Outcome {
        let (left, _) = self.guardian.take_over(None);
        let times = self.told.map(|until| self.plan.times(until));
        if times.is_some_and(|times| self.context.now() >= times.term_at.min(times.kill_at)) {
            // It did its work, and its last words found no room while this process was frozen.
            self.time_over();
        } else if self.job.is_none() && self.loss.is_none() {
            self.say_guardian_lost("was killed");
        }
        self.outcome(left)
    }

    fn say_guardian_lost(&self, what: &str) {
        self.talk.say(
            Weight::Error,
            "guardian_lost",
            json!({}),
            format_args!("the guardian process {what}: the command was killed with it, because nobody would stop it in time"),
        );
    }

    /// Hears what the guardian has said already. Some when that was its last word.
    fn drain(&mut self) -> Option<i32> {
        loop {
            match receive_report(&self.guardian.socket) {
                Received::Message(Report::Done { left }, _) => return Some(left),
                Received::Message(report, _) => self.heard(report),
                Received::Nothing | Received::Closed => return None,
            }
        }
    }

    /// The guardian did not do its work in time.
    fn act(mut self) -> Outcome {
        let now = self.context.now();
        // What the command's own end was, unless it is the SIGKILL that it gets here.
        let ended_before = self.unreaped_since.is_some() || self.insisted;
        let is_deaf = self.told.is_some_and(|until| now < self.plan.act_at(self.plan.times(until).kill_at));
        let (left, ended) = self.guardian.take_over(self.pid);
        if let (true, None, Some(status)) = (ended_before, self.job, ended) {
            self.job = Some(JobEnd::of(status));
        }
        if self.loss.is_none() && self.job.is_none() && !self.insisted {
            match self.lease.state() {
                state if !state.is_over() && is_deaf => self.say_guardian_lost("did not answer"),
                state => {
                    let expired = LeaseState::Lost(leasehold::LostCause::Expired);
                    let state = if state.is_over() { state } else { expired };
                    self.say_lost(&state, Duration::ZERO);
                    self.loss = Some(state);
                }
            }
        }
        self.outcome(left)
    }

    fn outcome(self, left: usize) -> Outcome {
        if left > 0 {
            self.talk.say(
                Weight::Error,
                "left_behind",
                json!({ "processes": left }),
                format_args!("{left} process(es) of the command could not be killed or not be found (another user's?) and run on"),
            );
        }
        Outcome { job: self.job.unwrap_or(JobEnd::Unseen), loss: self.loss, left }
    }
}
