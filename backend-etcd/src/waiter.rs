//! Waiting for a name: a watch on its key.
//!
//! 1. A waiter is made when the servers have acknowledged its watch. Its caller looks once more then: what ended before
//!    is seen by that look, and what ends after it is told by the watch.
//! 2. The end of a key (a release, or the end of its lease) is an event. Whoever is woken asks for the name.
//! 3. The stream breaks: the waiter returns at once, and the next wait watches again from the revision behind the last
//!    one that it saw, so that nothing falls into the gap.
//!
//! What can go wrong, and where it is handled:
//! * That revision was compacted: the watch is cancelled, which counts as an event; the next one begins now.
//! * The stream hangs (a frozen server): nobody waits longer than what the holder that it saw had left (I9).
//! * The login ran out meanwhile: a call has it made anew, and the watch is asked for once more.
//! * The servers are away: after a pause the caller asks, and is told.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use futures_util::future::{Either, select};
use leasehold_core::{
    BackendContext, BackendError, BootTime, Contention, ErrorKind, LeaseName, PollWaiter, Waiter, async_trait,
};

use crate::core::Store;
use crate::error::{Does, refused};

const OP: &str = "waiter";
/// etcd looks for leases that are over every half second: as late may the end of one be.
const EXPIRY_STEP: Duration = Duration::from_millis(500);

/// Waits for the end of a key.
#[derive(Debug)]
pub(crate) struct EtcdWaiter {
    store: Arc<Store>,
    name: LeaseName,
    stream: Option<WatchStream>,
    /// Where the next watch begins; 0 for now.
    next_revision: i64,
    poll: PollWaiter,
}

impl EtcdWaiter {
    /// Watches the key of `name`.
    pub(crate) async fn new(store: &Arc<Store>, name: &LeaseName) -> Result<Self, BackendError> {
        store.link.refuse_closed(OP)?;
        let context: BackendContext = store.link.context.clone();
        let mut waiter = EtcdWaiter {
            store: Arc::clone(store),
            name: name.clone(),
            stream: None,
            next_revision: 0,
            poll: PollWaiter::new(context),
        };
        let give_up = store.link.give_up(Duration::MAX);
        waiter.watch(give_up).await?;
        Ok(waiter)
    }

    /// Opens the watch, and waits until it is acknowledged.
    async fn watch(&mut self, give_up: BootTime) -> Result<(), BackendError> {
        if self.try_watch(give_up).await? {
            return Ok(());
        }
        // A stream is refused by a login that ran out, and a call has it made anew: then once more. A right that is
        // missing is told by the call.
        self.store.read(OP, &self.name, give_up).await?;
        if self.try_watch(give_up).await? {
            return Ok(());
        }
        Err(refused(OP, ErrorKind::Unavailable, "the servers do not watch the name's key"))
    }

    /// False when the servers refuse.
    async fn try_watch(&mut self, give_up: BootTime) -> Result<bool, BackendError> {
        let link = &self.store.link;
        let options = match self.next_revision {
            0 => WatchOptions::new(),
            revision => WatchOptions::new().with_start_revision(revision),
        };
        let opening = link.call(OP, Does::Read, give_up, async {
            let key = self.store.keys.lease(&self.name);
            let mut stream = link.client().watch_client().watch(key, Some(options)).await?;
            let first = stream.message().await?;
            Ok((stream, first))
        });
        let (stream, first) = opening.await.map_err(|failure| failure.into_error(OP))?;
        match first {
            Some(first) if first.created() && !first.canceled() => {
                self.note(&first);
                self.stream = Some(stream);
                Ok(true)
            }
            _ => {
                // What it asked for was compacted, perhaps: the next one begins now.
                self.next_revision = 0;
                Ok(false)
            }
        }
    }

    fn note(&mut self, response: &WatchResponse) {
        if let Some(header) = response.header() {
            self.next_revision = self.next_revision.max(header.revision() + 1);
        }
    }

    /// Returns when the key has ended, or the watch has.
    async fn ended(&mut self) {
        while let Some(stream) = &mut self.stream {
            // Cancel-safe: a message is taken whole, or not at all.
            match stream.message().await {
                Ok(Some(response)) if !response.canceled() => {
                    self.note(&response);
                    if response.events().iter().any(|event| event.event_type() == EventType::Delete) {
                        return;
                    }
                }
                Ok(Some(response)) if response.compact_revision() > 0 => {
                    (self.stream, self.next_revision) = (None, 0);
                }
                _ => self.stream = None,
            }
        }
    }
}

#[async_trait]
impl Waiter for EtcdWaiter {
    async fn wait(&mut self, seen: &Contention) {
        let link = Arc::clone(&self.store.link);
        if self.stream.is_none() {
            let give_up = link.give_up(Duration::MAX);
            if self.watch(give_up).await.is_err() {
                // As those do who have no watch: a pause, and a look.
                let until = link.now() + self.poll.next_pause(seen);
                link.context.sleep_until(until).await;
                return;
            }
        }
        let left = seen.remaining.map_or(PollWaiter::PAUSE_MAX, |left| left.saturating_add(EXPIRY_STEP));
        let end = link.context.sleep_until(link.now() + left);
        let mut closing = self.store.closing.subscribe();
        let is_closing = pin!(closing.wait_for(|is_closing| *is_closing));
        match select(pin!(self.ended()), select(end, is_closing)).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }
}
