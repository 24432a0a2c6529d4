//! A TCP proxy that does to a connection what networks do, when a test says so.
//!
//! 1. [`Proxy::start`] listens on a free port of 127.0.0.1 and passes every connection on to a target. It
//!    runs on a thread of its own, so that it goes on whatever the test's runtime does; control calls
//!    block for less than a millisecond and may come from any thread.
//! 2. Standing faults change the link until they are taken back or [`Proxy::heal`] is called: latency, a
//!    limited rate, a black hole in one or both directions, refused connections.
//! 3. Faults at once hit the connections there are: [`Proxy::cut`], [`Proxy::reset`], [`Proxy::half_open`].
//! 4. A [`Rule`] is for single messages: the next reply is lost, the next request with this key is held
//!    back. Other connections never notice.
//! 5. Every fault is counted ([`Proxy::counts`], [`Rule::hits`]): a test that saw nothing bad can show that
//!    something bad was there to be seen.
//!
//! A write whose answer is lost, as a client sees it:
//!
//! ```
//! use leasehold_testkit::proxy::{Action, Ending, When};
//! use leasehold_testkit::redis::{Connection, RedisServer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = RedisServer::plain()?;
//! let proxy = server.proxy()?;
//! let lost = proxy.once(When::reply_to_request().containing("lease:a"), Action::Lose(Ending::Reset));
//!
//! let mut client = Connection::tcp(proxy.addr())?;
//! assert!(client.command(["SET", "lease:a", "me"]).is_err());
//! assert_eq!(lost.hits(), 1); // the danger was there,
//! assert_eq!(server.must(["GET", "lease:a"]).text().as_deref(), Some("me")); // and it is written
//! # Ok(())
//! # }
//! ```
//!
//! # What each fault is at the level of TCP
//!
//! | fault | sender | receiver |
//! |---|---|---|
//! | latency, drip, black hole, delay, hold | its bytes are acknowledged by the proxy's kernel until the buffers are full (some hundred kB), then its window is closed | gets nothing until it is time; then everything, in order, nothing twice |
//! | black hole, new connection | its handshake succeeds (the kernel's doing) and then nothing comes; the target sees no connection | – |
//! | lost message, [`Ending::Hang`] | as above, for ever; an acknowledged byte is not a delivered one | gets nothing any more, not even the end of the stream |
//! | cut | FIN; what it sends afterwards is taken and thrown away for 2 s | FIN |
//! | reset | RST; pending data are gone | RST |
//! | half-open | the end that is left: nothing; what it sends is taken and thrown away | the end that is gone: FIN, or RST if it had sent something that was not passed on |
//! | refuse | RST in answer to SYN: connection refused; connections that stand go on | – |
//! | reset new | its handshake succeeds, then RST | – |
//!
//! The end of a stream (FIN, RST) travels in the same order as the bytes and under the same faults: behind a
//! black hole nobody learns that the other end has gone, and a request that was delayed arrives though its
//! client has closed the connection. What keeps its bytes from being acknowledged (a timeout of the sender's
//! own kernel, `TCP_USER_TIMEOUT`) cannot be shown by a proxy.
//!
//! # What can go wrong, and where it is handled
//! * The target is not there: the client is accepted and then reset, and counted as `unreachable`. A real
//!   machine would refuse; use the server's own address where that matters.
//! * Somebody floods it: connections and bytes in flight are bounded.
//! * The port is taken by somebody while connections are refused: it is a reserved [`Port`], outside of
//!   what the kernel gives away.
//! * The proxy is dropped: every connection is closed, and the thread has ended when the drop returns.

mod connection;
mod framing;
mod link;
mod listener;
mod pump;
mod rule;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::Port;
use connection::{Order, Wanted};
pub use framing::Framing;
use link::Link;
pub use link::{Counts, Direction, Peer, WayCounts};
use listener::{Door, Turn, accept_all, listen};
use rule::Rules;
pub use rule::{Action, Ending, Rule, When};

/// How long the proxy's own thread may take to do what it was told. It takes microseconds.
const DONE_WITHIN: Duration = Duration::from_secs(10);
/// What the control side and the proxy's thread share.
#[derive(Debug)]
struct Shared {
    framing: Framing,
    target: Mutex<SocketAddr>,
    link: watch::Sender<Link>,
    rules: Rules,
    counts: Mutex<Counts>,
    live: Mutex<HashMap<u64, UnboundedSender<Order>>>,
}

