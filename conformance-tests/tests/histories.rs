//! The checker is proven by histories made by hand: what happened in the field and must be found, and
//! what may happen and must pass.
//!
//! Each file says in its first lines what it models; a bad one names the rule that finds it, and no other
//! rule may. All are read twice: as they stand, and through the JSON lines that programs record.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use leasehold_conformance::checker::{Bounds, Property, Verdict, judge};
use leasehold_conformance::history::{Event, History};

fn files(folder: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/histories").join(folder);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("the folder is there")
        .map(|entry| {
            let path = entry.expect("readable").path();
            let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("text"))
        })
        .collect();
    files.sort();
    files
}

/// Judged as text and as JSON lines: both say the same.
fn judged(name: &str, text: &str) -> Verdict {
    let history = History::from_text(text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let verdict = judge(&history, Bounds::default());
    let ends = history.operations.iter().flat_map(|op| [Some(&op.invoke), op.end.as_ref()]);
    let events: Vec<&Event> = ends.flatten().chain(&history.moments).collect();
    let lines: String = events.iter().map(|event| event.to_line() + "\n").collect();
    let again = History::read(lines.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(judge(&again, Bounds::default()), verdict, "{name} is judged otherwise as JSON lines");
    let comment = text.lines().filter(|line| line.starts_with("# ") && !line.starts_with("# rule:"));
    assert!(comment.count() >= 1, "{name} does not say what it models");
    verdict
}

#[test]
fn bad_histories_are_found_by_the_rule_that_they_name() {
    let files = files("bad");
    assert!(files.len() >= 12, "{} bad histories", files.len());
    let mut rules = BTreeSet::new();
    for (name, text) in &files {
        let rule = text.lines().find_map(|line| line.strip_prefix("# rule: "));
        let rule = rule.unwrap_or_else(|| panic!("{name} names no rule"));
        let verdict = judged(name, text);
        let found: BTreeSet<Property> = verdict.violations.iter().map(|found| found.property).collect();
        let found: Vec<String> = found.iter().map(|property| format!("{property:?}")).collect();
        assert_eq!(found, [rule], "{name}: {:#?}", verdict.violations);
        rules.insert(rule);
    }
    let all = ["H1", "H2", "H3", "H4", "H5", "H6", "H7", "H9", "H11"];
    assert_eq!(rules, all.into_iter().collect(), "each rule finds something");
}

#[test]
fn good_histories_pass() {
    let files = files("good");
    assert!(files.len() >= 12, "{} good histories", files.len());
    let mut dangers = Verdict::default();
    for (name, text) in &files {
        let verdict = judged(name, text);
        assert_eq!(verdict.violations, [], "{name}");
        assert!(verdict.grants >= 1, "{name} shows nothing");
        dangers.takeovers += verdict.takeovers;
        dangers.unknown += verdict.unknown;
        dangers.stale += verdict.stale;
        dangers.cancelled += verdict.cancelled;
        dangers.losses += verdict.losses;
    }
    let Verdict { takeovers, unknown, stale, cancelled, losses, .. } = dangers;
    // Good histories without danger would prove little.
    assert!(takeovers > 3 && unknown > 2 && stale > 1 && cancelled > 0 && losses > 2, "{dangers:?}");
}

/// A million events are judged in the time that sorting takes.
#[test]
fn long_histories_are_judged_in_linear_time() {
    let of = |rounds: u64| {
        let mut text = String::new();
        for i in 0..rounds {
            let (at, owner) = (i * 10, format!("o{i}"));
            text.push_str(&format!(
                "{at}..{} {owner} acquire n token={} until={}\n{}..{} w acquire n ! holder={owner}\n\
                 {}..{} {owner} write n token={} version={i}\n{}..{} x{i} wait n ?\n{}..{} - look n holder={owner}\n\
                 {}..{} {owner} release n released\n",
                at + 1, i + 1, at + 9_000, at + 2, at + 3, at + 3, at + 4, i + 1, at + 2, at + 8, at + 4, at + 5,
                at + 6, at + 7,
            ));
        }
        History::from_text(&text).expect("well formed")
    };
    let time = |history: &History| {
        let started = std::time::Instant::now();
        let verdict = judge(history, Bounds::default());
        assert_eq!(verdict.violations, []);
        started.elapsed()
    };
    let (short, long) = (of(2_000), of(20_000));
    // The best of three each, on a machine that does other things too.
    let best = |history| (0..3).map(|_| time(history)).min().expect("three");
    let (short, long) = (best(&short), best(&long));
    // Ten times the events: a quadratic checker would take a hundred times as long.
    assert!(long < short * 40, "{short:?} for 2,000 rounds and {long:?} for 20,000");
}
