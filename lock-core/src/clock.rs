//! Clocks: the only place where lock-core asks what time it is.

use std::fmt::Debug;
use std::io;
use std::sync::Arc as StdArc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::BootTime;
use crate::sync::{Arc, Condvar, Mutex};

/// A source of time. Deadlines use [`Clock::now`] alone.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The boot clock: never steps, goes on through suspend.
    fn now(&self) -> BootTime;

    /// The monotonic clock, which stops in suspend: only its distance to [`Clock::now`] counts, as
    /// the trace that a suspend leaves.
    fn awake(&self) -> BootTime;

    /// The wall clock in microseconds since 1970: a floor for tokens and a thing to show to people,
    /// never part of a deadline.
    fn unix_micros(&self) -> u64;

    /// An alarm that blocks a thread until a time of this clock.
    ///
    /// # Errors
    /// When the operating system gives no more descriptors.
    fn alarm(&self) -> io::Result<StdArc<dyn Alarm>>;
}

/// Blocks one thread until a time comes or somebody rings. Latching: a ring while nobody waits
/// makes the next wait return at once.
pub trait Alarm: Debug + Send + Sync {
    /// Blocks until `until` or until a ring. May return early.
    fn wait(&self, until: BootTime);
    /// Ends the wait, or the next one.
    fn ring(&self);
}

/// The clock of the machine: CLOCK_BOOTTIME, CLOCK_MONOTONIC and CLOCK_REALTIME.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn reading(id: ClockId) -> BootTime {
    let t = clock_gettime(id);
    let secs = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    BootTime::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        reading(ClockId::Boottime)
    }

    fn awake(&self) -> BootTime {
        reading(ClockId::Monotonic)
    }

    fn unix_micros(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn alarm(&self) -> io::Result<StdArc<dyn Alarm>> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(StdArc::new(SystemAlarm { timer, bell }))
    }
}

/// A timerfd of CLOCK_BOOTTIME, which wakes right after a resume, and an eventfd to ring.
#[derive(Debug)]
struct SystemAlarm {
    timer: OwnedFd,
    bell: OwnedFd,
}

