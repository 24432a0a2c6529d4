//! Exit codes: one table, from which `--help`, `leasehold explain` and the docs page come.

use std::fmt;

/// How the program ends by its own doing. The numbers are those of sysexits.h, env(1) and
/// timeout(1), out of the way of what commands use themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    Failed,
    Usage,
    Unavailable,
    Internal,
    Busy,
    Lost,
    Permission,
    Config,
    CannotExecute,
    NotFound,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) exit: Exit,
    pub(crate) code: u8,
    /// Symbolic name, as in the JSON lines: a command may use the same number.
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) advice: &'static str,
}

/// The table, by code.
pub(crate) const TABLE: [Row; 11] = [
    Row {
        exit: Exit::Ok,
        code: 0,
        name: "ok",
        meaning: "The command ran and succeeded, or the question was answered with yes.",
        advice: "Nothing to do.",
    },
    Row {
        exit: Exit::Failed,
        code: 1,
        name: "failed",
        meaning: "From `conformance`: at least one case failed. From `run` a 1 is the command's own.",
        advice: "Read what the failed cases say: the store breaks a promise, or is too slow to keep it.",
    },
    Row {
        exit: Exit::Usage,
        code: 64,
        name: "usage",
        meaning: "The command line is wrong: an unknown flag, a bad duration, an illegal lease name. Nothing was asked of the store.",
        advice: "Read the message; `leasehold help` lists the flags.",
    },
    Row {
        exit: Exit::Unavailable,
        code: 69,
        name: "unavailable",
        meaning: "The store could not be reached, or did not answer within the operation timeout. The command was not started. From `check` and `fence`: the answer is unknown.",
        advice: "Look at the store, then try again.",
    },
    Row {
        exit: Exit::Internal,
        code: 70,
        name: "internal",
        meaning: "leasehold itself failed: no threads, processes or descriptors left, /proc is missing, its guardian was killed or did not answer, or the store holds something unreadable. A command that had been started was killed. Or the command succeeded, and processes that it left could not be killed: the lease was not released, and ends within its ttl.",
        advice: "Read the message; limits (`ulimit -u`, `ulimit -n`) are the usual cause.",
    },
    Row {
        exit: Exit::Busy,
        code: 75,
        name: "busy",
        meaning: "Somebody else holds the lease: at once with --no-wait, or until the wait was over. The command was not started. Another code with -E; flock's default is 1.",
        advice: "Try again later, or wait longer.",
    },
    Row {
        exit: Exit::Lost,
        code: 76,
        name: "lost",
        meaning: "The lease was lost, or reached its longest hold, while the command ran; the command was stopped before the lease could be somebody else's (unless --on-lost warn), whatever code it ended with. From `check`, `fence` and `force-release`: the token is stale.",
        advice: "Find out why (the message says); the work may be half done.",
    },
    Row {
        exit: Exit::Permission,
        code: 77,
        name: "permission",
        meaning: "The store refuses these credentials, or they lack a right.",
        advice: "Check user, password and rights.",
    },
    Row {
        exit: Exit::Config,
        code: 78,
        name: "config",
        meaning: "Store URL, scheme, parameter or configuration file is wrong, from wherever it came, or the store cannot do what was asked.",
        advice: "Mend the URL or the file that the message names.",
    },
    Row {
        exit: Exit::CannotExecute,
        code: 126,
        name: "cannot_execute",
        meaning: "The command was found and could not be executed. The lease was released.",
        advice: "Check the file's mode and format.",
    },
    Row {
        exit: Exit::NotFound,
        code: 127,
        name: "not_found",
        meaning: "The command was not found. The lease was released.",
        advice: "Check its name and PATH.",
    },
];

impl Exit {
    pub(crate) fn row(self) -> &'static Row {
        // Every variant has its row (tested).
        TABLE.iter().find(|row| row.exit == self).unwrap_or(&TABLE[4])
    }

    pub(crate) fn code(self) -> u8 {
        self.row().code
    }
}

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By its own doing.
    Own(Exit),
    /// Busy, with the code that the caller chose.
    Busy(u8),
    /// With the command's own code.
    Command(u8),
    /// As the command did: by a signal, which is raised again.
    CommandKilled(i32),
    /// A signal came while it waited: nothing is held.
    Interrupted(i32),
}

impl Ending {
    /// The exit code, in a shell's eyes.
    pub(crate) fn code(self) -> u8 {
        match self {
            Ending::Own(exit) => exit.code(),
            Ending::Busy(code) | Ending::Command(code) => code,
            Ending::CommandKilled(signal) | Ending::Interrupted(signal) => {
                u8::try_from(128 + signal).unwrap_or(u8::MAX)
            }
        }
    }

