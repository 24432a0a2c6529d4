//! The suite on a memory backend that declares as little as a store may: what the others are only
//! asked to keep is asked here to be refused.

#[path = "plain/harness.rs"]
mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::Plain::default);
