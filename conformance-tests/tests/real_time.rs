//! The suite on the memory backend in real time, without hooks: the README's example, which a test of
//! the library compares with this file.

use std::sync::{Arc, Mutex};

use leasehold_conformance::{Harness, conformance_main};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, MemoryBackend, async_trait};

/// One store for a case, made by whoever connects first.
#[derive(Default)]
struct RealTime(Mutex<Option<MemoryBackend>>);

#[async_trait]
impl Harness for RealTime {
    fn name(&self) -> &'static str {
        "memory-real-time"
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        let mut store = self.0.lock().expect("nobody panics under it");
        let store = store.get_or_insert_with(|| MemoryBackend::new(context.clone()));
        Ok(Arc::new(store.shared_with(context)))
    }

    fn on_context_clock(&self) -> bool {
        false // cases really wait; true where every expiry follows the clock of `context`
    }

    fn ignored(&self) -> &'static str {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ignored.txt"))
    }
}

conformance_main!(RealTime::default);
