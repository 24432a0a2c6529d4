//! What the program says while it runs: lines for people, or one JSON object per event, on stderr.
//!
//! Talking never decides about a lease: a line that stderr does not take within a moment (a full
//! pipe, a stopped terminal, nobody there) is dropped.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::{Contention, LeaseName, LeaseState, LostCause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use crate::duration::show;

/// How long a line waits for stderr.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How much is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    quiet: bool,
    verbose: bool,
    json: bool,
    terminal: bool,
}

/// Who needs to hear a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Why the program fails: always said.
    Error,
    /// What somebody must know: said unless quiet.
    Warning,
    /// What a person at the terminal wants to know.
    Progress,
    /// Said with -v.
    Detail,
}

impl Talk {
    pub(crate) fn new(quiet: bool, verbose: bool, json: bool) -> Self {
        Talk { quiet, verbose, json, terminal: std::io::stderr().is_terminal() }
    }

    /// Says one thing: `event` and `fields` to machines, `line` to people.
    pub(crate) fn say(&self, weight: Weight, event: &str, fields: Value, line: fmt::Arguments<'_>) {
        if self.json {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = crate::show::rfc3339(crate::show::millis(now));
            let mut object =
                Map::from_iter([("event".to_owned(), json!(event)), ("at".to_owned(), json!(at))]);
            if let Value::Object(fields) = fields {
                object.extend(fields);
            }
            write_line(&Value::Object(object).to_string());
        } else if self.wants(weight) {
            write_line(&format!("leasehold: {line}"));
        }
    }

    fn wants(&self, weight: Weight) -> bool {
        match weight {
            Weight::Error => true,
            Weight::Warning => !self.quiet,
            Weight::Progress => !self.quiet && (self.verbose || self.terminal),
            Weight::Detail => !self.quiet && self.verbose,
        }
    }

    /// Who is waited for. Said once for each holder seen.
    pub(crate) fn waiting(&self, name: &LeaseName, seen: &Contention) {
        let fields = json!({
            "lease": name.as_str(),
            "holder": seen.holder.as_ref().map(crate::show::holder_json),
            "remaining_ms": seen.remaining.map(crate::show::millis),
        });
        if is_held_around_us(name, seen) {
            self.say(
                Weight::Warning,
                "waiting",
                fields,
                format_args!(
                    "waiting for {name:?}, which is held by the run that this command is part of: it cannot end before this one does. Use the lease that is held (LEASEHOLD_TOKEN), or another name"
                ),
            );
            return;
        }
        self.say(
            Weight::Progress,
            "waiting",
            fields,
            format_args!("waiting for {name:?}, {}", held_by(seen)),
        );
    }
}

/// Whether the holder is the run whose command started this program.
fn is_held_around_us(name: &LeaseName, seen: &Contention) -> bool {
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|found| found == value);
    seen.holder.as_ref().is_some_and(|holder| {
        is("LEASEHOLD_NAME", name.as_str()) && is("LEASEHOLD_OWNER", &holder.fingerprint)
    })
}

/// Who holds a name, since when, and for how long at most: the end of a sentence.
pub(crate) fn held_by(seen: &Contention) -> String {
    let mut text = match &seen.holder {
        None => "kept free of holders".to_owned(),
        Some(holder) => {
            let label = match holder.info.label() {
                "" => String::new(),
                label => format!("{label} "),
            };
            let since = match holder.acquired_unix_ms {
                Some(ms) => format!(" since {}", crate::show::rfc3339(ms)),
                None => String::new(),
            };
            format!("held by {label}(#{}){since}", holder.fingerprint)
        }
    };
    if let Some(remaining) = seen.remaining {
        // Nobody can renew what nobody holds.
        let unless = if seen.holder.is_some() { " unless renewed" } else { "" };
        text.push_str(&format!(", for {} at most{unless}", show(remaining)));
    }
    text
}

/// A state of a lease in words, with the durations that were measured cut short.
pub(crate) fn in_words(state: &LeaseState) -> String {
    match state {
        LeaseState::Lost(LostCause::Paused { paused }) => {
            format!("lost: the process was paused for {}, longer than the lease had left", show(*paused))
        }
        LeaseState::AtRisk { remaining } => {
            format!("at risk: lost in {} unless a renewal succeeds", show(*remaining))
        }
        state => state.to_string(),
    }
}

/// Writes one line to stderr if it takes it soon. Errors have nowhere to go.
pub(crate) fn write_line(line: &str) {
    let stderr = std::io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if matches!(poll(&mut ready, Some(&PATIENCE)), Ok(n) if n > 0) {
        let _ = stderr.lock().write_all(format!("{line}\n").as_bytes());
    }
}
