//! Wall clocks step and machines sleep: neither gives a name away or a token back.

use std::time::Duration;

use leasehold_core::{Clock, LeaseState, LostCause};

use super::{becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed};

/// A wall clock that steps back an hour repeats no token.
pub(crate) async fn step_back_repeats_no_token(bench: Bench) -> Result<(), Failed> {
    let clock = take!(bench.manual(), Some(clock) => clock.clone(), "no virtual time");
    let a = bench.node().await?;
    let name = bench.name();
    let first = a.grant(&name, a.ttl()).await?;
    a.release(&first.claim()).await?;
    clock.set_unix_micros(clock.unix_micros() - 3_600_000_000);
    let second = a.grant(&name, a.ttl()).await?;
    check!(second.token > first.token, "token {} after {}", second.token, first.token);
    Ok(())
}

/// A wall clock that steps forward a day ends no grant, and one that steps back prolongs none.
pub(crate) async fn step_moves_no_expiry(bench: Bench) -> Result<(), Failed> {
    let clock = take!(bench.manual(), Some(clock) => clock.clone(), "no virtual time");
    let (a, b) = bench.pair().await?;
    for step in [86_400_000_000_i64, -86_400_000_000] {
        let name = bench.name();
        let grant = a.grant(&name, a.ttl()).await?;
        clock.set_unix_micros(clock.unix_micros().saturating_add_signed(step));
        stays_taken(&bench, &b, &name, grant.anchor + grant.ttl).await?;
        becomes_free(&bench, &b, &name, a.ttl()).await?;
    }
    Ok(())
}

/// A machine that slept past the deadline finds its lease lost, and knows that it slept.
pub(crate) async fn sleep_past_the_deadline_loses_the_lease(bench: Bench) -> Result<(), Failed> {
    let clock = take!(bench.manual(), Some(clock) => clock.clone(), "no virtual time");
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    bench.settle().await;
    let slept = Duration::from_secs(3600);
    clock.suspend(slept);
    check!(lease.check().is_err(), "valid after an hour of sleep");
    let state = lease.state();
    let paused = take!(&state, LeaseState::Lost(LostCause::Paused { paused }) => *paused, "the cause");
    check!(paused <= slept && paused > slept / 2, "slept {slept:?} and was told {paused:?}");
    Ok(())
}
