//! What the suite asks of a store: how to connect, and how to break it.

use std::sync::Arc;

use leasehold_core::{BackendContext, BackendError, LeaseBackend, LeaseName, async_trait};

/// A store to be judged. A value of it is made for every case, so that a store in memory or in a
/// file of its own is empty then; a shared server is not, and names are fresh for every case.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The first part of every case's name: `memory`, `redis-cluster`, …
    fn name(&self) -> &'static str;

    /// A client of the store. Two calls give independent clients of one store, as two processes
    /// would have.
    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError>;

    /// Why the store is not there, with the command or variable that gives it: every case is then
    /// ignored for this reason, unless `LEASEHOLD_REQUIRE` names the harness.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Whether every expiry of the store follows [`BackendContext::now`]. Then time is virtual: the
    /// suite moves a manual clock instead of waiting.
    fn on_context_clock(&self) -> bool {
        false
    }

    /// Whether others use the store too. Then cases keep to names of their own, and those that change
    /// what holds for all names are ignored.
    fn is_shared(&self) -> bool {
        false
    }

    /// How to break the store; without it the cases that need a fault are ignored.
    fn fault(&self) -> Option<&dyn FaultInjector> {
        None
    }

    /// The checked-in list of cases that are ignored here, one `area/case` a line, `#` for comments.
    /// A case that is skipped and not listed fails, and so does a listed one that is not skipped.
    fn ignored(&self) -> &'static str {
        ""
    }
}

/// A fault that a store may know how to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The record of one name is gone, behind the backend's back.
    LoseRecord,
    /// The record of one name holds something that leasehold did not write.
    CorruptRecord,
    /// The next acquire, renewal or release that has to do with one name is applied by the store, and
    /// its reply never reaches the backend: a connection that broke in between.
    LoseNextReply,
}

/// Breaks a store on purpose.
#[async_trait]
pub trait FaultInjector: Send + Sync {
    /// Whether this fault can be had, or why not.
    ///
    /// # Errors
    /// The reason, for the list of ignored cases.
    fn offers(&self, fault: Fault) -> Result<(), &'static str>;

    /// Brings the fault about, for one name. Only called for what is offered.
    ///
    /// # Errors
    /// What went wrong: the case fails by it.
    async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), String>;
}
