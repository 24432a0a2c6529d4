//! The memory backend as a store to be judged.

use std::sync::{Arc, Mutex};

use leasehold_conformance::{Fault, FaultInjector, Harness};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, LeaseName, MemoryBackend, async_trait};

#[derive(Default)]
pub(crate) struct Memory(Mutex<Option<MemoryBackend>>);

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        let mut store = self.0.lock().expect("no case panics in here");
        let store = store.get_or_insert_with(|| MemoryBackend::new(context.clone()));
        Ok(Arc::new(store.shared_with(context)))
    }

    fn on_context_clock(&self) -> bool {
        true
    }

    fn fault(&self) -> Option<&dyn FaultInjector> {
        Some(self)
    }

    fn ignored(&self) -> &'static str {
        include_str!("../../ignored/memory.txt")
    }
}

#[async_trait]
impl FaultInjector for Memory {
    fn offers(&self, fault: Fault) -> Result<(), &'static str> {
        match fault {
            Fault::LoseRecord | Fault::LoseNextReply | Fault::CorruptRecord => Ok(()),
            _ => Err("nobody wrote it yet"),
        }
    }

    async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), String> {
        let store = self.0.lock().expect("no case panics in here");
        let store = store.as_ref().ok_or("nobody has connected")?;
        match fault {
            Fault::LoseNextReply => store.lose_next_reply(name),
            Fault::CorruptRecord => store.corrupt_record(name),
            _ => store.lose_record(name),
        }
        Ok(())
    }
}
