//! How names become keys.
//!
//! `lh:<namespace>:{<name>}:<what>`, with namespace and name percent-encoded: between the braces stands nothing but
//! letters, digits, `-`, `_` and `%`, so that every key of one name is in one cluster slot, no key is a prefix of
//! another, and no pattern of ours matches a stranger.

use leasehold_core::LeaseName;

/// What a key of a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The lease itself; expires.
    Lease,
    /// The highest token that was granted or promised; outlives the lease.
    Floor,
    /// Who forced a release, and why; expires.
    Note,
    /// The channel of releases.
    Channel,
    /// The highest token that a resource has seen.
    Mark,
    /// Values that refuse a late writer.
    Values,
}

impl What {
    const fn letter(self) -> char {
        match self {
            What::Lease => 'l',
            What::Floor => 'f',
            What::Note => 'n',
            What::Channel => 'c',
            What::Mark => 'h',
            What::Values => 'v',
        }
    }
}

/// Makes the keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// `lh:<namespace>:`
    prefix: String,
}

/// The keys of one name: one text whose last letter changes.
#[derive(Clone, Debug)]
pub(crate) struct NameKeys(String);

impl Keys {
    pub(crate) fn new(namespace: &LeaseName) -> Self {
        Keys { prefix: format!("lh:{}:", namespace.percent_encoded()) }
    }

    /// Where the namespace keeps the floor of names that have none of their own.
    pub(crate) fn namespace(&self) -> String {
        format!("{}m", self.prefix)
    }

    pub(crate) fn of(&self, name: &LeaseName) -> NameKeys {
        let encoded = name.percent_encoded();
        let mut text = String::with_capacity(self.prefix.len() + encoded.len() + 4);
        text.push_str(&self.prefix);
        text.push('{');
        text.push_str(&encoded);
        text.push_str("}:");
        NameKeys(text)
    }

    /// A glob pattern of all keys of one kind whose names start with `prefix`.
    pub(crate) fn pattern(&self, prefix: &str, what: What) -> String {
        // What is no start of a legal name matches everything here, and nothing by the look at the names.
        let encoded = LeaseName::new(prefix).map_or_else(|_| String::new(), |name| name.percent_encoded());
        format!("{}{{{encoded}*}}:{}", self.prefix, what.letter())
    }

    /// The name of a key that [`Keys::of`] made.
    pub(crate) fn name_of(&self, key: &str, what: What) -> Option<LeaseName> {
        let encoded = key.strip_prefix(&self.prefix)?.strip_prefix('{')?;
        let encoded = encoded.strip_suffix(what.letter())?.strip_suffix("}:")?;
        LeaseName::from_percent_encoded(encoded).ok()
    }
}

impl NameKeys {
    pub(crate) fn key(&self, what: What) -> String {
        let mut text = String::with_capacity(self.0.len() + 1);
        text.push_str(&self.0);
        text.push(what.letter());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cluster's slot of a key (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>).
    fn slot(key: &str) -> u16 {
        let bytes = key.as_bytes();
        let tag = match bytes.iter().position(|&b| b == b'{') {
            Some(open) => match bytes[open + 1..].iter().position(|&b| b == b'}') {
                Some(length) if length > 0 => &bytes[open + 1..open + 1 + length],
                _ => bytes,
            },
            None => bytes,
        };
        let crc =
            tag.iter().fold(0u16, |crc, &b| {
                (0..8).fold(crc ^ u16::from(b) << 8, |crc, _| {
                    if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
                })
            });
        crc % 16384
    }

    const EVERY: [What; 6] = [What::Lease, What::Floor, What::Note, What::Channel, What::Mark, What::Values];

    /// B80: whatever the name, its keys are in one slot.
    #[test]
    fn all_keys_of_a_name_are_in_one_slot() {
        assert_eq!(slot("123456789"), 12739, "the checksum of the specification");
        let keys = Keys::new(&"{a}:*".parse().expect("legal"));
        for text in ["n", "{a}b", "a{b}c", "{}x", "}{", "{", "}", "a:b", "%7B", "\u{1F402}", "*?[a]\\"] {
            let name: LeaseName = text.parse().expect("legal");
            let of = keys.of(&name);
            let slots: Vec<u16> = EVERY.iter().map(|what| slot(&of.key(*what))).collect();
            assert!(slots.iter().all(|s| *s == slots[0]), "{text:?}: {slots:?}");
            assert_eq!(slots[0], slot(&name.percent_encoded()), "{text:?} has a tag of its own");
            for what in EVERY {
                assert_eq!(keys.name_of(&of.key(what), what), Some(name.clone()));
                assert_eq!(keys.name_of(&of.key(what), What::Lease).is_some(), what == What::Lease);
            }
        }
    }

    #[test]
    fn foreign_keys_have_no_name() {
        let keys = Keys::new(&"app".parse().expect("legal"));
        for key in
            ["", "lh:app:m", "lh:other:{n}:l", "lh:app:{}:l", "lh:app:{a b}:l", "lh:app:{n}:ll", "lh:app:n:l"]
        {
            assert_eq!(keys.name_of(key, What::Lease), None, "{key}");
        }
    }
}
