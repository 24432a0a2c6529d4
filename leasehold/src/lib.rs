//! Leases with fencing tokens that mean the same on every store.
//!
//! A **lease** is a name that one owner holds until a deadline, unless it is renewed. One watchdog
//! keeps it alive, the holder stops *before* the store can give the name away, and every grant has a
//! **fencing token** by which the resource itself refuses whoever comes late.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Settings, Wait};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let file = format!("sqlite://{}/leases.db", dir.path().display());
//! # let url = if cfg!(feature = "sqlite") { file } else { "memory://docs".to_owned() };
//! // let url = "sqlite:///var/lib/myapp/leases.db";
//! let client = leasehold::client(&url).await?;
//! let name = "reports/nightly".parse()?;
//! let lease = client.acquire(&name, &Settings::new(), Wait::AtMost(Duration::from_secs(60))).await?;
//!
//! let token = lease.token(); // hand it to the resource with every write
//! let done = lease.run(async { /* the work: dropped if the lease is lost */ 42 }).await?;
//!
//! lease.release().await?;
//! # let _ = token;
//! # assert_eq!(done, 42);
//! # client.shutdown(Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
//!
//! | URL | store | feature |
//! |---|---|---|
//! | `memory://name` | this process, for all who name it | always there |
//! | `sqlite:///abs/path.db`, `sqlite://rel.db`, `sqlite:rel.db` | a local file | `sqlite` (on by default) |
//! | `redis://host:6379/0`, `rediss://host` (TLS), `redis+unix:///run/redis.sock`, `valkey://`, `valkeys://` | a Redis or Valkey server | `redis` |
//!
//! Everything of [`leasehold_core`] is re-exported here. Stores of third parties join through
//! [`Registry::builder`].
//!
//! # What can go wrong, and where it is handled
//! * A typing error in scheme or parameter: a typed error with "did you mean", before any I/O.
//! * The URL holds a password: [`StoreUrl`] shows only what is on an allow-list, and no error
//!   repeats the text of a URL.
//! * The watchdog cannot start: [`OpenError::Watchdog`]; without it nothing can be held safely, so
//!   nothing is acquired.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod registry;
mod stores;
mod suggest;
mod url;

use std::sync::Arc;

pub use leasehold_core::*;
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite as sqlite;

pub use error::{ConnectError, OpenError, RegistryError};
pub use registry::{Connecting, Registry, RegistryBuilder};
pub use suggest::did_you_mean;
pub use url::{StoreUrl, UrlError};

/// Connects to the store that `url` names, for the leases that `watchdog` keeps.
///
/// # Errors
/// [`ConnectError`]: a wrong URL before any I/O, or what the backend answers.
///
/// # Cancel safety
/// Dropping the future abandons the connection; no lease exists yet.
pub async fn connect(url: &str, watchdog: &Watchdog) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
    Registry::default().connect(url, watchdog).await
}

/// A client of the store that `url` names, on the process-wide watchdog.
///
/// # Errors
/// [`OpenError`].
///
/// # Cancel safety
/// As [`connect`].
pub async fn client(url: &str) -> Result<LeaseClient, OpenError> {
    let watchdog = Watchdog::global()?;
    let backend = connect(url, &watchdog).await?;
    Ok(LeaseClient::with_backend(backend, &watchdog))
}

/// The examples of the top page are compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct TopPage;
