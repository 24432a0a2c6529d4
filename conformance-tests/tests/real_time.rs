//! The suite on the memory backend in real time, without hooks: what the README's harness runs.

use std::sync::{Arc, Mutex};

use leasehold_conformance::{Harness, conformance_main};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, MemoryBackend, async_trait};

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

    fn ignored(&self) -> &'static str {
        include_str!("../ignored/memory-real-time.txt")
    }
}

conformance_main!(RealTime::default);
