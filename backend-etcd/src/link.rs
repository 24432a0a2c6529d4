//! The way to the servers.
//!
//! One client of etcd for a backend, made and driven on the watchdog's I/O thread: a user's runtime that is blocked
//! or gone cuts nobody off. Every call has a time limit of its own, kept by the watchdog's clock.
//!
//! What can go wrong, and where it is handled:
//! * A server that is frozen, or a connection that swallows everything: the client would wait for ever, and HTTP/2
//!   pings that are fast enough to notice make etcd close the connection. So a call that had no answer for
//!   [`HUNG_AFTER`], while nobody else had one either, has the client made anew on a fresh connection
//!   ([`Link::suspect`]).
//! * A broken connection heals by itself, inside the client.
//! * The watchdog has stopped: its sleeps end at once, and calls say so.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use futures_util::future::{Either, select};
use leasehold_core::{BackendContext, BackendError, BootTime, ErrorKind};

use crate::EtcdConfig;
use crate::config::ConfigError;
use crate::error::{Does, Failure, closed, native, refused, stopped, timed_out};

/// HTTP/2 pings: what is faster than 5 s makes stock servers close the connection (`too_many_pings`).
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const _: () = assert!(PING_EVERY.as_secs() > 5);
/// How long a call waits before a connection without any answer is suspected.
const HUNG_AFTER: Duration = Duration::from_millis(500);

/// The way to the servers; shared by all clones of a backend.
pub(crate) struct Link {
    pub(crate) config: EtcdConfig,
    pub(crate) context: BackendContext,
    client: RwLock<Client>,
    /// Counts the clients that were made.
    generation: AtomicU64,
    /// When the last answer came, in nanoseconds of the boot clock.
    answered: AtomicU64,
    is_renewing: AtomicBool,
    closed: AtomicBool,
    calls: AtomicU64,
}

impl Link {
    /// Makes the client. Without a login nothing is connected to yet.
    pub(crate) async fn connect(
        config: EtcdConfig,
        context: BackendContext,
    ) -> Result<Arc<Self>, BackendError> {
        config.validate()?;
        let give_up = context.now() + config.connect_timeout;
        let client = open(&config, &context, give_up).await?;
        Ok(Arc::new(Link {
            config,
            context,
            client: RwLock::new(client),
            generation: AtomicU64::new(1),
            answered: AtomicU64::new(0),
            is_renewing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        }))
    }

    pub(crate) fn now(&self) -> BootTime {
        self.context.now()
    }

    /// The end of a call that begins now and may take no longer than `limit`.
    pub(crate) fn give_up(&self, limit: Duration) -> BootTime {
        self.now() + self.config.op_timeout.min(limit)
    }

    pub(crate) fn refuse_closed(&self, op: &'static str) -> Result<(), BackendError> {
        if self.is_closed() { Err(closed(op)) } else { Ok(()) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Calls that were made so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Clients that were made so far.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The client as it is now. Cheap: clones share the connection.
    pub(crate) fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One call, until it answers or its time is over. Dropping it leaves at most this request under way.
    pub(crate) async fn call<T>(
        self: &Arc<Self>,
        op: &'static str,
        does: Does,
        give_up: BootTime,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Failure> {
        self.refuse_closed(op)?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut pending =
            Pending { link: self, started: self.now(), generation: self.generation(), done: false };
        let sleep = self.context.sleep_until(give_up);
        match select(pin!(call), sleep).await {
            Either::Left((answer, _)) => {
                pending.done = true;
                self.answered.fetch_max(self.now().as_nanos(), Ordering::AcqRel);
                answer.map_err(|error| native(op, does, error))
            }
            Either::Right(_) => {
                let now = self.now();
                if now < give_up {
                    // Sleeps end early only when the watchdog has stopped.
                    return Err(stopped(op, does).into());
                }
                Err(timed_out(op, does, now.since(pending.started)).into())
            }
        }
    }

    /// Makes the client anew, unless somebody did already, or answers have come since.
    fn suspect(self: &Arc<Self>, started: BootTime, generation: u64) {
        let hung = self.now().since(started) >= HUNG_AFTER
            && self.answered.load(Ordering::Acquire) <= started.as_nanos()
            && self.generation() == generation
            && !self.is_closed();
        if !hung || self.is_renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = Arc::clone(self);
        drop(self.context.io().spawn(async move {
            let give_up = link.now() + link.config.connect_timeout;
            if let Ok(client) = open(&link.config, &link.context, give_up).await {
                *link.client.write().unwrap_or_else(PoisonError::into_inner) = client;
                link.generation.fetch_add(1, Ordering::AcqRel);
            }
            link.is_renewing.store(false, Ordering::Release);
        }));
    }
}

/// A call under way: whoever gives it up looks whether the connection is to blame.
struct Pending<'a> {
    link: &'a Arc<Link>,
    started: BootTime,
    generation: u64,
    done: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.link.suspect(self.started, self.generation);
        }
    }
}

/// Makes a client on the I/O thread, which drives its connections.
async fn open(
    config: &EtcdConfig,
    context: &BackendContext,
    give_up: BootTime,
) -> Result<Client, BackendError> {
    const OP: &str = "connect";
    let options = options(config)?;
    let scheme = if config.encrypted { "https" } else { "http" };
    let urls: Vec<String> =
        config.endpoints.iter().map(|endpoint| format!("{scheme}://{}", endpoint.authority())).collect();
    let opening = context.io().spawn(async move { Client::connect(urls, Some(options)).await });
    let abort = opening.abort_handle();
    match select(opening, context.sleep_until(give_up)).await {
        Either::Left((Ok(Ok(client)), _)) => Ok(client),
        Either::Left((Ok(Err(error)), _)) => Err(native(OP, Does::Read, error).into_error(OP)),
        // The I/O runtime is gone.
        Either::Left((Err(_), _)) => Err(stopped(OP, Does::Read)),
        Either::Right(_) => {
            abort.abort();
            if context.now() < give_up {
                return Err(stopped(OP, Does::Read));
            }
            Err(timed_out(OP, Does::Read, config.connect_timeout))
        }
    }
}

fn options(config: &EtcdConfig) -> Result<ConnectOptions, BackendError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.connect_timeout)
        .with_keep_alive(PING_EVERY, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        // A member without a leader refuses, instead of keeping streams that nothing comes through.
        .with_require_leader(true);
    if let (Some(user), Some(password)) = (&config.user, &config.password) {
        options = options.with_user(user, password.reveal()).with_auto_token_refresh(true);
    }
    if config.encrypted {
        options = options.with_tls(tls(config)?);
    }
    Ok(options)
}

fn tls(config: &EtcdConfig) -> Result<TlsOptions, BackendError> {
    let read = |name, path: &std::path::Path| {
        std::fs::read(path).map_err(|e| BackendError::from(ConfigError::BadFile { name, kind: e.kind() }))
    };
    let mut tls = TlsOptions::new();
    tls = match &config.tls.ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("tls_ca", path)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.tls.cert, &config.tls.key) {
        tls = tls.identity(Identity::from_pem(read("tls_cert", cert)?, read("tls_key", key)?));
    }
    if let Some(name) = &config.tls.server_name {
        if name.is_empty() {
            return Err(refused("connect", ErrorKind::ConfigInvalid, "tls_server_name is empty"));
        }
        tls = tls.domain_name(name);
    }
    Ok(tls)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}
