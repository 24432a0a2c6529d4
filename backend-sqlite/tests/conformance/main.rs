//! The suite on a SQLite file.

mod harness;

use leasehold_conformance::conformance_main;

conformance_main!(harness::Sqlite::default);
