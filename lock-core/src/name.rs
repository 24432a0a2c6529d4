//! Lease names: what is legal, and how stores write them down.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a lease: UTF-8, 1 to 512 bytes, no control characters.
///
/// # Contract
/// * Every legal name works on every store, and two different names are two different leases; no
///   normalisation takes place (`name/distinct_names_are_independent`).
/// * Cloning shares the text: a clone allocates nothing.
///
/// ```
/// use leasehold_core::LeaseName;
/// let name: LeaseName = "reports/nightly".parse()?;
/// assert!("".parse::<LeaseName>().is_err());
/// assert!("two\nlines".parse::<LeaseName>().is_err());
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Arc<str>);

/// Why a text is no lease name. Nothing was sent to any store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("a lease name must not be empty: give it a name of 1 to {} bytes", LeaseName::BYTES_MAX)]
    Empty,
    /// The text is longer than [`LeaseName::BYTES_MAX`].
    #[error(
        "a lease name may have at most {} bytes and this one has {bytes}: shorten it, or use a hash of it",
        LeaseName::BYTES_MAX
    )]
    TooLong {
        /// The length that was given, in bytes.
        bytes: usize,
    },
    /// The text holds a control character (U+0000–U+001F, U+007F–U+009F).
    #[error(
        "a lease name must not hold control characters, and byte {at} is U+{code:04X}: remove or replace it"
    )]
    ControlCharacter {
        /// Byte offset of the first such character.
        at: usize,
        /// Its code point.
        code: u32,
    },
    /// A stored name does not decode: the store was written by something else.
    #[error("this is no encoded lease name: it was not written by leasehold")]
    BadEncoding,
}

impl LeaseName {
    /// Longest legal name, in bytes. Encoded by [`LeaseName::percent_encoded`] it grows to three
    /// times that at most, which stays below the limit that stores have for a key. It may be longer
    /// than the 255 bytes that Linux allows for one file name: [`LeaseName::file_path`] splits it.
    pub const BYTES_MAX: usize = 512;

    /// Checks `text` and makes a name of it.
    ///
    /// # Errors
    /// [`NameError`] when the text is empty, too long, or holds a control character.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        if crate::mutant!(IllegalNamesTaken) {
            return Ok(LeaseName(Arc::from(text)));
        }
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > Self::BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::ControlCharacter { at, code: u32::from(c) });
        }
        Ok(LeaseName(Arc::from(text)))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with every byte outside `A–Z a–z 0–9 - _` written as `%XX`.
    ///
    /// Injective and reversible, and free of `/ . { } *` and blanks, so that it can be one segment
    /// of a key, a path or a channel. A store that puts it last in a key ends it with a terminator
    /// that the encoding never produces (`/`, `.`): then no key is a prefix of another.
    pub fn percent_encoded(&self) -> String {
        let mut out = String::with_capacity(self.0.len() + 8);
        for &b in self.0.as_bytes() {
            if b.is_ascii_alphanumeric() || b == b'-' || b == b'_' {
                out.push(char::from(b));
            } else {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.push('%');
                out.push(char::from(HEX[usize::from(b >> 4)]));
                out.push(char::from(HEX[usize::from(b & 15)]));
            }
        }
        out
    }

    /// A relative path that is this name's alone: the encoded name, in directories where it is too long
    /// for one file name. No part of it is longer than 255 bytes with an extension of up to 54, none
    /// is a directory for one name and a file for another, and none begins with a dot, so that a store
    /// may keep files of its own (`.lock`) beside.
    ///
    /// ```
    /// use leasehold_core::LeaseName;
    /// let path = LeaseName::new("reports/nightly")?.file_path("lease");
    /// assert_eq!(path.to_str(), Some("reports%2Fnightly.lease"));
    /// # Ok::<(), leasehold_core::NameError>(())
    /// ```
    pub fn file_path(&self, extension: &str) -> PathBuf {
        /// Room for an extension in the 255 bytes of a file name.
        const PART_BYTES: usize = 200;
        let encoded = self.percent_encoded();
        let mut path = PathBuf::new();
        let mut rest = &*encoded;
        while rest.len() > PART_BYTES {
            // Encoded names are ASCII.
            let (part, more) = rest.split_at(PART_BYTES);
            path.push(format!("{part}~"));
            rest = more;
        }
        path.push(format!("{rest}.{extension}"));
        path
    }

    /// Reverses [`LeaseName::percent_encoded`], strictly: only what that function writes is taken.
    ///
    /// # Errors
    /// [`NameError::BadEncoding`] for anything else; the other kinds when the text behind it is no
    /// legal name. Never panics: what a store holds is untrusted input.
    pub fn from_percent_encoded(text: &str) -> Result<Self, NameError> {
        let hex = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'A'..=b'F' => Ok(b - b'A' + 10),
            _ => Err(NameError::BadEncoding),
        };
        let mut raw = Vec::with_capacity(text.len());
        let mut bytes = text.bytes();
        while let Some(b) = bytes.next() {
            raw.push(match b {
                b'%' => {
                    let high = hex(bytes.next().ok_or(NameError::BadEncoding)?)?;
                    let low = hex(bytes.next().ok_or(NameError::BadEncoding)?)?;
                    high << 4 | low
                }
                b => b,
            });
        }
        let name = LeaseName::new(String::from_utf8(raw).map_err(|_| NameError::BadEncoding)?)?;
        if name.percent_encoded() == text { Ok(name) } else { Err(NameError::BadEncoding) }
    }
}

