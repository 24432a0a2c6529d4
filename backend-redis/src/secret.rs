//! A text that is never shown.

use std::sync::Arc;

/// A password or another secret: neither printed nor compared (I12). Cloning shares the text.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(Arc::from(text.into()))
    }

    /// The text, for the handshake alone.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}
