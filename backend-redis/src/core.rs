//! Connections and calls: what all clones of a backend share.
//!
//! * **Renewals** have a connection of their own, opened on the watchdog's I/O thread: nothing of a user's stands
//!   before them, and a user's runtime that is blocked cuts nobody off.
//! * **Calls** have one connection for each runtime that asks, driven by that runtime: an answer wakes nobody but
//!   its caller. When a runtime has gone, so has its connection, and another runtime makes its own.
//! * **Waiters** share one subscription ([`crate::hub`]).
//!
//! A release is ordered after an attempt that was given up, whatever connection it takes: an acquire carries the last
//! moment, by the server's clock, at which it may be granted ([`crate::server::ServerClock`]). One that arrives
//! later is refused there. The core repeats a release after that moment (I7).
//!
//! What can go wrong, and where it is handled:
//! * The connection breaks, or is silent: [`crate::wire`]; it is made anew with pauses: [`crate::link`].
//! * The server does not know a script: it is sent again by its text, in [`Store::run`].
//! * The server became a replica: its connection is closed, so that the next one looks for the primary.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{BackendContext, BackendError, BootTime, ErrorKind};
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};

use crate::RedisConfig;
use crate::error::{Does, closed, native, stopped, timed_out};
use crate::hub::Hub;
use crate::keys::Keys;
use crate::link::{Link, Purpose};
use crate::scripts::Script;
use crate::server::{Look, ServerClock};
use crate::transport::Transport;
use crate::wire::{Unanswered, Wire};

/// Runtimes whose connections are kept. More at once take turns.
const RUNTIMES_MAX: usize = 8;

/// What was sent so far, for tests and measurements.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Requests for calls of the backend's traits.
    pub requests: u64,
    /// Tries to connect, but for the subscription.
    pub connects: u64,
    /// Tries to connect for the subscription.
    pub subscription_connects: u64,
}

/// What all clones of a backend share.
pub(crate) struct Store {
    pub(crate) config: RedisConfig,
    pub(crate) context: BackendContext,
    pub(crate) transport: Transport,
    pub(crate) clock: ServerClock,
    pub(crate) keys: Keys,
    /// The epoch that the namespace was seen in.
    pub(crate) epoch: AtomicU32,
    pub(crate) hub: Arc<Hub>,
    renewals: Link,
    calls: Mutex<Vec<(Id, Arc<Link>)>>,
    closed: AtomicBool,
    requests: AtomicU64,
    past_connects: AtomicU64,
    seed: AtomicU64,
}

/// One run of a script, built once: sent by hash, and by text when the server does not know the hash.
pub(crate) struct Request {
    script: &'static Script,
    command: Cmd,
}

impl Store {
    /// Connects, and looks at the server.
    pub(crate) async fn connect(
        config: RedisConfig,
        context: BackendContext,
    ) -> Result<Arc<Self>, BackendError> {
        const OP: &str = "connect";
        config.validate()?;
        let store = Arc::new(Store {
            transport: Transport::new(&config)?,
            clock: ServerClock::default(),
            keys: Keys::new(&config.namespace),
            epoch: AtomicU32::new(0),
            hub: Arc::default(),
            renewals: Link::new(),
            calls: Mutex::default(),
            closed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            past_connects: AtomicU64::new(0),
            seed: AtomicU64::new(context.now().as_nanos() | 1),
            config,
            context,
        });
        let look = Look::First { allow_eviction: store.config.allow_eviction };
        let wire = store.open_looking(OP, Purpose::Calls, look).await?;
        let link = Arc::new(Link::connected(wire));
        store.links().push((store.runtime(), link));
        // Renewals begin within a third of a ttl: their connection is there by then, and tells now what is wrong.
        let give_up = store.now() + store.config.connect_timeout;
        store.renewals.wire(OP, &store, Purpose::Renewals, give_up).await?;
        Ok(store)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.context.now()
    }

    /// A time shortened at random by up to a half, so that many who wait do not come at once.
    pub(crate) fn jittered(&self, d: Duration) -> Duration {
        // splitmix64: good enough to spread, and no state but a counter.
        let mut x = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = u32::try_from((x ^ x >> 31) >> 40).unwrap_or(0) % 500;
        d / 1_000 * (1_000 - part)
    }

