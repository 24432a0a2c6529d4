//! What a holder sees when the store or the way to it fails (I3, I5, I6).

use leasehold_core::{
    BackendError, Effect, ErrorKind, LeaseBackend, LeaseState, LostCause, ReleaseRequest, Released,
    RenewAnswer, Renewal,
};

use super::{SOON, becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed, Fate, Fault, Op};

/// B20, I3: when no reply comes any more the holder is told before anybody else can be granted, by
/// its deadline at the latest and not long before it.
pub(crate) async fn cut_off_holder_is_told_on_time(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    bench.pass(a.ttl()).await;
    a.store.set(Op::Renew, Fate::DropRequest);
    let cut = bench.now();
    let until = lease.valid_until().ok_or_else(|| Failed::new("over before the cut"))?;
    let states = lease.states();
    let cancelled = lease.cancelled();
    let mut rival = None;
    let mut told = None;
    let both = async || {
        if told.is_none() && states.borrow().is_loss() && cancelled.is_cancelled() {
            told = Some(bench.now());
        }
        if rival.is_none() && b.is_free(&name).await?.is_some() {
            rival = Some(bench.now());
            check!(lease.check().is_err(), "believed while somebody else was granted");
        }
        Ok((told.is_some() && rival.is_some()).then_some(()))
    };
    bench.until("loss here and a grant there", a.ttl() * 2 + SOON, both).await?;
    let told = told.unwrap_or(cut);
    // A renewal on its way at the cut may have moved the deadline once more, never beyond a ttl.
    check!(told >= until.before(a.ttl() / 10), "told {:?} early", until.since(told));
    check!(told <= cut + a.ttl() + SOON, "told {:?} after the cut", told.since(cut));
    // In real time the two are looked at one after the other; the check above is never late.
    let in_order = told <= rival.unwrap_or(cut) || bench.manual().is_none();
    check!(in_order, "told after somebody else was granted");
    let over = lease.check().err().map(|over| over.state);
    check!(matches!(over, Some(LeaseState::Lost(_))), "over as {over:?}");
    Ok(())
}

/// A loss is told once, with one cause, whatever comes after it.
pub(crate) async fn loss_is_told_once(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    let mut states = lease.states();
    let log = tokio::spawn(async move {
        let mut log = Vec::new();
        // Ends with the guard, which is the last to know the states.
        while states.changed().await.is_ok() {
            log.push(states.borrow_and_update().clone());
        }
        log
    });
    a.store.set(Op::Renew, Fate::Refuse);
    bench.until_true("the lease is lost", a.ttl() + SOON, || lease.state().is_over()).await?;
    let over = lease.lost().await;
    a.store.open();
    bench.pass(a.ttl()).await;
    let again = lease.lost().await;
    check!(over == again, "lost as {over:?}, and then as {again:?}");
    lease.release().await?;
    bench.until_true("the last state is told", SOON, || log.is_finished()).await?;
    let log = log.await?;
    let losses = log.iter().filter(|state| state.is_over()).count();
    check!(losses == 1 && log.last() == Some(&over.state), "told {log:?}");
    Ok(())
}

/// I6: a check reads the clock itself: after a pause beyond the deadline the first look fails,
/// whoever has run meanwhile.
pub(crate) async fn first_look_after_a_pause_fails(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    // Where time is virtual the clock thread may be faster: often enough it is not.
    let rounds = if bench.manual().is_some() { 50 } else { 3 };
    // No renewal arrives, so that none is faster than the pause.
    a.store.set(Op::Renew, Fate::DropRequest);
    for _ in 0..rounds {
        let lease = a.lease(&bench.name(), &a.settings()).await?;
        bench.jump(a.ttl()).await;
        check!(lease.check().is_err(), "valid at its deadline");
        check!(lease.remaining().is_zero(), "{:?} left of nothing", lease.remaining());
        check!(lease.state().is_loss(), "shown as {:?}", lease.state());
    }
    Ok(())
}

