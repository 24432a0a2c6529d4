//! A store as its URL names it, so that two processes can meet there.

use leasehold::{LeaseClient, Watchdog};

use crate::memory::Failure;

/// A client of one store, with a watchdog of its own.
#[derive(Debug)]
pub struct Opened {
    client: LeaseClient,
    _watchdog: Watchdog,
}

impl Opened {
    /// Opens the store.
    ///
    /// # Errors
    /// The store's.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let watchdog = Watchdog::start()?;
        let backend = leasehold::connect(url, &watchdog).await?;
        Ok(Opened { client: LeaseClient::with_backend(backend, &watchdog), _watchdog: watchdog })
    }

    /// Its client.
    pub fn client(&self) -> &LeaseClient {
        &self.client
    }
}
