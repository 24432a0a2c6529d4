//! Wall clocks step and machines sleep: neither gives a name away or a token back.

use std::time::Duration;

use leasehold_core::{Clock, ForceRelease, Grant, LeaseState, LostCause, Released};

use super::{becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed, Node};

/// Grants a name, ends the grant by `end`, steps the wall clock back an hour, and grants it again:
/// the second token must be the larger one.
async fn larger_after_a_step_back(
    bench: &Bench,
    a: &Node,
    end: impl AsyncFnOnce(&Grant) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let clock = take!(bench.manual(), Some(clock) => clock.clone(), "no virtual time");
    let name = bench.name();
    let first = a.grant(&name, a.ttl()).await?;
    end(&first).await?;
    clock.set_unix_micros(clock.unix_micros() - 3_600_000_000);
    let second = a.grant(&name, a.ttl()).await?;
    check!(second.token > first.token, "token {} after {}", second.token, first.token);
    Ok(())
}

/// A wall clock that steps back an hour after a release repeats no token.
pub(crate) async fn step_back_repeats_no_token(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let end = async |grant: &Grant| a.release(&grant.claim()).await.map(drop);
    larger_after_a_step_back(&bench, &a, end).await
}

/// Nor after a grant that nobody released and that ran out.
pub(crate) async fn step_back_after_an_expiry_repeats_no_token(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let end = async |grant: &Grant| {
        bench.pass(grant.ttl * 2).await;
        let gone = a.store_inspect(&grant.name).await?.holders.is_empty();
        check!(gone, "held after two ttls");
        Ok(())
    };
    larger_after_a_step_back(&bench, &a, end).await
}

/// Nor after a grant that an operator ended.
pub(crate) async fn step_back_after_a_forced_release_repeats_no_token(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let end = async |grant: &Grant| {
        let request =
            ForceRelease::new(grant.name.clone(), grant.token, "an operator", "a test", bench.now());
        take!(a.admin()?.force_release(&request).await?, Released::Released => (), "the forced release");
        Ok(())
    };
    larger_after_a_step_back(&bench, &a, end).await
}

/// Nor after so many grants of other names that what ran out was collected.
pub(crate) async fn step_back_after_a_collection_repeats_no_token(bench: Bench) -> Result<(), Failed> {
    /// Stores collect now and then; by now the memory backend has.
    const OTHERS: usize = 1_100;
    let a = bench.node().await?;
    let end = async |grant: &Grant| {
        bench.pass(grant.ttl * 2).await;
        for _ in 0..OTHERS {
            // Held: a release would raise the floor above what was collected.
            a.grant(&bench.name(), a.long_ttl()).await?;
        }
        Ok(())
    };
    larger_after_a_step_back(&bench, &a, end).await
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