/// I6, B21: a reply that comes after the deadline makes nothing valid again.
pub(crate) async fn late_reply_resurrects_nothing(bench: Bench) -> Result<(), Failed> {
    // Refused so often that the attempt which is held up is still under way at the deadline.
    let refusals = if bench.manual().is_some() { 6 } else { 4 };
    let a = bench.node().await?;
    let settings = a.settings().attempt_timeout(a.ttl() / 2).renew_every(a.ttl() / 2);
    let lease = a.lease(&bench.name(), &settings).await?;
    a.store.set_times(Op::Renew, Fate::Refuse, refusals);
    a.store.then(Op::Renew, Fate::HoldReply);
    let held = || a.store.count(Op::Renew) > refusals as usize;
    bench.until_true("a reply is held up", a.ttl(), held).await?;
    lease.check()?;
    bench.until_true("the lease is lost", a.ttl(), || lease.check().is_err()).await?;
    let state = lease.state();
    a.store.open();
    bench.pass(a.ttl() / 4).await;
    check!(lease.check().is_err(), "valid again after its loss");
    check!(lease.state() == state, "{:?} after {state:?}", lease.state());
    let renewals = a.store.count(Op::Renew);
    bench.pass(a.ttl() * 2).await;
    check!(a.store.count(Op::Renew) == renewals, "renewed after its loss");
    Ok(())
}

/// B62: a holder whose record the store lost is told at its next renewal, nothing is made anew, and
/// the next token is larger all the same.
pub(crate) async fn lost_record_is_told_and_tokens_rise(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    bench.pass(a.ttl() / 8).await;
    bench.inject(Fault::LoseRecord, &name).await?;
    let told = || lease.state().is_over();
    bench.until_true("the holder is told", a.ttl(), told).await?;
    let state = lease.state();
    check!(matches!(state, LeaseState::Lost(_)), "over as {state:?}");
    let next = take!(b.is_free(&name).await?, Some(token) => token, "the lost record was made anew");
    check!(next > lease.token(), "token {next} after {}", lease.token());
    Ok(())
}

/// B117: what leasehold did not write is a typed error on every way, never a grant and never a
/// panic.
pub(crate) async fn corrupt_record_is_a_typed_error(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    bench.inject(Fault::CorruptRecord, &name).await?;
    let corrupt = |error: leasehold_core::BackendError| error.kind() == ErrorKind::Corrupt;
    let request = b.request(&name, b.ttl());
    let error = take!(b.store.acquire(&request).await, Err(e) => e, "a corrupt record was granted");
    check!(corrupt(error.clone()), "acquire says {error:?}");
    let error = take!(b.store.inspect(&name).await, Err(e) => e, "a corrupt record was shown");
    check!(corrupt(error.clone()), "inspect says {error:?}");
    let renewals = [Renewal::new(grant.claim(), a.ttl(), bench.now())];
    let answers = a.store.renew(&renewals).await;
    check!(!matches!(answers[..], [Ok(RenewAnswer::Renewed { .. })]), "a corrupt record was renewed");
    // A release may find nothing of its own or refuse: it must not pretend.
    let _ = a.store.release(&ReleaseRequest::new(grant.claim(), bench.now())).await;
    Ok(())
}

/// What an error must say when the store did what was asked and its reply was lost.
fn unknown(error: &BackendError) -> Result<(), Failed> {
    check!(error.effect() == Effect::Unknown, "an unknown outcome is called known: {error:?}");
    check!(error.is_retryable(), "an error that does not invite to ask again: {error:?}");
    Ok(())
}

/// I5: when the reply to a batch of renewals is lost, every renewal has its own answer, an unknown
/// outcome is called so, and nothing is lost.
pub(crate) async fn renewals_without_a_reply_are_unknown(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let mut renewals = Vec::new();
    for _ in 0..3.min(a.profile().batch_max) {
        let grant = a.grant(&bench.name(), a.long_ttl()).await?;
        renewals.push(Renewal::new(grant.claim(), a.long_ttl(), bench.now()));
    }
    let broken = renewals.len() / 2;
    bench.inject(Fault::LoseNextReply, &renewals[broken].claim.name).await?;
    let answers = a.store.renew(&renewals).await;
    check!(answers.len() == renewals.len(), "{} answers to {}", answers.len(), renewals.len());
    for (i, answer) in answers.into_iter().enumerate() {
        match answer {
            Err(error) => unknown(&error)?,
            // Stores that renew one by one know of the others.
            Ok(RenewAnswer::Renewed { .. }) if i != broken => {}
            Ok(other) => return Err(Failed::new(format!("renewal {i} without a reply says {other:?}"))),
        }
    }
    for answer in a.store.renew(&renewals).await {
        take!(answer?, RenewAnswer::Renewed { .. } => (), "asked again");
    }
    // And the watchdog takes it as one that failed.
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    bench.inject(Fault::LoseNextReply, &name).await?;
    let before = a.store.count(Op::Renew);
    bench.until_true("it is renewed again", a.ttl(), || a.store.count(Op::Renew) >= before + 2).await?;
    bench.pass(a.ttl() * 2).await;
    lease.check()?;
    lease.release().await?;
    Ok(())
}

