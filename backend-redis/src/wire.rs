//! One connection: opened, looked at, used by many calls at once, closed when it is silent.
//!
//! Calls are sent in order and answered in order. A call that is given up leaves its request on the way; its answer
//! is thrown away when it comes. A connection on which nothing at all has come for [`SILENCE`] although something is
//! waited for is closed: it may be half-open, and a new one tells.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{BackendContext, BackendError, BootTime};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, Value};
use tokio::task::AbortHandle;

use crate::error::{self, Does, connecting, native, tls_trouble};
use crate::server::{Look, Server, ServerClock};
use crate::transport::Transport;
use crate::{Protocol, RedisConfig};

/// How long a connection may be silent, while answers are waited for, before a call that is given up closes it.
const SILENCE: Duration = Duration::from_secs(1);
/// Requests that wait to be written. More callers than this wait their turn.
const QUEUE: usize = 1024;

/// An open connection to a server that was looked at.
#[derive(Debug)]
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    driver: AbortHandle,
    /// Set before the driver has noticed.
    closed: AtomicBool,
    pub(crate) server: Server,
    waiting: Arc<AtomicUsize>,
    /// Since when nothing has come, on the boot clock in µs, while something is waited for.
    quiet_since: AtomicU64,
}

/// Why a call gave no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The connection broke.
    Broken(RedisError),
    /// The time limit came first, so long after the request was sent.
    TimedOut { after: Duration },
    /// The watchdog has stopped, and its clock with it.
    Stopped,
}

impl Wire {
    /// Connects and looks at the server, on the runtime that polls this. Bounded by the caller.
    pub(crate) async fn open(
        op: &'static str,
        transport: &Transport,
        config: &RedisConfig,
        look: Look,
        clock: &ServerClock,
        context: &BackendContext,
    ) -> Result<Self, BackendError> {
        let stream = transport.connect(op).await?;
        // Without an answer timeout: calls are bounded on the watchdog's clock. Without a login: an answer to that is
        // worth more than the two words that the library makes of it.
        let settings = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let plain = RedisConnectionInfo::default().set_skip_set_lib_name();
        let broken = |e| handshake_error(op, transport, e);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&plain, stream, settings).await.map_err(broken)?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let driver = tokio::spawn(gathering(driver, Arc::clone(&waiting))).abort_handle();
        let mut wire = Wire {
            connection,
            driver,
            closed: AtomicBool::new(false),
            server: Server::default(),
            waiting,
            quiet_since: AtomicU64::new(0),
        };
        wire.server = wire.shake_hands(op, transport, config).await?;
        let time = wire.plain(redis::cmd("TIME")).await.map_err(broken)?;
        if let Some(us) = micros(&accepted(op, time)?) {
            clock.learn(us, context.now());
        }
        wire.server.judge(op, look)?;
        Ok(wire)
    }

    /// Login, database, and what the server is.
    async fn shake_hands(
        &self,
        op: &'static str,
        transport: &Transport,
        config: &RedisConfig,
    ) -> Result<Server, BackendError> {
        let mut commands = Vec::with_capacity(3);
        commands.extend(login(config));
        if config.db != 0 {
            commands.push(redis::cmd("SELECT").arg(config.db).take());
        }
        let broken = |e| handshake_error(op, transport, e);
        for command in commands {
            accepted(op, self.plain(command).await.map_err(broken)?)?;
        }
        let info = accepted(op, self.plain(redis::cmd("INFO")).await.map_err(broken)?)?;
        let info: String = redis::from_redis_value(info).map_err(|_| error::strange(op, Does::Read))?;
        Ok(Server::read(&info))
    }

    async fn plain(&self, command: Cmd) -> Result<Value, RedisError> {
        self.connection.clone().send_packed_command(&command).await
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && !self.driver.is_finished()
    }

    /// Ends the connection; what is under way on it is unknown.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.driver.abort();
    }

    /// One request and its answer, until `give_up`. An answer may be an error of the server.
    ///
    /// Dropped, it leaves a request that may still be carried out.
    pub(crate) async fn call(
        &self,
        command: &Cmd,
        give_up: BootTime,
        context: &BackendContext,
    ) -> Result<Value, Unanswered> {
        let sent_at = context.now();
        let _counted = Counted::new(self, sent_at);
        let mut connection = self.connection.clone();
        let mut call = pin!(connection.send_packed_command(command));
        // The sleep is made only when the first poll brought no answer.
        let mut sleep = None;
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            let sleep = sleep.get_or_insert_with(|| context.sleep_until(give_up));
            Pin::new(sleep).poll(cx).map(|()| None)
        })
        .await;
        let now = context.now();
        match answer {
            Some(Ok(value)) => {
                self.quiet_since.store(now.as_micros(), Ordering::Relaxed);
                Ok(value)
            }
            Some(Err(e)) => {
                // Whatever it was, answers may be out of step now.
                self.close();
                Err(Unanswered::Broken(e))
            }
            // Sleeps end at once when the watchdog has stopped.
            None if now < give_up => Err(Unanswered::Stopped),
            None => {
                let quiet = now.as_micros().saturating_sub(self.quiet_since.load(Ordering::Relaxed));
                if Duration::from_micros(quiet) >= SILENCE {
                    self.close();
                }
                Err(Unanswered::TimedOut { after: give_up.since(sent_at) })
            }
        }
    }
}

