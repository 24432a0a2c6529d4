//! How leases are shown, to people and to machines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{HolderView, Inspection};
use serde_json::{Value, json};

use crate::duration::{is_endless, show};

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A wall-clock time for people and JSON.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    // The formatter panics beyond the year 9999: what a store holds is untrusted.
    const YEAR_9999_MS: u64 = 253_402_300_799_999;
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms.min(YEAR_9999_MS));
    humantime::format_rfc3339_millis(time).to_string()
}

/// `user@host`, as far as the environment tells.
pub(crate) fn who() -> String {
    let clean = |text: String| text.chars().filter(|c| !c.is_control()).take(64).collect::<String>();
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).map(clean);
    let user = user
        .ok()
        .filter(|user| !user.is_empty())
        .unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let host = clean(rustix::system::uname().nodename().to_string_lossy().into_owned());
    format!("{user}@{host}")
}

pub(crate) fn describe(holder: &HolderView) -> String {
    let label = match holder.info.label() {
        "" => String::new(),
        label => format!("{label} "),
    };
    format!("held by {label}(#{}) with token {}", holder.fingerprint, holder.token)
}

pub(crate) fn held(inspection: &Inspection) -> String {
    match (inspection.holder(), inspection.free_in) {
        (Some(holder), _) => describe(holder),
        (None, Some(free_in)) => format!("nobody holds it, and it stays taken for {}", show(free_in)),
        (None, None) => "nobody holds it".to_owned(),
    }
}

pub(crate) fn holder_json(holder: &HolderView) -> Value {
    let meta: serde_json::Map<String, Value> =
        holder.info.meta().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    json!({
        "fingerprint": holder.fingerprint,
        "token": holder.token.to_string(),
        "label": holder.info.label(),
        "meta": meta,
        "acquired_at": holder.acquired_unix_ms.map(rfc3339),
        "remaining_ms": holder.remaining.map(millis),
    })
}

pub(crate) fn inspection_json(inspection: &Inspection) -> Value {
    json!({
        "name": inspection.name.as_str(),
        "holders": inspection.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "waiting": inspection.waiting,
        "free_in_ms": inspection.free_in.map(millis),
        "token_floor": inspection.token_floor.map(|token| token.to_string()),
    })
}

pub(crate) fn to_json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// One row a holder; a name that is kept without one has a row too.
pub(crate) fn table(found: &[Inspection]) -> String {
    let mut rows = vec![["NAME", "HOLDER", "TOKEN", "OWNER", "AGE", "FREE-IN", "WAITING"].map(str::to_owned)];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for inspection in found {
        let free_in = match inspection.free_in {
            None => "-".to_owned(),
            Some(left) if is_endless(left) => "never".to_owned(),
            Some(left) => show(left),
        };
        let waiting = inspection.waiting.map_or("-".to_owned(), |n| n.to_string());
        let name = inspection.name.to_string();
        if inspection.holders.is_empty() {
            let dash = || "-".to_owned();
            rows.push([name, dash(), dash(), "(kept)".to_owned(), dash(), free_in, waiting]);
            continue;
        }
        for holder in &inspection.holders {
            let age = holder.acquired_unix_ms.map(|ms| now.saturating_sub(Duration::from_millis(ms)));
            let label = match holder.info.label() {
                "" => "-",
                label => label,
            };
            rows.push([
                name.clone(),
                format!("#{}", holder.fingerprint),
                holder.token.to_string(),
                label.to_owned(),
                age.map_or("-".to_owned(), show),
                free_in.clone(),
                waiting.clone(),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

pub(crate) fn card(inspection: &Inspection) -> String {
    let mut text = format!("name      {}\n", inspection.name);
    if inspection.holders.is_empty() {
        text.push_str(&format!("state     {}\n", held(inspection)));
    }
    for holder in &inspection.holders {
        text.push_str(&format!("holder    #{}\ntoken     {}\n", holder.fingerprint, holder.token));
        if !holder.info.label().is_empty() {
            text.push_str(&format!("owner     {}\n", holder.info.label()));
        }
        for (key, value) in holder.info.meta() {
            text.push_str(&format!("meta      {key}={value}\n"));
        }
        if let Some(ms) = holder.acquired_unix_ms {
            text.push_str(&format!("since     {}\n", rfc3339(ms)));
        }
        if let Some(remaining) = holder.remaining {
            text.push_str(&format!("ends in   {} unless renewed\n", show(remaining)));
        }
    }
    if let Some(waiting) = inspection.waiting {
        text.push_str(&format!("waiting   {waiting}\n"));
    }
    if let Some(floor) = inspection.token_floor {
        text.push_str(&format!("floor     {floor}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::Token;

    #[test]
    fn times_of_any_store_are_shown_without_a_panic() {
        assert_eq!(rfc3339(1_790_000_000_123), "2026-09-21T14:13:20.123Z");
        assert!(rfc3339(u64::MAX).starts_with("9999-"));
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn columns_line_up_and_kept_names_have_a_row() {
        let mut kept = Inspection::free("b".parse().expect("legal"));
        kept.free_in = Some(Duration::from_secs(3));
        let mut held = Inspection::free("long/name".parse().expect("legal"));
        let token = Token::new(123_456_789).expect("legal");
        held.holders.push(HolderView::new(&leasehold::OwnerId::random(), token));
        let text = table(&[kept.clone(), held.clone()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let token_column = lines[0].find("TOKEN").expect("a column");
        assert_eq!(lines[2].find("123456789"), Some(token_column));
        assert!(lines[1].contains("(kept)") && lines[1].contains("3.0s"));
        assert!(card(&kept).contains("nobody holds it, and it stays taken for 3.0s"));
        assert_eq!(inspection_json(&held)["holders"][0]["token"], "123456789");
    }
}
