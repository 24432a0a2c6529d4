//! One subscription for all waiters of a backend.
//!
//! 1. A waiter joins the channel of its name, and is made only when the server has acknowledged the subscription.
//! 2. A message rings the channel's bell. Nobody trusts it: whoever is woken asks for the name.
//! 3. The connection breaks: every bell rings once, since nobody knows what was missed, and once more when the new
//!    connection has subscribed to everything again.
//! 4. The last waiter of a channel leaves: its subscription is given up [`LINGER`] later, so that the next one finds
//!    it still there. Without channels the connection is closed.
//!
//! What can go wrong, and where it is handled:
//! * The connection is half-open and silent: it is pinged every [`PING_EVERY`].
//! * The server is away: tries with growing pauses, one at a time ([`Hub::connects`] counts them).
//! * The server refuses the subscription (a missing right): whoever joins is told.
//! * A message is lost all the same: waiters look again when the holder they saw has run out (I9).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use leasehold_core::{BackendError, BootTime, ErrorKind};
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{RedisConnectionInfo, RedisError};
use tokio::sync::{Notify, watch};

use crate::core::Store;
use crate::error::{Does, closed, native, refused, timed_out};
use crate::{Protocol, RedisConfig};

/// How long a channel without waiters stays subscribed.
const LINGER: Duration = Duration::from_secs(2);
/// How often a quiet connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(2);
/// The pauses between two tries to connect.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Channels in one command.
const CHANNELS_AT_ONCE: usize = 500;

/// The channels that somebody waits on, and the task that listens.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    state: Mutex<State>,
    changed: Notify,
    connects: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<String, Channel>,
    is_listening: bool,
    is_closed: bool,
    /// Counts failed tries, so that whoever joins knows those that came after.
    failures: u64,
    last_error: Option<BackendError>,
}

#[derive(Debug)]
struct Channel {
    bell: watch::Sender<Bell>,
    waiters: usize,
    /// Since when nobody waits.
    empty_since: BootTime,
}

/// What a waiter watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bell {
    rings: u64,
    /// Whether the server has acknowledged the subscription on the present connection.
    is_subscribed: bool,
}

/// A place at a channel. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Seat {
    hub: Arc<Hub>,
    store: Weak<Store>,
    channel: String,
    bell: watch::Receiver<Bell>,
    rings: u64,
}

impl Hub {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// How many channels are kept, for tests.
    pub(crate) fn channels(&self) -> usize {
        self.state().channels.len()
    }

