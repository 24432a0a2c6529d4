//! Redis and Valkey backend of leasehold: leases among all who reach one server.
//!
#![doc = include_str!("../docs.md")]

mod admin;
mod backend;
mod calls;
mod config;
mod core;
mod error;
mod fence;
mod hub;
mod keys;
mod link;
mod record;
mod scripts;
mod secret;
mod server;
mod transport;
mod waiter;
mod wire;

pub use crate::core::Counters;
pub use backend::RedisBackend;
pub use config::{Address, ConfigError, Protocol, RedisConfig, TlsConfig};
pub use fence::{FENCE_PRELUDE, fence_script, fence_token, mark_key, stale};
pub use secret::Secret;

/// The first scheme of URLs that name a store of this kind, and the profile's name.
pub const SCHEME: &str = "redis";

/// Every scheme: `redis://host:6379/0`, `rediss://host` with TLS, `redis+unix:///run/redis.sock`, and the same for
/// Valkey.
pub const SCHEMES: &[&str] = &["redis", "rediss", "redis+unix", "valkey", "valkeys"];

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
