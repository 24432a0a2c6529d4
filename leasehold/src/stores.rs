//! The stores of this build: one factory each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use leasehold_core::{BackendContext, LeaseBackend, MemoryBackend};

use crate::error::ConnectError;
use crate::registry::RegistryBuilder;
use crate::url::is_plain;
use crate::{StoreUrl, UrlError, did_you_mean};

/// Schemes that a Cargo feature brings, with that feature's name.
const FEATURES: [(&str, &str); 1] = [("sqlite", "sqlite")];

/// The feature that brings `scheme`.
pub(crate) fn feature_of(scheme: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(known, _)| *known == scheme).map(|(_, feature)| *feature)
}

pub(crate) fn register(builder: &mut RegistryBuilder) {
    builder.add("memory", |url, context| async move { memory(&url, context) });
    #[cfg(feature = "sqlite")]
    builder.add("sqlite", |url, context| async move { sqlite(&url, context).await });
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