    /// The symbolic name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ending::Own(exit) => exit.row().name,
            Ending::Busy(_) => Exit::Busy.row().name,
            Ending::Command(_) => "command",
            Ending::CommandKilled(_) => "command_killed",
            Ending::Interrupted(_) => "interrupted",
        }
    }
}

impl From<Exit> for Ending {
    fn from(exit: Exit) -> Self {
        Ending::Own(exit)
    }
}

/// A failure on its way to the user: what to say, and with which code to end.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) ending: Ending,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(ending: impl Into<Ending>, message: impl fmt::Display) -> Self {
        Failure { ending: ending.into(), message: message.to_string() }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn config(message: impl fmt::Display) -> Self {
        Self::new(Exit::Config, message)
    }
}

/// The code for a backend's kind of trouble.
pub(crate) fn of_kind(kind: leasehold::ErrorKind) -> Exit {
    use leasehold::ErrorKind as Kind;
    match kind {
        Kind::Unavailable | Kind::Timeout => Exit::Unavailable,
        Kind::PermissionDenied => Exit::Permission,
        Kind::ConfigInvalid | Kind::Unsupported => Exit::Config,
        _ => Exit::Internal,
    }
}

/// The table for `--help`.
pub(crate) fn help_section() -> String {
    let mut text = String::from("Exit codes (leasehold explain CODE tells more):\n");
    for row in &TABLE {
        text.push_str(&format!("  {:>3}  {}\n", row.code, first_sentence(row.meaning)));
    }
    text.push_str(
        "  128+N  Signal N ended the command (raised again on leasehold itself), or came while waiting.\n",
    );
    text.push_str("  Any other code is the command's own.");
    text
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").or_else(|| text.find(": ")).map_or(text, |end| &text[..end]).trim_end_matches('.')
}

/// What `leasehold explain` prints: for a code or a symbolic name.
pub(crate) fn explain(word: &str) -> Option<String> {
    let by_name = TABLE.iter().find(|row| row.name == word);
    let code: Option<u8> = word.parse().ok();
    if let Some(row) = by_name.or_else(|| TABLE.iter().find(|row| Some(row.code) == code)) {
        return Some(format!("{} ({}): {}\n{}", row.code, row.name, row.meaning, row.advice));
    }
    match code? {
        code @ 129..=192 => {
            let signal = code - 128;
            Some(format!(
                "{code} (128+{signal}): signal {signal} ended the command, and was raised again on leasehold itself; \
                 or it came while leasehold waited, and nothing was acquired."
            ))
        }
        code => Some(format!("{code}: the command's own code; leasehold has no meaning for it.")),
    }
}

/// The page docs/exit-codes.md.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut page = String::from(
        "# Exit codes of leasehold\n\nMade from the table in `cli/src/exit.rs`; a test compares the two. \
         `leasehold explain CODE` prints the same.\n\n| code | name | meaning | what to do |\n|---|---|---|---|\n",
    );
    for row in &TABLE {
        page.push_str(&format!("| {} | `{}` | {} | {} |\n", row.code, row.name, row.meaning, row.advice));
    }
    page.push_str(
        "| 128+N | `command_killed` | Signal N ended the command; leasehold raises it again on itself, without a core dump. | Look at the command. |\n\
         | 128+N | `interrupted` | Signal N came while leasehold waited: nothing was acquired. | Nothing to do. |\n\
         | other | `command` | The command's own code. | Look at the command. |\n\n\
         The JSON lines of `leasehold run --json` carry the name beside the code, because a command may use the same number.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_own_row_and_code() {
        use Exit::*;
        let all = [
            Ok,
            Failed,
            Usage,
            Unavailable,
            Internal,
            Busy,
            Lost,
            Permission,
            Config,
            CannotExecute,
            NotFound,
        ];
        assert_eq!(all.len(), TABLE.len());
        for exit in all {
            assert_eq!(TABLE.iter().filter(|row| row.exit == exit).count(), 1, "{exit:?}");
        }
        assert!(TABLE.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[test]
    fn the_docs_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exit-codes.md");
        if std::env::var_os("LEASEHOLD_BLESS").is_some() {
            std::fs::write(path, markdown()).expect("docs are writable");
        }
        let page = std::fs::read_to_string(path).expect("docs/exit-codes.md");
        assert_eq!(page, markdown(), "write it anew: LEASEHOLD_BLESS=1 cargo test -p leasehold-cli exit");
    }

    #[test]
    fn help_and_explain_come_from_the_table() {
        for row in &TABLE {
            assert!(help_section().contains(&format!("  {:>3}  ", row.code)));
            assert!(explain(row.name).expect("known").contains(row.meaning));
            assert!(explain(&row.code.to_string()).expect("known").contains(row.advice));
        }
        assert!(explain("137").expect("known").contains("signal 9"));
        assert!(explain("7").expect("known").contains("own code"));
        assert_eq!(explain("256"), None);
        assert_eq!(explain("nonsense"), None);
    }
}
