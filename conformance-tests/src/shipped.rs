//! The least that each shipped store must declare: a promise taken back fails a case here.

use leasehold_core::{Declared, Durability, Expiry, Profile, TokenSource, TtlChange, WaitMode};
use std::time::Duration;

/// The least of one store. `Declared::No` asks for nothing.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    /// The profile's name.
    pub name: &'static str,
    /// How grants run out.
    pub expiry: Expiry,
    /// Where tokens come from.
    pub token: TokenSource,
    /// What tokens survive, at least.
    pub durability: Durability,
    /// How waiters learn.
    pub wait: WaitMode,
    /// Whether the ttl of a held grant can change.
    pub ttl_change: TtlChange,
    /// The shortest ttl is at most this.
    pub ttl_min: Duration,
    /// The longest ttl is at least this.
    pub ttl_max: Duration,
    /// At least so many renewals a call.
    pub batch_max: usize,
    /// `keep_for` is honoured.
    pub keep_for: Declared,
    /// There is an admin facet.
    pub admin: bool,
    /// There are fenced values.
    pub fenced: bool,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The shipped stores.
pub const LEAST: &[Least] = &[
    Least {
        name: "memory",
        expiry: Expiry::Ttl,
        token: TokenSource::Value,
        durability: Durability::Process,
        wait: WaitMode::Notify,
        ttl_change: TtlChange::InPlace,
        ttl_min: Duration::from_millis(100),
        ttl_max: DAY,
        batch_max: 512,
        keep_for: Declared::Yes,
        admin: true,
        fenced: true,
    },
    Least {
        name: "sqlite",
        expiry: Expiry::Ttl,
        token: TokenSource::Value,
        durability: Durability::Disk,
        wait: WaitMode::Notify,
        ttl_change: TtlChange::InPlace,
        ttl_min: Duration::from_millis(500),
        ttl_max: DAY,
        batch_max: 64,
        keep_for: Declared::Yes,
        admin: true,
        fenced: true,
    },
    Least {
        name: "redis",
        expiry: Expiry::Ttl,
        token: TokenSource::Value,
        durability: Durability::Process,
        wait: WaitMode::Notify,
        ttl_change: TtlChange::InPlace,
        ttl_min: Duration::from_millis(500),
        ttl_max: DAY,
        batch_max: 500,
        keep_for: Declared::Yes,
        admin: true,
        fenced: true,
    },
];

impl Least {
    /// What `profile` and facets lack of it.
    pub fn lacks(&self, profile: &Profile, admin: bool, fenced: bool) -> Vec<&'static str> {
        let checks = [
            ("expiry", profile.expiry == self.expiry),
            ("token", profile.token == self.token),
            ("durability", profile.durability >= self.durability),
            ("wait", profile.wait == self.wait),
            ("ttl_change", profile.ttl_change == self.ttl_change),
            ("ttl_min", profile.ttl_min <= self.ttl_min),
            ("ttl_max", profile.ttl_max >= self.ttl_max),
            ("batch_max", profile.batch_max >= self.batch_max),
            ("keep_for", self.keep_for == Declared::No || profile.keep_for == Declared::Yes),
            ("admin", admin || !self.admin),
            ("fenced", fenced || !self.fenced),
        ];
        checks.into_iter().filter(|(_, kept)| !kept).map(|(what, _)| what).collect()
    }
}
