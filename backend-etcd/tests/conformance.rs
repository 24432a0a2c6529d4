//! The suite on a single etcd server.

mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::plain);
