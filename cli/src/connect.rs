//! From a chosen store to a client, within the operation timeout.

use std::time::Duration;

use leasehold::{ConnectError, LeaseClient, Registry, Watchdog};

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

/// Connects to the store.
pub(crate) async fn client(
    store: &Store,
    watchdog: &Watchdog,
    op_timeout: Duration,
) -> Result<LeaseClient, Failure> {
    let context = watchdog.context();
    let registry = Registry::default();
    let connecting = registry.connect_url(store.url.clone(), watchdog);
    let connected = tokio::select! {
        connected = connecting => connected,
        () = context.sleep_until(context.now() + op_timeout) => {
            return Err(Failure::new(
                Exit::Unavailable,
                format_args!(
                    "{} did not answer within {}: nothing was asked of it",
                    store.url,
                    crate::duration::show(op_timeout)
                ),
            ));
        }
    };
    match connected {
        Ok(backend) => Ok(LeaseClient::with_operation_timeout(backend, watchdog, op_timeout)),
        Err(ConnectError::Backend(e)) => {
            Err(Failure::new(of_kind(e.kind()), format_args!("{}: {e}", store.url)))
        }
        Err(e) => Err(Failure::new(of_kind(e.kind()), format_args!("{}: {e}", store.url))),
    }
}
