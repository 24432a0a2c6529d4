//! Owner ids: who holds a grant.

use std::cell::RefCell;
use std::fmt;

/// 128 random bits that name one acquisition, made by the client before anything is sent.
///
/// An owner id is a capability: whoever knows it can renew and release the grant. Neither `Debug`
/// nor `Display` shows more than an eight-digit fingerprint of it (I12); stores get it through
/// [`OwnerId::to_hex`]. It is never used again after a release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId([u8; 16]);

/// Randomness is drawn from the operating system in pages of this size: one system call makes 256
/// ids, which keeps it off the path of an acquire.
const PAGE_BYTES: usize = 4096;

struct Page {
    bytes: Box<[u8; PAGE_BYTES]>,
    used: usize,
    pid: u32,
}

thread_local! {
    static PAGE: RefCell<Option<Page>> = const { RefCell::new(None) };
}

impl OwnerId {
    /// A fresh id from the operating system's random number generator.
    ///
    /// # Panics
    /// When the operating system has no randomness at all: then nothing can be held safely.
    pub fn random() -> Self {
        PAGE.with_borrow_mut(|slot| {
            // A forked child must not hand out its parent's unused ids.
            let pid = std::process::id();
            let page = match slot {
                Some(page) if page.pid == pid && page.used < PAGE_BYTES => page,
                _ => {
                    let mut bytes = Box::new([0u8; PAGE_BYTES]);
                    getrandom::fill(&mut bytes[..]).expect("the operating system has randomness");
                    slot.insert(Page { bytes, used: 0, pid })
                }
            };
            let mut id = [0u8; 16];
            let range = page.used..page.used + 16;
            id.copy_from_slice(&page.bytes[range.clone()]);
            page.bytes[range].fill(0);
            page.used += 16;
            OwnerId(id)
        })
    }

    /// An id from its 16 bytes, as a store kept them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        OwnerId(bytes)
    }

    /// The 16 bytes, for a store's record. Never log them.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 lower-case hexadecimal digits, for a store's record. Never log them.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Reverses [`OwnerId::to_hex`]; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|n| OwnerId(n.to_be_bytes()))
    }

    /// Eight hexadecimal digits that tell two owners apart in a log without giving the id away:
    /// an FNV-1a hash of it, folded to 32 bits, from which the 128 bits cannot be recovered.
    pub fn fingerprint(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &b in &self.0 {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("{:08x}", (hash >> 32) as u32 ^ hash as u32)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if crate::mutant!(OwnerIdPrinted) {
            return f.write_str(&self.to_hex());
        }
        write!(f, "OwnerId(#{})", self.fingerprint())
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_distinct_across_pages_and_threads() {
        let ids: HashSet<OwnerId> = (0..4)
            .map(|_| std::thread::spawn(|| (0..700).map(|_| OwnerId::random()).collect::<Vec<_>>()))
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|t| t.join().expect("generator thread"))
            .collect();
        assert_eq!(ids.len(), 2800);
    }

    #[test]
    fn hex_round_trips_and_prints_hide_it() {
        let id = OwnerId::random();
        assert_eq!(OwnerId::from_hex(&id.to_hex()), Some(id));
        assert_eq!(OwnerId::from_hex("xyz"), None);
        assert_eq!(OwnerId::from_hex(&id.to_hex().to_uppercase().replace('0', "G")), None);
        let shown = format!("{id:?} {id}");
        let hex = id.to_hex();
        for window in hex.as_bytes().windows(9) {
            assert!(!shown.contains(std::str::from_utf8(window).expect("ascii")));
        }
    }
}
