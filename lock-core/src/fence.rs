//! A fence in memory: the check that a resource makes, in its smallest form.

use std::fmt;

use crate::sync::{AtomicU64, Ordering};
use crate::{Stale, Token};

/// The highest token that a resource in this process has seen.
///
/// ```
/// use leasehold_core::{FencePost, Token};
/// let post = FencePost::new();
/// let (old, new) = (Token::new(7)?, Token::new(8)?);
/// assert!(post.accept(new).is_ok());
/// let stale = post.accept(old).unwrap_err();
/// assert_eq!((stale.presented, stale.highest), (old, new));
/// # Ok::<(), leasehold_core::TokenError>(())
/// ```
#[derive(Default)]
pub struct FencePost(AtomicU64);

impl FencePost {
    /// A post that has seen nothing.
    pub fn new() -> Self {
        FencePost(AtomicU64::new(0))
    }

    /// Accepts `token` if none larger was seen, and remembers it.
    ///
    /// The check and the write that it guards must be one step for the resource: call it under the
    /// lock that protects the resource.
    ///
    /// # Errors
    /// [`Stale`] when a larger token was seen.
    pub fn accept(&self, token: Token) -> Result<(), Stale> {
        let highest = self.0.fetch_max(token.get(), Ordering::AcqRel);
        match Token::new(highest) {
            Ok(highest) if highest > token => Err(Stale { presented: token, highest }),
            _ => Ok(()),
        }
    }

    /// The highest token seen.
    pub fn highest(&self) -> Option<Token> {
        Token::new(self.0.load(Ordering::Acquire)).ok()
    }
}

impl fmt::Debug for FencePost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FencePost").field(&self.highest()).finish()
    }
}