    /// Joins a channel; returns when its subscription is acknowledged.
    ///
    /// # Errors
    /// Why it is not. Nothing is left behind.
    pub(crate) async fn join(
        store: &Arc<Store>,
        channel: String,
        give_up: BootTime,
    ) -> Result<Seat, BackendError> {
        const OP: &str = "waiter";
        store.refuse_closed(OP)?;
        let hub = &store.hub;
        let (mut seat, failures) = {
            let mut state = hub.state();
            let entry = state.channels.entry(channel.clone()).or_insert_with(|| Channel {
                bell: watch::Sender::new(Bell::default()),
                waiters: 0,
                empty_since: BootTime::ZERO,
            });
            entry.waiters += 1;
            let bell = entry.bell.subscribe();
            if !state.is_listening {
                state.is_listening = true;
                store.context.io().spawn(listen(Arc::downgrade(store), Arc::clone(hub)));
            }
            let seat = Seat { hub: Arc::clone(hub), store: Arc::downgrade(store), channel, bell, rings: 0 };
            (seat, state.failures)
        };
        hub.changed.notify_one();
        {
            let waiting = std::pin::pin!(seat.subscribed(failures));
            match select(waiting, store.context.sleep_until(give_up)).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(e), _)) => return Err(e),
                Either::Right(_) => return Err(timed_out(OP, Does::Read, store.config.op_timeout)),
            }
        }
        seat.rings = seat.bell.borrow_and_update().rings;
        Ok(seat)
    }

    /// Rings one bell.
    fn ring(&self, channel: &str) {
        if let Some(channel) = self.state().channels.get(channel) {
            channel.bell.send_modify(|bell| bell.rings += 1);
        }
    }

    /// Rings every bell; nothing is subscribed to from here on.
    fn down(&self, error: BackendError) {
        let mut state = self.state();
        state.failures += 1;
        state.last_error = Some(error);
        for channel in state.channels.values() {
            channel.bell.send_modify(|bell| {
                bell.rings += 1;
                bell.is_subscribed = false;
            });
        }
    }

    /// Marks channels as subscribed; rings those that were not new.
    fn up(&self, channels: &[String], is_again: bool) {
        let mut state = self.state();
        state.last_error = None;
        for channel in channels {
            if let Some(channel) = state.channels.get(channel) {
                channel.bell.send_modify(|bell| {
                    bell.is_subscribed = true;
                    bell.rings += u64::from(is_again);
                });
            }
        }
    }

    /// What to subscribe to, and what to give up.
    fn differences(&self, now: BootTime) -> (Vec<String>, Vec<String>) {
        let mut state = self.state();
        let over: Vec<String> = state
            .channels
            .iter()
            .filter(|(_, channel)| channel.waiters == 0 && now >= channel.empty_since + LINGER)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &over {
            state.channels.remove(name);
        }
        let wanted = state.channels.iter().filter(|(_, channel)| !channel.bell.borrow().is_subscribed);
        (wanted.map(|(name, _)| name.clone()).collect(), over)
    }

    /// Whether the listener may go: nobody waits, and nobody has lately.
    fn may_stop(&self) -> bool {
        let mut state = self.state();
        let stops = state.is_closed || state.channels.is_empty();
        if stops {
            state.is_listening = false;
        }
        stops
    }

    /// Whether there is nothing to listen for.
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.is_closed || state.channels.is_empty()
    }

    /// Wakes everybody for good; no listener runs any more.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.down(closed("waiter"));
        self.changed.notify_one();
    }
}

impl Seat {
    async fn subscribed(&mut self, failures: u64) -> Result<(), BackendError> {
        loop {
            if self.bell.borrow_and_update().is_subscribed {
                return Ok(());
            }
            {
                let state = self.hub.state();
                if let Some(error) = state.last_error.as_ref().filter(|_| state.failures > failures) {
                    return Err(error.clone());
                }
            }
            // An error means that the channel is gone, and it lives as long as this seat.
            if self.bell.changed().await.is_err() {
                return Err(closed("waiter"));
            }
        }
    }

