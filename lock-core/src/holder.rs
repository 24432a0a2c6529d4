//! What a holder tells others about itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Who holds a lease, for people: kept in the store beside the grant, shown by `inspect` and to
/// waiters. At most [`HolderInfo::BYTES_MAX`] bytes encoded; never compared, never trusted.
///
/// Cloning shares the text. What it holds is readable by everyone who can read the store: put no
/// secret into it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HolderInfo(Option<Arc<Fields>>);

#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    label: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    meta: BTreeMap<String, String>,
}

/// Why holder information is refused. Nothing was sent to any store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HolderInfoError {
    /// Label and metadata are too large together.
    #[error(
        "label and metadata may have {} bytes together (encoded) and these have {bytes}: shorten them",
        HolderInfo::BYTES_MAX
    )]
    TooLarge {
        /// Encoded size, in bytes.
        bytes: usize,
    },
    /// A label, key or value holds a control character, which could forge lines of a log.
    #[error("holder label and metadata must not hold control characters ({0:?} does): remove them")]
    ControlCharacter(String),
    /// A metadata key is empty.
    #[error("a metadata key must not be empty")]
    EmptyKey,
}

impl HolderInfo {
    /// Largest encoded size: 4 KiB.
    pub const BYTES_MAX: usize = 4096;

    /// Information with a label (who) and metadata (why, where, what).
    ///
    /// # Errors
    /// [`HolderInfoError`] when it is too large or holds control characters.
    pub fn new<K, V>(
        label: impl Into<String>,
        meta: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, HolderInfoError>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let fields = Fields {
            label: label.into(),
            meta: meta.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        };
        let texts = fields.meta.iter().flat_map(|(k, v)| [k, v]).chain([&fields.label]);
        for text in texts {
            if text.chars().any(char::is_control) {
                return Err(HolderInfoError::ControlCharacter(text.clone()));
            }
        }
        if fields.meta.contains_key("") {
            return Err(HolderInfoError::EmptyKey);
        }
        if fields == Fields::default() {
            return Ok(HolderInfo(None));
        }
        let info = HolderInfo(Some(Arc::new(fields)));
        match info.to_json().len() {
            bytes if bytes > Self::BYTES_MAX => Err(HolderInfoError::TooLarge { bytes }),
            _ => Ok(info),
        }
    }

    /// The label, or an empty text.
    pub fn label(&self) -> &str {
        self.0.as_ref().map_or("", |f| &f.label)
    }

    /// The metadata, sorted by key.
    pub fn meta(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|f| f.meta.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The form that stores keep: JSON, or an empty text when nothing was said.
    pub fn to_json(&self) -> String {
        match &self.0 {
            None => String::new(),
            Some(fields) => serde_json::to_string(&**fields).unwrap_or_default(),
        }
    }

    /// Reads what a store holds. Text that is no holder information (another tool's, a newer
    /// version's) is shown as nothing rather than refused: it decides about no lease.
    pub fn from_json(text: &str) -> Self {
        if text.is_empty() || text.len() > Self::BYTES_MAX {
            return HolderInfo::default();
        }
        match serde_json::from_str::<Fields>(text) {
            Ok(fields) => HolderInfo::new(fields.label, fields.meta).unwrap_or_default(),
            Err(_) => HolderInfo::default(),
        }
    }
}

impl fmt::Debug for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta: BTreeMap<_, _> = self.meta().collect();
        f.debug_struct("HolderInfo").field("label", &self.label()).field("meta", &meta).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trips_and_garbage_is_nothing() {
        let info = HolderInfo::new("web-1", [("job", "nightly \"{}\""), ("é", "🐂")]).expect("legal");
        assert_eq!(HolderInfo::from_json(&info.to_json()), info);
        for garbage in ["", "{", "[]", "42", "{\"label\":7}", "\u{0}", "{\"label\":\"a\\nb\"}"] {
            assert!(HolderInfo::from_json(garbage).is_empty(), "{garbage:?}");
        }
    }

    #[test]
    fn bounds_are_kept() {
        let none: [(&str, &str); 0] = [];
        assert!(HolderInfo::new("x".repeat(4000), none).is_ok());
        assert!(matches!(HolderInfo::new("x".repeat(4100), none), Err(HolderInfoError::TooLarge { .. })));
        assert!(HolderInfo::new("a\nb", none).is_err());
        assert!(HolderInfo::new("", [("k", "v\u{1b}")]).is_err());
        assert_eq!(HolderInfo::new("", [("", "v")]), Err(HolderInfoError::EmptyKey));
    }
}
