//! Development commands: `cargo xtask COMMAND`.
//!
//! | command | what it does |
//! |---|---|
//! | `test` | everything that must pass before a change lands, part by part, each within its budget |
//! | `docs` | writes the generated parts of the pages anew; `--check` only compares |
//! | `bench` | the measurements, beside the raw client |
//!
//! `test` installs the few system packages it needs where they are missing and it may, names what it
//! cannot install, runs every part under a time limit, and looks after each part for processes that
//! the part left behind.

mod cargo;
mod docs;
mod features;
mod leftovers;
mod needs;
mod pages;
mod readme;
mod table;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  test [--quick] [--all-setups] [PART...]
                      run all parts of the test run, or those named (--list shows them)
      --quick         leave out the slow parts, and shorten the campaigns in the others
      --all-setups    run every setup of every store, not only the common one
      --list          list the parts and their budgets
  docs [--check]      write the generated parts of the pages anew, or compare them
  bench [ARG...]      measure; arguments go to the benchmark (--help lists them)
";

/// What a command gives: the message of the failure, if it failed.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let outcome = match args.first().map(String::as_str) {
        Some("test") => test::Options::parse(&rest).and_then(test::run),
        Some("docs") => docs::command(&rest),
        Some("bench") => bench(&rest),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &[&str]) -> Outcome {
    let mut cargo = cargo::Cargo::new("run").args(["--release", "--quiet", "-p", "leasehold-bench", "--"]);
    cargo = cargo.args(args.iter().copied());
    let status = cargo.command().status().map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("the benchmark failed ({status})")) }
}
