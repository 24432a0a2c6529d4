//! The suite on the memory backend in real time, without hooks: the README's example, which a test of
//! the library compares with this file.

use std::sync::Mutex;

use leasehold_conformance::{Store, conformance_main};
use leasehold_core::{BackendContext, MemoryBackend};

/// One store for a case, made by whoever connects first.
fn real_time() -> Store {
    let first: Mutex<Option<MemoryBackend>> = Mutex::default();
    let connect = move |context: BackendContext| {
        let mut first = first.lock().expect("nobody panics under it");
        let store = first.get_or_insert_with(|| MemoryBackend::new(context.clone()));
        let client = store.shared_with(context);
        async { Ok(client) }
    };
    let ignored = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ignored.txt"));
    Store::new("memory-real-time", connect).ignoring(ignored)
}

conformance_main!(real_time);
