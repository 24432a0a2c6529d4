//! Waiting by looking again, for stores that cannot tell.

use std::time::Duration;

use async_trait::async_trait;

use crate::rng::Jitter;
use crate::{BackendContext, Contention, Waiter};

/// A waiter that lets some time pass: first little, then more, never beyond the holder's end.
///
/// The pauses grow from 5 ms by half each time up to 250 ms, each shortened at random by up to a
/// half, so that waiters do not march in step.
#[derive(Debug)]
pub struct PollWaiter {
    context: BackendContext,
    pause: Duration,
    jitter: Jitter,
}

impl PollWaiter {
    /// First pause.
    pub const PAUSE_MIN: Duration = Duration::from_millis(5);
    /// Longest pause: the price of a missed release.
    pub const PAUSE_MAX: Duration = Duration::from_millis(250);

    /// A waiter that has not waited yet.
    pub fn new(context: BackendContext) -> Self {
        PollWaiter { context, pause: Self::PAUSE_MIN, jitter: Jitter::seeded() }
    }

    /// The next pause: grown, shortened at random, and cut at the holder's end. For waiters that
    /// combine a look with a notification.
    pub fn next_pause(&mut self, seen: &Contention) -> Duration {
        let pause = self.jitter.shorten(self.pause, 50);
        self.pause = (self.pause + self.pause / 2).min(Self::PAUSE_MAX);
        seen.remaining.map_or(pause, |left| pause.min(left.max(Duration::from_millis(1))))
    }
}

#[async_trait]
impl Waiter for PollWaiter {
    async fn wait(&mut self, seen: &Contention) {
        let pause = self.next_pause(seen);
        self.context.sleep_until(self.context.now() + pause).await;
    }
}
