//! Sleeping until a time of the watchdog's clock.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, Waker};

use crate::BootTime;
use crate::watchdog::Shared;

/// The sleeps that nobody has woken yet, by time. Lives under the watchdog's lock, so that its next
/// wake is published together with the leases'.
#[derive(Default)]
pub(crate) struct Timers {
    by_time: BTreeMap<(BootTime, u64), Waker>,
    next_id: u64,
}

impl Timers {
    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    #[must_use = "dropped outside the lock"]
    pub(crate) fn set(&mut self, at: BootTime, id: u64, waker: Waker) -> Option<Waker> {
        self.by_time.insert((at, id), waker)
    }

    #[must_use = "dropped outside the lock"]
    pub(crate) fn remove(&mut self, at: BootTime, id: u64) -> Option<Waker> {
        self.by_time.remove(&(at, id))
    }

    pub(crate) fn next(&self) -> BootTime {
        self.by_time.first_key_value().map_or(BootTime::MAX, |((at, _), _)| *at)
    }

    /// Takes at most `limit` sleeps that are over.
    pub(crate) fn take_due(&mut self, now: BootTime, limit: usize, wakers: &mut Vec<Waker>) {
        for _ in 0..limit {
            match self.by_time.first_entry() {
                Some(entry) if entry.key().0 <= now => wakers.push(entry.remove()),
                _ => break,
            }
        }
    }

    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.by_time).into_values().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }
}

/// Makes sleeps. Weak: keeps no watchdog alive.
#[derive(Clone)]
pub(crate) struct TimerHandle(pub(crate) Weak<Shared>);

impl TimerHandle {
    pub(crate) fn sleep_until(&self, at: BootTime) -> Sleep {
        Sleep { shared: Weak::clone(&self.0), at, id: None }
    }
}

/// The future of [`crate::BackendContext::sleep_until`]. Cancel-safe: dropping it forgets the sleep.
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    shared: Weak<Shared>,
    at: BootTime,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else { return Poll::Ready(()) };
        if shared.now() >= self.at {
            return Poll::Ready(());
        }
        match shared.set_timer(self.at, self.id, cx.waker().clone()) {
            Some(id) => {
                self.id = Some(id);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(id), Some(shared)) = (self.id, self.shared.upgrade()) {
            shared.forget_timer(self.at, id);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("at", &self.at).finish_non_exhaustive()
    }
}
