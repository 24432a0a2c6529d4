//! Waiting for a name: a seat at its channel, and a look when the holder that was seen has run out, or a few seconds
//! are over.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use leasehold_core::{Contention, PollWaiter, Waiter, async_trait};

use crate::core::Store;
use crate::hub::Seat;

/// Redis lets a key go when its millisecond is over.
const EXPIRY_STEP: Duration = Duration::from_millis(1);
/// How long a waiter sleeps at most, up to a half less. What was seen may end before its time without a word: a ttl that
/// was made shorter and ran out, a key that was deleted, a server clock that was set forward; and the record that marks
/// that somebody waits goes with it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Woken by a release of its name, by every loss and return of the subscription, by the holder's end, and every few
/// seconds.
#[derive(Debug)]
pub(crate) struct RedisWaiter {
    store: Arc<Store>,
    seat: Seat,
}

impl RedisWaiter {
    pub(crate) fn new(store: &Arc<Store>, seat: Seat) -> Self {
        RedisWaiter { store: Arc::clone(store), seat }
    }
}

#[async_trait]
impl Waiter for RedisWaiter {
    async fn wait(&mut self, seen: &Contention) {
        let left = seen.remaining.map_or(PollWaiter::PAUSE_MAX, |left| left.saturating_add(EXPIRY_STEP));
        let left = left.min(self.store.jittered(LOOK_EVERY));
        let end = self.store.context.sleep_until(self.store.now() + left);
        select(pin!(self.seat.rung()), end).await;
    }
}
