//! What one acquire and release costs, whatever the machine: a count that only grows by mistake.

use leasehold_bench::alloc::{self, Counting};
use leasehold_bench::memory::{ALLOCATIONS_MAX, READINGS_MAX, pair_cost};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Alone in its binary, so that no other test allocates meanwhile.
#[test]
fn a_pair_allocates_and_reads_the_clock_a_bounded_number_of_times() {
    assert!(alloc::is_counting());
    let cost = pair_cost(5_000).expect("a memory lease");
    println!("{cost:?}");
    assert!(cost.allocations >= 1.0, "nothing was counted: {cost:?}");
    assert!(cost.readings >= 1.0, "no clock was read: {cost:?}");
    assert!(cost.allocations_of_process <= ALLOCATIONS_MAX, "{cost:?}");
    assert!(cost.readings <= READINGS_MAX, "{cost:?}");
    // The watchdog looks at the clock when it wakes, which no pair makes it do.
    assert!(cost.readings_of_process <= READINGS_MAX + 1.0, "{cost:?}");
}
