//! The part of a held lease that its guard and the watchdog share.
//!
//! One word decides: `deadline`, the moment until which the holder may believe, or zero when the
//! lease is over. Everybody moves it by compare-exchange and nobody but [`LeaseCell::end`] and
//! [`LeaseCell::end_if_due`] writes zero, so that
//!
//! * a check is one load and one reading of the clock, and is right even if the watchdog never ran;
//! * a renewal extends only from the deadline it started from: a reply that comes after the end, or
//!   after somebody shortened the lease, changes nothing (I6);
//! * the end happens once, with one cause, and fires its signals once.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::settings::Plan;
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::{BootTime, Claim, EndReason, LeaseName, LeaseState, LostCause, OwnerId, Token, deadline};

pub(crate) struct LeaseCell {
    pub(crate) name: LeaseName,
    pub(crate) owner: OwnerId,
    pub(crate) token: Token,
    pub(crate) plan: Plan,
    /// The store's granularity, from its profile.
    pub(crate) margin: Duration,
    /// The holder's clock before the request that was granted.
    pub(crate) since: BootTime,
    /// Business end: nothing is believed or renewed beyond it.
    pub(crate) hard_end: BootTime,
    pub(crate) hard_reason: EndReason,
    deadline: AtomicU64,
    /// What renewals ask for.
    ttl_nanos: AtomicU64,
    /// What the deadline is counted with: the shorter one, while a renewal with a shorter ttl may still
    /// reach the store and start its countdown anew.
    believed_nanos: AtomicU64,
    cold: Mutex<Cold>,
}

#[derive(Default)]
struct Cold {
    end: Option<LeaseState>,
    at_risk: bool,
    /// Renewals that were sent and not answered yet.
    in_flight: u32,
    /// Until when a renewal that got no clear answer may still reach the store.
    unclear_until: BootTime,
    signals: Option<Arc<Signals>>,
}

/// Made on first use: most leases are never watched.
struct Signals {
    states: watch::Sender<LeaseState>,
    cancelled: CancellationToken,
}

/// What became of a renewal's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// The deadline moved.
    Yes,
    /// The lease was shortened meanwhile: the reply says nothing about the new deadline.
    Superseded,
    /// The lease is over, or its time ran out before the reply came.
    Over,
}

