//! Durations on the command line: `10` and `1.5` are seconds, as flock(1) reads them; `90s`, `2m`,
//! `1h 30m` have units.

use std::time::Duration;

/// Longest duration taken: a century. What is longer is a typing error, and could overflow sums.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Reads a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| Err(format!("{text:?} is no duration ({why}): write 10, 1.5, 90s, 250ms or 2m"));
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return wrong("it is empty");
    }
    if trimmed.starts_with('-') {
        return wrong("it is negative");
    }
    let duration = if trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        match trimmed.parse::<f64>().map(Duration::try_from_secs_f64) {
            Ok(Ok(duration)) => duration,
            Ok(Err(_)) => return wrong("it is too long"),
            Err(_) => return wrong("that is no number"),
        }
    } else {
        // "1.5s": humantime knows whole numbers only.
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        match (trimmed[..split].contains('.'), unit(&trimmed[split..])) {
            (true, Some(unit)) => match trimmed[..split].parse::<f64>() {
                Ok(number) => match Duration::try_from_secs_f64(number * unit) {
                    Ok(duration) => duration,
                    Err(_) => return wrong("it is too long"),
                },
                Err(_) => return wrong("that is no number"),
            },
            _ => match humantime::parse_duration(trimmed) {
                Ok(duration) => duration,
                Err(_) => return wrong("unknown unit or number"),
            },
        }
    };
    if duration > LONGEST {
        return wrong("it is too long");
    }
    Ok(duration)
}

fn unit(word: &str) -> Option<f64> {
    match word {
        "ms" => Some(0.001),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86_400.0),
        _ => None,
    }
}

/// As [`parse`], and longer than zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("{text:?} must be longer than zero")),
        duration => Ok(duration),
    }
}

/// Longer than this is without an end.
const FOR_EVER: Duration = Duration::from_secs(1_000 * 365 * 24 * 3600);

/// Whether a time is so long that it has no end.
pub(crate) fn is_endless(duration: Duration) -> bool {
    duration >= FOR_EVER
}

/// A duration for people: `1m 30s`, `250ms`; `ever`, to stand behind "for", where it has no end.
pub(crate) fn show(duration: Duration) -> String {
    let rounded = match duration {
        d if is_endless(d) => return "ever".to_owned(),
        d if d >= Duration::from_secs(60) => Duration::from_secs(d.as_secs()),
        d if d >= Duration::from_secs(1) => return format!("{:.1}s", d.as_secs_f64()),
        d if d < Duration::from_millis(1) => d,
        d => Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_read() {
        for (text, ms) in [
            ("10", 10_000),
            ("1.5", 1_500),
            ("0", 0),
            ("0.0", 0),
            (".5", 500),
            ("90s", 90_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("250ms", 250),
            ("1h 30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_has_no_end_is_told_without_a_number() {
        assert_eq!(show(Duration::MAX), "ever");
        assert_eq!(show(Duration::from_secs(366 * 24 * 3600)), "1year 18h");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            " ",
            "NaN",
            "nan",
            "inf",
            "-inf",
            "infinity",
            "-1",
            "-0.5s",
            "1e400",
            "1e3",
            "1..5",
            ".",
            "5 parsecs",
            "s",
            "99999999999999999999",
            "9999999999y",
            "1.5.5s",
            "+1",
            "0x10",
            "１０",
        ] {
            assert!(parse(text).is_err(), "{text:?} was taken as {:?}", parse(text));
        }
        assert!(parse_positive("0").is_err());
    }

    #[test]
    fn people_read_round_figures() {
        assert_eq!(show(Duration::from_millis(90_400)), "1m 30s");
        assert_eq!(show(Duration::from_millis(1_540)), "1.5s");
        assert_eq!(show(Duration::from_micros(250_900)), "250ms");
    }
}
