//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold::{LeaseName, Token};
use rustix::process::Signal;

use crate::duration::{parse, parse_positive};
use crate::exit;

/// Run any command under a lease, and look after leases.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = exit::help_section()
)]
pub(crate) struct Cli {
    /// Store: a URL (sqlite:///var/lib/leases.db) or a name from a configuration file [env: LEASEHOLD_STORE]
    #[arg(long, global = true, value_name = "URL-OR-NAME")]
    pub(crate) store: Option<String>,

    /// How long one operation of the store may take
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_positive, default_value = "5s")]
    pub(crate) op_timeout: Duration,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lease, and stop it before the lease can be somebody else's
    Run(Box<RunArgs>),
    /// List the names that are taken
    List(ListArgs),
    /// Show one name: who holds it, with which token, for how long
    Inspect(InspectArgs),
    /// End somebody's grant, compared by its token or its holder
    ForceRelease(ForceReleaseArgs),
    /// Inside a job: is the lease still held with this token?
    Check(CheckArgs),
    /// Record a token as the highest seen; refuse a smaller one
    Fence(FenceArgs),
    /// Make the store's schema where it is missing
    Init,
    /// Look after the epoch of the fencing tokens
    #[command(subcommand)]
    Epoch(EpochCommand),
    /// Judge a store: run the suite of cases against it, under names of its own, and clean up
    Conformance(ConformanceArgs),
    /// Explain an exit code, by number or name
    Explain {
        /// A number, or a name such as `lost`
        code: String,
    },
}

/// What can be done with the epoch.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum EpochCommand {
    /// Lift every later token above everything that was ever granted: after the store was restored
    /// from a copy, or has lost data
    Raise,
}

/// What the command's process tree gets when the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// The first signal, and SIGKILL after --kill-after; both before the deadline
    Terminate,
    /// SIGKILL
    Kill,
    /// Only a warning is printed: the command runs on without a lease
    Warn,
}

#[derive(Debug, Args)]
#[command(after_help = exit::help_section())]
pub(crate) struct RunArgs {
    /// Fail at once when the lease is taken
    #[arg(short = 'n', long, aliases = ["nonblock", "nb"], conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Give up after this time; 0 is --no-wait. A bare number is in seconds [default: wait for ever]
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DURATION", value_parser = parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Exit code when the lease is taken, or the wait is over
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::TABLE[5].code)]
    pub(crate) conflict_exit_code: u8,

    /// Run STRING through $SHELL -c (default /bin/sh)
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "argv")]
    pub(crate) shell_command: Option<OsString>,

    /// How long the store keeps the name without a renewal
    #[arg(long, value_name = "DURATION", value_parser = parse_positive, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// Longest hold: then the command is stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_positive, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Shortest hold: the name stays taken so long even if the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = parse, default_value = "0", allow_hyphen_values = true)]
    pub(crate) min_hold: Duration,

    /// Time between the first signal and SIGKILL [default: 5s, at most a sixth of the ttl]
    #[arg(short = 'k', long, value_name = "DURATION", value_parser = parse, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,

    /// First signal to the command when the lease is lost
    #[arg(short = 's', long, value_name = "SIGNAL", value_parser = signal, default_value = "TERM")]
    pub(crate) signal: Signal,

    /// What happens to the command when the lease is lost
    #[arg(long, value_enum, default_value = "terminate")]
    pub(crate) on_lost: OnLost,

    /// Who holds the lease, for others to see [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner: Option<String>,

    /// More about the holder; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) meta: Vec<(String, String)>,

    /// Say nothing but errors
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// One JSON object per event on stderr; stdout belongs to the command
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lease
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LeaseName,

    /// The command and its arguments, left alone from its first word on
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "shell_command")]
    pub(crate) argv: Vec<OsString>,
}

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns for people
    Table,
    /// JSON: tokens as strings, times in RFC 3339, durations in `*_ms`
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that begin so
    #[arg(value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,
    /// Output
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Name of the lease
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LeaseName,
    /// Output
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("compared").required(true).args(["token", "holder"]))]
pub(crate) struct ForceReleaseArgs {
    /// Name of the lease
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LeaseName,
    /// End it only if this is its token
    #[arg(long, value_name = "N", value_parser = token)]
    pub(crate) token: Option<Token>,
    /// End it only if this is its holder's fingerprint (eight digits, see `inspect`)
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    pub(crate) holder: Option<String>,
    /// Why; the old holder is told
    #[arg(long, value_name = "TEXT", value_parser = line)]
    pub(crate) reason: String,
    /// Who [default: user@host]
    #[arg(long, value_name = "TEXT", value_parser = line)]
    pub(crate) by: Option<String>,
    /// How long the name stays taken all the same
    #[arg(long, value_name = "DURATION", value_parser = parse, default_value = "0", allow_hyphen_values = true)]
    pub(crate) keep_for: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = exit::help_section())]
