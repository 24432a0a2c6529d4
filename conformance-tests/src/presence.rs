//! The store as it presents itself, connected once before the cases.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{LeaseBackend, Watchdog};

use crate::limited::limited;
use crate::{Case, Factory, Harness};

/// A connection that no case uses: what the store declares, and hence which cases it skips.
pub(crate) struct Presence {
    pub(crate) harness: Arc<dyn Harness>,
    /// Or why there is none; then every case fails by it.
    pub(crate) backend: Result<Arc<dyn LeaseBackend>, String>,
    _watchdog: Option<Watchdog>,
}

/// What a harness says of itself before anybody connects.
pub(crate) struct Said {
    pub(crate) harness: Arc<dyn Harness>,
    pub(crate) unavailable: Option<String>,
}

/// Makes a harness and, unless only names are wanted, asks it whether the store is there. Both are
/// the harness's own code: they may hang or panic.
///
/// # Errors
/// Why there is no harness.
pub(crate) fn introduced(factory: &Factory, names_only: bool, limit: Duration) -> Result<Said, String> {
    let factory = Arc::clone(factory);
    let said = limited("harness", limit, move || {
        let harness: Arc<dyn Harness> = Arc::from(factory());
        let unavailable = if names_only { None } else { harness.unavailable() };
        Said { harness, unavailable }
    });
    said.map_err(|stop| stop.why)
}

impl Presence {
    /// Connects, for `limit` at most.
    pub(crate) fn of(harness: Arc<dyn Harness>, limit: Duration) -> Self {
        let connecting = Arc::clone(&harness);
        let connected = limited("first connect", limit, move || {
            let watchdog = Watchdog::start().map_err(|e| e.to_string())?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| e.to_string())?;
            let backend = runtime.block_on(connecting.connect(watchdog.context()));
            Ok((backend.map_err(|e| e.to_string())?, watchdog))
        });
        match connected {
            Ok(Ok((backend, watchdog))) => {
                Presence { harness, backend: Ok(backend), _watchdog: Some(watchdog) }
            }
            Ok(Err(why)) => Presence { harness, backend: Err(why), _watchdog: None },
            Err(stop) => {
                let why =
                    format!("the first `Harness::connect` {}", stop.why.replacen("still", "was still", 1));
                Presence { harness, backend: Err(why), _watchdog: None }
            }
        }
    }

    /// Why a case is skipped here.
    pub(crate) fn skips(&self, case: &Case) -> Option<String> {
        let backend = self.backend.as_ref().ok()?;
        case.needs.iter().find_map(|need| need.met(&*self.harness, &**backend).err())
    }
}
