//! 100,000 held leases: memory in proportion, and not a thread or task more.

use leasehold_bench::alloc::{self, Counting};
use leasehold_bench::held::{BYTES_MAX, GROWTH_MAX, LEASES, cost, renewal_allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, so that nobody else allocates meanwhile.
#[test]
fn a_held_lease_takes_at_most_a_kibibyte_and_no_thread() {
    assert!(alloc::is_counting());
    let cost = cost(LEASES).expect("memory leases");
    println!("{cost:?}");
    assert!(cost.bytes_per_lease >= 64.0, "nothing was counted: {cost:?}");
    assert!(cost.bytes_per_lease <= BYTES_MAX, "{cost:?}");
    assert_eq!((cost.threads_added, cost.tasks_added), (0, 0), "{cost:?}");

    let (few, many) =
        (renewal_allocations(1_000).expect("renewed"), renewal_allocations(50_000).expect("renewed"));
    println!("allocations of a renewal: {few:.3} among 1,000, {many:.3} among 50,000");
    assert!(few > 0.0, "nothing was counted");
    assert!(many <= few * GROWTH_MAX, "{few} and {many}");
}
