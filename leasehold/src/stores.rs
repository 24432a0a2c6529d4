//! The stores of this build: one factory each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use leasehold_core::{BackendContext, LeaseBackend, MemoryBackend};

use crate::error::ConnectError;
use crate::registry::RegistryBuilder;
use crate::url::is_plain;
use crate::{StoreUrl, UrlError, did_you_mean};

/// Schemes that a Cargo feature brings, with that feature's name.
const FEATURES: [(&str, &str); 6] = [
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("valkey", "redis"),
    ("valkeys", "redis"),
];

/// The feature that brings `scheme`.
pub(crate) fn feature_of(scheme: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(known, _)| *known == scheme).map(|(_, feature)| *feature)
}

pub(crate) fn register(builder: &mut RegistryBuilder) {
    builder.add("memory", |url, context| async move { memory(&url, context) });
    #[cfg(feature = "sqlite")]
    builder.add("sqlite", |url, context| async move { sqlite(&url, context).await });
    #[cfg(feature = "redis")]
    for scheme in leasehold_redis::SCHEMES {
        builder.add(scheme, |url, context| async move { redis(&url, context).await });
    }
}

/// `memory://name`: the same store for every watchdog of this process that names it.
fn memory(url: &StoreUrl, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
    static STORES: Mutex<Option<HashMap<String, MemoryBackend>>> = Mutex::new(None);
    refuse_unknown(url, &[])?;
    if url.user_info()?.is_some() {
        return Err(UrlError::Shape("a memory store has no user and password: write memory://name").into());
    }
    let [name] = match url.hosts()?.as_slice() {
        [] => [String::new()],
        [(host, None)] => [host.clone()],
        _ => return Err(UrlError::Shape("a memory store is named by one word: memory://name").into()),
    };
    if !matches!(url.path(), "" | "/") {
        return Err(UrlError::Shape("a memory store has no path: write memory://name").into());
    }
    let mut stores = STORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let backend = stores
        .get_or_insert_default()
        .entry(name)
        .or_insert_with(|| MemoryBackend::new(context.clone()))
        .shared_with(context);
    Ok(Arc::new(backend))
}

/// `sqlite:///abs/path.db`, `sqlite://rel.db`, `sqlite:rel.db`.
#[cfg(feature = "sqlite")]
async fn sqlite(url: &StoreUrl, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
    use leasehold_sqlite::{SqliteBackend, SqliteConfig};
    refuse_unknown(url, SqliteConfig::PARAMS)?;
    let params = url.params().iter().map(|(name, value)| (name, value));
    let config =
        SqliteConfig::from_params(url.file_path()?, params).map_err(leasehold_core::BackendError::from)?;
    Ok(Arc::new(SqliteBackend::connect(config, context).await?))
}

/// `redis://user:password@host:6379/0`, `rediss://host`, `redis+unix:///run/redis.sock?db=0`, and the same for
/// Valkey.
#[cfg(feature = "redis")]
async fn redis(url: &StoreUrl, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
    use leasehold_redis::{Address, RedisBackend, RedisConfig};
    refuse_unknown(url, RedisConfig::PARAMS)?;
    let mut db = None;
    let address = if url.scheme() == "redis+unix" {
        if !url.hosts()?.is_empty() {
            return Err(UrlError::Shape("a socket has no host: write redis+unix:///run/redis.sock").into());
        }
        Address::Unix(url.socket_path()?)
    } else {
        let hosts = url.hosts()?;
        let [(host, port)] = hosts.as_slice() else {
            return Err(UrlError::Shape("a Redis store is one server: write redis://host:6379/0").into());
        };
        let path = url.path().trim_start_matches('/').trim_end_matches('/');
        if !path.is_empty() {
            let number: u32 = path.parse().map_err(|_| {
                UrlError::Shape(
                    "the path of a Redis store is the number of a database: write redis://host:6379/0",
                )
            })?;
            db = Some(("db".to_owned(), number.to_string()));
        }
        let (host, port) = (host.clone(), port.unwrap_or(RedisConfig::PORT));
        match url.scheme() {
            "rediss" | "valkeys" => Address::Tls { host, port },
            _ => Address::Tcp { host, port },
        }
    };
    let params = db.iter().chain(url.params()).map(|(name, value)| (name, value));
    let config = RedisConfig::from_params(address, url.user_info()?, params)
        .map_err(leasehold_core::BackendError::from)?;
    Ok(Arc::new(RedisBackend::connect(config, context).await?))
}

/// Refuses what is in the URL and not in `known`.
fn refuse_unknown(url: &StoreUrl, known: &[&str]) -> Result<(), ConnectError> {
    match url.params().iter().find(|(name, _)| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => Err(ConnectError::UnknownParameter {
            scheme: url.scheme().to_owned(),
            parameter: if is_plain(name) { name.clone() } else { "-".to_owned() },
            suggestion: did_you_mean(name, known.iter().copied()).map(str::to_owned),
            known: known.iter().map(|&word| word.to_owned()).collect(),
        }),
    }
}