impl LeaseCell {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        claim: Claim,
        token: Token,
        plan: Plan,
        margin: Duration,
        ttl: Duration,
        since: BootTime,
        (hard_end, hard_reason): (BootTime, EndReason),
        valid_until: BootTime,
    ) -> Self {
        LeaseCell {
            name: claim.name,
            owner: claim.owner,
            token,
            plan,
            margin,
            since,
            hard_end,
            hard_reason,
            deadline: AtomicU64::new(valid_until.min(hard_end).as_nanos().max(1)),
            ttl_nanos: AtomicU64::new(ttl.as_nanos() as u64),
            believed_nanos: AtomicU64::new(ttl.as_nanos() as u64),
            cold: Mutex::new(Cold::default()),
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::new(self.name.clone(), self.owner, Some(self.token))
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_nanos.load(Ordering::Relaxed))
    }

    /// What renewals ask for from now on.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.ttl_nanos.store(ttl.as_nanos() as u64, Ordering::Release);
    }

    /// The ttl that the deadline is counted with.
    pub(crate) fn believed(&self) -> Duration {
        Duration::from_nanos(self.believed_nanos.load(Ordering::Acquire)).min(self.ttl())
    }

    /// Counts the deadline with `ttl` from the next acknowledged renewal on.
    pub(crate) fn believe(&self, ttl: Duration) {
        self.believed_nanos.store(ttl.as_nanos() as u64, Ordering::Release);
    }

    /// A renewal is about to be sent.
    pub(crate) fn renewal_sent(&self) {
        lock(&self.cold).in_flight += 1;
    }

    /// A renewal was answered, or it is given up and may still reach the store until `unclear_until`.
    pub(crate) fn renewal_over(&self, unclear_until: Option<BootTime>) {
        let mut cold = lock(&self.cold);
        cold.in_flight = cold.in_flight.saturating_sub(1);
        cold.unclear_until = cold.unclear_until.max(unclear_until.unwrap_or(BootTime::ZERO));
    }

    /// Whether every renewal that was sent has come to its end in the store.
    pub(crate) fn is_quiet(&self, now: BootTime) -> bool {
        let cold = lock(&self.cold);
        cold.in_flight == 0 && cold.unclear_until <= now
    }

    /// Until when the holder may believe; none when the lease is over.
    pub(crate) fn deadline(&self) -> Option<BootTime> {
        match self.deadline.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(BootTime::from_nanos(nanos)),
        }
    }

    /// Whether the lease is valid at `now`; when it is not, it is over for good.
    pub(crate) fn is_valid(&self, now: BootTime, paused: impl FnOnce(BootTime) -> Option<Duration>) -> bool {
        match self.deadline() {
            Some(deadline) if now < deadline => true,
            Some(_) if mutant!(CheckIgnoresDeadline) => true,
            Some(deadline) => !self.end_if_due(now, paused(deadline)),
            None => false,
        }
    }

    /// Ends the lease if its deadline has come; returns whether it is over now.
    pub(crate) fn end_if_due(&self, now: BootTime, paused: Option<Duration>) -> bool {
        loop {
            let Some(deadline) = self.deadline() else { return true };
            if now < deadline {
                return false;
            }
            let state = if now >= self.hard_end {
                LeaseState::Ended(self.hard_reason)
            } else {
                LeaseState::Lost(match paused.filter(|_| !mutant!(PauseUnnoticed)) {
                    Some(paused) => LostCause::Paused { paused },
                    None => LostCause::Expired,
                })
            };
            let cold = lock(&self.cold);
            // A renewal may have been acknowledged in time since the load: then look again.
            if self
                .deadline
                .compare_exchange(deadline.as_nanos(), 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                fire(cold, state);
                return true;
            }
        }
    }

    /// Ends the lease with `state`; false when it was over already.
    pub(crate) fn end(&self, state: LeaseState) -> bool {
        let cold = lock(&self.cold);
        if self.deadline.swap(0, Ordering::AcqRel) == 0 {
            return false;
        }
        fire(cold, state);
        true
    }

    /// Takes an acknowledged renewal that started when the deadline was `from`.
    pub(crate) fn extend(
        &self,
        from: BootTime,
        anchor: BootTime,
        granted: Duration,
        now: BootTime,
    ) -> Extended {
        let anchor = if mutant!(DeadlineFromReply) { now } else { anchor };
        if mutant!(LateReplyResurrects) {
            let until = deadline::valid_until(now, self.ttl(), granted, self.margin);
            self.deadline.store(until.as_nanos(), Ordering::Release);
            return Extended::Yes;
        }
        if now >= from {
            // Too late, whatever the store says.
            self.end_if_due(now, None);
            return if self.deadline().is_some() { Extended::Superseded } else { Extended::Over };
        }
        // May be earlier than before: a store that granted less has to be believed (I3).
        let believed = self.believed();
        let until = deadline::valid_until(anchor, believed, granted, self.margin).min(self.hard_end);
        match self.deadline.compare_exchange(
            from.as_nanos(),
            until.as_nanos().max(1),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Extended::Yes,
            Err(0) => Extended::Over,
            Err(_) => {
                // It may have reached the store after the one that moved the deadline.
                if granted < believed {
                    self.shorten(until);
                }
                Extended::Superseded
            }
        }
    }

    /// Moves the deadline to `until` if that is earlier.
    pub(crate) fn shorten(&self, until: BootTime) {
        let _ = self.deadline.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (now != 0 && until.as_nanos() < now).then_some(until.as_nanos().max(1))
        });
    }

    /// Warns that the lease is lost at `risk` unless it is renewed, or takes the warning back.
    pub(crate) fn set_at_risk(&self, risk: Option<(BootTime, Duration)>) {
        let mut cold = lock(&self.cold);
        // A warning that was decided before the deadline moved comes too late.
        if risk.is_some_and(|(deadline, _)| self.deadline() != Some(deadline)) {
            return;
        }
        let remaining = risk.map(|(_, remaining)| remaining);
        if cold.end.is_some() || cold.at_risk == remaining.is_some() || mutant!(RiskNeverShown) {
            return;
        }
        cold.at_risk = remaining.is_some();
        let signals = cold.signals.clone();
        drop(cold);
        if let Some(signals) = signals {
            signals.tell(remaining.map_or(LeaseState::Held, |remaining| LeaseState::AtRisk { remaining }));
        }
    }

    pub(crate) fn state(&self, now: BootTime) -> LeaseState {
        let cold = lock(&self.cold);
        match (&cold.end, cold.at_risk) {
            (Some(end), _) => end.clone(),
            (None, true) => {
                LeaseState::AtRisk { remaining: self.deadline().map_or(Duration::ZERO, |d| d.since(now)) }
            }
            (None, false) => LeaseState::Held,
        }
    }

    pub(crate) fn states(&self) -> watch::Receiver<LeaseState> {
        signals(&mut lock(&self.cold)).states.subscribe()
    }

    pub(crate) fn cancelled(&self) -> CancellationToken {
        signals(&mut lock(&self.cold)).cancelled.clone()
    }
}

impl Signals {
    /// The end stays the last word, whoever comes late with a warning.
    fn tell(&self, state: LeaseState) {
        self.states.send_if_modified(|current| {
            let goes_on = !current.is_over();
            if goes_on {
                *current = state;
            }
            goes_on
        });
    }
}

/// Writes the end, then tells everybody outside the lock: a waker may ask for the state at once.
fn fire(mut cold: MutexGuard<'_, Cold>, state: LeaseState) {
    cold.end = Some(state.clone());
    if mutant!(LossSignalNeverFires) {
        return;
    }
    let signals = cold.signals.clone();
    drop(cold);
    if let Some(signals) = signals {
        let loss = state.is_loss();
        // Each is told although another one's waker panics.
        guarded(|| signals.tell(state));
        if loss {
            guarded(|| signals.cancelled.cancel());
        }
    }
}

/// Runs what wakes a user's code: its panic ends neither a thread of ours nor what comes after it.
pub(crate) fn guarded(f: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
}

fn signals(cold: &mut Cold) -> &Signals {
    let Cold { end, at_risk, signals, .. } = cold;
    signals.get_or_insert_with(|| {
        let state = match (end.as_ref(), at_risk) {
            (Some(end), _) => end.clone(),
            (None, true) => LeaseState::AtRisk { remaining: Duration::ZERO },
            (None, false) => LeaseState::Held,
        };
        let cancelled = CancellationToken::new();
        if state.is_loss() {
            cancelled.cancel();
        }
        Arc::new(Signals { states: watch::Sender::new(state), cancelled })
    })
}

impl std::fmt::Debug for LeaseCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseCell")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
