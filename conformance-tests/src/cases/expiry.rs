//! Grants and leases end on time: never early, and not much later (I3, I11).

use std::time::{Duration, Instant, SystemTime};

use leasehold_core::{AcquireError, EndReason, LeaseClient, LeaseState};

use super::{SOON, anchored, becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed, Fate, Op};

/// A grant is the owner's for its whole ttl, and anybody's soon after.
pub(crate) async fn grant_runs_out_on_time(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.ttl()).await?;
    let refusals = stays_taken(&bench, &b, &name, grant.anchor + grant.ttl).await?;
    check!(refusals > 0, "nobody asked in time");
    becomes_free(&bench, &b, &name, grant.ttl + SOON).await?;
    Ok(())
}

/// What has run out is not shown as held.
pub(crate) async fn expired_grant_is_not_shown(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    a.grant(&name, a.ttl()).await?;
    check!(a.store_inspect(&name).await?.holder().is_some(), "a fresh grant is not shown");
    let gone = async || {
        let seen = a.store_inspect(&name).await?;
        Ok((seen.holders.is_empty() && seen.free_in.is_none()).then_some(()))
    };
    bench.until("the grant disappears", a.ttl() * 2, gone).await?;
    Ok(())
}

/// I2: a grant that has run out is no grant: who had it gets the name under a larger token, even if nobody was there
/// meanwhile.
pub(crate) async fn own_expired_grant_is_a_new_one(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let request = a.request(&bench.name(), a.ttl());
    let first = a.granted(&request).await?;
    let gone = async || Ok(a.store_inspect(&request.name).await?.free_in.is_none().then_some(()));
    bench.until("the grant disappears", a.ttl() * 2, gone).await?;
    let second = a.granted(&request).await?;
    check!(second.token > first.token, "token {} after {}", second.token, first.token);
    Ok(())
}

/// I3: anchor and ttl of a grant promise nothing beyond the store's countdown, the first time and
/// when the same owner asks again.
pub(crate) async fn grant_promises_no_more_than_the_store(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let request = a.request(&bench.name(), a.ttl());
    for _ in 0..3 {
        let grant = a.granted(&request).await?;
        anchored(&bench, &a, &request.name, (grant.anchor, grant.ttl)).await?;
        bench.pass(a.ttl() / 3).await;
    }
    Ok(())
}

/// I3: a grant that joins what an earlier one of the same process started promises no more than the store keeps:
/// where grants share a countdown, it began before the second one was asked for.
pub(crate) async fn second_grant_promises_no_more_than_the_store(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    a.grant(&bench.name(), a.ttl()).await?;
    bench.pass(a.ttl() * 7 / 10).await;
    let name = bench.name();
    let second = a.grant(&name, a.ttl()).await?;
    let refusals = stays_taken(&bench, &b, &name, second.anchor + second.ttl).await?;
    check!(refusals > 0, "nobody asked in time");
    becomes_free(&bench, &b, &name, second.ttl + SOON).await?;
    Ok(())
}

/// I11: what one lease of a process keeps alive does not keep another grant of it beyond its own time.
pub(crate) async fn neighbour_keeps_no_grant_alive(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let (kept, left) = (bench.name(), bench.name());
    let lease = a.lease(&kept, &a.settings()).await?;
    let grant = a.grant(&left, a.ttl()).await?;
    stays_taken(&bench, &b, &left, grant.anchor + grant.ttl).await?;
    becomes_free(&bench, &b, &left, SOON).await?;
    lease.check()?;
    b.refused(&kept, b.ttl()).await?;
    lease.release().await?;
    Ok(())
}

/// The same owner asking again starts the countdown anew, also with a shorter ttl.
pub(crate) async fn asking_again_starts_the_countdown_anew(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let request = a.request(&bench.name(), a.ttl());
    a.granted(&request).await?;
    bench.pass(a.ttl() * 2 / 3).await;
    let again = a.granted(&request).await?;
    stays_taken(&bench, &b, &request.name, again.anchor + again.ttl).await?;

    let mut request = a.request(&bench.name(), a.long_ttl());
    a.granted(&request).await?;
    request.store_ttl = a.ttl();
    let again = a.granted(&request).await?;
    let left = b.store_inspect(&request.name).await?.free_in;
    let most = again.ttl + a.profile().ttl_granularity;
    check!(left.is_none_or(|left| left <= most), "{left:?} left after asking for {:?}", again.ttl);
    Ok(())
}

/// A renewal starts the countdown anew, with the ttl that it asks for.
pub(crate) async fn renewal_starts_the_countdown_anew(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.ttl()).await?;
    bench.pass(a.ttl() / 2).await;
    let sent_at = bench.now();
    a.renew(&grant.claim(), a.ttl()).await?;
    stays_taken(&bench, &b, &name, sent_at + a.ttl()).await?;
    becomes_free(&bench, &b, &name, a.ttl()).await?;
    Ok(())
}

/// I3: the holder's deadline is counted from before the request was sent, not from the reply.
pub(crate) async fn deadline_is_counted_from_the_request(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let delay = (a.ttl() / 4).min(Bench::OPERATION_TIMEOUT / 2);
    a.store.set(Op::Acquire, Fate::HoldReply);
    let acquiring = tokio::spawn({
        let (client, name, settings) = (a.client.clone(), name.clone(), a.settings());
        async move { client.try_acquire(&name, &settings).await }
    });
    bench.until_true("the request goes out", SOON, || a.store.count(Op::Acquire) == 1).await?;
    // The client read its clock before this.
    let sent_by = a.store.log()[0].at;
    bench.pass(delay).await;
    let replied = bench.now();
    a.store.open();
    let lease = match acquiring.await?? {
        leasehold_core::TryAcquire::Granted(lease) => lease,
        leasehold_core::TryAcquire::Held(seen) => return Err(Failed::new(format!("refused: {seen:?}"))),
    };
    let until = lease.valid_until().ok_or_else(|| Failed::new("over at once"))?;
    check!(replied.since(sent_by) >= delay, "the reply was not late");
    check!(until <= sent_by + a.ttl(), "valid for {:?} after the request", until.since(sent_by));
    Ok(())
}

