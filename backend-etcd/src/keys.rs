//! The keys of a prefix.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `PREFIX/lease/NAME` | the record of a grant | with its etcd lease |
//! | `PREFIX/note/NAME` | who forced a release, and why | two minutes |
//! | `PREFIX/gone/OWNER` | an owner whose attempt may still be under way and is not wanted any more | two minutes |
//! | `PREFIX/mark/NAME`, `PREFIX/value/NAME/KEY` | fencing mark and fenced values | for ever |
//! | `PREFIX/meta` | epoch and base of the tokens | for ever |
//!
//! A name stands last in its key, as it is: keys are bytes, and every operation but a list names whole keys, so that
//! it does no harm when one name begins with another. In front of a fenced value's own key the name is
//! percent-encoded, and ends with a slash that the encoding never produces.

use leasehold_core::{LeaseName, OwnerId};

/// Makes the keys below one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` has no slash at its end.
    pub(crate) fn new(prefix: &str) -> Self {
        Keys { prefix: prefix.to_owned() }
    }

    pub(crate) fn lease(&self, name: &LeaseName) -> String {
        format!("{}/lease/{name}", self.prefix)
    }

    /// Where the leases begin that start with `prefix`.
    pub(crate) fn leases(&self, prefix: &str) -> String {
        format!("{}/lease/{prefix}", self.prefix)
    }

    /// The name behind a lease's key; none for what leasehold did not write.
    pub(crate) fn name_of(&self, key: &[u8]) -> Option<LeaseName> {
        let key = std::str::from_utf8(key).ok()?;
        let rest = key.strip_prefix(&*self.prefix)?.strip_prefix("/lease/")?;
        LeaseName::new(rest).ok()
    }

    pub(crate) fn note(&self, name: &LeaseName) -> String {
        format!("{}/note/{name}", self.prefix)
    }

    /// The owner id itself stays out of keys, which people list and access logs show: 128 bits of the key are its
    /// fingerprint and a second, independent one.
    pub(crate) fn gone(&self, owner: &OwnerId) -> String {
        let turned: Vec<u8> = owner.as_bytes().iter().rev().map(|byte| byte ^ 0x5a).collect();
        let mut other = [0; 16];
        other.copy_from_slice(&turned);
        format!("{}/gone/{}{}", self.prefix, owner.fingerprint(), OwnerId::from_bytes(other).fingerprint())
    }

    pub(crate) fn mark(&self, name: &LeaseName) -> String {
        format!("{}/mark/{name}", self.prefix)
    }

    pub(crate) fn values(&self, name: &LeaseName) -> String {
        format!("{}/value/{}/", self.prefix, name.percent_encoded())
    }

    pub(crate) fn value(&self, name: &LeaseName, key: &str) -> String {
        format!("{}{key}", self.values(name))
    }

    pub(crate) fn meta(&self) -> String {
        format!("{}/meta", self.prefix)
    }
}

/// Where the range ends of the keys that begin with `start`.
pub(crate) fn end_of(start: &str) -> Vec<u8> {
    let mut end = start.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No key is larger: the end of all.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_names_and_foreign_ones_to_nothing() {
        let keys = Keys::new("app");
        for text in ["n", "n/1", "n1", "\u{1F402}", ".", "..", "a b%20"] {
            let name = LeaseName::new(text).expect("legal");
            assert_eq!(keys.name_of(keys.lease(&name).as_bytes()), Some(name));
        }
        for foreign in ["app/note/n", "other/lease/n", "app/lease/", "app/lease/a\nb"] {
            assert_eq!(keys.name_of(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(end_of("ab"), b"ac");
    }

    #[test]
    fn no_owner_id_is_in_a_key() {
        let owner = OwnerId::random();
        assert!(!Keys::new("p").gone(&owner).contains(&owner.to_hex()[..9]));
        assert_ne!(Keys::new("p").gone(&owner), Keys::new("p").gone(&OwnerId::random()));
    }
}
