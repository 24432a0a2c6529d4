//! An uncontended acquire or release in SQLite is one statement: one round to the store.

use leasehold_bench::sqlite::{Leases, STATEMENTS_MAX};
use leasehold_testkit::Scratch;

#[test]
fn a_pair_sends_two_statements() {
    let scratch = Scratch::new();
    let runtime = leasehold_bench::memory::runtime().expect("a runtime");
    let statements = runtime.block_on(async {
        let leases = Leases::open(&scratch.join("leases.db")).await.expect("a file");
        leases.statements_per_pair(50).await.expect("granted and released")
    });
    assert!(statements >= 1.0, "nothing was counted: {statements}");
    assert!(statements <= STATEMENTS_MAX, "{statements}");
}
