//! A place for one connection: made when it is needed, made anew when it broke.
//!
//! One caller makes it, the others wait for the outcome and share it: an error too. Between two tries lies a pause
//! that grows to [`PAUSE_MAX`], so that a server that is away, or refuses us, is asked at most once a pause, however
//! many leases and callers there are (a bound that is tested).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_core::{BackendError, BootTime, ErrorKind};

use crate::core::Store;
use crate::error::{closed, connecting, refused};
use crate::server::Look;
use crate::wire::Wire;

/// The pause after a first failure.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest pause between two tries.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A place for one connection.
#[derive(Debug)]
pub(crate) struct Link {
    current: Mutex<Option<Arc<Wire>>>,
    making: tokio::sync::Mutex<Making>,
    tries: AtomicU64,
}

/// What was tried.
#[derive(Debug, Default)]
struct Making {
    failures: u32,
    not_before: BootTime,
    last: Option<BackendError>,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Whatever a caller asks.
    Calls,
    /// Renewals, and nothing else.
    Renewals,
}

impl Link {
    pub(crate) fn new() -> Self {
        Link { current: Mutex::default(), making: tokio::sync::Mutex::default(), tries: AtomicU64::new(0) }
    }

    /// A link that is connected already.
    pub(crate) fn connected(wire: Wire) -> Self {
        let link = Link::new();
        link.put(Some(Arc::new(wire)));
        link
    }

    fn put(&self, wire: Option<Arc<Wire>>) {
        let replaced =
            std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), wire);
        drop(replaced);
    }

    /// The connection, if it is open.
    pub(crate) fn open_wire(&self) -> Option<Arc<Wire>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|wire| wire.is_open()).cloned()
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        if let Some(wire) = self.open_wire() {
            wire.close();
        }
        self.put(None);
    }

    /// How often a connection was tried.
    pub(crate) fn tries(&self) -> u64 {
        self.tries.load(Ordering::Relaxed)
    }

    /// The connection, made where there is none, until `give_up`.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent.
    pub(crate) async fn wire(
        &self,
        op: &'static str,
        store: &Arc<Store>,
        purpose: Purpose,
        give_up: BootTime,
    ) -> Result<Arc<Wire>, BackendError> {
        if let Some(wire) = self.open_wire() {
            return Ok(wire);
        }
        let made = std::pin::pin!(self.make(op, store, purpose));
        match select(made, store.context.sleep_until(give_up)).await {
            Either::Left((made, _)) => made,
            Either::Right(_) => Err(refused(
                op,
                ErrorKind::Unavailable,
                "no connection to the server came about in time: is it running, and reachable from here?",
            )),
        }
    }

    async fn make(
        &self,
        op: &'static str,
        store: &Arc<Store>,
        purpose: Purpose,
    ) -> Result<Arc<Wire>, BackendError> {
        let before = self.tries();
        let mut making = self.making.lock().await;
        if let Some(wire) = self.open_wire() {
            return Ok(wire);
        }
        store.refuse_closed(op)?;
        // Somebody tried while this one stood in line.
        if let Some(error) = making.last.as_ref().filter(|_| self.tries() > before) {
            return Err(error.clone());
        }
        store.context.sleep_until(making.not_before).await;
        // Sleeps end at once when the watchdog has stopped.
        if store.now() < making.not_before {
            return Err(closed(op));
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        match store.open(op, purpose).await {
            Ok(wire) => {
                *making = Making::default();
                let wire = Arc::new(wire);
                self.put(Some(Arc::clone(&wire)));
                // A close that came meanwhile has not seen it.
                store.refuse_closed(op).inspect_err(|_| self.close())?;
                Ok(wire)
            }
            Err(error) => {
                let pause = PAUSE_MIN.saturating_mul(1 << making.failures.min(10)).min(PAUSE_MAX);
                making.failures += 1;
                making.not_before = store.now() + store.jittered(pause);
                making.last = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl Store {
    /// Opens a connection on the runtime where it is driven: the caller's for calls, the I/O thread's for renewals
    /// and for callers without a runtime.
    async fn open(self: &Arc<Self>, op: &'static str, purpose: Purpose) -> Result<Wire, BackendError> {
        let allow_eviction = self.config.allow_eviction;
        let look = match purpose {
            Purpose::Calls => Look::Later { allow_eviction },
            Purpose::Renewals => Look::Renewals,
        };
        self.open_looking(op, purpose, look).await
    }

    /// As [`Store::open`], with another look at the server.
    pub(crate) async fn open_looking(
        self: &Arc<Self>,
        op: &'static str,
        purpose: Purpose,
        look: Look,
    ) -> Result<Wire, BackendError> {
        let io = self.context.io();
        let limit = self.now() + self.config.connect_timeout;
        match (purpose, tokio::runtime::Handle::try_current()) {
            (Purpose::Calls, Ok(own)) if own.id() != io.id() => {
                match self.open_on(&own, op, look, limit).await {
                    // A runtime that was built without I/O: the watchdog's has it.
                    Err(Unopened::Panicked) => self.open_on(io, op, look, limit).await,
                    opened => opened,
                }
            }
            _ => self.open_on(io, op, look, limit).await,
        }
        .map_err(|unopened| match unopened {
            Unopened::Failed(error) => error,
            Unopened::Panicked => closed(op),
        })
    }

    async fn open_on(
        self: &Arc<Self>,
        handle: &tokio::runtime::Handle,
        op: &'static str,
        look: Look,
        limit: BootTime,
    ) -> Result<Wire, Unopened> {
        let store = Arc::clone(self);
        let opening = handle.spawn(async move {
            Wire::open(op, &store.transport, &store.config, look, &store.clock, &store.context).await
        });
        let stop = Aborted(opening.abort_handle());
        let opened = match select(opening, self.context.sleep_until(limit)).await {
            Either::Left((Ok(opened), _)) => opened.map_err(Unopened::Failed),
            Either::Left((Err(e), _)) if e.is_panic() => Err(Unopened::Panicked),
            // The runtime has gone; or the watchdog, and its sleeps end at once.
            Either::Left((Err(_), _)) => Err(Unopened::Failed(closed(op))),
            Either::Right(_) if self.now() < limit => Err(Unopened::Failed(closed(op))),
            Either::Right(_) => {
                let timed_out = std::io::ErrorKind::TimedOut.into();
                Err(Unopened::Failed(connecting(op, self.transport.is_encrypted(), timed_out)))
            }
        };
        drop(stop);
        opened
    }
}

/// Why there is no connection.
enum Unopened {
    Failed(BackendError),
    /// The task that opened it panicked.
    Panicked,
}

/// Ends a task when nobody waits for it any more.
struct Aborted(tokio::task::AbortHandle);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}