impl FromStr for LeaseName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        LeaseName::new(text)
    }
}

/// Shares the text.
impl From<&LeaseName> for Arc<str> {
    fn from(name: &LeaseName) -> Self {
        Arc::clone(&name.0)
    }
}

impl AsRef<str> for LeaseName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn illegal_names_say_why() {
        assert_eq!(LeaseName::new(""), Err(NameError::Empty));
        assert_eq!(LeaseName::new("x".repeat(513)), Err(NameError::TooLong { bytes: 513 }));
        assert!(LeaseName::new("x".repeat(512)).is_ok());
        assert_eq!(LeaseName::new("a\u{0}"), Err(NameError::ControlCharacter { at: 1, code: 0 }));
        assert_eq!(LeaseName::new("a\u{85}"), Err(NameError::ControlCharacter { at: 1, code: 0x85 }));
    }

    #[test]
    fn foreign_encodings_are_refused() {
        for bad in ["%", "%4", "%zz", "%41", "%2f", "a/b", "a b", "%FF", "", "%0A"] {
            assert!(LeaseName::from_percent_encoded(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn encoding_round_trips_and_holds_no_separator(text in "\\PC{1,120}") {
            let name = LeaseName::new(&text)?;
            let encoded = name.percent_encoded();
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_%".contains(&b)));
            prop_assert_eq!(LeaseName::from_percent_encoded(&encoded)?, name);
        }

        #[test]
        fn paths_are_distinct_and_their_parts_fit(
            one in "[a-c/.\u{e9}]{1,120}", other in "[a-c/.\u{e9}]{1,120}", times in 1usize..5,
        ) {
            let name = |text: &str| LeaseName::new(text.repeat(times).chars().take(250).collect::<String>());
            let (a, b) = (name(&one)?, name(&other)?);
            let (path_a, path_b) = (a.file_path("lease"), b.file_path("lease"));
            prop_assert_eq!(a == b, path_a == path_b);
            // No directory of one is the other's file.
            prop_assert!(a == b || !path_a.starts_with(&path_b));
            for part in path_a.iter().map(|part| part.as_encoded_bytes()) {
                prop_assert!(part.len() <= 255 && !part.starts_with(b"."), "{:?}", path_a);
            }
        }

        #[test]
        fn decoding_never_panics(text in "\\PC{0,60}") {
            let _ = LeaseName::from_percent_encoded(&text);
        }
    }
}
