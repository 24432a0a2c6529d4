//! Releases: idempotent, by the owner alone, and never forgotten (I4, I5, I8).

use std::time::Duration;

use leasehold_core::{Claim, Declared, Effect, EndReason, LeaseState, OwnerId, Released};

use super::{SOON, becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed, Fate, Op};

/// A released name is free at once, and releasing again says that there was nothing to release.
pub(crate) async fn second_release_says_so(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    take!(a.release(&grant.claim()).await?, Released::Released => (), "the first release");
    take!(a.release(&grant.claim()).await?, Released::AlreadyReleased => (), "the second release");
    let next = b.grant(&name, b.long_ttl()).await?;
    let third = a.release(&grant.claim()).await?;
    let by = take!(third, Released::NotHeld { by } => by, "a release beside a new holder");
    if let Some(by) = by {
        check!(by.token == next.token, "not held, but by {} instead of {}", by.token, next.token);
    }
    Ok(())
}

/// A claim that was never granted is released by a value, not an error.
pub(crate) async fn claim_without_a_grant_is_no_error(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let claim = Claim::new(bench.name(), OwnerId::random(), None);
    take!(a.release(&claim).await?, Released::AlreadyReleased => (), "a release of nothing");
    check!(a.is_free(&claim.name).await?.is_some(), "the release took the name");
    Ok(())
}

/// B08: a forged claim ends nobody's grant, with or without the right token in it.
pub(crate) async fn forged_claim_ends_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    for token in [None, Some(grant.token)] {
        let forged = Claim::new(name.clone(), OwnerId::random(), token);
        take!(b.release(&forged).await?, Released::NotHeld { .. } => (), "a forged release");
    }
    let holder = a.store_inspect(&name).await?.holder().map(|h| h.token);
    check!(holder == Some(grant.token), "the holder is {holder:?} now");
    b.refused(&name, b.ttl()).await?;
    Ok(())
}

/// B06, B09: a release that comes after the grant ran out leaves the next holder as it is, to the
/// millisecond.
pub(crate) async fn late_release_leaves_the_next_holder(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let old = a.grant(&name, a.profile().ttl_min).await?;
    becomes_free(&bench, &b, &name, a.profile().ttl_min * 3).await?;
    let new = b.grant(&name, b.ttl()).await?;
    let keeps = a.profile().keep_for == Declared::Yes;
    let keep_for = if keeps { a.long_ttl() } else { Duration::ZERO };
    let late = a.release_keeping(&old.claim(), keep_for).await?;
    take!(late, Released::NotHeld { .. } => (), "a late release");
    a.refused(&name, a.long_ttl()).await?;
    let seen = a.store_inspect(&name).await?;
    check!(seen.holder().map(|h| h.token) == Some(new.token), "the next holder is gone: {seen:?}");
    check!(seen.free_in <= Some(b.ttl()), "the next holder has {:?} left", seen.free_in);
    Ok(())
}

/// A name released with `keep_for` stays taken that long, by nobody, and not longer.
pub(crate) async fn kept_name_stays_taken(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, (a.ttl() / 2).max(a.profile().ttl_min)).await?;
    let sent_at = bench.now();
    let keep_for = a.ttl();
    take!(a.release_keeping(&grant.claim(), keep_for).await?, Released::Released => (), "the release");
    let seen = b.store_inspect(&name).await?;
    check!(seen.holders.is_empty(), "a kept name has a holder: {seen:?}");
    check!(seen.free_in.is_some_and(|left| left <= keep_for), "free in {:?}", seen.free_in);
    stays_taken(&bench, &b, &name, sent_at + keep_for).await?;
    becomes_free(&bench, &b, &name, keep_for + SOON).await?;
    Ok(())
}

/// A kept name has no owner: releasing again frees nothing.
pub(crate) async fn second_release_leaves_a_kept_name(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    a.release_keeping(&grant.claim(), a.long_ttl()).await?;
    for _ in 0..2 {
        take!(a.release(&grant.claim()).await?, Released::AlreadyReleased => (), "releasing again");
    }
    b.refused(&name, b.ttl()).await?;
    Ok(())
}