/// Polls the driver of a connection, behind those who are ready to send, where several wait: one packet carries many
/// requests then. The runtime would poll it right behind the first of them.
async fn gathering(driver: impl Future<Output = ()>, waiting: Arc<AtomicUsize>) {
    let mut driver = pin!(driver);
    let mut stood_back = false;
    poll_fn(|cx| {
        stood_back = !stood_back && waiting.load(Ordering::Relaxed) > 1;
        if stood_back {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        driver.as_mut().poll(cx)
    })
    .await;
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// One call that waits for its answer.
struct Counted<'a>(&'a Wire);

impl<'a> Counted<'a> {
    fn new(wire: &'a Wire, now: BootTime) -> Self {
        if wire.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            wire.quiet_since.store(now.as_micros(), Ordering::Relaxed);
        }
        Counted(wire)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a login takes, if anything.
fn login(config: &RedisConfig) -> Option<Cmd> {
    let password = config.password.as_ref().map(|password| password.reveal());
    match (config.protocol, password) {
        (Protocol::Resp2, None) => None,
        (Protocol::Resp2, Some(password)) => {
            let mut command = redis::cmd("AUTH");
            if let Some(user) = &config.user {
                command.arg(user);
            }
            Some(command.arg(password).take())
        }
        (Protocol::Resp3, password) => {
            let mut command = redis::cmd("HELLO");
            command.arg(3);
            if let Some(password) = password {
                command.arg("AUTH").arg(config.user.as_deref().unwrap_or("default")).arg(password);
            }
            Some(command)
        }
    }
}

/// The value, unless the server refused.
fn accepted(op: &'static str, value: Value) -> Result<Value, BackendError> {
    value.extract_error().map_err(|e| native(op, Does::Read, "", e))
}

fn handshake_error(op: &'static str, transport: &Transport, error: RedisError) -> BackendError {
    let io = io_error(&error);
    match io {
        Some(io) if tls_trouble(io).is_some() || error.is_io_error() => {
            let kind = io.kind();
            match tls_trouble(io) {
                Some((kind, message)) => error::refused(op, kind, message).with_source(error),
                None => connecting(op, transport.is_encrypted(), kind.into()),
            }
        }
        _ => native(op, Does::Read, "", error),
    }
}

/// The operating system's or TLS's error inside: the library keeps it in a shared box.
fn io_error(error: &RedisError) -> Option<&std::io::Error> {
    use std::error::Error;
    let source = error.source()?;
    match source.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        Some(shared) => shared.downcast_ref(),
        None => source.downcast_ref(),
    }
}

/// The answer to TIME in µs since 1970.
fn micros(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let part = |i: usize| match parts.get(i)? {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    part(0)?.checked_mul(1_000_000)?.checked_add(part(1)?)
}
