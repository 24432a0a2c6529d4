//! What a run says at its end: what the store declares, what was skipped, and what counts for what.

use std::fmt::Write as _;

use leasehold_core::{
    Declared, Durability, Expiry, LeaseBackend, Order, Profile, TokenSource, TtlChange, WaitMode,
};

use crate::CASES;
use crate::presence::Presence;

pub(crate) fn text(presence: &Presence) -> String {
    let mut out = String::new();
    let name = presence.harness.name();
    match &presence.backend {
        Err(error) => _ = writeln!(out, "{name} cannot be reached: {error}"),
        Ok(backend) => {
            let _ = writeln!(out, "{name} declares:");
            for line in words(&**backend) {
                let _ = writeln!(out, "  {line}");
            }
        }
    }
    let skipped: Vec<_> =
        CASES.iter().filter_map(|case| presence.skips(case).map(|why| (case.name, why))).collect();
    let _ = writeln!(
        out,
        "{} of {} cases skipped{}",
        skipped.len(),
        CASES.len(),
        if skipped.is_empty() { "" } else { "; as the list of ignored cases takes them:" }
    );
    for (case, why) in skipped {
        let _ = writeln!(out, "{case}  # {why}");
    }
    let unproven: Vec<_> = CASES.iter().filter(|case| case.proven_by.is_empty()).collect();
    let _ = writeln!(
        out,
        "{} cases are proven by a planted defect and count; {} are not and do not{}",
        CASES.len() - unproven.len(),
        unproven.len(),
        if unproven.is_empty() { "" } else { ":" }
    );
    for case in unproven {
        let _ = writeln!(out, "  {}", case.name);
    }
    out
}

/// A backend's profile and facets in words, one property a line.
pub fn words(backend: &dyn LeaseBackend) -> Vec<String> {
    let profile: &Profile = backend.profile();
    let offered = |word: &str, declared: Declared| match declared {
        Declared::Yes => format!("{word}: yes"),
        Declared::No => format!("{word}: no, and refused"),
    };
    let facet = |word: &str, there: bool| format!("{word}: {}", if there { "yes" } else { "no" });
    vec![
        format!(
            "expiry: {}",
            match profile.expiry {
                Expiry::Ttl => "a time to live in each record",
                Expiry::Session => "with a session of many leases",
                Expiry::Connection => "with the connection that took it",
                _ => "in a way that this suite does not know",
            }
        ),
        format!(
            "ttl: from {:?} to {:?}, in steps of {:?}; margin {:?}; changed while held: {}",
            profile.ttl_min,
            profile.ttl_max,
            profile.ttl_granularity,
            profile.margin,
            match profile.ttl_change {
                TtlChange::InPlace => "in place",
                TtlChange::Move => "by moving the grant",
                TtlChange::Refused => "no, and refused",
                _ => "in a way that this suite does not know",
            }
        ),
        format!(
            "tokens: {}; they survive {}",
            match profile.token {
                TokenSource::Value => "made by the backend, floors can be imposed",
                TokenSource::Native => "the store's own numbers",
                _ => "from a source that this suite does not know",
            },
            match profile.durability {
                Durability::Process => "nothing but the process (the wall clock is their floor)",
                Durability::Disk => "a crash of processes and a loss of power",
                Durability::Replicated => "the loss of a minority of machines",
                _ => "something that this suite does not know",
            }
        ),
        format!(
            "waiting: {}; order: {}",
            match profile.wait {
                WaitMode::Notify => "waiters are told",
                WaitMode::Poll => "waiters look again",
                _ => "in a way that this suite does not know",
            },
            match profile.order {
                Order::Fifo => "first come, first served",
                _ => "none across processes",
            }
        ),
        format!("batches of at most {} renewals", profile.batch_max),
        offered("shared leases", profile.shared),
        offered("permits", profile.permits),
        offered("a queue", profile.queue),
        offered("a name kept taken after its release", profile.keep_for),
        facet("admin facet", backend.facets().admin.is_some()),
        facet("fenced values", backend.facets().fenced.is_some()),
    ]
}
