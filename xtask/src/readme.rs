//! Transcripts in the pages are run, and must come out as they are printed.
//!
//! A fenced block marked `console` is one shell session in an empty home:
//!
//! ```text
//! $ command            run by bash; standard error is part of the output
//! expected output      … stands for any text within a line
//! …                    alone on a line: any number of lines
//! $ next command       in the same shell: variables and background jobs go on
//! ```
//!
//! A block whose first command is `cargo` runs in the top folder, every other in an empty one.
//! Rust blocks are compiled by the documentation tests of the package that includes the page.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::Scratch;

use crate::cargo::root;
use crate::leftovers::Marked;
use crate::pages;

/// A line that no command prints by itself, before the output of each command.
const SEPARATOR: &str = "\u{1}--";

/// A command and the output that the page promises.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Exchange {
    command: String,
    expected: Vec<String>,
}

/// Runs the transcripts of all pages; returns how many commands were run.
///
/// # Errors
/// The first command whose output differs, with both outputs.
pub(crate) fn run(mark: &Marked, until: Instant) -> Result<usize, String> {
    let bin = pages::program(mark, until)?;
    let mut commands = 0;
    for page in pages::all() {
        let text = std::fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
        refuse_uncompiled(&page, &text)?;
        for (line, block) in blocks(&text, "console") {
            let place = format!("{}:{line}", pages::short(&page));
            let exchanges = exchanges(&block);
            println!("{place}: {} commands", exchanges.len());
            check(&place, &exchanges, &session(&exchanges, &bin, mark, until)?)?;
            commands += exchanges.len();
        }
    }
    Ok(commands)
}

/// The top page's Rust examples must be compiled by somebody.
fn refuse_uncompiled(page: &Path, text: &str) -> Result<(), String> {
    if page != root().join("README.md") || blocks(text, "rust").is_empty() {
        return Ok(());
    }
    let facade = std::fs::read_to_string(root().join("leasehold/src/lib.rs")).unwrap_or_default();
    if facade.contains("README.md\")") {
        Ok(())
    } else {
        Err("README.md has Rust examples and no documentation test compiles them".to_owned())
    }
}

/// The fenced blocks of one language, with the line each starts at.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().map(|(_, l)| l).take_while(|l| !l.starts_with("```")).collect();
        if info.split([',', ' ']).next() == Some(language) {
            found.push((at + 1, body.join("\n")));
        }
    }
    found
}

fn exchanges(block: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => {
                found.push(Exchange { command: command.to_owned(), expected: Vec::new() });
            }
            (None, Some(last)) => match line.strip_prefix("> ").or((line == ">").then_some("")) {
                // A command goes on as long as no output came.
                Some(more) if last.expected.is_empty() => {
                    last.command.push('\n');
                    last.command.push_str(more);
                }
                _ => last.expected.push(line.trim_end().to_owned()),
            },
            (None, None) => {}
        }
    }
    found
}

/// The outputs of the commands, run in one shell.
fn session(
    exchanges: &[Exchange],
    bin: &Path,
    mark: &Marked,
    until: Instant,
) -> Result<Vec<Vec<String>>, String> {
    let home = Scratch::new();
    let (work, output) = (home.join("work"), home.join("output"));
    std::fs::create_dir(&work).map_err(|e| e.to_string())?;
    let log = std::fs::File::create(&output).map_err(|e| e.to_string())?;
    let errors = log.try_clone().map_err(|e| e.to_string())?;
    let in_root = exchanges.first().is_some_and(|e| e.command.starts_with("cargo "));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["--noprofile", "--norc", "-c", &script(exchanges)])
        .current_dir(if in_root { root() } else { &work })
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env_remove("LEASEHOLD_STORE")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        if let Some(path) = tool_home(name, folder) {
            command.env(name, path);
        }
    }
    let mut child = mark.put_on(&mut command).spawn().map_err(|e| format!("bash: {e}"))?;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(_) => break,
            None if Instant::now() >= until => {
                mark.kill_all();
                let _ = child.wait();
                return Err("a transcript ran into the hard limit".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let text = std::fs::read(&output).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let separator = format!("{SEPARATOR}\n");
    let parts = text.split(&separator).skip(1);
    Ok(parts.map(|part| part.lines().map(|l| l.trim_end().to_owned()).collect()).collect())
}

/// Cargo's and rustup's folders are found through the home, which is another one in a transcript.
fn tool_home(name: &str, folder: &str) -> Option<PathBuf> {
    let set = std::env::var_os(name).map(PathBuf::from);
    set.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(folder)))
}

/// Each command after a separator, with the exit code of the one before it kept in `$?`.
fn script(exchanges: &[Exchange]) -> String {
    let mut script = String::from("(exit 0)\n");
    for exchange in exchanges {
        script += &format!("__code=$?; printf '{SEPARATOR}\\n'; (exit $__code)\n{}\n", exchange.command);
    }
    script
}

fn check(place: &str, exchanges: &[Exchange], outputs: &[Vec<String>]) -> Result<(), String> {
    for (at, exchange) in exchanges.iter().enumerate() {
        let got = outputs.get(at).map_or(&[][..], Vec::as_slice);
        if !matches_lines(&exchange.expected, got) {
            return Err(format!(
                "{place}: $ {}\n  promised:\n    {}\n  came:\n    {}",
                exchange.command,
                exchange.expected.join("\n    "),
                got.join("\n    "),
            ));
        }
    }
    Ok(())
}

fn matches_lines(expected: &[String], got: &[String]) -> bool {
    match (expected.split_first(), got.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((line, rest)), _) if line == "…" => (0..=got.len()).any(|n| matches_lines(rest, &got[n..])),
        (Some(_), None) => false,
        (Some((line, rest)), Some((first, more))) => matches_text(line, first) && matches_lines(rest, more),
    }
}

fn matches_text(expected: &str, got: &str) -> bool {
    let Some((before, after)) = expected.split_once('…') else { return expected == got };
    let Some(rest) = got.strip_prefix(before) else { return false };
    // Every place from which the rest may match.
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches_text(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn wildcards_stand_for_text_and_for_lines() {
        assert!(matches_lines(&lines("a … c\n…\nend"), &lines("a b c\nx\ny\nend")));
        assert!(matches_lines(&lines("…\nend"), &lines("end")));
        assert!(!matches_lines(&lines("a … c"), &lines("a b d")));
        assert!(!matches_lines(&lines("a"), &lines("a\nb")));
        assert!(matches_text("token … of …", "token 17 of deploy"));
    }

    #[test]
    fn a_session_is_one_shell_and_a_difference_is_an_error() {
        let text =
            "x\n```console\n$ x=7\n$ echo $x; (exit 3)\n7\n$ echo $?\n3\n$ printf 'a\n> b\\n'\na\n…\n```\n";
        let [(line, block)] = &blocks(text, "console")[..] else { panic!("one block") };
        assert_eq!(*line, 2);
        let exchanges = exchanges(block);
        assert_eq!(exchanges.len(), 4);
        let until = Instant::now() + Duration::from_secs(60);
        let got = session(&exchanges, Path::new("/bin"), &Marked::new("session"), until).expect("bash");
        assert_eq!(check("here", &exchanges, &got), Ok(()));
        let mut wrong = exchanges.clone();
        wrong[1].expected = lines("8");
        assert!(check("here", &wrong, &got).is_err());
    }
}