/// A proxy on 127.0.0.1. Dropped, it closes everything.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// None only while it is dropped.
    turns: Option<UnboundedSender<Turn>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one that passes everything on to `target`, faultless.
    ///
    /// # Errors
    /// When no port, descriptor or thread is to be had.
    pub fn start(target: SocketAddr, framing: Framing) -> io::Result<Self> {
        let port = Port::pick()?;
        let shared = Arc::new(Shared {
            framing,
            target: Mutex::new(target),
            link: watch::Sender::new(Link::default()),
            rules: Rules::default(),
            counts: Mutex::default(),
            live: Mutex::default(),
        });
        let listener = listen(port.addr())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (turns, todo) = unbounded_channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fault-proxy".into()).spawn(move || {
            runtime.block_on(accept_all(served, listener, todo));
        })?;
        Ok(Proxy { port, shared, turns: Some(turns), thread: Some(thread) })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The port of [`Proxy::addr`].
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it leads.
    pub fn target(&self) -> SocketAddr {
        self.shared.target()
    }

    /// Leads new connections elsewhere, as a changed name or a balancer does. Those that stand stay.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Connections that it holds open, on whichever side. One that was cut or reset is none of them.
    pub fn connections(&self) -> usize {
        lock(&self.shared.live).len()
    }

    /// How often each fault was met so far.
    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }

    /// From now on every message in this direction arrives later by `base` and up to `jitter` more, in
    /// order, in steps of 1 ms. Zero for none. The handshake of a connection takes no longer.
    pub fn latency(&self, direction: Direction, base: Duration, jitter: Duration) {
        self.change(|link| {
            let way = link.way_mut(direction);
            (way.latency, way.jitter) = (base, jitter);
        });
    }

    /// From now on each connection passes on this many bytes a second in this direction: one by one up
    /// to a hundred, in a hundred portions a second above. None for no limit.
    pub fn drip(&self, direction: Direction, bytes_per_second: Option<NonZeroU32>) {
        self.change(|link| link.way_mut(direction).bytes_per_second = bytes_per_second);
    }

    /// From now on nothing gets through, in either direction, and new connections hang. No byte is passed
    /// on after this has returned. What is held back arrives when the way is open again.
    pub fn black_hole(&self) {
        self.change(|link| {
            link.way_mut(Direction::ToServer).blocked = true;
            link.way_mut(Direction::ToClient).blocked = true;
        });
    }

    /// As [`Proxy::black_hole`], in one direction: requests arrive and their replies do not, or the other
    /// way round. New connections hang all the same: a handshake needs both.
    pub fn block(&self, direction: Direction) {
        self.change(|link| link.way_mut(direction).blocked = true);
    }

    /// Opens one direction again.
    pub fn unblock(&self, direction: Direction) {
        self.change(|link| link.way_mut(direction).blocked = false);
    }

    /// A perfect link again: every standing fault is taken back, every rule is ended, and whatever is held
    /// back goes at once. Connections that were ruined (a message lost, half open) stay so.
    ///
    /// # Panics
    /// When somebody else has taken the port while connections were refused.
    #[track_caller]
    pub fn heal(&self) {
        self.shared.rules.end();
        self.change(|link| *link = Link { heals: link.heals + 1, ..Link::default() });
        self.turn(Door::Open);
    }

    /// From now on nobody listens: new connections are refused by the kernel, which counts none of them.
    /// Connections that stand go on.
    ///
    /// # Panics
    /// As [`Proxy::heal`].
    #[track_caller]
    pub fn refuse(&self) {
        self.turn(Door::Refusing);
    }

    /// From now on new connections are accepted and reset at once.
    ///
    /// # Panics
    /// As [`Proxy::heal`].
    #[track_caller]
    pub fn reset_new(&self) {
        self.turn(Door::Resetting);
    }

    /// Takes [`Proxy::refuse`] and [`Proxy::reset_new`] back.
    ///
    /// # Panics
    /// As [`Proxy::heal`].
    #[track_caller]
    pub fn accept(&self) {
        self.turn(Door::Open);
    }

    /// Closes every connection there is, on both sides (FIN); returns how many. What is held back in the
    /// proxy is lost. New ones are served.
    ///
    /// # Panics
    /// When the proxy's thread does not do it within 10 s.
    #[track_caller]
    pub fn cut(&self) -> usize {
        self.order(Wanted::Close)
    }

    /// As [`Proxy::cut`], by a reset (RST).
    ///
    /// # Panics
    /// As [`Proxy::cut`].
    #[track_caller]
    pub fn reset(&self) -> usize {
        self.order(Wanted::Reset)
    }

    /// Ends one end of every connection there is and leaves the other in the belief that it stands;
    /// returns how many. New ones are served.
    ///
    /// # Panics
    /// As [`Proxy::cut`].
    #[track_caller]
    pub fn half_open(&self, gone: Peer) -> usize {
        self.order(Wanted::HalfOpen(gone))
    }

    /// Does this to the next such message, on whichever connection it comes.
    pub fn once(&self, when: When, action: Action) -> Rule {
        self.times(1, when, action)
    }

    /// Does this to the next `count` such messages. Of several rules the first given takes a message,
    /// besides all that only watch.
    pub fn times(&self, count: u64, when: When, action: Action) -> Rule {
        let rule = Rule::new(when, action, count);
        self.shared.rules.add(&rule);
        rule
    }

    /// Does this to all such messages from now on.
    pub fn always(&self, when: When, action: Action) -> Rule {
        // Nobody sends that many.
        self.times(u64::MAX, when, action)
    }

    fn change(&self, change: impl FnOnce(&mut Link)) {
        self.shared.link.send_modify(change);
    }

    #[track_caller]
    fn turn(&self, door: Door) {
        let (done, answer) = channel();
        let sent = self.turns.as_ref().is_some_and(|turns| turns.send(Turn { door, done }).is_ok());
        assert!(sent, "the proxy's thread is gone");
        match answer.recv_timeout(DONE_WITHIN) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => panic!("the proxy cannot listen on {} again: {e}", self.addr()),
            Err(e) => panic!("the proxy's thread does not answer: {e}"),
        }
    }

    #[track_caller]
    fn order(&self, wanted: Wanted) -> usize {
        let (done, all) = channel();
        let hit = {
            let live = lock(&self.shared.live);
            live.values().filter(|orders| orders.send(Order { wanted, done: done.clone() }).is_ok()).count()
        };
        drop(done);
        // Over when the last connection has dropped its end.
        match all.recv_timeout(DONE_WITHIN) {
            Err(RecvTimeoutError::Disconnected) | Ok(()) => hit,
            Err(RecvTimeoutError::Timeout) => panic!("the proxy's thread does not answer"),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port())
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The accepting task ends by that, and the runtime with it.
        self.turns = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn target(&self) -> SocketAddr {
        *lock(&self.target)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut lock(&self.counts));
    }

    fn forget(&self, id: u64) {
        lock(&self.live).remove(&id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one step: what a panic left behind is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
