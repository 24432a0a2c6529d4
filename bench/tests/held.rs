//! 100,000 held leases: memory in proportion, and not a thread or task more.

use leasehold_bench::alloc::{self, Counting};
use leasehold_bench::held::{BYTES_MAX, LEASES, cost};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_held_lease_takes_at_most_a_kibibyte_and_no_thread() {
    assert!(alloc::is_counting());
    let cost = cost(LEASES).expect("memory leases");
    println!("{cost:?}");
    assert!(cost.bytes_per_lease >= 64.0, "nothing was counted: {cost:?}");
    assert!(cost.bytes_per_lease <= BYTES_MAX, "{cost:?}");
    assert_eq!((cost.threads_added, cost.tasks_added), (0, 0), "{cost:?}");
}
