//! Random but repeatable: the seed of a run is printed, and `LEASEHOLD_TEST_SEED` brings it back.

use crate::Failed;

/// Any number; runs without a seed of their own are all alike.
const SEED: u64 = 0x1ea5_e401;

/// The seed of this run.
///
/// # Errors
/// [`Failed`] when `LEASEHOLD_TEST_SEED` is set and is no number: another seed would repeat nothing.
pub(crate) fn seed() -> Result<u64, Failed> {
    match std::env::var("LEASEHOLD_TEST_SEED") {
        Err(_) => Ok(SEED),
        Ok(text) => {
            let wrong = |_| Failed::new(format!("LEASEHOLD_TEST_SEED is {text:?}, which is no number"));
            text.trim().parse().map_err(wrong)
        }
    }
}

/// A stream of numbers from a seed: SplitMix64, whose whole state is one word.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The stream number `stream` of a seed.
    pub(crate) fn of(seed: u64, stream: u64) -> Self {
        Numbers(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// The next number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
