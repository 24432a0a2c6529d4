//! Generated parts of the pages.
//!
//! What a page states as a fact about the program (exit codes, options, profiles) stands between two
//! marks and is the output of a command:
//!
//! ```text
//! <!-- generated: leasehold explain --markdown -->
//! …the output, as Markdown…
//! <!-- /generated -->
//! ```
//!
//! `<!-- generated as text: … -->` puts the output into a fenced block. The command is the program of
//! this workspace, or a `cargo` call.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::Scratch;

use crate::cargo::{Cargo, root};
use crate::leftovers::Marked;
use crate::{Outcome, pages};

const OPEN: &str = "<!-- generated: ";
const OPEN_TEXT: &str = "<!-- generated as text: ";
const CLOSE: &str = "<!-- /generated -->";
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn command(args: &[&str]) -> Outcome {
    let check = match args {
        [] => false,
        ["--check"] => true,
        _ => return Err(crate::USAGE.to_owned()),
    };
    let mark = Marked::new("docs");
    let parts = run(check, &mark, Instant::now() + LIMIT)?;
    println!("{parts} generated parts {}", if check { "are up to date" } else { "written" });
    mark.check()
}

/// Writes all generated parts, or only compares them; returns how many there are.
///
/// # Errors
/// With `check`, the page that differs.
pub(crate) fn run(check: bool, mark: &Marked, until: Instant) -> Result<usize, String> {
    let bin = pages::program(mark, until)?;
    let mut parts = 0;
    for page in pages::all() {
        let place = pages::short(&page);
        let text = std::fs::read_to_string(&page).map_err(|e| format!("{place}: {e}"))?;
        let (fresh, found) = regenerate(&text, |command| output(command, &bin))
            .map_err(|message| format!("{place}: {message}"))?;
        parts += found;
        if fresh == text {
            continue;
        }
        if check {
            return Err(format!("{place} is out of date: run `cargo xtask docs` and commit the result"));
        }
        std::fs::write(&page, fresh).map_err(|e| format!("{place}: {e}"))?;
        println!("{place}: written");
    }
    Ok(parts)
}

/// The page with every generated part made anew.
fn regenerate(
    text: &str,
    mut generate: impl FnMut(&str) -> Result<String, String>,
) -> Result<(String, usize), String> {
    let (mut out, mut found) = (String::new(), 0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += line;
        out.push('\n');
        let (command, fenced) = match (line.strip_prefix(OPEN), line.strip_prefix(OPEN_TEXT)) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => continue,
        };
        let command = command.strip_suffix(" -->").ok_or(format!("unclosed mark: {line}"))?;
        let body = generate(command)?;
        let fence = if fenced { "```" } else { "" };
        let open = if fenced { "```text\n" } else { "\n" };
        out += &format!("{open}{}\n{fence}\n{CLOSE}\n", body.trim_end());
        if !lines.by_ref().any(|line| line == CLOSE) {
            return Err(format!("{CLOSE} is missing after {line}"));
        }
        found += 1;
    }
    if !text.ends_with('\n') {
        out.pop();
    }
    Ok((out, found))
}

fn output(command: &str, bin: &Path) -> Result<String, String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.split_first() {
        Some((&"cargo", [subcommand, rest @ ..])) => {
            Cargo::new(subcommand).args(rest.iter().copied()).output()
        }
        Some((&"leasehold", rest)) => {
            let home = Scratch::new();
            let out = Command::new(bin.join("leasehold"))
                .args(rest)
                .current_dir(root())
                // Nothing of the machine may show on a page.
                .env_clear()
                .env("HOME", home.path())
                .env("COLUMNS", "100")
                .stdin(Stdio::null())
                .output()
                .map_err(|e| format!("{command}: {e}"))?;
            if out.status.success() {
                Ok(String::from_utf8_lossy(&out.stdout).into_owned())
            } else {
                Err(format!("{command} failed: {}", String::from_utf8_lossy(&out.stderr)))
            }
        }
        _ => Err(format!("{command:?} is neither the program nor cargo")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_replaced_and_the_rest_is_kept() {
        let page = "a\n<!-- generated: leasehold x -->\nold\nolder\n<!-- /generated -->\nb\n\
                    <!-- generated as text: leasehold y -->\n<!-- /generated -->\nc";
        let (fresh, found) = regenerate(page, |command| Ok(format!("out of {command}\n"))).expect("legal");
        assert_eq!(found, 2);
        assert_eq!(
            fresh,
            "a\n<!-- generated: leasehold x -->\n\nout of leasehold x\n\n<!-- /generated -->\nb\n\
             <!-- generated as text: leasehold y -->\n```text\nout of leasehold y\n```\n<!-- /generated -->\nc"
        );
        assert_eq!(regenerate(&fresh, |c| Ok(format!("out of {c}"))).expect("legal").0, fresh);
        assert!(regenerate("<!-- generated: x -->\nrest", |_| Ok(String::new())).is_err());
    }
}
