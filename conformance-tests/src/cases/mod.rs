//! The bodies of the cases, one file an area. Each has one sentence: the rule it checks.

pub(crate) mod admin;
pub(crate) mod bounds;
pub(crate) mod cancel;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod expiry;
pub(crate) mod fault;
pub(crate) mod fence;
pub(crate) mod mutex;
pub(crate) mod name;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod wait;

use std::time::Duration;

use leasehold_core::{BootTime, LeaseName};

use crate::case::check;
use crate::{Bench, Failed, Node};

/// Bound on everything that happens "at once" in the store's time: a release that wakes a waiter, a
/// clean-up that is not cut off.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Asks for `name` again and again until `end`: nobody may be granted it before.
pub(crate) async fn stays_taken(
    bench: &Bench,
    rival: &Node,
    name: &LeaseName,
    end: BootTime,
) -> Result<u32, Failed> {
    let mut refusals = 0;
    loop {
        let granted = rival.is_free(name).await?;
        let now = bench.now();
        if now >= end {
            return Ok(refusals);
        }
        check!(granted.is_none(), "granted {:?} before its time", end.since(now));
        refusals += 1;
        bench.pass(end.since(now).min(rival.ttl() / 8).max(Duration::from_millis(1))).await;
    }
}

/// Waits until `name` is free; the time that it took.
pub(crate) async fn becomes_free(
    bench: &Bench,
    rival: &Node,
    name: &LeaseName,
    within: Duration,
) -> Result<Duration, Failed> {
    let what = format!("{name} becomes free");
    Ok(bench.until(&what, within, async || rival.is_free(name).await).await?.1)
}
