#![doc = include_str!("../README.md")]
// Cases run by `block_on` on a thread of their own: their futures need not be `Send`.
#![allow(clippy::future_not_send)]

mod bench;
mod case;
mod cases;
pub mod checker;
mod faulty;
mod harness;
pub mod history;
mod limited;
mod node;
mod presence;
mod report;
mod run;
mod shipped;
mod starved;
mod table;

pub use bench::Bench;
pub use case::{Case, CaseFuture, Failed, Need};
pub use faulty::{Fate, Faulty, Op, Seen};
pub use harness::{Fault, FaultInjector, Harness};
pub use node::Node;
pub use report::words;
pub use run::{Factory, Limits, main, run_case};
pub use shipped::{LEAST, Least};
pub use table::CASES;

/// The `main` of a store's conformance test: takes a function that makes its [`Harness`].
///
/// The test needs `harness = false` in its `[[test]]` section.
#[macro_export]
macro_rules! conformance_main {
    ($harness:expr) => {
        fn main() -> std::process::ExitCode {
            $crate::main(|| Box::new(($harness)()))
        }
    };
}
