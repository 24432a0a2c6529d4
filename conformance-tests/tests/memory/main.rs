//! The suite on the memory backend.

mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::Memory::default);
