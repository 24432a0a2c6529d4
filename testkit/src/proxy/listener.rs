//! Letting connections in, or not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender as Done;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::connection::serve;
use super::{Shared, lock};

/// Connections at a time. More than any test makes: whoever reaches it tests the proxy.
const CONNECTIONS_MAX: usize = 1024;
/// After a failure to accept (no descriptor left), before the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What happens to connections that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Open,
    Refusing,
    Resetting,
}

/// An order to the listener, answered when it is done.
pub(super) struct Turn {
    pub(super) door: Door,
    pub(super) done: Done<io::Result<()>>,
}

pub(super) fn listen(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(super) async fn accept_all(
    shared: Arc<Shared>,
    first: std::net::TcpListener,
    mut turns: UnboundedReceiver<Turn>,
) {
    let Ok(addr) = first.local_addr() else { return };
    let mut listener = TcpListener::from_std(first).ok();
    let (mut door, mut next) = (Door::Open, 0_u64);
    loop {
        tokio::select! {
            biased;
            turn = turns.recv() => {
                let Some(turn) = turn else { return };
                let turned = match turn.door {
                    Door::Refusing => {
                        listener = None;
                        Ok(())
                    }
                    Door::Open | Door::Resetting if listener.is_some() => Ok(()),
                    Door::Open | Door::Resetting => {
                        listen(addr).and_then(TcpListener::from_std).map(|bound| listener = Some(bound))
                    }
                };
                door = turn.door;
                let _ = turn.done.send(turned);
            }
            accepted = accept(listener.as_ref()) => {
                match accepted {
                    Ok(client) => admit(&shared, door, next, client),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
                next += 1;
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

fn admit(shared: &Arc<Shared>, door: Door, id: u64, client: TcpStream) {
    let (orders, todo) = unbounded_channel();
    let admitted = {
        let mut live = lock(&shared.live);
        let admitted = door == Door::Open && live.len() < CONNECTIONS_MAX;
        if admitted {
            live.insert(id, orders);
        }
        admitted
    };
    shared.count(|counts| {
        counts.connections += 1;
        counts.turned_away += u64::from(!admitted);
    });
    if admitted {
        tokio::spawn(serve(Arc::clone(shared), id, client, todo));
    } else {
        let _ = client.set_zero_linger();
    }
}
