//! A store that keeps no names, changes no ttl, and renews one grant a call.

use std::sync::{Arc, Mutex};

use leasehold_conformance::Harness;
use leasehold_core::{
    BackendContext, BackendError, Declared, LeaseBackend, MemoryBackend, Profile, TtlChange, async_trait,
};

#[derive(Default)]
pub(crate) struct Plain(Mutex<Option<MemoryBackend>>);

fn profile() -> Profile {
    let mut profile = MemoryBackend::PROFILE.with_keep_for(Declared::No).with_batch_max(1);
    profile.name = "memory-plain";
    profile.ttl_change = TtlChange::Refused;
    profile
}

#[async_trait]
impl Harness for Plain {
    fn name(&self) -> &'static str {
        "memory-plain"
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        let mut store = self.0.lock().expect("no case panics in here");
        let store = store.get_or_insert_with(|| MemoryBackend::declaring(profile(), context.clone()));
        Ok(Arc::new(store.shared_with(context)))
    }

    fn on_context_clock(&self) -> bool {
        true
    }

    fn ignored(&self) -> &'static str {
        include_str!("../../ignored/memory-plain.txt")
    }
}
