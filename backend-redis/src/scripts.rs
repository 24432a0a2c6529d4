//! The scripts: each operation is one of them, sent by its hash, and by its text when the server does not know it
//! (a restart, SCRIPT FLUSH, a failover).

use std::sync::LazyLock;

use crate::calls::FLOOR_TTL;

/// What several scripts share, put at the place where they name it: behind what an ordinary call runs, since
/// functions cost the server time where they are made.
const COMMON: &str = include_str!("lua/common.lua");

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

impl Script {
    fn new(text: impl Into<String>) -> Self {
        let text = text.into().replace("--include common.lua\n", COMMON);
        let text = text.replace("${FLOOR_TTL_MS}", &FLOOR_TTL.as_millis().to_string());
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Script { text, hash }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)+) => {
        $($(#[$doc])* pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("lua/", $file))));)+

        /// All of them, to load them at once.
        pub(crate) fn all() -> impl Iterator<Item = &'static Script> {
            [$(&$name),+].into_iter().map(|script| &**script)
        }
    };
}

scripts! {
    ACQUIRE = "acquire.lua";
    RENEW = "renew.lua";
    RELEASE = "release.lua";
    RELEASE_KEEPING = "release_keeping.lua";
    LOOK = "look.lua";
    FORCE_RELEASE = "force_release.lua";
    RAISE = "raise.lua";
    RAISE_NAMESPACE = "raise_namespace.lua";
    FENCE = "fence.lua";
}

/// The script that grants.
pub(crate) fn acquire() -> &'static Script {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(RedisTokenWithoutClock) {
        const MINE: &str = "local mine = (ARGV[4] or '0000') .. now";
        static BROKEN: LazyLock<Script> =
            LazyLock::new(|| planted(&ACQUIRE, MINE, &format!("now = '0000000000000001' {MINE}")));
        return &BROKEN;
    }
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(RedisRefusalUnmarked) {
        static BROKEN: LazyLock<Script> =
            LazyLock::new(|| planted(&ACQUIRE, "string.sub(record, 35, 35) == '-'", "false"));
        return &BROKEN;
    }
    &ACQUIRE
}

/// The script that releases.
pub(crate) fn release() -> &'static Script {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(RedisReleaseIgnoresOwner) {
        static BROKEN: LazyLock<Script> =
            LazyLock::new(|| planted(&RELEASE, "start == ARGV[1]", "start ~= ''"));
        return &BROKEN;
    }
    &RELEASE
}

/// The script that releases and keeps the name taken.
pub(crate) fn release_keeping() -> &'static Script {
    #[cfg(leasehold_mutants)]
    if leasehold_core::mutant!(RedisReleaseIgnoresOwner) {
        static BROKEN: LazyLock<Script> =
            LazyLock::new(|| planted(&RELEASE_KEEPING, "string.sub(record, 1, 34) == ARGV[1]", "true"));
        return &BROKEN;
    }
    &RELEASE_KEEPING
}

/// A script with a defect; panics when the text to break is not there any more.
#[cfg(leasehold_mutants)]
fn planted(healthy: &Script, text: &str, defect: &str) -> Script {
    assert_eq!(healthy.text.matches(text).count(), 1, "the defect's place is not clear: {text}");
    Script::new(healthy.text.replacen(text, defect, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a Lua number prints by itself loses digits from 10^14 on; and a call on anything but KEYS is refused
    /// by some providers (B80).
    #[test]
    fn scripts_print_no_numbers_and_name_their_keys() {
        for script in all() {
            assert!(!script.text.contains("tostring"), "{}", script.text);
            for line in script.text.lines().filter(|line| line.contains("redis.call('SET'")) {
                let key = line.split(['(', ',']).nth(2).unwrap_or_default();
                assert!(key.contains("KEYS[") || !key.contains('\''), "{line}");
            }
            assert_eq!(script.hash.len(), 40);
        }
    }
}
