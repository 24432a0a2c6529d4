//! Waiting for a name: a seat at its channel, and a look when the holder that was seen has run out.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use leasehold_core::{Contention, PollWaiter, Waiter, async_trait};

use crate::core::Store;
use crate::hub::Seat;

/// Redis lets a key go when its millisecond is over.
const EXPIRY_STEP: Duration = Duration::from_millis(1);

/// Woken by a release of its name, by every loss and return of the subscription, and by the holder's end.
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
        let end = self.store.context.sleep_until(self.store.now() + left);
        select(pin!(self.seat.rung()), end).await;
    }
}