/// `min_hold` keeps a name taken from the grant on, although its lease was released.
pub(crate) async fn min_hold_outlives_the_release(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let min_hold = a.ttl();
    let before = bench.now();
    let lease = a.lease(&name, &a.settings().min_hold(min_hold)).await?;
    lease.release().await?;
    stays_taken(&bench, &b, &name, before + min_hold).await?;
    becomes_free(&bench, &b, &name, min_hold + SOON).await?;
    Ok(())
}

/// B43, B44: a release that fails says so and goes on in the background until the store answers.
pub(crate) async fn failed_release_goes_on(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    for fate in [Fate::Refuse, Fate::DropRequest] {
        let name = bench.name();
        let lease = a.lease(&name, &a.settings().ttl(a.long_ttl())).await?;
        let before = a.store.count(Op::Release);
        a.store.set_times(Op::Release, fate, 3);
        let releasing = tokio::spawn(lease.release());
        becomes_free(&bench, &b, &name, Bench::OPERATION_TIMEOUT * 4 + SOON).await?;
        check!(releasing.await?.is_err(), "the first try failed and nobody was told");
        let tries = a.store.count(Op::Release) - before;
        check!(tries >= 4, "only {tries} tries");
    }
    Ok(())
}

/// B05: a release whose reply was lost is repeated, and the next holder does not notice.
pub(crate) async fn repeated_release_leaves_the_next_holder(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings().ttl(a.long_ttl())).await?;
    // The first release is applied and its reply lost; the repeat is on its way for so long that
    // somebody else holds when it arrives.
    a.store.set_times(Op::Release, Fate::BreakReply, 1);
    a.store.then(Op::Release, Fate::HoldRequest);
    let error = take!(lease.release().await, Err(error) => error, "the reply was lost");
    check!(error.effect() == Effect::Unknown, "an unknown outcome is called known: {error:?}");
    let repeated = || a.store.count(Op::Release) >= 2;
    bench.until_true("the release is repeated", Bench::OPERATION_TIMEOUT, repeated).await?;
    let next = b.grant(&name, b.long_ttl()).await?;
    a.store.open();
    bench.pass(SOON).await;
    let holder = a.store_inspect(&name).await?.holder().map(|h| h.token);
    check!(holder == Some(next.token), "the next holder was released: {holder:?}");
    b.refused(&name, b.ttl()).await?;
    Ok(())
}

/// A release is no loss: nobody is told of one, then or later.
pub(crate) async fn released_lease_is_never_lost(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    let (mut states, cancelled) = (lease.states(), lease.cancelled());
    lease.release().await?;
    let told = states.borrow_and_update().clone();
    check!(told == LeaseState::Ended(EndReason::Released), "a release is told as {told:?}");
    bench.pass(a.ttl() * 2).await;
    check!(!cancelled.is_cancelled(), "a release cancelled the work");
    check!(!matches!(states.has_changed(), Ok(true)), "told {:?} after its release", *states.borrow());
    Ok(())
}

/// B89: a lease may be released where its loss is seen, and the release ends soon.
pub(crate) async fn lost_lease_is_released_without_a_hang(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    a.store.set(Op::Renew, Fate::DropRequest);
    let work = tokio::spawn(async move {
        tokio::select! {
            over = lease.lost() => {
                let state = over.state;
                lease.release().await.map(|released| (state, released))
            }
        }
    });
    bench.until_true("loss and release", a.ttl() * 2, || work.is_finished()).await?;
    let (state, released) = work.await??;
    check!(state.is_loss(), "over as {state:?}");
    // Nobody else holds it, and the store may have let it run out or not.
    check!(matches!(released, Released::Released | Released::AlreadyReleased), "{released:?}");
    check!(a.is_free(&name).await?.is_some(), "still taken");
    Ok(())
}
