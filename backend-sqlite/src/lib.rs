//! SQLite backend of leasehold: leases in a local file, among the processes of one machine.
//!
#![doc = include_str!("../docs.md")]

mod admin;
mod backend;
mod calls;
mod clock_id;
mod config;
mod core;
mod error;
mod fence;
mod file;
mod index;
mod line;
mod record;
mod schema;
mod upkeep;
mod waiter;
mod watch;

pub use crate::core::Counters;
pub use backend::SqliteBackend;
pub use config::{ConfigError, SchemaMode, SqliteConfig};
pub use fence::{FenceError, fence, prepare_fence};

/// The scheme of URLs that name a store of this kind: `sqlite:///var/lib/app/leases.db`.
pub const SCHEME: &str = "sqlite";

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
