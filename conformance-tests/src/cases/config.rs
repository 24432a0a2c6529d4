//! Profiles are true: what is declared works, what is not is refused before any I/O.

use std::time::Duration;

use leasehold_core::{
    AcquireError, AcquireRequest, Admission, Attempt, BackendError, Declared, Effect, ErrorKind,
    ForceRelease, LeaseBackend, Mode, Profile, ReleaseRequest, Released, RenewError, Renewal, Settings,
    TtlChange,
};

use crate::case::{check, take};
use crate::{Bench, Failed, LEAST, Node, Op};

/// A profile makes sense, is the same on every connection, and does not change.
pub(crate) async fn profile_is_constant_and_sane(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let before = a.profile().clone();
    check!(before == *b.profile(), "two connections declare differently");
    check!(!before.name.is_empty() && before.batch_max > 0, "{before:?}");
    check!(before.ttl_min > Duration::ZERO && before.ttl_min < before.ttl_max, "{before:?}");
    check!(before.ttl_granularity > Duration::ZERO, "{before:?}");
    check!(before.margin < before.ttl_min, "the margin eats the shortest ttl: {before:?}");
    let grant = a.grant(&bench.name(), a.ttl()).await?;
    a.release(&grant.claim()).await?;
    check!(before == *a.profile(), "the profile changed");
    Ok(())
}

/// A shipped store declares at least what the checked-in table promises for it.
pub(crate) async fn shipped_store_declares_its_least(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let facets = a.store.facets();
    for least in LEAST.iter().filter(|least| least.name == a.profile().name) {
        let lacks = least.lacks(a.profile(), facets.admin.is_some(), facets.fenced.is_some());
        check!(lacks.is_empty(), "{} no longer declares {lacks:?}", least.name);
    }
    Ok(())
}

fn refused_before_io(error: &BackendError, kind: ErrorKind) -> Result<(), Failed> {
    check!(error.kind() == kind, "refused as {error:?}");
    check!(error.effect() == Effect::None, "a refusal of unknown effect: {error:?}");
    check!(!error.is_retryable(), "a refusal that invites to try again: {error:?}");
    Ok(())
}

/// Refused by attempt and waiter alike, and the name stays free.
async fn undeclared(node: &Node, request: &AcquireRequest) -> Result<(), Failed> {
    let error = take!(node.store.acquire(request).await, Err(e) => e, "an undeclared wish");
    refused_before_io(&error, ErrorKind::Unsupported)?;
    let error = take!(node.store.waiter(request).await, Err(e) => e, "a waiter for an undeclared wish");
    refused_before_io(&error, ErrorKind::Unsupported)?;
    check!(node.is_free(&request.name).await?.is_some(), "the refused wish took the name");
    Ok(())
}

/// Shared leases coexist and keep an exclusive one out, or are refused where not declared.
pub(crate) async fn shared_mode_is_kept_or_refused(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let shared = |node: &Node, name| {
        let mut request = node.request(name, node.long_ttl());
        request.mode = Mode::Shared;
        request
    };
    let name = bench.name();
    if a.profile().shared == Declared::No {
        return undeclared(&a, &shared(&a, &name)).await;
    }
    let (first, second) = (a.granted(&shared(&a, &name)).await?, b.granted(&shared(&b, &name)).await?);
    b.refused(&name, b.ttl()).await?;
    a.release(&first.claim()).await?;
    b.refused(&name, b.ttl()).await?;
    b.release(&second.claim()).await?;
    a.grant(&name, a.long_ttl()).await?;
    take!(b.attempt(&shared(&b, &name)).await?, Attempt::Held(_) => (), "shared beside exclusive");
    Ok(())
}

/// At most as many permits as there are, or a refusal where not declared.
pub(crate) async fn permits_are_kept_or_refused(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let permit = |node: &Node, name| {
        let mut request = node.request(name, node.long_ttl());
        request.mode = Mode::Permit { of: 2 };
        request
    };
    let name = bench.name();
    if a.profile().permits == Declared::No {
        return undeclared(&a, &permit(&a, &name)).await;
    }
    let first = a.granted(&permit(&a, &name)).await?;
    b.granted(&permit(&b, &name)).await?;
    take!(b.attempt(&permit(&b, &name)).await?, Attempt::Held(_) => (), "three of two permits");
    a.release(&first.claim()).await?;
    b.granted(&permit(&b, &name)).await?;
    Ok(())
}

