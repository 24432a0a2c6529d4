//! Histories as text for people: one line an operation.
//!
//! ```text
//! # A line, or the rest of one, that begins with # is a comment.
//! 0..90    a acquire n token=1 until=190   # answered
//! 100..    a renew n                       # never answered
//! 100..130 a renew n ?                     # nobody knows
//! 100..130 b acquire n ! holder=a          # provably without effect
//! 100..130 b acquire n cancelled           # whoever asked went away
//! 120      a check n                       # a moment; with ! it says "over"
//! 200..201 - look n holder=- waiting=0     # nobody in particular looks, and sees nobody
//! ```
//!
//! Times are in milliseconds, with up to six decimals.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{Action, Event, History, HistoryError, Kind, Operation};

const NS_PER_MS: u64 = 1_000_000;

impl History {
    /// Reads the form for people.
    ///
    /// ```
    /// use leasehold_conformance::history::History;
    /// let history = History::from_text("0..10 a acquire n token=1 until=100\n20.5 a check n")?;
    /// assert_eq!((history.operations.len(), history.moments.len()), (1, 1));
    /// assert_eq!(history.moments[0].at_ns, 20_500_000);
    /// # Ok::<(), leasehold_conformance::history::HistoryError>(())
    /// ```
    ///
    /// # Errors
    /// [`HistoryError`]: nothing is judged that is not understood.
    pub fn from_text(text: &str) -> Result<Self, HistoryError> {
        History::of(events(text)?)
    }
}

/// The events of the form for people, in the order of its lines.
///
/// # Errors
/// [`HistoryError::Line`].
pub(super) fn events(text: &str) -> Result<Vec<Event>, HistoryError> {
    let mut events = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = if line.starts_with('#') { "" } else { line.split(" #").next().unwrap_or_default() };
        if line.trim().is_empty() {
            continue;
        }
        operation(i as u64, line, &mut events).map_err(|why| HistoryError::Line { line: i + 1, why })?;
    }
    Ok(events)
}

fn operation(op: u64, line: &str, events: &mut Vec<Event>) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let mut word = |what: &str| words.next().ok_or_else(|| format!("no {what}"));
    let (time, owner, action, name) = (word("time")?, word("owner")?, word("action")?, word("name")?);
    let action = Action::ALL
        .into_iter()
        .find(|known| known.word() == action)
        .ok_or_else(|| format!("no action is called {action:?}"))?;
    let owner = if owner == "-" { "" } else { owner };
    let event = |kind, at_ns| Event::new(op, kind, action, name, owner, at_ns);
    let mut end = match (time.split_once(".."), action.is_moment()) {
        (None, true) => Some(event(Kind::Ok, nanos(time)?)),
        (Some((from, to)), false) => {
            events.push(event(Kind::Invoke, nanos(from)?));
            if to.is_empty() { None } else { Some(event(Kind::Ok, nanos(to)?)) }
        }
        (None, false) => return Err(format!("{time:?} is no time from..to")),
        (Some(_), true) => return Err(format!("{time:?} is no moment")),
    };
    for field in words {
        let Some(end) = &mut end else { return Err(format!("{field:?} of what has no end")) };
        set(end, field)?;
    }
    events.extend(end);
    Ok(())
}