/// A grant whose answer took longer than the holder may count on is no lease: it is given back at
/// once, and its caller is told both times.
pub(crate) async fn grant_that_comes_too_late_is_given_back(bench: Bench) -> Result<(), Failed> {
    // Half of every ttl is margin here: three quarters of one are too late for the holder, and early
    // enough for the store.
    let ttl = bench.node().await?.ttl();
    let a = bench.node_with(|profile| profile.with_margin(ttl / 2)).await?;
    let b = bench.node().await?;
    let name = bench.name();
    let patient = LeaseClient::with_operation_timeout(std::sync::Arc::new(a.store.clone()), &a.watchdog, ttl);
    a.store.set_times(Op::Acquire, Fate::HoldReply, 1);
    let acquiring = tokio::spawn({
        let (name, settings) = (name.clone(), a.settings().ttl(ttl));
        async move { patient.try_acquire(&name, &settings).await }
    });
    bench.until_true("the request goes out", SOON, || a.store.count(Op::Acquire) == 1).await?;
    bench.pass(ttl * 3 / 4).await;
    check!(b.store_inspect(&name).await?.holder().is_some(), "the store did not grant it");
    a.store.open();
    bench.until_true("the answer is seen", SOON, || acquiring.is_finished()).await?;
    let error = take!(acquiring.await?, Err(error) => error, "a lease without time");
    let (took, granted) =
        take!(&error, AcquireError::GrantedTooLate { took, ttl, .. } => (*took, *ttl), "the error");
    check!(took >= ttl / 2 && granted >= ttl, "took {took:?} of {granted:?}");
    // Sooner than it would run out, where that can be told apart.
    let within = if bench.manual().is_some() { ttl / 8 } else { ttl };
    becomes_free(&bench, &b, &name, within).await?;
    check!(a.store.count(Op::Release) > 0, "nothing was released");
    Ok(())
}

/// A fixed lease is over after one ttl: nobody renews it.
pub(crate) async fn fixed_lease_ends_after_one_ttl(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let start = bench.now();
    let lease = a.lease(&name, &a.settings().fixed()).await?;
    let over = async || Ok(lease.check().is_err().then(|| bench.now()));
    let (at, _) = bench.until("the lease ends", a.ttl() + SOON, over).await?;
    check!(at.since(start) + a.ttl() / 4 >= a.ttl(), "over after {:?}", at.since(start));
    check!(a.store.count(Op::Renew) == 0, "{} renewals of a fixed lease", a.store.count(Op::Renew));
    becomes_free(&bench, &b, &name, a.ttl()).await?;
    Ok(())
}

/// I11: a lease ends at its maximum hold, however well it is renewed, and in the store too.
pub(crate) async fn max_hold_ends_the_lease(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let max_hold = a.ttl() * 2;
    let start = bench.now();
    let lease = a.lease(&name, &a.settings().max_hold(max_hold)).await?;
    ends_at(&bench, &lease, start + max_hold, EndReason::MaxHold).await?;
    becomes_free(&bench, &b, &name, a.ttl() + SOON).await?;
    Ok(())
}

/// I11: a lease ends at its business deadline, and in the store too.
pub(crate) async fn business_deadline_ends_the_lease(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let left = a.ttl() * 2;
    let start = bench.now();
    let read = Instant::now();
    let lease = a.lease(&name, &a.settings().deadline(SystemTime::now() + left)).await?;
    // The wall clock goes on until the grant, also where the boot clock is virtual.
    let end = start + left.saturating_sub(read.elapsed());
    ends_at(&bench, &lease, end, EndReason::Deadline).await?;
    becomes_free(&bench, &b, &name, a.ttl() + SOON).await?;
    Ok(())
}

async fn ends_at(
    bench: &Bench,
    lease: &leasehold_core::Lease,
    end: leasehold_core::BootTime,
    reason: EndReason,
) -> Result<(), Failed> {
    /// Two clocks are never read at the same moment.
    const READING: Duration = Duration::from_millis(2);
    let within = end.since(bench.now()) + SOON;
    let over = async || Ok(lease.check().is_err().then(|| bench.now()));
    let (at, _) = bench.until("the lease ends", within, over).await?;
    check!(at + READING >= end, "over {:?} before its time", end.since(at));
    let state = lease.state();
    check!(state == LeaseState::Ended(reason), "ended as {state:?}");
    bench.until_true("its signal", SOON, || lease.cancelled().is_cancelled()).await?;
    Ok(())
}

/// `ensure` refuses a step that needs more time than is left, while the lease is valid.
pub(crate) async fn step_that_does_not_fit_is_refused(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings().fixed()).await?;
    lease.ensure(a.ttl() / 8)?;
    let over = lease.ensure(a.ttl() * 2).err();
    check!(
        over.as_ref().is_some_and(|over| matches!(over.state, LeaseState::AtRisk { .. })),
        "a step of two ttls may start: {over:?}"
    );
    lease.check()?;
    lease.release().await?;
    Ok(())
}
