//! The watchdog: two threads that keep leases alive and end them on time.
//!
//! 1. The **clock thread** sleeps on an alarm of the boot clock, takes the lock, makes one pure
//!    [`step`], publishes its next wake under the same lock, and carries the actions out: it ends
//!    leases, fires signals, and orders renewals. It runs no backend code and no runtime.
//! 2. The **I/O thread** is a current-thread runtime. Each renewal call, abandoned attempt and
//!    background release is a task of its own there, raced against its time limit.
//!
//! What can go wrong, and where it is handled:
//! * Every worker of the user's runtime is blocked: neither thread belongs to it.
//! * A backend blocks the I/O thread: the clock thread still ends leases on time.
//! * A lease is registered between "compute the next wake" and "sleep": the wake is published under
//!   the lock, and an alarm that was rung does not sleep (checked under shuttle).
//! * Neither thread ran (frozen, suspended): a check reads the clock itself ([`crate::cell`]).
//! * A user's waker panics: the clock thread goes on.

mod io;
#[cfg(all(test, shuttle))]
mod model;
pub(crate) mod step;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc as StdArc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::cell::{LeaseCell, guarded};
use crate::rng::Jitter;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::timers::{Sleep, TimerHandle, Timers};
use crate::{Alarm, BackendContext, BootTime, Clock, LeaseBackend, SystemClock};

pub(crate) use io::{Abandoned, Lanes, Order, Pending, ReleaseOrder};
use step::{Action, Event, Key, State};

/// The watchdog could not start. Nothing was acquired; nothing can be held safely without it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the watchdog could not start ({source}): nothing was acquired. Threads or file descriptors may be exhausted (ulimit -u, ulimit -n)"
)]
pub struct WatchdogError {
    source: std::io::Error,
}

/// Keeps leases alive and ends them on time. Clones share the two threads, which stop when the last
/// clone and the last client of it are gone.
///
/// Made first; clients and backends are made with it.
#[derive(Clone)]
pub struct Watchdog(StdArc<Running>);

struct Running {
    shared: StdArc<Shared>,
    io: tokio::runtime::Handle,
}

/// What the threads, the clients and the sleeps share.
pub(crate) struct Shared {
    clock: StdArc<dyn Clock>,
    alarm: StdArc<dyn Alarm>,
    core: Mutex<Core>,
    orders: mpsc::UnboundedSender<Order>,
}

struct Core {
    leases: State,
    timers: Timers,
    /// Until when the clock thread sleeps, or will: whoever sets an earlier timer rings.
    next_wake: BootTime,
    stopping: bool,
    steps: u64,
}

/// Figures of a watchdog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchdogStats {
    /// Leases that it keeps.
    pub held: usize,
    /// Sleeps that it will wake.
    pub sleeping: usize,
    /// Steps of the clock thread since its start.
    pub steps: u64,
    /// Renewals asked of backends since its start.
    pub renewals_sent: u64,
    /// Calls that carried them.
    pub batches_sent: u64,
}

impl Watchdog {
    /// Starts a watchdog on the machine's clock.
    ///
    /// # Errors
    /// [`WatchdogError`] when the operating system gives no threads or descriptors.
    pub fn start() -> Result<Self, WatchdogError> {
        Self::with_clock(StdArc::new(SystemClock))
    }

    /// Starts a watchdog on another clock, for tests.
    ///
    /// # Errors
    /// As [`Watchdog::start`].
    pub fn with_clock(clock: StdArc<dyn Clock>) -> Result<Self, WatchdogError> {
        let failed = |source| WatchdogError { source };
        let alarm = clock.alarm().map_err(failed)?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = StdArc::new(Shared {
            clock,
            alarm,
            core: Mutex::new(Core {
                leases: State::new(Jitter::seeded()),
                timers: Timers::default(),
                next_wake: BootTime::ZERO,
                stopping: false,
                steps: 0,
            }),
            orders,
        });
        let io = io::start(StdArc::downgrade(&shared), inbox).map_err(failed)?;
        // From here on a dropped `Running` stops the I/O thread too.
        let running = Running { shared: StdArc::clone(&shared), io };
        std::thread::Builder::new()
            .name("leasehold-clock".into())
            .spawn(move || shared.run())
            .map_err(failed)?;
        Ok(Watchdog(StdArc::new(running)))
    }

    /// The process-wide watchdog, started on first use.
    ///
    /// # Errors
    /// As [`Watchdog::start`]; a later call tries again.
    pub fn global() -> Result<Self, WatchdogError> {
        static GLOBAL: std::sync::Mutex<Option<Watchdog>> = std::sync::Mutex::new(None);
        let mut global = GLOBAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*global {
            Some(watchdog) => Ok(watchdog.clone()),
            None => Ok(global.insert(Self::start()?).clone()),
        }
    }

    /// As [`BackendContext::sleep_until`], without making a context for it.
    pub(crate) fn sleep_until(&self, at: BootTime) -> Sleep {
        TimerHandle(StdArc::downgrade(&self.0.shared)).sleep_until(at)
    }

    /// What a backend's constructor needs.
    pub fn context(&self) -> BackendContext {
        BackendContext {
            clock: StdArc::clone(&self.0.shared.clock),
            timers: TimerHandle(StdArc::downgrade(&self.0.shared)),
            io: self.0.io.clone(),
        }
    }

