//! The suite on the example backend: all that a third party writes to have its store judged.

#[path = "../../examples/dir_backend/backend.rs"]
mod backend;

use backend::DirBackend;
use leasehold_conformance::{Store, conformance_main};

fn store() -> Store {
    let dir = tempfile::tempdir().expect("a directory");
    let connect = move |context| {
        let opened = DirBackend::open(dir.path(), context).expect("the directory is there");
        async { Ok(opened) }
    };
    Store::new("dir", connect).on_context_clock().ignoring(include_str!("ignored.txt"))
}

conformance_main!(store);
