//! Measurements of leasehold beside what it is built on.
//!
//! Every number stands next to the raw client's, measured in the same process in turns, so that a
//! slow machine or a busy neighbour moves both: what counts is the ratio. Counts (allocations, clock
//! readings, statements, bytes) do not depend on the machine at all and are also tests.
//!
//! | part | question |
//! |---|---|
//! | [`memory`] | what a lease costs over a map under a lock, in time, allocations and clock readings |
//! | [`held`] | what 100,000 held leases cost in memory and in renewals |
//! | [`sqlite`] | what a lease costs over the two bare statements, and how many it sends |
//! | [`redis`] | what a lease costs over the bare commands, alone, among many and over a slow link; how many calls it sends; held and handed over |
//! | [`handover`] | how soon the next one has it, between tasks and between processes |

pub mod alloc;
pub mod counting_clock;
pub mod handover;
pub mod held;
pub mod machine;
pub mod memory;
pub mod place;
pub mod redis;
pub mod report;
pub mod sqlite;
pub mod stats;
