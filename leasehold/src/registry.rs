//! Which scheme means which store.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use leasehold_core::{BackendContext, LeaseBackend, Watchdog};

use crate::error::{ConnectError, RegistryError};
use crate::stores;
use crate::{StoreUrl, did_you_mean};

/// What a factory gives.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn LeaseBackend>, ConnectError>> + Send>>;

type Factory = Arc<dyn Fn(StoreUrl, BackendContext) -> Connecting + Send + Sync>;

/// Schemes and the factories of their backends: the stores of this build, and third parties'.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{MemoryBackend, Registry, Watchdog};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let registry = Registry::builder()
///     .register("mystore", |_url, context| async move {
///         Ok(Arc::new(MemoryBackend::new(context)) as _)
///     })
///     .build()?;
/// let watchdog = Watchdog::start()?;
/// let backend = registry.connect("mystore://host/prefix", &watchdog).await?;
/// assert_eq!(backend.profile().name, "memory");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Registry {
    factories: Arc<BTreeMap<String, Factory>>,
}

/// Collects factories.
#[derive(Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct RegistryBuilder {
    factories: BTreeMap<String, Factory>,
    error: Option<RegistryError>,
}

impl Default for Registry {
    fn default() -> Self {
        let mut builder = RegistryBuilder::default();
        stores::register(&mut builder);
        Registry { factories: Arc::new(builder.factories) }
    }
}

impl Registry {
    /// A builder that knows the stores of this build already.
    pub fn builder() -> RegistryBuilder {
        let mut builder = RegistryBuilder::default();
        stores::register(&mut builder);
        builder
    }

    /// The registered schemes, sorted.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().map(String::as_str)
    }

    /// Connects to the store that `url` names, for the leases that `watchdog` keeps.
    ///
    /// # Errors
    /// [`ConnectError`]: a wrong URL before any I/O, or what the backend answers.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection; no lease exists yet.
    pub async fn connect(
        &self,
        url: &str,
        watchdog: &Watchdog,
    ) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
        self.connect_url(url.parse()?, watchdog).await
    }

    /// As [`Registry::connect`], for a URL that was split already.
    ///
    /// # Errors
    /// As [`Registry::connect`].
    pub async fn connect_url(
        &self,
        url: StoreUrl,
        watchdog: &Watchdog,
    ) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
        self.connect_in(url, watchdog.context()).await
    }

    /// As [`Registry::connect_url`], for a context that was handed out before: a combinator's, or the
    /// conformance suite's.
    ///
    /// # Errors
    /// As [`Registry::connect`].
    pub async fn connect_in(
        &self,
        url: StoreUrl,
        context: BackendContext,
    ) -> Result<Arc<dyn LeaseBackend>, ConnectError> {
        match self.factories.get(url.scheme()) {
            Some(factory) => factory(url, context).await,
            None => Err(self.unknown(url.scheme())),
        }
    }

    fn unknown(&self, scheme: &str) -> ConnectError {
        if let Some(feature) = stores::feature_of(scheme) {
            return ConnectError::FeatureMissing { scheme: scheme.to_owned(), feature };
        }
        ConnectError::UnknownScheme {
            scheme: scheme.to_owned(),
            suggestion: did_you_mean(scheme, self.schemes()).map(str::to_owned),
            known: self.schemes().map(str::to_owned).collect(),
        }
    }
}

impl RegistryBuilder {
    /// Adds the factory of a scheme. It gets the URL, with all its parameters for it to check, and
    /// the context that its connections live on.
    pub fn register<F, Fut>(mut self, scheme: &str, factory: F) -> Self
    where
        F: Fn(StoreUrl, BackendContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn LeaseBackend>, ConnectError>> + Send + 'static,
    {
        self.add(scheme, factory);
        self
    }

    pub(crate) fn add<F, Fut>(&mut self, scheme: &str, factory: F)
    where
        F: Fn(StoreUrl, BackendContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn LeaseBackend>, ConnectError>> + Send + 'static,
    {
        let legal = scheme.starts_with(|c: char| c.is_ascii_lowercase())
            && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b));
        let factory: Factory = Arc::new(move |url, context| Box::pin(factory(url, context)));
        let error = if !legal {
            RegistryError::IllegalScheme { scheme: scheme.to_owned() }
        } else if self.factories.insert(scheme.to_owned(), factory).is_some() {
            RegistryError::Twice { scheme: scheme.to_owned() }
        } else {
            return;
        };
        self.error.get_or_insert(error);
    }

    /// The registry.
    ///
    /// # Errors
    /// [`RegistryError`], the first one.
    pub fn build(self) -> Result<Registry, RegistryError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Registry { factories: Arc::new(self.factories) }),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.schemes()).finish()
    }
}

impl fmt::Debug for RegistryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}
