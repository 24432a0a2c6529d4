//! What was measured, as a table or as JSON.

use serde_json::{Value, json};

/// What a number ought to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Nothing is promised.
    None,
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// One number.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub what: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
    /// What it ought to be.
    pub target: Target,
}

/// All numbers of a run.
#[derive(Clone, Debug, Default)]
pub struct Report(Vec<Line>);

impl Line {
    /// Whether the target is met.
    pub fn is_met(&self) -> bool {
        match self.target {
            Target::None => true,
            Target::AtMost(most) => self.value <= most,
            Target::AtLeast(least) => self.value >= least,
        }
    }

    fn target(&self) -> String {
        match self.target {
            Target::None => String::new(),
            Target::AtMost(most) => format!("<= {}", number(most)),
            Target::AtLeast(least) => format!(">= {}", number(least)),
        }
    }
}

impl Report {
    /// Adds a number without a target.
    pub fn note(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.check(what, value, unit, Target::None);
    }

    /// Adds a number with a target.
    pub fn check(&mut self, what: impl Into<String>, value: f64, unit: &'static str, target: Target) {
        self.0.push(Line { what: what.into(), value, unit, target });
    }

    /// Adds another's numbers.
    pub fn append(&mut self, other: Report) {
        self.0.extend(other.0);
    }

    /// The numbers.
    pub fn lines(&self) -> &[Line] {
        &self.0
    }

    /// The targets that were missed.
    pub fn missed(&self) -> Vec<&Line> {
        self.0.iter().filter(|line| !line.is_met()).collect()
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut rows = vec![["measured", "value", "unit", "target", ""].map(str::to_owned)];
        rows.extend(self.0.iter().map(|line| {
            let verdict = match (line.target, line.is_met()) {
                (Target::None, _) => "",
                (_, true) => "met",
                (_, false) => "MISSED",
            };
            [line.what.clone(), number(line.value), line.unit.to_owned(), line.target(), verdict.to_owned()]
        }));
        let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        let mut out = String::new();
        for (at, [what, value, unit, target, verdict]) in rows.iter().enumerate() {
            let [a, b, c, d, e] = [widths[0], widths[1], widths[2], widths[3], widths[4]];
            out += &format!("| {what:<a$} | {value:>b$} | {unit:<c$} | {target:<d$} | {verdict:<e$} |\n");
            if at == 0 {
                let rule: Vec<String> = widths.iter().map(|&w| "-".repeat(w)).collect();
                out += &format!("| {} |\n", rule.join(" | "));
            }
        }
        out
    }

    /// The same for programs.
    pub fn json(&self) -> String {
        let line = |line: &Line| {
            let (least, most) = match line.target {
                Target::None => (Value::Null, Value::Null),
                Target::AtMost(most) => (Value::Null, json!(most)),
                Target::AtLeast(least) => (json!(least), Value::Null),
            };
            json!({ "what": line.what, "value": line.value, "unit": line.unit,
                    "at_least": least, "at_most": most, "met": line.is_met() })
        };
        format!("{:#}", json!({ "measured": self.0.iter().map(line).collect::<Vec<_>>() }))
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_seen_in_every_form() {
        let mut report = Report::default();
        report.note("speed", 12345.6, "pairs/s");
        report.check("ratio", 0.5, "", Target::AtLeast(0.9));
        report.check("bytes", 900.0, "B", Target::AtMost(1024.0));
        assert_eq!(report.missed().len(), 1);
        assert!(report.table().contains("MISSED") && report.table().contains("12346"));
        assert!(report.json().contains("\"met\": false"));
    }
}