pub(crate) struct ConformanceArgs {
    /// Only cases whose names contain this, such as `mutex/`
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// How many cases run at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) threads: u8,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Name of the lease [env: LEASEHOLD_NAME]
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<LeaseName>,
    /// Its token [env: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "T", value_parser = token)]
    pub(crate) token: Option<Token>,
    /// Say nothing, only end with the code
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// Name of the guarded thing, usually the lease's
    #[arg(value_name = "NAME", value_parser = name)]
    pub(crate) name: LeaseName,
    /// The token presented [env: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "T", value_parser = token)]
    pub(crate) token: Option<Token>,
    /// Say nothing, only end with the code
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

fn name(text: &str) -> Result<LeaseName, String> {
    text.parse::<LeaseName>().map_err(|e| e.to_string())
}

pub(crate) fn token(text: &str) -> Result<Token, String> {
    text.parse::<Token>().map_err(|e| e.to_string())
}

fn fingerprint(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix('#').unwrap_or(text).to_ascii_lowercase();
    if digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(digits)
    } else {
        Err("a fingerprint has eight hexadecimal digits: `leasehold inspect NAME` shows it".to_owned())
    }
}

/// A text of one line: what is written into records and logs must not forge lines of them.
fn line(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it must not be empty".to_owned());
    }
    if text.len() > 512 {
        return Err("it has at most 512 bytes".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("it must not hold control characters".to_owned());
    }
    Ok(text.to_owned())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Signals that may be named, in the order of their numbers.
const SIGNALS: [(&str, Signal); 11] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("TSTP", Signal::TSTP),
];

/// The name of a signal, without SIG, or its number.
pub(crate) fn signal_name(number: i32) -> String {
    match SIGNALS.iter().find(|(_, signal)| signal.as_raw() == number) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

fn signal(text: &str) -> Result<Signal, String> {
    let word = text.to_ascii_uppercase();
    let word = word.strip_prefix("SIG").unwrap_or(&word);
    let number = word.parse::<i32>().ok();
    let endings = SIGNALS.iter().filter(|(_, signal)| !matches!(*signal, Signal::CONT | Signal::TSTP));
    endings
        .clone()
        .find(|(name, signal)| *name == word || Some(signal.as_raw()) == number)
        .map(|(_, signal)| *signal)
        .ok_or_else(|| {
            let names: Vec<&str> = endings.map(|(name, _)| *name).collect();
            format!("no signal that ends a command; there are {}", names.join(", "))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words = ["leasehold", "run"].into_iter().chain(words.iter().copied());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        assert_eq!(exit::TABLE[5].exit, exit::Exit::Busy);
    }

    #[test]
    fn what_follows_the_first_word_of_the_command_is_left_alone() {
        for words in [
            &["-n", "job", "cmd", "-v", "--json", "--", "-n"][..],
            &["-n", "job", "--", "cmd", "-v", "--json", "--", "-n"],
            &["job", "-n", "cmd", "-v", "--json", "--", "-n"],
            &["job", "-n", "--", "cmd", "-v", "--json", "--", "-n"],
        ] {
            let run = run(words).expect("legal");
            assert_eq!(run.argv, ["cmd", "-v", "--json", "--", "-n"], "{words:?}");
            assert_eq!((run.verbose, run.json, run.no_wait, run.name.as_str()), (0, false, true, "job"));
        }
        let dashed = run(&["--", "--job", "-x"]).expect("legal");
        assert_eq!((dashed.name.as_str(), dashed.argv), ("--job", vec!["-x".into()]));
        let shell = run(&["job", "-c", "exit 7"]).expect("legal");
        assert_eq!(shell.shell_command, Some("exit 7".into()));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            &["job"][..],
            &[],
            &["", "cmd"],
            &["a\nb", "cmd"],
            &["-n", "-w", "3", "job", "cmd"],
            &["-w", "nan", "job", "cmd"],
            &["-w", "-1", "job", "cmd"],
            &["-w", "", "job", "cmd"],
            &["--ttl", "0", "job", "cmd"],
            &["--ttl", "inf", "job", "cmd"],
            &["-E", "256", "job", "cmd"],
            &["-E", "-1", "job", "cmd"],
            &["-s", "STOP", "job", "cmd"],
            &["-q", "-v", "job", "cmd"],
            &["--meta", "x", "job", "cmd"],
            &["--frobnicate", "job", "cmd"],
            &["-c", "true", "job", "cmd"],
        ] {
            assert!(run(words).is_err(), "{words:?} was taken");
        }
        assert_eq!(run(&["-s", "sigint", "j", "c"]).expect("legal").signal, Signal::INT);
        assert_eq!(run(&["-s", "9", "j", "c"]).expect("legal").signal, Signal::KILL);
        assert!(run(&["--nb", "j", "c"]).expect("legal").no_wait);
        assert_eq!(run(&["--timeout", "2m", "j", "c"]).expect("legal").wait, Some(Duration::from_secs(120)));
    }
}
