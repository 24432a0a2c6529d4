//! A text that is never shown.

use std::fmt;
use std::sync::Arc;

/// A password: it is neither printed nor compared (I12). Clones share the text.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(Arc::from(text.into()))
    }

    /// The text, for the login alone.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
