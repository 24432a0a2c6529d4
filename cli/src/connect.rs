//! From a chosen store to a client, within the operation timeout.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ConnectError, LeaseBackend, LeaseClient, Registry, Watchdog};

use crate::config::Store;
use crate::exit::{Exit, Failure, of_kind};

/// The runtime of the program's own calls; renewals have the watchdog's.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Exit::Internal, format_args!("no runtime could be started ({e}): nothing was started. Descriptors or threads may be exhausted (ulimit -n, ulimit -u)")))
}

/// Lets clean-ups end and closes the store, in `limit` at most: one that hangs holds nobody.
pub(crate) async fn finish(client: &LeaseClient, watchdog: &Watchdog, limit: Duration) {
    let context = watchdog.context();
    tokio::select! {
        _ = client.shutdown(limit) => {}
        () = context.sleep_until(context.now() + limit) => {}
    }
}

/// Pause between two tries of a [`Patience::Retry`].
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What to do when the store refuses the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Tell it at once.
    None,
    /// Ask again until the operation timeout is over: for who is going to wait anyway, beside a store that is just
    /// being restarted.
    Retry,
}

/// Connects to the store.
pub(crate) async fn client(
    store: &Store,
    watchdog: &Watchdog,
    op_timeout: Duration,
    patience: Patience,
) -> Result<LeaseClient, Failure> {
    let context = watchdog.context();
    let until = context.now() + op_timeout;
    let registry = Registry::default();
    let mut refused = None;
    loop {
        let connecting = registry.connect_url(store.url.clone(), watchdog);
        let connected = tokio::select! {
            connected = connecting => connected,
            () = context.sleep_until(until) => match refused {
                // What was told before says more than the silence since.
                Some(refused) => Err(refused),
                None => return Err(silent(store, op_timeout)),
            },
        };
        match connected {
            Err(ConnectError::Backend(e))
                if patience == Patience::Retry && e.is_retryable() && context.now() + RETRY_PAUSE < until =>
            {
                refused = Some(ConnectError::Backend(e));
                context.sleep_until(context.now() + RETRY_PAUSE).await;
            }
            connected => return made(connected, store, watchdog, op_timeout),
        }
    }
}

fn silent(store: &Store, op_timeout: Duration) -> Failure {
    let after = crate::duration::show(op_timeout);
    Failure::new(
        Exit::Unavailable,
        format_args!("{} did not answer within {after}: nothing was asked of it", store.url),
    )
}

fn made(
    connected: Result<Arc<dyn LeaseBackend>, ConnectError>,
    store: &Store,
    watchdog: &Watchdog,
    op_timeout: Duration,
) -> Result<LeaseClient, Failure> {
    match connected {
        Ok(backend) => Ok(LeaseClient::with_operation_timeout(backend, watchdog, op_timeout)),
        Err(ConnectError::Backend(e)) => {
            Err(Failure::new(of_kind(e.kind()), format_args!("{}: {e}", store.url)))
        }
        Err(e) => Err(Failure::new(of_kind(e.kind()), format_args!("{}: {e}", store.url))),
    }
}