fn set(end: &mut Event, field: &str) -> Result<(), String> {
    match field {
        "!" => end.kind = Kind::Fail,
        "?" => end.kind = Kind::Info,
        "cancelled" => end.kind = Kind::Cancel,
        "released" => end.released = Some(true),
        "nothing" => end.released = Some(false),
        _ => {
            let (key, value) = field.split_once('=').ok_or_else(|| format!("{field:?} is no field"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{field:?} has no number"));
            match key {
                "token" => end.token = Some(number()?),
                "until" => end.until_ns = Some(nanos(value)?),
                "holder" => end.holder = (value != "-").then(|| value.to_owned()),
                "waiting" => end.waiting = Some(number()?),
                "version" => end.version = Some(number()?),
                _ => return Err(format!("no field is called {key:?}")),
            }
        }
    }
    Ok(())
}

/// Milliseconds as text, in nanoseconds.
fn nanos(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time in milliseconds");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 6 || !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
    whole.checked_mul(NS_PER_MS).and_then(|ns| ns.checked_add(part)).ok_or_else(wrong)
}

fn millis(ns: u64) -> String {
    let (whole, part) = (ns / NS_PER_MS, ns % NS_PER_MS);
    if part == 0 {
        return whole.to_string();
    }
    format!("{whole}.{part:06}").trim_end_matches('0').to_owned()
}

/// The last `most` lines of a history, in the form for people: times count from the first event, and
/// names are numbered.
pub fn excerpt(history: &History, most: usize) -> String {
    let mut lines: Vec<(super::At, &Event, Option<&Operation>)> = Vec::new();
    lines.extend(history.operations.iter().map(|op| (op.invoke.at(), &op.invoke, Some(op))));
    lines.extend(history.moments.iter().map(|moment| (moment.at(), moment, None)));
    lines.sort_by_key(|(at, ..)| *at);
    let zero = lines.first().map_or(0, |(at, ..)| at.ns);
    let shown = &lines[lines.len().saturating_sub(most)..];
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut out = format!("the last {} of {} lines of the history", shown.len(), lines.len());
    let mut body = String::new();
    for (at, event, operation) in shown {
        let next = names.len() + 1;
        let number = *names.entry(&event.name).or_insert(next);
        if number == next {
            let _ = write!(out, "\n  # n{number} is {:?}", event.name);
        }
        let _ = write!(body, "\n  {}", line(at.ns, zero, number, event, *operation));
    }
    out + &body
}

fn line(at_ns: u64, zero: u64, name: usize, event: &Event, operation: Option<&Operation>) -> String {
    let since = |ns: u64| millis(ns.saturating_sub(zero));
    let end = operation.map_or(Some(event), |operation| operation.end.as_ref());
    let time = match operation {
        None => since(at_ns),
        Some(_) => format!("{}..{}", since(at_ns), end.map_or_else(String::new, |end| since(end.at_ns))),
    };
    let owner = if event.owner.is_empty() { "-" } else { &event.owner };
    let mut out = format!("{time} {owner} {} n{name}", event.action.word());
    let Some(end) = end else { return out };
    out.push_str(match end.kind {
        Kind::Fail => " !",
        Kind::Info => " ?",
        Kind::Cancel => " cancelled",
        Kind::Ok | Kind::Invoke => "",
    });
    let mut field = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(out, " {word}={value}");
        }
    };
    field("token", end.token.map(|n| n.to_string()));
    field("until", end.until_ns.map(since));
    field("holder", end.holder.clone());
    field("waiting", end.waiting.map(|n| n.to_string()));
    field("version", end.version.map(|n| n.to_string()));
    match end.released {
        Some(true) => out.push_str(" released"),
        Some(false) => out.push_str(" nothing"),
        None => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0..90 a acquire n1 token=1 until=190\n\
                        20.5..30.000001 a renew n1 ? \n\
                        40.. b acquire n1\n\
                        50..51 c acquire n1 ! holder=a\n\
                        52..60 d acquire n1 cancelled\n\
                        61 a check n1 ! # over\n\
                        62..63 - look n1 holder=a waiting=2\n\
                        64..65 a write n1 token=1 version=7\n\
                        66..67 a release n1 until=99 released\n\
                        68..69 a release n1 nothing";

    #[test]
    fn an_excerpt_of_everything_is_the_text_again() {
        let history = History::from_text(TEXT).expect("well formed");
        let shown = excerpt(&history, 100);
        let body: Vec<String> = shown.lines().skip(2).map(|line| line.trim().to_owned()).collect();
        let lines: Vec<&str> = TEXT.lines().map(|line| line.trim().trim_end_matches(" # over")).collect();
        assert_eq!(body, lines);
        assert!(shown.starts_with("the last 10 of 10 lines of the history\n  # n1 is \"n1\""), "{shown}");
        let last = excerpt(&history, 1);
        assert!(last.ends_with("68..69 a release n1 nothing") && last.contains("last 1 of 10"), "{last}");
        assert_eq!(excerpt(&History::default(), 3), "the last 0 of 0 lines of the history");
    }

    #[test]
    fn what_is_no_line_says_where() {
        for (text, why) in [
            ("\n# x\n0..1 a acquire", "line 3 of the history is no event: no name"),
            ("0..1 a grab n", "no action is called"),
            ("5 a acquire n", "no time from..to"),
            ("5..6 a check n", "no moment"),
            ("5..6 a acquire n token", "no field"),
            ("5..6 a acquire n token=x", "has no number"),
            ("5..6 a acquire n tokens=4", "no field is called"),
            ("5.. a acquire n token=4", "has no end"),
            ("5.1234567..6 a acquire n", "no time in milliseconds"),
            ("+5..6 a acquire n", "no time in milliseconds"),
            ("18446744073710..6 a acquire n", "no time in milliseconds"),
            ("6..5 a acquire n token=1", "ends before it begins"),
        ] {
            let error = History::from_text(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
