//! etcd backend of leasehold: leases among all who reach one etcd cluster.
//!
#![doc = include_str!("../docs.md")]

mod admin;
mod backend;
mod calls;
mod chunk;
mod config;
mod core;
mod error;
mod fence;
mod keys;
mod link;
mod record;
mod renew;
mod secret;
mod table;
mod tokens;
mod waiter;

pub use backend::EtcdBackend;
pub use config::{ConfigError, Endpoint, EtcdConfig, TlsConfig};
pub use fence::fence_compare;
pub use secret::Secret;

/// The first scheme of URLs that name a store of this kind, and the profile's name.
pub const SCHEME: &str = "etcd";

/// Every scheme: `etcd://h1:2379,h2:2379/prefix`, and `etcds:` with TLS.
pub const SCHEMES: &[&str] = &["etcd", "etcds"];

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
