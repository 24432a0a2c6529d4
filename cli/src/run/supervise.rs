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
//! guardian's end of the socket closes. All times are of the boot clock and are waited for on the
//! watchdog's timers, which count suspend.

use std::time::Duration;

use leasehold::{BackendContext, BootTime, EndReason, Lease, LeaseState};
use rustix::fd::AsFd;
use rustix::io::Errno;
use serde_json::json;

use super::guardian::LEFTOVER_GRACE;
use super::handle::Guardian;
use super::outcome::{JobEnd, Outcome};
use super::plan::Plan;
use super::protocol::{Order, Received, Report, pack, receive_report, send_order};
use super::report::{Talk, Weight};
use super::signals::{self, Bell, Signals};
use crate::args::{OnLost, signal_name};
use crate::duration::show;

/// How long the guardian has, beside its grace, to end what the command left behind.
const TIDY_LIMIT: Duration = Duration::from_millis(500);
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
    granted_at: BootTime,
    /// The deadline that the guardian knows.
    told: Option<BootTime>,
    /// When the guardian is no longer waited for.
    act_at: BootTime,
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
            granted_at: context.now(),
            told: None,
            act_at: BootTime::MAX,
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
            let look = (self.context.now() + self.pace()).min(self.act_at);
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
            if self.context.now() >= self.act_at {
                return Ok(self.last_word());
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
        Ok(())
    }

    fn pace(&self) -> Duration {
        (self.lease.ttl() / 20).clamp(LOOK_MIN, LOOK_MAX)
    }

    /// Tells the guardian a deadline that moved.
    fn look(&mut self) {
        if self.loss.is_some() || self.job.is_some() {
            return;
        }
        match self.lease.valid_until() {
            None => self.on_state(self.lease.state()),
            Some(until) if Some(until) != self.told => {
                let times = self.plan.times(until);
                // A frozen guardian takes no more after a while; it is told again at the next look.
                if self.guardian.order(Order::Times(times)) {
                    self.told = Some(until);
                }
                self.act_at = self.plan.act_at(times.kill_at);
            }
            Some(_) => {}
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
        let held = self.context.now().since(self.granted_at);
        let near = self.plan.kill_after + self.plan.margin * 2;
        let state = match self.lease.state() {
            state if state.is_over() => state,
            _ if self.plan.max_hold.is_some_and(|max| held + near >= max) => {
                LeaseState::Ended(EndReason::MaxHold)
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
                "message": state.to_string(),
            }),
            format_args!("the lease {name:?} is over ({state}): {consequence}"),
        );
    }

    fn heard(&mut self, report: Report) {
        match report {
            Report::Started { pid } => self.talk.say(
                Weight::Detail,
                "started",
                json!({ "pid": pid }),
                format_args!("the command runs as process {pid}"),
            ),
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
        self.say_left(usize::try_from(left).unwrap_or(0));
        self.outcome()
    }

    /// The guardian is gone without a word.
    fn abandoned(mut self) -> Outcome {
        let left = self.guardian.take_over();
        if self.job.is_none() && self.loss.is_none() {
            self.talk.say(
                Weight::Error,
                "guardian_lost",
                json!({}),
                format_args!("the guardian process was killed: the command was killed with it, because nobody would stop it in time"),
            );
        }
        self.say_left(left);
        self.outcome()
    }

    /// The time to act has come, perhaps long ago, if this process was frozen: what the guardian
    /// said meanwhile counts.
    fn last_word(mut self) -> Outcome {
        loop {
            match receive_report(&self.guardian.socket) {
                Received::Message(Report::Done { left }, _) => return self.done(left),
                Received::Message(report, _) => self.heard(report),
                Received::Nothing | Received::Closed => return self.act(),
            }
        }
    }

    /// The guardian did not do its work in time.
    fn act(mut self) -> Outcome {
        let left = self.guardian.take_over();
        if self.loss.is_none() && self.job.is_none() && !self.insisted {
            let state = match self.lease.state() {
                state if state.is_over() => state,
                _ => LeaseState::Lost(leasehold::LostCause::Expired),
            };
            self.say_lost(&state, Duration::ZERO);
            self.loss = Some(state);
        }
        self.say_left(left);
        self.outcome()
    }

    fn say_left(&self, left: usize) {
        if left > 0 {
            self.talk.say(
                Weight::Error,
                "left_behind",
                json!({ "processes": left }),
                format_args!("{left} process(es) of the command could not be killed (another user's?) and run on without the lease"),
            );
        }
    }

    fn outcome(self) -> Outcome {
        Outcome { job: self.job.unwrap_or(JobEnd::Unseen), loss: self.loss }
    }
}
