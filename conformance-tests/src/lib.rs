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
mod model;
mod node;
mod presence;
mod recorded;
mod report;
mod run;
mod seed;
mod shipped;
mod starved;
mod store;
mod suite;
mod table;

pub use bench::Bench;
pub use case::{Case, CaseFuture, Failed, Need};
pub use faulty::{Fate, Faulty, Op, Seen};
pub use harness::{Fault, FaultInjector, Harness};
pub use node::Node;
pub use report::words;
pub use run::{Factory, Limits, main, run_case};
pub use shipped::{LEAST, Least};
pub use store::Store;
pub use suite::{Cleaned, Outcome, Row, Suite};
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

#[cfg(test)]
mod readme {
    /// The example is run as it stands, under another name, by the test `real_time`.
    #[test]
    fn example_is_the_test_that_is_run() {
        let (readme, test) = (include_str!("../README.md"), include_str!("../tests/real_time.rs"));
        let code = &test[test.find("use std").expect("code after the module's docs")..];
        let code = code.replace("real_time", "my_store").replace("memory-real-time", "my-store");
        assert!(readme.contains(&format!("```rust,no_run\n{code}```\n")), "the README's example differs");
        let list = include_str!("../tests/ignored.txt");
        assert!(readme.contains(&format!("```text\n{list}```\n")), "the README's list differs");
    }
}
