//! The suite on an etcd server with TLS, client certificates, and a user who may do the least that is needed.

mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::tls);
