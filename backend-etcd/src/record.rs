//! What stands in the keys: text, one line a field.

use leasehold_core::{
    BackendError, Effect, ErrorKind, HolderInfo, HolderView, LostCause, OwnerId, Token, TokenError,
};

use crate::SCHEME;

/// The first lines tell what it is, and its version.
const LEASE: &str = "leasehold-etcd lease 1";
const META: &str = "leasehold-etcd meta 1";
const NOTE: &str = "leasehold-etcd note 1";

/// The record of a grant. Its token is not in it: the native part is `base` plus the revision that made the key,
/// which nobody knows before.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// None when the name is kept taken without an owner.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) epoch: u64,
    pub(crate) base: u64,
    /// The ttl of its etcd lease, in seconds: how long the name stays taken at most when nobody renews.
    pub(crate) ttl_s: u64,
    /// When it was granted, in milliseconds since 1970, for people.
    pub(crate) acquired_ms: u64,
    pub(crate) info: HolderInfo,
}

impl Record {
    pub(crate) fn to_text(&self) -> String {
        let owner = self.owner.map_or_else(|| "-".to_owned(), |owner| owner.to_hex());
        let Record { epoch, base, ttl_s, acquired_ms, info, .. } = self;
        format!("{LEASE}\n{owner}\n{epoch}\n{base}\n{ttl_s}\n{acquired_ms}\n{}\n", info.to_json())
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let fields = fields::<7>(text)?;
        let [format, owner, epoch, base, ttl_s, acquired_ms, info] = fields;
        if format != LEASE {
            return None;
        }
        let owner = if owner == "-" { None } else { Some(OwnerId::from_hex(owner)?) };
        let [epoch, base, ttl_s, acquired_ms] = numbers([epoch, base, ttl_s, acquired_ms])?;
        Some(Record { owner, epoch, base, ttl_s, acquired_ms, info: HolderInfo::from_json(info) })
    }

    /// The token of a key that was made by this revision.
    pub(crate) fn token(&self, create_revision: i64) -> Result<Token, TokenError> {
        token_of(self.epoch, self.base, create_revision)
    }

    /// The holder as others may see it; none for a kept name.
    pub(crate) fn view(&self, token: Token) -> Option<HolderView> {
        let mut view = HolderView::new(&self.owner?, token);
        view.info = self.info.clone();
        view.acquired_unix_ms = Some(self.acquired_ms);
        Some(view)
    }
}

/// Where the tokens of a prefix come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) epoch: u64,
    pub(crate) base: u64,
}

impl Meta {
    pub(crate) fn to_text(self) -> String {
        format!("{META}\n{}\n{}\n", self.epoch, self.base)
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let [format, epoch, base] = fields::<3>(text)?;
        let [epoch, base] = numbers([epoch, base])?;
        (format == META && epoch <= Token::EPOCH_MAX && base <= Token::NATIVE_MAX)
            .then_some(Meta { epoch, base })
    }
}

/// Who ended a grant by force, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) token: Token,
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Note {
    pub(crate) fn to_text(&self) -> String {
        let words = serde_json::json!([self.by, self.reason]);
        format!("{NOTE}\n{}\n{words}\n", self.token)
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let [format, token, words] = fields::<3>(text)?;
        let (by, reason) = serde_json::from_str(words).ok()?;
        (format == NOTE).then_some(Note { token: token.parse().ok()?, by, reason })
    }

    pub(crate) fn cause(self) -> LostCause {
        LostCause::Revoked { by: self.by, reason: self.reason }
    }
}

/// The token of a key that was made by `revision`.
pub(crate) fn token_of(epoch: u64, base: u64, revision: i64) -> Result<Token, TokenError> {
    let revision = u64::try_from(revision).unwrap_or(0);
    Token::from_parts(epoch, base.saturating_add(revision))
}

/// A token as text whose order is that of the tokens.
pub(crate) fn digits(token: u64) -> String {
    format!("{token:020}")
}

/// Reverses [`digits`].
pub(crate) fn undigits(text: &[u8]) -> Option<Token> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 20)?;
    text.parse().ok()
}

fn fields<const N: usize>(text: &[u8]) -> Option<[&str; N]> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let lines: Vec<&str> = text.split('\n').collect();
    lines.try_into().ok()
}

fn numbers<const N: usize>(texts: [&str; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, text) in numbers.iter_mut().zip(texts) {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = text.parse().ok()?;
    }
    Some(numbers)
}

/// What leasehold did not write.
pub(crate) fn corrupt(op: &'static str, what: &str) -> BackendError {
    // why: it was read, and nothing was written.
    let effect = Effect::None;
    let message = format!(
        "the {what} holds something that leasehold did not write, or a newer version did; it was left as it is. Look at it, and delete the key when nobody needs it"
    );
    BackendError::new(ErrorKind::Corrupt, effect, SCHEME, op, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_anything_else_is_refused() {
        let info = HolderInfo::new("web-1 \"x\"", [("k", "\u{1F402}")]).expect("legal");
        let record =
            Record { owner: Some(OwnerId::random()), epoch: 2, base: 7, ttl_s: 30, acquired_ms: 9, info };
        let kept = Record { owner: None, ..record.clone() };
        for record in [&record, &kept] {
            assert!(Record::from_text(record.to_text().as_bytes()).as_ref() == Some(record));
        }
        let text = record.to_text();
        for cut in 0..text.len() {
            assert!(Record::from_text(&text.as_bytes()[..cut]).is_none(), "cut at {cut}");
        }
        let meta = Meta { epoch: 1, base: 1 << 50 };
        assert_eq!(Meta::from_text(meta.to_text().as_bytes()), Some(meta));
        assert_eq!(Meta::from_text(b"leasehold-etcd meta 1\n-1\n+2\n"), None);
        let note = Note {
            token: Token::new(5).expect("legal"),
            by: "a\nb".to_owned(),
            reason: "(\"rack 7\")".to_owned(),
        };
        assert_eq!(Note::from_text(note.to_text().as_bytes()), Some(note));
        assert_eq!(undigits(digits(77).as_bytes()), Token::new(77).ok());
    }

    #[test]
    fn the_native_part_is_refused_rather_than_truncated() {
        assert!(token_of(0, Token::NATIVE_MAX - 3, 3).is_ok());
        assert!(token_of(0, Token::NATIVE_MAX - 3, 4).is_err());
    }
}
