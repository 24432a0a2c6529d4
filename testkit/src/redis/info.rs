//! What a server says of itself.

use std::collections::BTreeMap;

use super::server::START_WITHIN;
use super::{RedisServer, Reply};
use crate::eventually;

/// How often a command was called: a line of `INFO commandstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStat {
    /// Calls, also those by a script.
    pub calls: u64,
    /// Time in all of them, in microseconds.
    pub usec: u64,
    /// Refused before they were run (rights, arguments, memory).
    pub rejected_calls: u64,
    /// Ended with an error.
    pub failed_calls: u64,
}

impl RedisServer {
    /// A section of `INFO`, by name.
    ///
    /// # Panics
    /// When the server cannot be asked.
    #[track_caller]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        parse_info(&self.must(["INFO", section]))
    }

    /// How often each command was called since the start or the last [`RedisServer::reset_stats`]. The
    /// names are small, with a bar before a subcommand (`script|load`); commands that a script calls are
    /// counted beside the script, and so is the question itself from the second time on.
    ///
    /// # Panics
    /// When the server cannot be asked.
    #[track_caller]
    pub fn command_stats(&self) -> BTreeMap<String, CommandStat> {
        let info = self.info("commandstats");
        let stat = |(name, line): (&String, &String)| {
            Some((name.strip_prefix("cmdstat_")?.to_owned(), parse_stat(line)))
        };
        info.iter().filter_map(stat).collect()
    }

    /// How often one command was called: see [`RedisServer::command_stats`].
    ///
    /// # Panics
    /// When the server cannot be asked.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        self.command_stats().get(command).map_or(0, |stat| stat.calls)
    }

    /// Counts from zero again (`CONFIG RESETSTAT`).
    ///
    /// # Panics
    /// When the server cannot be asked.
    #[track_caller]
    pub fn reset_stats(&self) {
        self.must(["CONFIG", "RESETSTAT"]);
    }

    /// Waits until this replica is synchronised with its primary and follows it.
    ///
    /// # Panics
    /// When it is not linked within 20 s: a first synchronisation waits for the primary's next turn.
    #[track_caller]
    pub fn wait_linked(&self) {
        eventually(START_WITHIN, "a replica is linked to its primary", || {
            (self.info("replication").get("master_link_status")? == "up").then_some(())
        });
    }
}

pub(super) fn parse_info(reply: &Reply) -> BTreeMap<String, String> {
    let text = reply.text().unwrap_or_default();
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(pair).collect()
}

fn parse_stat(line: &str) -> CommandStat {
    let mut stat = CommandStat::default();
    for (name, value) in line.split(',').filter_map(|pair| pair.split_once('=')) {
        let field = match name {
            "calls" => &mut stat.calls,
            "usec" => &mut stat.usec,
            "rejected_calls" => &mut stat.rejected_calls,
            "failed_calls" => &mut stat.failed_calls,
            _ => continue,
        };
        *field = value.parse().unwrap_or(0);
    }
    stat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_command_stats_is_read() {
        let stat = parse_stat("calls=3,usec=77,usec_per_call=25.67,rejected_calls=1,failed_calls=2");
        assert_eq!(stat, CommandStat { calls: 3, usec: 77, rejected_calls: 1, failed_calls: 2 });
        assert_eq!(parse_stat("calls=3,usec=7").rejected_calls, 0);
    }
}
