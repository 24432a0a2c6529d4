//! The bodies of the cases, one file an area. Each has one sentence: the rule it checks.

pub(crate) mod admin;
pub(crate) mod bounds;
pub(crate) mod cancel;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod expiry;
pub(crate) mod fault;
pub(crate) mod fence;
pub(crate) mod history;
pub(crate) mod model;
pub(crate) mod mutex;
pub(crate) mod name;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod wait;

use std::time::Duration;

use leasehold_core::{BootTime, Expiry, LeaseName};

use crate::case::check;
use crate::{Bench, Failed, Node};

/// Bound on everything that happens "at once" in the store's time: a release that wakes a waiter, a
/// clean-up that is not cut off.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// How far above a token a floor is raised: a minute of the store's clock. Far enough to be told from
/// it, and on a store that others use too it has caught up soon.
pub(crate) const FLOOR_AHEAD: u64 = 60_000_000;

/// Where time is real, how long before an end the last asks begin; where it is virtual the last ask
/// comes one step of the store's time before.
const LAST_ASKS: Duration = Duration::from_millis(2);

/// Asks for `name` again and again until `end`, and right before it: nobody may be granted it before.
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
        let left = end.since(now);
        let last = if bench.manual().is_some() { rival.profile().ttl_granularity } else { LAST_ASKS };
        let nap = if left > last { (left - last).min(rival.ttl() / 8) } else { left };
        bench.pass(nap).await;
    }
}

/// I3: what a grant or a renewal answered, as (anchor, ttl), promises nothing beyond the countdown
/// that the store has started. To be asked right after the answer.
pub(crate) async fn anchored(
    bench: &Bench,
    node: &Node,
    name: &LeaseName,
    (anchor, ttl): (BootTime, Duration),
) -> Result<(), Failed> {
    let per_record = node.profile().expiry == Expiry::Ttl;
    let answered = bench.now();
    check!(anchor <= answered, "the anchor lies {:?} in the future", anchor.since(answered));
    if per_record && bench.manual().is_some() {
        // Time stood still during the call.
        check!(anchor == answered, "the anchor lies {:?} before the call", answered.since(anchor));
    }
    let left = node.store_inspect(name).await?.free_in;
    // The store looked before this reading: its countdown ends at `looked + left` at the latest.
    let looked = bench.now();
    check!(left.is_some() || !per_record, "a grant of {ttl:?} is free at once");
    if let Some(left) = left {
        let late = (anchor + ttl).since(looked + left);
        check!(
            late <= node.profile().ttl_granularity,
            "anchor and ttl promise {late:?} more than the store keeps ({left:?} left of {ttl:?})"
        );
    }
    Ok(())
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