/// A place in a queue is kept in order, or refused where not declared.
pub(crate) async fn queue_is_kept_or_refused(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let queued = |node: &Node, name| {
        let mut request = node.request(name, node.long_ttl());
        request.admission = Admission::Queue;
        request
    };
    let name = bench.name();
    if a.profile().queue == Declared::No {
        return undeclared(&a, &queued(&a, &name)).await;
    }
    let holder = a.grant(&name, a.long_ttl()).await?;
    let (first, second) = (queued(&a, &name), queued(&b, &name));
    for request in [&first, &second] {
        take!(a.attempt(request).await?, Attempt::Held(_) => (), "granted beside a holder");
    }
    a.release(&holder.claim()).await?;
    take!(b.attempt(&second).await?, Attempt::Held(_) => (), "the second before the first");
    a.granted(&first).await?;
    Ok(())
}

/// A name is kept taken after its release, or the release is refused where that is not declared, and
/// then the grant is as it was.
pub(crate) async fn keep_for_is_kept_or_refused(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let mut request = ReleaseRequest::new(grant.claim(), bench.now());
    request.keep_for = a.long_ttl();
    if a.profile().keep_for == Declared::Yes {
        take!(a.store.release(&request).await?, Released::Released => (), "the release");
        b.refused(&name, b.ttl()).await?;
        return Ok(());
    }
    let error = take!(a.store.release(&request).await, Err(error) => error, "an undeclared wish");
    refused_before_io(&error, ErrorKind::Unsupported)?;
    if let Some(admin) = a.store_admin() {
        let (by, reason) = ("an operator", "a test");
        let mut forced = ForceRelease::new(name.clone(), grant.token, by, reason, bench.now());
        forced.keep_for = a.long_ttl();
        let error = take!(admin.force_release(&forced).await, Err(error) => error, "an undeclared wish");
        refused_before_io(&error, ErrorKind::Unsupported)?;
    }
    let holder = b.store_inspect(&name).await?.holder().map(|holder| holder.token);
    check!(holder == Some(grant.token), "the refused release left {holder:?}");
    take!(a.release(&grant.claim()).await?, Released::Released => (), "a plain release");
    check!(b.is_free(&name).await?.is_some(), "still taken");
    Ok(())
}

/// A `min_hold` is refused before any I/O where the store keeps no name taken, whichever store it is.
pub(crate) async fn min_hold_is_refused_where_no_name_is_kept(bench: Bench) -> Result<(), Failed> {
    let a = bench.node_with(|profile| profile.with_keep_for(Declared::No)).await?;
    let name = bench.name();
    let settings = a.settings().min_hold(a.ttl());
    let error = take!(a.client.try_acquire(&name, &settings).await, Err(error) => error, "a lease");
    let error = take!(error, AcquireError::Backend(error) => error, "refused as");
    refused_before_io(&error, ErrorKind::Unsupported)?;
    check!(a.store.log().is_empty(), "the store was asked");
    a.lease(&name, &a.settings()).await?.release().await?;
    Ok(())
}

/// A changed ttl is refused before any I/O where the store cannot change it, and the lease goes on as
/// it was, whichever store it is.
pub(crate) async fn ttl_change_is_refused_where_it_is_fixed(bench: Bench) -> Result<(), Failed> {
    let fixed = |mut profile: Profile| {
        profile.ttl_change = TtlChange::Refused;
        profile
    };
    let a = bench.node_with(fixed).await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings().ttl(a.long_ttl()).fixed()).await?;
    let ttl = lease.ttl();
    for other in [a.ttl(), a.long_ttl() / 2] {
        let error = take!(lease.set_ttl(other).await, Err(error) => error, "a fixed ttl was changed");
        let error = take!(error, RenewError::Backend(error) => error, "refused as");
        refused_before_io(&error, ErrorKind::Unsupported)?;
        check!(lease.ttl() == ttl, "refused, and {:?} all the same", lease.ttl());
    }
    check!(a.store.count(Op::Renew) == 0, "the store was asked");
    let left = a.store_inspect(&name).await?.free_in;
    check!(left > Some(a.long_ttl() / 2), "{left:?} left in the store");
    lease.check()?;
    lease.release().await?;
    Ok(())
}

