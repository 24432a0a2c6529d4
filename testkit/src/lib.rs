//! Real processes for tests: started, frozen, killed, watched, and never left behind.
//!
//! The tests of this project that say "nothing outlives its lease" look at the operating system, not
//! at the program's own word. What they share is here:
//!
//! 1. [`Proc`] starts a program under a mark of its own (an environment variable that every
//!    descendant inherits, however often it forks or is re-parented) and ends all of them on drop.
//! 2. [`Process`] is one running process, held by a pidfd, so that a signal can never reach a
//!    stranger who got the same pid. [`processes_marked`] and [`tree_of`] find them in `/proc`.
//! 3. [`ExitWatch`] tells when a process ended, on the boot clock; [`boot_now`] is the same clock for
//!    everybody, in every process.
//! 4. [`eventually`] waits for a thing that must come true within a bound, with the reason of the
//!    bound. No test sleeps and hopes.
//! 5. [`Unprivileged`] runs a command as nobody, [`CpuHog`] takes the processor away, and
//!    [`WallClock`] steps the wall clock of a child by hours while it runs.
//! 6. [`redis`] and [`etcd`] run real servers, [`tls`] makes certificates for them, and [`proxy`] stands between them
//!    and their clients and does what networks do. A [`Port`] belongs to one test at a time.
//!
//! What can go wrong, and where it is handled:
//! * A pid is used again between look and kill: signals go through pidfds ([`Process`]).
//! * A descendant leaves its parent, session and group: the mark stays in its environment.
//! * A test panics half-way: every guard ends its processes on drop.
//! * A test is killed: the kernel ends what was started by [`Proc::spawn_tied`].
//! * Somebody else's server answers on the port of a test: see [`redis`].
//! * A frozen process does not die of TERM: guards use KILL, which needs no thaw.

mod clock;
pub mod etcd;
mod hog;
mod nobody;
mod poll;
mod port;
mod proc;
#[cfg(feature = "proxy")]
pub mod proxy;
pub mod redis;
mod scratch;
mod tied;
#[cfg(feature = "tls")]
pub mod tls;
mod tree;
mod wallclock;

pub use clock::{ExitWatch, boot_now};
pub use hog::CpuHog;
pub use nobody::{NOBODY, Unprivileged};
pub use poll::{eventually, quick};
pub use port::{Port, listeners, listens};
pub use proc::Proc;
pub use scratch::Scratch;
pub use tree::{MARK, Process, RUN_MARK, Stat, children_of, process_ids, processes_marked, stat_of, tree_of};
pub use wallclock::WallClock;