/// I5: an acquire and a release whose replies are lost are unknown, and asking again with the same
/// owner finds what was done.
pub(crate) async fn calls_without_a_reply_are_unknown(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let request = a.request(&name, a.long_ttl());
    bench.inject(Fault::LoseNextReply, &name).await?;
    let error = take!(a.store.acquire(&request).await, Err(error) => error, "an acquire without a reply");
    unknown(&error)?;
    b.refused(&name, b.ttl()).await?;
    let grant = a.granted(&request).await?;
    let holder = b.store_inspect(&name).await?.holder().map(|holder| holder.token);
    check!(holder == Some(grant.token), "granted {} and {holder:?} is shown", grant.token);
    bench.inject(Fault::LoseNextReply, &name).await?;
    let release = ReleaseRequest::new(grant.claim(), bench.now());
    let error = take!(a.store.release(&release).await, Err(error) => error, "a release without a reply");
    unknown(&error)?;
    take!(a.release(&grant.claim()).await?, Released::AlreadyReleased => (), "releasing again");
    check!(b.is_free(&name).await?.is_some(), "still taken");
    Ok(())
}

/// B25: a lease outlives a user's runtime that is blocked for longer than its ttl.
pub(crate) async fn blocked_runtime_loses_no_lease(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let settings = a.settings();
    let (client, leased) = (a.client.clone(), name.clone());
    let (hand_over, taken) = std::sync::mpsc::channel();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let lease = match client.try_acquire(&leased, &settings).await {
                Ok(leasehold_core::TryAcquire::Granted(lease)) => lease,
                other => return Err(std::io::Error::other(format!("not granted: {other:?}"))),
            };
            let _ = hand_over.send(());
            // The one worker of this runtime is blocked here.
            let _ = blocked.recv();
            lease.check().map_err(std::io::Error::other)
        })
    });
    let held = async || Ok(taken.try_recv().is_ok().then_some(()));
    bench.until("the lease", SOON, held).await?;
    stays_taken(&bench, &b, &name, bench.now() + a.ttl() * 2).await?;
    let _ = unblock.send(());
    match thread.join() {
        Ok(result) => result?,
        Err(_) => return Err(Failed::new("the blocked runtime panicked")),
    }
    becomes_free(&bench, &b, &name, SOON).await?;
    Ok(())
}

/// B39: a store that does not answer keeps no try longer than the operation timeout, and no wait
/// longer than its limit and the operation timeout.
pub(crate) async fn silent_store_ends_every_acquire(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    a.store.set(Op::Acquire, Fate::DropRequest);
    let name = bench.name();
    let long = a.settings().ttl(a.long_ttl());
    let tried = tokio::spawn({
        let (client, name, long) = (a.client.clone(), name.clone(), long.clone());
        async move { client.try_acquire(&name, &long).await.is_err() }
    });
    let limit = Bench::OPERATION_TIMEOUT;
    bench.until_true("the try ends", limit + SOON, || tried.is_finished()).await?;
    check!(tried.await?, "a silent store granted");
    for wait in [leasehold_core::Wait::AtMost(limit), leasehold_core::Wait::Forever] {
        let waited = super::wait::acquiring(&a, &name, long.clone(), wait);
        bench.until_true("the wait ends", limit * 2 + SOON, || waited.is_finished()).await?;
        check!(waited.await?.is_err(), "a silent store granted");
    }
    Ok(())
}

/// A holder that is told of its loss by the store gives the cause that the store gave.
pub(crate) async fn loss_has_the_cause_that_the_store_gave(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings().ttl(a.long_ttl()).fixed()).await?;
    // The holder ends its grant behind the guard's back; somebody else takes the name.
    let token = lease.token();
    let stolen = b.request(&name, b.long_ttl());
    a.admin()?
        .force_release(&leasehold_core::ForceRelease::new(
            name.clone(),
            token,
            "an operator",
            "a test",
            bench.now(),
        ))
        .await?;
    b.granted(&stolen).await?;
    check!(lease.renew().await.is_err(), "renewed beside the next holder");
    let state = lease.state();
    let told = matches!(&state, LeaseState::Lost(LostCause::Revoked { .. } | LostCause::Taken { .. }));
    check!(told, "lost as {state:?}");
    Ok(())
}
