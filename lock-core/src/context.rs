//! What a backend gets from the watchdog it works for.

use std::fmt;
use std::sync::Arc;

use crate::timers::{Sleep, TimerHandle};
use crate::{BootTime, Clock};

/// The clock, the timers and the I/O runtime of a watchdog, for backends, waiters and combinators.
///
/// Weak: holding it keeps no thread alive. Once the watchdog has stopped, sleeps end at once and
/// tasks are no longer run.
#[derive(Clone)]
pub struct BackendContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timers: TimerHandle,
    pub(crate) io: tokio::runtime::Handle,
}

impl BackendContext {
    /// The clock that deadlines are counted on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The boot clock now.
    pub fn now(&self) -> BootTime {
        self.clock.now()
    }

    /// Completes when the boot clock has reached `at`. Follows a manual clock, and counts suspend,
    /// which the timers of the runtime do not.
    pub fn sleep_until(&self, at: BootTime) -> Sleep {
        self.timers.sleep_until(at)
    }

    /// The runtime of the I/O thread: connections that renewals use are opened and driven here, so
    /// that blocking every worker of the user's runtime does not cut them off.
    pub fn io(&self) -> &tokio::runtime::Handle {
        &self.io
    }
}

impl fmt::Debug for BackendContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendContext").field("clock", &self.clock).finish_non_exhaustive()
    }
}
