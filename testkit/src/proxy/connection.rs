//! One connection through the proxy, from its arrival to whatever end it is given.

use std::future::pending;
use std::sync::Arc;
use std::sync::mpsc::Sender as Done;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::link::Link;
use super::pump::{Exchange, Stop, carry, next_seed, read, until};
use super::{Direction, Ending, Peer, Shared};

/// How long both ends have for closing their side after a cut. Whoever does not is reset.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks whether a client that was left hanging has gone. Nothing depends on it but memory.
const HANGING_LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a control call wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Close,
    Reset,
    /// This end is ended, the other is told nothing.
    HalfOpen(Peer),
}

/// An order to a connection. Its `done` is dropped when the order has been carried out, or when the
/// connection has ended anyway: that is what the control call waits for.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) wanted: Wanted,
    pub(super) done: Done<()>,
}

type Orders = UnboundedReceiver<Order>;

/// Serves one client until its connection has ended.
pub(super) async fn serve(shared: Arc<Shared>, id: u64, client: TcpStream, mut orders: Orders) {
    run(&shared, id, client, &mut orders).await;
    shared.forget(id);
}

async fn run(shared: &Shared, id: u64, client: TcpStream, orders: &mut Orders) {
    let _ = client.set_nodelay(true);
    let opened = tokio::select! {
        biased;
        order = next(orders) => Err(order),
        server = open(shared, &client) => Ok(server),
    };
    let server = match opened {
        Ok(Some(server)) => server,
        Ok(None) => return,
        Err(order) => return end(shared, id, client, None, order, orders).await,
    };
    let exchange = Exchange::default();
    let ended = tokio::select! {
        biased;
        order = next(orders) => Err(order),
        ended = transfer(shared, &exchange, &client, &server) => Ok(ended),
    };
    exchange.give_up();
    match ended {
        Err(order) => end(shared, id, client, Some(server), order, orders).await,
        Ok(Ok(())) => {}
        Ok(Err(Stop::Broken)) => abort([Some(client), Some(server)]),
        Ok(Err(Stop::ByRule(ending))) => {
            let ends = [Some(client), Some(server)];
            // Nobody waits for it.
            let (done, _) = std::sync::mpsc::channel();
            match ending {
                Ending::Reset => reset(shared, id, ends, done),
                Ending::Close | Ending::Hang => close(shared, id, ends, done).await,
            }
        }
    }
}

async fn transfer(
    shared: &Shared,
    exchange: &Exchange,
    client: &TcpStream,
    server: &TcpStream,
) -> Result<(), Stop> {
    let to_server = carry(shared, exchange, Direction::ToServer, client, server, next_seed());
    let to_client = carry(shared, exchange, Direction::ToClient, server, client, next_seed());
    tokio::try_join!(to_server, to_client).map(|_| ())
}

/// Connects to the target once the link lets a handshake through. None when the client has gone before, or
/// when the target is not there: the client is reset then.
async fn open(shared: &Shared, client: &TcpStream) -> Option<TcpStream> {
    let mut link = shared.link.subscribe();
    if !link.borrow().lets_connect() {
        shared.count(|counts| counts.hung += 1);
        loop {
            tokio::select! {
                () = until(&mut link, Link::lets_connect) => break,
                () = sleep(HANGING_LOOK_EVERY) => {
                    if has_hung_up(client) {
                        return None;
                    }
                }
            }
        }
        // In a real network its handshake was never answered: nothing of it arrives later.
        if has_hung_up(client) {
            return None;
        }
    }
    let target = shared.target();
    match TcpStream::connect(target).await {
        Ok(server) => {
            let _ = server.set_nodelay(true);
            Some(server)
        }
        Err(_) => {
            shared.count(|counts| counts.unreachable += 1);
            let _ = client.set_zero_linger();
            None
        }
    }
}

/// Whether the other end has closed its side, whatever of it is still to be read.
fn has_hung_up(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

async fn next(orders: &mut Orders) -> Order {
    match orders.recv().await {
        Some(order) => order,
        // The proxy is going, and this task with it.
        None => pending().await,
    }
}

async fn end(
    shared: &Shared,
    id: u64,
    client: TcpStream,
    server: Option<TcpStream>,
    order: Order,
    orders: &mut Orders,
) {
    let Order { wanted, done } = order;
    match wanted {
        Wanted::Reset => reset(shared, id, [Some(client), server], done),
        Wanted::Close => close(shared, id, [Some(client), server], done).await,
        Wanted::HalfOpen(gone) => {
            shared.count(|counts| counts.half_open += 1);
            let (ended, left) =
                if gone == Peer::Client { (Some(client), server) } else { (server, Some(client)) };
            if let Some(ended) = ended {
                // What it sent and nobody read makes its kernel see a reset instead.
                let _ = shutdown(&ended, Shutdown::Write);
            }
            drop(done);
            if let Some(left) = left {
                leave_alone(shared, id, left, orders).await;
            }
        }
    }
}

/// The end that knows nothing: what it sends is taken and goes nowhere, and nothing ever comes.
async fn leave_alone(shared: &Shared, id: u64, left: TcpStream, orders: &mut Orders) {
    loop {
        let Order { wanted, done } = tokio::select! {
            biased;
            order = next(orders) => order,
            () = drain(&left) => return,
        };
        match wanted {
            Wanted::Close => return close(shared, id, [Some(left), None], done).await,
            Wanted::Reset => return reset(shared, id, [Some(left), None], done),
            // It is that already.
            Wanted::HalfOpen(_) => drop(done),
        }
    }
}

/// Closes both ends, and tells `done` when both have been told.
async fn close(shared: &Shared, id: u64, ends: [Option<TcpStream>; 2], done: Done<()>) {
    // No order reaches it any more.
    shared.forget(id);
    shared.count(|counts| counts.cut += 1);
    for stream in ends.iter().flatten() {
        let _ = shutdown(stream, Shutdown::Write);
    }
    drop(done);
    for stream in ends.into_iter().flatten() {
        // What is sent meanwhile is read and thrown away: closing with something unread would reset.
        if timeout(CLOSE_WITHIN, drain(&stream)).await.is_err() {
            let _ = stream.set_zero_linger();
        }
    }
}

fn reset(shared: &Shared, id: u64, ends: [Option<TcpStream>; 2], done: Done<()>) {
    shared.forget(id);
    shared.count(|counts| counts.reset += 1);
    abort(ends);
    drop(done);
}

/// Drops both ends with no time to linger: the kernel sends a reset, whatever is unsent or unread.
fn abort(ends: [Option<TcpStream>; 2]) {
    for stream in ends.iter().flatten() {
        let _ = stream.set_zero_linger();
    }
}

/// Reads until there is nothing more to come.
async fn drain(stream: &TcpStream) {
    let mut buffer = vec![0; 4096];
    while matches!(read(stream, &mut buffer).await, Ok(n) if n > 0) {}
}