    /// Returns when the bell has rung since the last return, or since joining.
    pub(crate) async fn rung(&mut self) {
        let rings = self.rings;
        let rung = self.bell.wait_for(|bell| bell.rings != rings).await.map(|bell| bell.rings);
        match rung {
            Ok(rings) => self.rings = rings,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let Some(channel) = state.channels.get_mut(&self.channel) else { return };
        channel.waiters = channel.waiters.saturating_sub(1);
        if channel.waiters == 0 {
            channel.empty_since = self.store.upgrade().map_or(BootTime::ZERO, |store| store.now());
        }
    }
}

/// Why a listener stopped attending a connection.
enum End {
    /// Nobody waits any more, or the backend is gone.
    Nobody,
    /// The connection is of no more use.
    Broken(BackendError),
}

impl From<BackendError> for End {
    fn from(error: BackendError) -> Self {
        End::Broken(error)
    }
}

/// Listens as long as somebody waits: one connection after another.
async fn listen(store: Weak<Store>, hub: Arc<Hub>) {
    let mut pause = PAUSE_MIN;
    let mut is_again = false;
    while !hub.may_stop() {
        let Some(strong) = store.upgrade() else { return };
        hub.connects.fetch_add(1, Ordering::Relaxed);
        let connected = connect(&strong).await;
        drop(strong);
        let end = match connected {
            Ok((sink, stream)) => match attend(&store, &hub, sink, stream, is_again, &mut pause).await {
                Ok(end) | Err(end) => end,
            },
            Err(error) => End::Broken(error),
        };
        let End::Broken(error) = end else { continue };
        is_again = true;
        hub.down(error);
        let Some(strong) = store.upgrade() else { return };
        let until = strong.now() + strong.jittered(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        let (context, sleep) = (strong.context.clone(), strong.context.sleep_until(until));
        drop(strong);
        sleep.await;
        // Sleeps end at once when the watchdog has stopped: so does this.
        if context.now() < until {
            return hub.close();
        }
    }
}

/// Opens the connection. Its login was tried by the others before.
async fn connect(store: &Arc<Store>) -> Result<(PubSubSink, PubSubStream), BackendError> {
    const OP: &str = "waiter";
    let opening = std::pin::pin!(async {
        let stream = store.transport.connect(OP).await?;
        PubSub::new(&login(&store.config), stream).await.map_err(|e| match e.kind() {
            redis::ErrorKind::AuthenticationFailed => refused(
                OP,
                ErrorKind::Unavailable,
                "the server did not let the connection for notifications in: it has too many clients, or the login was changed",
            )
            .with_source(e),
            _ => native(OP, Does::Read, "", e),
        })
    });
    let limit = store.context.sleep_until(store.now() + store.config.connect_timeout);
    match select(opening, limit).await {
        Either::Left((opened, _)) => opened.map(PubSub::split),
        Either::Right(_) => Err(timed_out(OP, Does::Read, store.config.connect_timeout)),
    }
}

fn login(config: &RedisConfig) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if config.protocol == Protocol::Resp3 {
        login = login.set_protocol(redis::ProtocolVersion::RESP3);
    }
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    match &config.password {
        Some(password) => login.set_password(password.reveal()),
        None => login,
    }
}

/// Keeps the subscriptions as the waiters want them, and rings their bells, until the connection is of no more use.
async fn attend(
    store: &Weak<Store>,
    hub: &Hub,
    mut sink: PubSubSink,
    mut stream: PubSubStream,
    mut is_again: bool,
    pause: &mut Duration,
) -> Result<End, End> {
    // Kept over the turns: waiters that come and go must not put it off.
    let mut ping_at = BootTime::ZERO;
    loop {
        let Some(strong) = store.upgrade() else { return Ok(End::Nobody) };
        let (wanted, over) = hub.differences(strong.now());
        for channels in wanted.chunks(CHANNELS_AT_ONCE) {
            within(&strong, sink.subscribe(channels)).await?;
            hub.up(channels, is_again);
            *pause = PAUSE_MIN;
        }
        is_again = false;
        for channels in over.chunks(CHANNELS_AT_ONCE) {
            within(&strong, sink.unsubscribe(channels)).await?;
        }
        if hub.is_idle() {
            return Ok(End::Nobody);
        }
        if ping_at == BootTime::ZERO {
            ping_at = strong.now() + PING_EVERY;
        }
        let time = strong.context.sleep_until(ping_at);
        drop(strong);
        let changed = std::pin::pin!(hub.changed.notified());
        match select(stream.next(), select(changed, time)).await {
            Either::Left((Some(message), _)) => {
                hub.ring(message.get_channel_name());
                ping_at = BootTime::ZERO;
            }
            Either::Left((None, _)) => {
                let lost = "the connection for notifications was lost; it is made anew";
                return Err(refused("waiter", ErrorKind::Unavailable, lost).into());
            }
            Either::Right((Either::Left(_), _)) => {}
            Either::Right((Either::Right(_), _)) => {
                let Some(strong) = store.upgrade() else { return Ok(End::Nobody) };
                if strong.now() < ping_at {
                    hub.close();
                    return Ok(End::Nobody);
                }
                within(&strong, sink.ping::<redis::Value>()).await?;
                ping_at = BootTime::ZERO;
            }
        }
    }
}

/// A request's answer, within the time limit of one call.
async fn within<T>(
    store: &Store,
    asked: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, BackendError> {
    const OP: &str = "waiter";
    let limit = store.context.sleep_until(store.now() + store.config.op_timeout);
    match select(std::pin::pin!(asked), limit).await {
        Either::Left((answer, _)) => answer.map_err(|e| native(OP, Does::Read, "", e)),
        Either::Right(_) => Err(timed_out(OP, Does::Read, store.config.op_timeout)),
    }
}
