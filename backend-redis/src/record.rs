//! The texts that the store keeps, and what they mean.
//!
//! A **token** is 20 digits: 4 of the epoch, 16 of the native part. Texts of equal length order as their numbers
//! do, so that scripts compare and never compute where they need not, and no number is ever printed by Lua (which
//! would round it).
//!
//! A **lease record** is one text that the client writes whole:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | format: `1` |
//! | 1 | `H` held, `K` kept without an owner |
//! | 2–33 | owner id, or dashes |
//! | 34 | `+` when somebody was refused meanwhile, whom the release is to wake; else a dash |
//! | 35–54 | the token, or dashes: then the floor is the token |
//! | 55–67 | the server's clock at the grant, in ms since 1970 |
//! | 68– | holder information, as JSON |
//!
//! Whatever else stands there was written by something else, or by a newer version: a typed error, never a grant.

use std::time::Duration;

use leasehold_core::{Contention, HolderInfo, HolderView, Inspection, LeaseName, OwnerId, Token};
use serde::{Deserialize, Serialize};

/// A token that no token is below: no floor.
pub(crate) const NO_FLOOR: &str = "00000000000000000000";
/// The start of a record that nobody owns: format, kind, owner.
pub(crate) const KEPT: &str = "1K--------------------------------";
/// A token that is to be read from the floor.
const SEE_FLOOR: &str = "--------------------";
/// Bytes before the holder information.
const HEAD_BYTES: usize = 68;

/// The 20 digits of a token.
pub(crate) fn digits(token: Token) -> String {
    format!("{:04}{:016}", token.epoch(), token.native())
}

/// Reverses [`digits`]; `None` for anything else.
pub(crate) fn token(text: &[u8]) -> Option<Token> {
    let (epoch, native) = text.split_at_checked(4)?;
    Token::from_parts(number(epoch, 4)?, number(native, 16)?).ok()
}

/// A number of exactly so many digits.
pub(crate) fn number(text: &[u8], digits: usize) -> Option<u64> {
    if text.len() != digits || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The start of an owner's record: what scripts compare.
pub(crate) fn held_by(owner: &OwnerId) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(35);
    text.push_str("1H");
    for b in owner.as_bytes() {
        text.push(char::from(HEX[usize::from(b >> 4)]));
        text.push(char::from(HEX[usize::from(b & 15)]));
    }
    text
}

/// The start of a record for which nobody was refused.
pub(crate) fn unwanted(owner: &OwnerId) -> String {
    let mut text = held_by(owner);
    text.push('-');
    text
}

/// The record of a grant.
pub(crate) fn held(owner: &OwnerId, acquired_ms: u64, info: &HolderInfo) -> String {
    let mut text = unwanted(owner);
    text.reserve(HEAD_BYTES);
    text.push_str(SEE_FLOOR);
    // 13 digits last until the year 2286; a wilder clock is shown as nothing.
    let acquired_ms = if acquired_ms < 10_u64.pow(13) { acquired_ms } else { 0 };
    text.push_str(&format!("{acquired_ms:013}"));
    if !info.is_empty() {
        text.push_str(&info.to_json());
    }
    text
}

/// A record that was read.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// None: kept without an owner.
    pub(crate) owner: Option<OwnerId>,
    /// None: the floor is the token.
    told: Option<Token>,
    acquired_ms: u64,
    info: HolderInfo,
}

impl Record {
    /// Reads a record, or says what is wrong with it.
    pub(crate) fn read(text: &[u8]) -> Result<Self, &'static str> {
        match text.first() {
            Some(b'1') => {}
            Some(b'2'..=b'9') => return Err("it has a newer format"),
            _ => return Err("it is no record"),
        }
        let head = text.get(..HEAD_BYTES).ok_or("it is too short")?;
        let owner = match (head[1], &head[2..34]) {
            (b'K', dashes) if dashes.iter().all(|&b| b == b'-') => None,
            (b'H', hex) => {
                let hex = std::str::from_utf8(hex).ok().and_then(OwnerId::from_hex);
                Some(hex.ok_or("its owner is none")?)
            }
            _ => return Err("its kind is unknown"),
        };
        if !matches!(head[34], b'-' | b'+') {
            return Err("whether somebody waits for it is unknown");
        }
        let told = match &head[35..55] {
            dashes if dashes == SEE_FLOOR.as_bytes() => None,
            told => Some(token(told).ok_or("its token is none")?),
        };
        // For people only: garbage is nothing.
        let info = std::str::from_utf8(&text[HEAD_BYTES..]).map(HolderInfo::from_json).unwrap_or_default();
        Ok(Record { owner, told, acquired_ms: number(&head[55..], 13).unwrap_or(0), info })
    }

    /// The token of this grant, where `floor` is the name's.
    pub(crate) fn token(&self, floor: Option<Token>) -> Option<Token> {
        self.told.or(floor)
    }

    /// The holder as others see it; none when nobody owns the name, or its token was lost with the floor.
    pub(crate) fn view(&self, floor: Option<Token>, left: Duration) -> Option<HolderView> {
        let mut view = HolderView::new(&self.owner?, self.token(floor)?);
        view.info = self.info.clone();
        view.acquired_unix_ms = Some(self.acquired_ms).filter(|ms| *ms != 0);
        view.remaining = Some(left);
        Some(view)
    }
}