    pub(crate) fn refuse_closed(&self, op: &'static str) -> Result<(), BackendError> {
        if self.closed.load(Ordering::Acquire) { Err(closed(op)) } else { Ok(()) }
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<(Id, Arc<Link>)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime that polls this; the I/O thread's for callers without one.
    fn runtime(&self) -> Id {
        Handle::try_current().map_or_else(|_| self.context.io().id(), |handle| handle.id())
    }

    /// The link of this runtime.
    fn link(&self) -> Arc<Link> {
        let id = self.runtime();
        let mut links = self.links();
        if let Some((_, link)) = links.iter().find(|(of, _)| *of == id) {
            return Arc::clone(link);
        }
        if links.len() >= RUNTIMES_MAX {
            // Those whose runtime has gone are closed by that; else the oldest gives way.
            let at = links.iter().position(|(_, link)| link.open_wire().is_none()).unwrap_or(0);
            let (_, gone) = links.remove(at);
            self.past_connects.fetch_add(gone.tries(), Ordering::Relaxed);
        }
        let link = Arc::new(Link::new());
        links.push((id, Arc::clone(&link)));
        link
    }

    pub(crate) fn counters(&self) -> Counters {
        let tries: u64 = self.links().iter().map(|(_, link)| link.tries()).sum();
        Counters {
            requests: self.requests.load(Ordering::Relaxed),
            connects: tries + self.renewals.tries() + self.past_connects.load(Ordering::Relaxed),
            subscription_connects: self.hub.connects(),
        }
    }

    /// The connection for what `purpose` says.
    async fn wire(
        self: &Arc<Self>,
        op: &'static str,
        purpose: Purpose,
        give_up: BootTime,
    ) -> Result<Arc<Wire>, BackendError> {
        self.refuse_closed(op)?;
        match purpose {
            Purpose::Renewals => self.renewals.wire(op, self, purpose, give_up).await,
            Purpose::Calls => {
                let link = self.link();
                link.wire(op, self, purpose, give_up).await
            }
        }
    }

    /// Runs a script: by its hash, and by its text when the server does not know it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        op: &'static str,
        does: Does,
        purpose: Purpose,
        request: &Request,
        give_up: BootTime,
    ) -> Result<Value, BackendError> {
        let wire = self.wire(op, purpose, give_up).await?;
        let answer = self.ask(op, does, &wire, &request.command, give_up, &request.script.text).await;
        match answer {
            Err(e) if is_unknown_script(&e) => {
                self.ask(op, does, &wire, &request.by_text(), give_up, &request.script.text).await
            }
            answer => answer,
        }
    }

    /// Sends one plain command.
    pub(crate) async fn command(
        self: &Arc<Self>,
        op: &'static str,
        does: Does,
        command: &Cmd,
    ) -> Result<Value, BackendError> {
        let give_up = self.now() + self.config.op_timeout;
        let wire = self.wire(op, Purpose::Calls, give_up).await?;
        self.ask(op, does, &wire, command, give_up, "").await
    }

    async fn ask(
        &self,
        op: &'static str,
        does: Does,
        wire: &Wire,
        command: &Cmd,
        give_up: BootTime,
        source: &str,
    ) -> Result<Value, BackendError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match wire.call(command, give_up, &self.context).await {
            Ok(Value::ServerError(e)) => {
                let error = native(op, does, source, e.into());
                if is_demoted(&error) {
                    wire.close();
                }
                Err(error)
            }
            Ok(value) => Ok(value),
            Err(Unanswered::Broken(_)) if self.closed.load(Ordering::Acquire) && does == Does::Read => {
                Err(closed(op))
            }
            Err(Unanswered::Broken(e)) => Err(native(op, does, source, e)),
            Err(Unanswered::Stopped) => Err(stopped(op, does)),
            Err(Unanswered::TimedOut { after }) => Err(timed_out(op, does, after)),
        }
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.hub.close();
        self.renewals.close();
        for (_, link) in self.links().drain(..) {
            link.close();
        }
    }
}

/// The code that the server gave.
fn code(error: &BackendError) -> Option<&str> {
    use std::error::Error as _;
    error.source()?.downcast_ref::<redis::RedisError>()?.code()
}

fn is_unknown_script(error: &BackendError) -> bool {
    code(error) == Some("NOSCRIPT")
}

fn is_demoted(error: &BackendError) -> bool {
    error.kind() == ErrorKind::Unavailable && matches!(code(error), Some("READONLY" | "MASTERDOWN"))
}

impl Request {
    /// A run of `script` whose first `keys` arguments are keys; `arguments` and `bytes` of them are expected.
    pub(crate) fn new(script: &'static Script, keys: usize, arguments: usize, bytes: usize) -> Self {
        let mut command = Cmd::with_capacity(arguments + 3, bytes + 64);
        command.arg("EVALSHA").arg(&script.hash).arg(keys);
        Request { script, command }
    }

    /// One more key or argument.
    pub(crate) fn arg(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        self.command.arg(argument.as_ref());
        self
    }

    /// The same with the script's text.
    fn by_text(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.script.text);
        for argument in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("config", &self.config).finish_non_exhaustive()
    }
}
