//! The `leasehold` program: run any command under a lease, and look after leases.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`] | the command line |
//! | [`config`] | which store: flag, variable, files |
//! | [`exit`] | the one table of exit codes |
//! | [`run`] | `leasehold run`: wrapper, guardian, process tree |
//! | [`admin`] | list, inspect, force-release, check, fence, init, epoch |
//! | [`conformance`] | the suite against somebody's own server |
//! | [`show`] | leases for people and for machines |

mod admin;
mod args;
mod config;
mod conformance;
mod connect;
mod duration;
mod exit;
mod run;
mod show;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use exit::{Ending, Exit};

fn main() -> ExitCode {
    // Before anything else: a guardian is small and quick to start.
    if std::env::args_os().nth(1).is_some_and(|word| word == run::guardian::WORD) {
        return run::guardian::main();
    }
    // A panic is a fault of ours and has its code; the guardian ends the command when we are gone.
    let ending = std::panic::catch_unwind(|| match Cli::try_parse() {
        Ok(cli) => dispatch(cli),
        Err(e) => refused(&e),
    })
    .unwrap_or(Ending::Own(Exit::Internal));
    if let Ending::CommandKilled(signal) = ending {
        run::signals::die_of(signal);
    }
    ExitCode::from(ending.code())
}

fn dispatch(cli: Cli) -> Ending {
    let store = cli.store.as_deref();
    match cli.command {
        Command::Run(args) => run::run(store, cli.op_timeout, *args),
        Command::Conformance(args) => conformance::run(store, cli.op_timeout, &args),
        Command::Explain { code } => match exit::explain(&code) {
            Some(text) => admin::print_line(&text),
            None => {
                run::report::write_line(&format!("leasehold: {code:?} is no exit code and no name of one"));
                Exit::Usage.into()
            }
        },
        command => admin::run(store, cli.op_timeout, command),
    }
}

/// Help and version are asked for; everything else here is a wrong command line.
fn refused(error: &clap::Error) -> Ending {
    // Nobody there to read it is no reason to fail otherwise.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() }
}