/// What the server says of the time left, in ms; a key without an end lasts for ever (-1), and one that has just
/// gone has none (-2).
pub(crate) fn left(pttl: i64) -> Duration {
    match pttl {
        -1 => Duration::MAX,
        ms => Duration::from_millis(u64::try_from(ms).unwrap_or(0)),
    }
}

/// A name as one look found it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The record, where there is one that can be read.
    pub(crate) record: Option<Record>,
    /// How long it stays.
    pub(crate) left: Duration,
    /// The name's own floor.
    pub(crate) floor: Option<Token>,
    /// Whose grant was ended by force last, by whom and why.
    pub(crate) note: Option<(OwnerId, Note)>,
}

impl Seen {
    pub(crate) fn view(&self) -> Option<HolderView> {
        self.record.as_ref()?.view(self.floor, self.left)
    }

    /// The refusal of an attempt by what was seen.
    pub(crate) fn contention(&self) -> Contention {
        Contention::new(self.view(), Some(self.left))
    }

    /// The name as `inspect` tells it; `namespace` is the floor of names without one.
    pub(crate) fn inspection(&self, name: LeaseName, namespace: Option<Token>) -> Inspection {
        let mut inspection = Inspection::free(name);
        inspection.token_floor = self.floor.max(namespace);
        if let Some(record) = &self.record {
            inspection.free_in = Some(self.left);
            inspection.holders.extend(self.view());
            inspection.token_floor = inspection.token_floor.max(record.token(self.floor));
        }
        inspection
    }
}

/// Who ended a grant by force, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Note {
    /// The JSON that the script puts behind the owner.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what the script wrote. A note is for people: garbage is none.
    pub(crate) fn read(text: &[u8]) -> Option<(OwnerId, Note)> {
        let (owner, json) = text.split_at_checked(32)?;
        let owner = OwnerId::from_hex(std::str::from_utf8(owner).ok()?)?;
        Some((owner, serde_json::from_slice(json).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_order_as_their_texts_do() {
        let mut all = Vec::new();
        for epoch in [0, 1, 9, 10, 2047] {
            for native in [1, 9, 10, 1_790_000_000_654_321, Token::NATIVE_MAX] {
                all.push(Token::from_parts(epoch, native).expect("legal"));
            }
        }
        let texts: Vec<String> = all.iter().map(|t| digits(*t)).collect();
        assert!(texts.windows(2).all(|pair| pair[0] < pair[1] && pair[0].len() == 20));
        for (text, expected) in texts.iter().zip(&all) {
            assert_eq!(token(text.as_bytes()), Some(*expected));
            assert!(text.as_str() > NO_FLOOR);
        }
        for bad in
            ["", NO_FLOOR, "0000", "99990000000000000001", "00009999999999999999", "+0000000000000000001"]
        {
            assert_eq!(token(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn records_round_trip_and_garbage_is_named() {
        let owner = OwnerId::random();
        let info = HolderInfo::new("web-1", [("job", "n\"ightly")]).expect("legal");
        let text = held(&owner, 1_790_000_000_654, &info);
        assert!(text.starts_with(&held_by(&owner)) && text.len() >= HEAD_BYTES);
        let record = Record::read(text.as_bytes()).expect("a record");
        let floor = Token::new(7).ok();
        let view = record.view(floor, Duration::from_secs(3)).expect("held");
        assert_eq!(
            (view.token.get(), view.info.label(), view.acquired_unix_ms),
            (7, "web-1", Some(1_790_000_000_654))
        );
        assert_eq!(view.remaining, Some(Duration::from_secs(3)));

        let told = format!("{}{}{}", &text[..35], digits(Token::new(9).expect("legal")), &text[55..]);
        assert_eq!(Record::read(told.as_bytes()).expect("a record").token(floor), Token::new(9).ok());
        let kept = format!("{KEPT}{}", &text[34..68]);
        assert!(Record::read(kept.as_bytes()).expect("a record").view(floor, Duration::ZERO).is_none());

        for bad in [&b""[..], b"1", b"2H", b"garbage", &[0xff; 80], &text.as_bytes()[..67], b"{\"owner\":1}"]
        {
            assert!(Record::read(bad).is_err(), "{bad:?}");
        }
        let waited_for = format!("{}+{}", &text[..34], &text[35..]);
        assert!(Record::read(waited_for.as_bytes()).is_ok());
        for broken in [text.replacen(SEE_FLOOR, "x-------------------", 1), waited_for.replacen('+', "?", 1)]
        {
            assert!(Record::read(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn time_left_is_never_negative() {
        assert_eq!(left(-2), Duration::ZERO);
        assert_eq!(left(-1), Duration::MAX);
        assert_eq!(left(i64::MIN), Duration::ZERO);
        assert_eq!(left(1_500), Duration::from_millis(1_500));
    }
}
