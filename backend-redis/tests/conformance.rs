//! The suite on a plain Redis server.

mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::plain);