/// B66: a ttl out of range is refused with both numbers, by backend, waiter and client alike.
pub(crate) async fn ttl_out_of_range_is_refused(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let profile = a.profile().clone();
    let tick = Duration::from_nanos(1);
    let name = bench.name();
    for ttl in [Duration::ZERO, tick, profile.ttl_min - tick, profile.ttl_max + tick, Duration::MAX] {
        let request = a.request(&name, ttl);
        let error = take!(a.store.acquire(&request).await, Err(e) => e, "a ttl of {ttl:?} was taken");
        refused_before_io(&error, ErrorKind::ConfigInvalid)?;
        let error = take!(a.store.waiter(&request).await, Err(e) => e, "a waiter for {ttl:?}");
        refused_before_io(&error, ErrorKind::ConfigInvalid)?;
        let before = a.store.log().len();
        let error = a.client.try_acquire(&name, &Settings::new().ttl(ttl)).await.err();
        let refused = matches!(error, Some(AcquireError::Settings(_) | AcquireError::Backend(_)));
        check!(refused, "a ttl of {ttl:?}: {error:?}");
        check!(a.store.log().len() == before, "the store was asked for a ttl of {ttl:?}");
    }
    check!(a.is_free(&name).await?.is_some(), "a refused ttl took the name");
    Ok(())
}

/// B66: the shortest and the longest ttl work, and odd ones between are rounded up, never down.
pub(crate) async fn ttl_at_the_bounds_is_granted(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let (min, max) = (a.profile().ttl_min, a.profile().ttl_max);
    let odd = (min + Duration::from_nanos(1_500_001)).min(max);
    for ttl in [max, odd, min] {
        let name = bench.name();
        let grant = a.grant(&name, ttl).await?;
        let most = ttl + a.profile().ttl_granularity;
        check!(grant.ttl <= most, "granted {:?} of {ttl:?}", grant.ttl);
        let left = b.store_inspect(&name).await?.free_in;
        // Where time is real the shortest may be over by now.
        check!(left.is_some() || ttl < max, "a grant of {ttl:?} is over at once");
        check!(left.is_none_or(|left| left <= most), "{left:?} left of {ttl:?}");
        a.release(&grant.claim()).await?;
    }
    Ok(())
}

/// Settings that contradict each other are refused before any store hears of them.
pub(crate) async fn contradicting_settings_are_refused(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let ttl = a.ttl();
    let past = std::time::SystemTime::now() - Duration::from_secs(1);
    for settings in [
        a.settings().renew_every(ttl),
        a.settings().attempt_timeout(ttl * 2),
        a.settings().max_hold(Duration::ZERO),
        a.settings().min_hold(ttl * 2).max_hold(ttl),
        a.settings().deadline(past),
    ] {
        let error = a.client.try_acquire(&name, &settings).await.err();
        check!(matches!(error, Some(AcquireError::Settings(_))), "{settings:?}: {error:?}");
    }
    check!(a.store.log().is_empty(), "the store was asked");
    Ok(())
}

/// A closed backend says so in every call, leaves the grants as they are, and may be closed again.
pub(crate) async fn closed_backend_says_so(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    a.store.close().await;
    a.store.close().await;
    let closed = |op: &str, error: Option<BackendError>| {
        check!(
            error.as_ref().is_some_and(|e| e.kind() == ErrorKind::Closed),
            "{op} on a closed backend is to be refused as Closed, and {}",
            error.map_or("was answered without an error".to_owned(), |e| format!(
                "was refused otherwise: {e:?}"
            ))
        );
        Ok::<(), Failed>(())
    };
    let request = a.request(&bench.name(), a.ttl());
    closed("acquire", a.store.acquire(&request).await.err())?;
    closed("waiter", a.store.waiter(&request).await.err())?;
    closed("inspect", a.store.inspect(&name).await.err())?;
    let release = ReleaseRequest::new(grant.claim(), bench.now());
    closed("release", a.store.release(&release).await.err())?;
    let renewals = [Renewal::new(grant.claim(), a.ttl(), bench.now())];
    closed("renew", a.store.renew(&renewals).await.remove(0).err())?;
    if a.profile().expiry == leasehold_core::Expiry::Ttl {
        b.refused(&name, b.ttl()).await?;
    }
    Ok(())
}