    /// Figures for tests and dashboards.
    pub fn stats(&self) -> WatchdogStats {
        let core = self.0.shared.lock();
        if cfg!(debug_assertions) {
            core.leases.check_timers();
        }
        WatchdogStats {
            held: core.leases.held(),
            sleeping: core.timers.len(),
            steps: core.steps,
            renewals_sent: core.leases.renewals_sent,
            batches_sent: core.leases.batches_sent,
        }
    }

    pub(crate) fn shared(&self) -> &StdArc<Shared> {
        &self.0.shared
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("clock", &self.0.shared.clock).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.clock.now()
    }

    pub(crate) fn order(&self, order: Order) {
        // The I/O thread lives as long as a watchdog or a client does; when it is gone, so is
        // everything that could have sent this, and the store's own expiry cleans up.
        let _ = self.orders.send(order);
    }

    pub(crate) fn add_group(&self, backend: StdArc<dyn LeaseBackend>, lanes: StdArc<Lanes>) -> u32 {
        self.lock().leases.add_group(backend, lanes)
    }

    pub(crate) fn remove_group(&self, group: u32) {
        self.lock().leases.remove_group(group);
    }

    pub(crate) fn add(&self, group: u32, cell: Arc<LeaseCell>, anchor: BootTime) -> Key {
        let mut core = self.lock();
        let key = core.leases.add(group, cell, anchor);
        self.publish(core);
        key
    }

    pub(crate) fn remove(&self, key: Key) -> bool {
        self.lock().leases.remove(key)
    }

    /// Publishes an earlier wake and rings for it.
    fn publish(&self, mut core: MutexGuard<'_, Core>) {
        let next = core.leases.next_wake().min(core.timers.next());
        if next < core.next_wake {
            core.next_wake = next;
            drop(core);
            self.alarm.ring();
        }
    }

    /// Sets the timer `id`, or a new one; none when the watchdog stops.
    ///
    /// Wakers are made and dropped outside the lock: dropping one may run any code, ours included.
    pub(crate) fn set_timer(&self, at: BootTime, id: Option<u64>, waker: Waker) -> Option<u64> {
        let (id, _replaced) = {
            let mut core = self.lock();
            if core.stopping {
                return None;
            }
            let id = id.unwrap_or_else(|| core.timers.new_id());
            let replaced = core.timers.set(at, id, waker);
            let earlier = at < core.next_wake;
            if earlier {
                core.next_wake = at;
            }
            drop(core);
            if earlier {
                self.alarm.ring();
            }
            (id, replaced)
        };
        Some(id)
    }

    pub(crate) fn forget_timer(&self, at: BootTime, id: u64) {
        let forgotten = self.lock().timers.remove(at, id);
        drop(forgotten);
    }

    /// How long nothing has run, seen by somebody who finds a deadline over: none when the clock
    /// thread is on time.
    pub(crate) fn paused(&self, now: BootTime, deadline: BootTime) -> Option<Duration> {
        let expected = self.lock().next_wake.min(deadline);
        let late = now.since(expected);
        (late >= step::PAUSE_MIN).then_some(late)
    }

    /// The clock thread. Should a turn ever panic, the next one goes on: no loss signal may depend on
    /// a defect elsewhere.
    fn run(&self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// One turn of the clock thread; false when it is to end.
    fn turn(&self) -> bool {
        let mut actions = Vec::new();
        let mut wakers = Vec::new();
        let next = {
            let mut core = self.lock();
            if core.stopping {
                return false;
            }
            let now = self.clock.now();
            let late = now.since(core.next_wake);
            // The first turn, and one without anything to do, had nothing to be late for.
            let late = if core.next_wake == BootTime::ZERO { Duration::ZERO } else { late };
            core.steps += 1;
            core.leases.step(Event::Tick { late }, now, &mut actions);
            core.timers.take_due(now, step::LEASES_PER_STEP_MAX, &mut wakers);
            core.next_wake = core.leases.next_wake().min(core.timers.next());
            core.next_wake
        };
        self.carry_out(actions);
        wake_all(wakers);
        self.alarm.wait(next);
        true
    }

    /// Takes the answers of a backend.
    pub(crate) fn answer(&self, events: impl IntoIterator<Item = Event>) {
        let mut actions = Vec::new();
        let mut core = self.lock();
        let now = self.clock.now();
        for event in events {
            core.leases.step(event, now, &mut actions);
        }
        self.publish(core);
        self.carry_out(actions);
    }

    /// Outside the lock: signals wake user code.
    fn carry_out(&self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Renew(batch) => self.order(Order::Renew(batch)),
                Action::EndDue { cell, paused } => {
                    guarded(|| _ = cell.end_if_due(self.clock.now(), paused));
                }
                Action::End { cell, state } => guarded(|| _ = cell.end(state)),
                Action::Risk { cell, risk } => guarded(|| cell.set_at_risk(risk)),
            }
        }
    }

    fn stop(&self) {
        let wakers = {
            let mut core = self.lock();
            core.stopping = true;
            core.timers.take_all()
        };
        self.alarm.ring();
        self.order(Order::Stop);
        wake_all(wakers);
    }
}

fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        guarded(|| waker.wake());
    }
}
