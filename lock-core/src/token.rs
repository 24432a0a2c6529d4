//! Fencing tokens.
//!
//! Every grant of a name carries a token larger than every token granted before for that name (I2).
//! The holder hands it to the resource, and the resource refuses whoever comes with a smaller one
//! (Gray & Cheriton's leases are safe only while clocks behave; a compared token is safe always).
//!
//! A token is `epoch << 52 | native`. The native part of a value store is
//! `max(last + 1, store clock in µs, floor + 1)`: the counter orders, and the clock is the floor
//! that survives a lost counter. 2^52 µs last beyond the year 2100, and 52 bits are exact in a Lua
//! number and in a JSON reader that knows only doubles. The epoch is raised by an operator or a
//! migration and by nothing else.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A fencing token: never zero, below 2^63, ordered.
///
/// JSON and text show it as a decimal number; JSON as a string, since a reader's double would round
/// it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

/// Why a number is no token, or why no larger token can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Zero, negative, not a decimal number, or 2^63 and above.
    #[error("a fencing token is a decimal number from 1 to 9223372036854775807")]
    OutOfRange,
    /// The epoch is 2^11 or above.
    #[error("epoch {epoch} is too large: a token's epoch is below {}", Token::EPOCH_MAX + 1)]
    EpochTooLarge {
        /// The epoch that was given.
        epoch: u64,
    },
    /// The native part reached 2^52: refused rather than truncated.
    #[error("no larger fencing token exists in this epoch (its counter reached 2^52): raise the epoch")]
    NativeExhausted,
}

impl Token {
    /// Bits of the native part.
    pub const NATIVE_BITS: u32 = 52;
    /// Largest native part: 2^52 − 1.
    pub const NATIVE_MAX: u64 = (1 << Self::NATIVE_BITS) - 1;
    /// Largest epoch: 2^11 − 1, so that a token fits a signed 64-bit column.
    pub const EPOCH_MAX: u64 = (1 << 11) - 1;

    /// A token from its number.
    ///
    /// # Errors
    /// [`TokenError::OutOfRange`] for 0 and for 2^63 and above.
    pub fn new(value: u64) -> Result<Self, TokenError> {
        match NonZeroU64::new(value) {
            Some(n) if value <= i64::MAX as u64 => Ok(Token(n)),
            _ => Err(TokenError::OutOfRange),
        }
    }

    /// A token from epoch and native part.
    ///
    /// # Errors
    /// [`TokenError`] when either part does not fit, or both are zero.
    pub fn from_parts(epoch: u64, native: u64) -> Result<Self, TokenError> {
        if epoch > Self::EPOCH_MAX {
            return Err(TokenError::EpochTooLarge { epoch });
        }
        if native > Self::NATIVE_MAX {
            return Err(TokenError::NativeExhausted);
        }
        Token::new(epoch << Self::NATIVE_BITS | native)
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as a signed 64-bit column holds it.
    pub const fn as_i64(self) -> i64 {
        // Below 2^63 by construction.
        self.0.get() as i64
    }

    /// The epoch.
    pub const fn epoch(self) -> u64 {
        self.0.get() >> Self::NATIVE_BITS
    }

    /// The part below the epoch.
    pub const fn native(self) -> u64 {
        self.0.get() & Self::NATIVE_MAX
    }

    /// The token of the next grant on a value store: larger than `last` and `floor`, and not below
    /// the store's clock in the epoch of the larger of the two.
    ///
    /// `clock_us` is the store's wall clock in microseconds since 1970, read in the same atomic step
    /// as the grant.
    ///
    /// # Errors
    /// [`TokenError::NativeExhausted`] when the epoch has no larger token left.
    ///
    /// ```
    /// use leasehold_core::Token;
    /// let first = Token::next(None, 1_000, None)?;
    /// assert_eq!(first.get(), 1_000);
    /// // The clock stood still, or stepped back: the counter orders.
    /// assert_eq!(Token::next(Some(first), 7, None)?.get(), 1_001);
    /// # Ok::<(), leasehold_core::TokenError>(())
    /// ```
    pub fn next(last: Option<Token>, clock_us: u64, floor: Option<Token>) -> Result<Self, TokenError> {
        let highest = last.max(floor);
        let epoch = highest.map_or(0, Token::epoch);
        let counted = match highest {
            Some(t) if t.native() == Self::NATIVE_MAX => return Err(TokenError::NativeExhausted),
            Some(t) => t.native() + 1,
            None => 1,
        };
        Token::from_parts(epoch, counted.max(clock_us))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Token {
    type Err = TokenError;
    fn from_str(text: &str) -> Result<Self, TokenError> {
        // u64's own parser takes a leading '+'; a token that was printed never has one.
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(TokenError::OutOfRange);
        }
        text.parse::<u64>().map_err(|_| TokenError::OutOfRange).and_then(Token::new)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.get()
    }
}

impl TryFrom<u64> for Token {
    type Error = TokenError;
    fn try_from(value: u64) -> Result<Self, TokenError> {
        Token::new(value)
    }
}

impl TryFrom<i64> for Token {
    type Error = TokenError;
    fn try_from(value: i64) -> Result<Self, TokenError> {
        u64::try_from(value).map_err(|_| TokenError::OutOfRange).and_then(Token::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(n: u64) -> Token {
        Token::new(n).expect("legal token")
    }

    #[test]
    fn out_of_range_numbers_are_refused() {
        for text in ["", "0", "-1", "+5", "1e3", "9223372036854775808", "ten", " 7"] {
            assert_eq!(text.parse::<Token>(), Err(TokenError::OutOfRange), "{text:?}");
        }
        assert_eq!("9223372036854775807".parse::<Token>(), Token::new(i64::MAX as u64));
        assert!(Token::try_from(-4i64).is_err());
    }

    #[test]
    fn an_exhausted_epoch_is_refused_and_the_next_one_goes_on() {
        let last = Token::from_parts(3, Token::NATIVE_MAX).expect("legal");
        assert_eq!(Token::next(Some(last), 0, None), Err(TokenError::NativeExhausted));
        assert_eq!(Token::next(None, 1 << 52, None), Err(TokenError::NativeExhausted));
        let raised = Token::from_parts(4, 0).expect("legal");
        assert!(Token::next(Some(last), 1_000, Some(raised)).expect("room") > last);
    }

    proptest! {
        #[test]
        fn next_is_above_all_and_not_below_the_clock(
            last in proptest::option::of(1u64..1 << 62),
            floor in proptest::option::of(1u64..1 << 62),
            clock in 0u64..1 << 51,
        ) {
            let (last, floor) = (last.map(token), floor.map(token));
            match Token::next(last, clock, floor) {
                Ok(next) => {
                    prop_assert!(Some(next) > last && Some(next) > floor);
                    prop_assert!(next.native() >= clock);
                }
                Err(e) => prop_assert_eq!(e, TokenError::NativeExhausted),
            }
        }
    }
}
