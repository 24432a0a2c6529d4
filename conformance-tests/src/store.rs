//! A harness made of a function that connects, for stores that need no more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use leasehold_core::{BackendContext, BackendError, LeaseBackend, async_trait};

use crate::Harness;

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn LeaseBackend>, BackendError>> + Send>>;
type Connect = Box<dyn Fn(BackendContext) -> Connecting + Send + Sync>;

/// A store to be judged, by the function that connects to it. Stores that can be broken on purpose
/// implement [`Harness`] themselves.
///
/// ```
/// use leasehold_conformance::Store;
/// use leasehold_core::MemoryBackend;
///
/// let store = Store::new("mine", |context| async { Ok(MemoryBackend::new(context)) });
/// # use leasehold_conformance::Harness;
/// # assert_eq!(store.name(), "mine");
/// ```
pub struct Store {
    name: &'static str,
    connect: Connect,
    ignored: &'static str,
    on_context_clock: bool,
    shared: bool,
}

impl Store {
    /// The store that `connect` gives a client of: each call another one, of the same store.
    pub fn new<C, F, B>(name: &'static str, connect: C) -> Self
    where
        C: Fn(BackendContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<B, BackendError>> + Send + 'static,
        B: LeaseBackend,
    {
        Self::of_any(name, move |context| {
            let connecting = connect(context);
            async { Ok(Arc::new(connecting.await?) as Arc<dyn LeaseBackend>) }
        })
    }

    /// As [`Store::new`], for a function that gives any backend.
    pub fn of_any<C, F>(name: &'static str, connect: C) -> Self
    where
        C: Fn(BackendContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Arc<dyn LeaseBackend>, BackendError>> + Send + 'static,
    {
        let connect: Connect = Box::new(move |context| Box::pin(connect(context)));
        Store { name, connect, ignored: "", on_context_clock: false, shared: false }
    }

    /// The same with a list of cases that are ignored: see [`Harness::ignored`].
    #[must_use]
    pub fn ignoring(mut self, list: &'static str) -> Self {
        self.ignored = list;
        self
    }

    /// The same, every expiry of which follows the clock of the context: see
    /// [`Harness::on_context_clock`].
    #[must_use]
    pub fn on_context_clock(mut self) -> Self {
        self.on_context_clock = true;
        self
    }

    /// The same, which others use too: see [`Harness::is_shared`].
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        (self.connect)(context).await
    }

    fn on_context_clock(&self) -> bool {
        self.on_context_clock
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn ignored(&self) -> &'static str {
        self.ignored
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("name", &self.name).finish_non_exhaustive()
    }
}