impl Alarm for SystemAlarm {
    fn wait(&self, until: BootTime) {
        let set = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            // All zero would disarm the timer; a time in the past fires at once.
            it_value: Timespec {
                tv_sec: (until.as_nanos() / 1_000_000_000) as i64,
                tv_nsec: (until.as_nanos() % 1_000_000_000).max(1) as i64,
            },
        };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &set).is_err() {
            // Only a bad descriptor or value could fail here. Waking too often is safe.
            std::thread::yield_now();
            return;
        }
        let mut fds = [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        // An interrupted poll returns early, which a wait may do.
        let _ = poll(&mut fds, None);
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    fn ring(&self) {
        // A full counter means that it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Notices suspends: the boot clock moved on while the monotonic clock stood.
#[derive(Debug, Default)]
pub struct SuspendDetector {
    gap: Option<Duration>,
}

impl SuspendDetector {
    /// Shorter distances are the jitter of reading two clocks.
    pub const SUSPEND_MIN: Duration = Duration::from_millis(10);

    /// Takes one look at both clocks; returns how long the machine was suspended since the last.
    pub fn observe(&mut self, clock: &dyn Clock) -> Option<Duration> {
        let awake = clock.awake();
        let gap = clock.now().since(awake);
        let before = self.gap.replace(gap)?;
        let suspended = gap.saturating_sub(before);
        (suspended >= Self::SUSPEND_MIN).then_some(suspended)
    }
}

/// A clock that moves only when told to, for tests. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::{Clock, ManualClock};
/// let clock = ManualClock::new();
/// let start = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(start), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    state: Mutex<ManualState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ManualState {
    now: BootTime,
    awake: BootTime,
    unix_micros: u64,
    /// Per alarm: rung, and until when its thread waits.
    alarms: Vec<(bool, Option<BootTime>)>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock at some 1,000 s after boot, with a wall clock in the year 2026. Neither is a round
    /// number: what is cut to whole seconds or milliseconds shows.
    pub fn new() -> Self {
        let now = BootTime::from_nanos(1_000_123_456_789);
        ManualClock(Arc::new(Manual {
            state: Mutex::new(ManualState {
                now,
                awake: now,
                unix_micros: 1_790_000_000_654_321,
                alarms: Vec::new(),
            }),
            changed: Condvar::new(),
        }))
    }

    fn change(&self, f: impl FnOnce(&mut ManualState)) {
        f(&mut crate::sync::lock(&self.0.state));
        self.0.changed.notify_all();
    }

    /// Moves all clocks by `d`, and wakes every alarm whose time has come.
    pub fn advance(&self, d: Duration) {
        self.change(|s| {
            s.now = s.now + d;
            s.awake = s.awake + d;
            s.unix_micros += d.as_micros() as u64;
        });
    }

    /// Moves boot and wall clock as a suspend of length `d` does.
    pub fn suspend(&self, d: Duration) {
        self.change(|s| {
            s.now = s.now + d;
            s.unix_micros += d.as_micros() as u64;
        });
    }

    /// Sets the wall clock, as an operator or a time daemon does.
    pub fn set_unix_micros(&self, us: u64) {
        self.change(|s| s.unix_micros = us);
    }

    /// Blocks until every thread that has an alarm of this clock waits for a later time: everything
    /// that was due has been started.
    pub fn settle(&self) {
        let mut state = crate::sync::lock(&self.0.state);
        while !state.alarms.iter().all(|&(rung, until)| !rung && until.is_some_and(|u| u > state.now)) {
            state = crate::sync::wait(&self.0.changed, state);
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> BootTime {
        crate::sync::lock(&self.0.state).now
    }

    fn awake(&self) -> BootTime {
        crate::sync::lock(&self.0.state).awake
    }

    fn unix_micros(&self) -> u64 {
        crate::sync::lock(&self.0.state).unix_micros
    }

    fn alarm(&self) -> io::Result<StdArc<dyn Alarm>> {
        let mut state = crate::sync::lock(&self.0.state);
        state.alarms.push((false, None));
        Ok(StdArc::new(ManualAlarm { clock: self.clone(), index: state.alarms.len() - 1 }))
    }
}

#[derive(Debug)]
struct ManualAlarm {
    clock: ManualClock,
    index: usize,
}

impl Alarm for ManualAlarm {
    fn wait(&self, until: BootTime) {
        let manual = &self.clock.0;
        let mut state = crate::sync::lock(&manual.state);
        state.alarms[self.index].1 = Some(until);
        manual.changed.notify_all();
        while !state.alarms[self.index].0 && state.now < until {
            state = crate::sync::wait(&manual.changed, state);
        }
        state.alarms[self.index] = (false, None);
    }

    fn ring(&self) {
        self.clock.change(|s| s.alarms[self.index].0 = true);
    }
}

impl Drop for ManualAlarm {
    fn drop(&mut self) {
        // Its thread is gone: nothing is waited for any more.
        self.clock.change(|s| s.alarms[self.index] = (false, Some(BootTime::MAX)));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn boot_clock_counts_on_and_alarm_fires_by_time_and_by_ring() {
        let clock = SystemClock;
        let start = clock.now();
        let alarm = clock.alarm().expect("descriptors");
        alarm.wait(start + Duration::from_millis(20));
        assert!(clock.now().since(start) >= Duration::from_millis(20));
        alarm.ring();
        alarm.wait(BootTime::MAX); // returns, or the test hangs
        alarm.wait(BootTime::ZERO);
    }

    #[test]
    fn a_suspend_shows_as_boot_time_without_awake_time() {
        let clock = ManualClock::new();
        let mut detector = SuspendDetector::default();
        assert_eq!(detector.observe(&clock), None);
        clock.advance(Duration::from_secs(5));
        assert_eq!(detector.observe(&clock), None);
        clock.suspend(Duration::from_secs(3600));
        assert_eq!(detector.observe(&clock), Some(Duration::from_secs(3600)));
        assert_eq!(detector.observe(&clock), None);
    }
}
