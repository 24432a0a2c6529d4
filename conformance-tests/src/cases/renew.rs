//! Renewals: what they may do, and how the watchdog makes them (I4, I6).

use leasehold_core::{
    LeaseBackend, LeaseState, LostCause, OwnerId, RenewAnswer, Renewal, Token, TokenSource,
};

use super::{FLOOR_AHEAD, SOON, anchored, becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed, Fate, Node, Op};

/// B10 (i): a grant that has run out is lost to its owner, and a renewal neither revives it nor
/// makes it anew.
pub(crate) async fn expired_grant_is_not_revived(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.ttl()).await?;
    let gone = async || Ok(b.store_inspect(&name).await?.holders.is_empty().then_some(()));
    bench.until("the grant runs out", a.ttl() * 2, gone).await?;
    let answer = a.renew(&grant.claim(), a.long_ttl()).await?;
    check!(matches!(answer, RenewAnswer::Lost(_)), "a dead grant was renewed: {answer:?}");
    check!(b.is_free(&name).await?.is_some(), "the renewal took the name");
    // After that release there is no record any more.
    let answer = a.renew(&grant.claim(), a.long_ttl()).await?;
    check!(matches!(answer, RenewAnswer::Lost(_)), "a grant was made anew: {answer:?}");
    check!(b.is_free(&name).await?.is_some(), "the renewal took the name");
    Ok(())
}

/// B10 (ii): the renewal of a former holder is lost, says to whom, and leaves the new holder alone.
pub(crate) async fn former_holder_disturbs_nobody(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let old = a.grant(&name, a.profile().ttl_min).await?;
    becomes_free(&bench, &b, &name, a.profile().ttl_min * 3).await?;
    let new = b.grant(&name, b.ttl()).await?;
    let answer = a.renew(&old.claim(), a.long_ttl()).await?;
    let cause = take!(answer, RenewAnswer::Lost(cause) => cause, "renewed a stranger's grant");
    if let LostCause::Taken { by } = &cause {
        check!(by.token == new.token, "taken by {} instead of {}", by.token, new.token);
    }
    let seen = b.store_inspect(&name).await?;
    let holder = take!(seen.holder(), Some(h) => h, "the new holder is gone");
    check!(holder.token == new.token, "token {} instead of {}", holder.token, new.token);
    check!(holder.remaining <= Some(b.ttl()), "the new holder has {:?} left", holder.remaining);
    take!(b.renew(&new.claim(), b.ttl()).await?, RenewAnswer::Renewed { .. } => (), "the new holder lost");
    Ok(())
}

/// A batch is answered one by one and in order, whatever becomes of each.
pub(crate) async fn batch_is_answered_in_order(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let mut renewals = Vec::new();
    let mut mine = Vec::new();
    for i in 0..9.min(a.profile().batch_max) {
        let grant = [&a, &b][i % 2].grant(&bench.name(), a.long_ttl()).await?;
        let mut claim = grant.claim();
        let holds = i % 3 != 1 && i != 0;
        if !holds {
            claim.owner = OwnerId::random();
        }
        mine.push(holds);
        renewals.push(Renewal::new(claim, a.long_ttl(), bench.now()));
    }
    let answers = a.store.renew(&renewals).await;
    check!(answers.len() == renewals.len(), "{} answers to {}", answers.len(), renewals.len());
    for (i, (answer, holds)) in answers.into_iter().zip(mine).enumerate() {
        let renewed = matches!(answer?, RenewAnswer::Renewed { .. });
        check!(renewed == holds, "answer {i}: renewed is {renewed}, held is {holds}");
    }
    check!(a.store.renew(&[]).await.is_empty(), "an answer to nothing");
    Ok(())
}

/// Every renewal of a batch is carried out as it was asked for: with a ttl of its own, and with a
/// token floor of its own where floors can be imposed.
pub(crate) async fn each_of_a_batch_gets_what_it_asks_for(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let floors = a.profile().token == TokenSource::Value;
    // The first is neither the longest nor the shortest.
    let ttls = [a.long_ttl() / 2, a.long_ttl(), a.ttl(), a.long_ttl() / 3, a.long_ttl()];
    let mut renewals = Vec::new();
    for &ttl in ttls.iter().take(a.profile().batch_max) {
        let grant = a.grant(&bench.name(), a.long_ttl()).await?;
        renewals.push(Renewal::new(grant.claim(), ttl.max(a.profile().ttl_min), bench.now()));
    }
    let token = |renewal: &Renewal| renewal.claim.token.ok_or_else(|| Failed::new("a grant without a token"));
    let far = Token::from_parts(token(&renewals[0])?.epoch(), token(&renewals[0])?.native() + FLOOR_AHEAD)?;
    if floors {
        renewals[0].token_floor = Some(far);
    }
    let sent = bench.now();
    renewals.iter_mut().for_each(|renewal| renewal.sent_at = sent);
    let answers = a.store.renew(&renewals).await;
    check!(answers.len() == renewals.len(), "{} answers to {}", answers.len(), renewals.len());
    let slack = a.profile().ttl_granularity;
    for (i, (answer, renewal)) in answers.into_iter().zip(&renewals).enumerate() {
        let (anchor, ttl) =
            take!(answer?, RenewAnswer::Renewed { anchor, ttl, .. } => (anchor, ttl), "renewal {i}");
        let asked = renewal.store_ttl;
        check!(ttl >= asked, "renewal {i} of {asked:?} is answered with {ttl:?}");
        check!(anchor <= bench.now(), "the anchor of renewal {i} lies in the future");
        let seen = a.store_inspect(&renewal.claim.name).await?;
        let looked = bench.now();
        let left = seen.free_in.unwrap_or_default();
        check!(left <= asked + slack, "renewal {i} of {asked:?} has {left:?} left");
        check!(
            left + looked.since(sent) + slack >= asked,
            "renewal {i} of {asked:?} has only {left:?} left after {:?}",
            looked.since(sent)
        );
        check!(anchor + ttl <= looked + left + slack, "renewal {i} promises more than the {left:?} left");
        let holder = take!(seen.holder(), Some(holder) => holder.token, "renewal {i} shows no holder");
        let as_asked = if renewal.token_floor.is_some() { holder > far } else { holder == token(renewal)? };
        check!(as_asked, "renewal {i}, floor {:?}, shows token {holder}", renewal.token_floor);
    }
    Ok(())
}

/// As many renewals as the profile takes in one call are answered in one call.
pub(crate) async fn full_batch_is_answered(bench: Bench) -> Result<(), Failed> {
    /// A store that takes more is not asked for more: grants cost time.
    const BATCH: usize = 600;
    let a = bench.node().await?;
    let mut renewals = Vec::new();
    for _ in 0..a.profile().batch_max.min(BATCH) {
        let grant = a.grant(&bench.name(), a.long_ttl()).await?;
        renewals.push(Renewal::new(grant.claim(), a.long_ttl(), bench.now()));
    }
    let last = renewals.len() - 1;
    renewals[last].claim.owner = OwnerId::random();
    let answers = a.store.renew(&renewals).await;
    check!(answers.len() == renewals.len(), "{} answers to {}", answers.len(), renewals.len());
    for (i, answer) in answers.into_iter().enumerate() {
        let renewed = matches!(answer?, RenewAnswer::Renewed { .. });
        check!(renewed == (i != last), "answer {i} of {last}: renewed is {renewed}");
    }
    Ok(())
}

/// The answer to a renewal carries the anchor and the ttl that the store's countdown has.
pub(crate) async fn answer_has_its_anchor_and_ttl(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let grant = a.grant(&bench.name(), a.ttl()).await?;
    bench.pass(a.ttl() / 2).await;
    let before = bench.now();
    let answer = a.renew(&grant.claim(), a.ttl()).await?;
    let (anchor, ttl) =
        take!(answer, RenewAnswer::Renewed { anchor, ttl, .. } => (anchor, ttl), "not renewed");
    anchored(&bench, &a, &grant.name, (anchor, ttl)).await?;
    check!(ttl >= a.ttl(), "renewed for {ttl:?} instead of {:?}", a.ttl());
    let left = a.store_inspect(&grant.name).await?.free_in.unwrap_or_default();
    // The countdown was started after `before` and looked at before now.
    let gone = bench.now().since(before) + a.profile().ttl_granularity;
    check!(left + gone >= a.ttl(), "{left:?} left {gone:?} after a renewal for {ttl:?}");
    Ok(())
}

/// The watchdog keeps a lease for many ttls, under one token, and nobody else gets the name.
pub(crate) async fn watchdog_keeps_a_lease_for_many_ttls(bench: Bench) -> Result<(), Failed> {
    const TTLS: u32 = 4;
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    let token = lease.token();
    let refusals = stays_taken(&bench, &b, &name, bench.now() + a.ttl() * TTLS).await?;
    lease.check()?;
    check!(refusals >= TTLS, "only {refusals} tries by others");
    check!(lease.token() == token, "the token changed");
    // At least one in half a ttl; the least that keeps a lease.
    let renewals = a.store.count(Op::Renew);
    check!(renewals as u32 >= TTLS * 2, "{renewals} renewals in {TTLS} ttls");
    lease.release().await?;
    check!(b.is_free(&name).await?.is_some(), "still taken after the release");
    Ok(())
}

/// B15: one renewal that fails loses nothing.
pub(crate) async fn one_failed_renewal_loses_nothing(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    for fate in [Fate::Refuse, Fate::BreakReply, Fate::DropRequest] {
        let before = a.store.count(Op::Renew);
        a.store.set_times(Op::Renew, fate, 1);
        let again = || a.store.count(Op::Renew) >= before + 2;
        bench.until_true("the renewal is tried again", a.ttl(), again).await?;
        lease.check()?;
    }
    bench.pass(a.ttl() * 2).await;
    lease.check()?;
    check!(lease.state() == LeaseState::Held, "{:?} long after the last fault", lease.state());
    Ok(())
}

/// B15: a lease whose renewals fail is shown at risk while there is time, and recovers.
pub(crate) async fn failing_renewals_put_a_lease_at_risk(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    // As many as fit with their pauses into what is left of a ttl.
    let failures = if bench.manual().is_some() { 10 } else { 4 };
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    let states = lease.states();
    a.store.set_times(Op::Renew, Fate::Refuse, failures);
    let at_risk = || matches!(*states.borrow(), LeaseState::AtRisk { .. });
    bench.until_true("the lease is shown at risk", a.ttl(), at_risk).await?;
    lease.check()?;
    let held = || *states.borrow() == LeaseState::Held;
    bench.until_true("the lease recovers", a.ttl(), held).await?;
    let renewals = a.store.count(Op::Renew);
    check!(renewals > failures as usize, "only {renewals} renewals were tried");
    lease.check()?;
    Ok(())
}

/// B17, I8: once a release has begun nothing renews the lease any more.
pub(crate) async fn nothing_is_renewed_after_its_release(bench: Bench) -> Result<(), Failed> {
    /// A slow store gets as many rounds as fit.
    const ROUNDS: u32 = 1_000;
    const TIME_MAX: std::time::Duration = std::time::Duration::from_secs(3);
    let a = bench.node().await?;
    let started = std::time::Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS && started.elapsed() < TIME_MAX {
        let lease = a.lease(&bench.name(), &a.settings()).await?;
        match rounds % 3 {
            0 => drop(lease),
            _ => _ = lease.release().await?,
        }
        rounds += 1;
    }
    check!(rounds >= 50, "only {rounds} rounds in {TIME_MAX:?}");
    // One that is renewed shows that the watchdog is awake.
    let kept = bench.name();
    let lease = a.lease(&kept, &a.settings()).await?;
    bench.pass(a.ttl() * 2).await;
    let strays = a.store.log().into_iter().filter(|seen| seen.op == Op::Renew && seen.name != kept);
    check!(strays.count() == 0, "released leases are renewed");
    check!(a.store.count(Op::Renew) > 0, "not even the held lease is renewed");
    let held = a.watchdog.stats().held;
    check!(held == 1, "the watchdog keeps {held} leases instead of 1");
    lease.release().await?;
    Ok(())
}

/// B26: after a stall a lease is renewed once, not once for every tick that was missed.
pub(crate) async fn stall_is_followed_by_no_burst(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let settings = a.settings().renew_every(a.ttl() / 20);
    let lease = a.lease(&bench.name(), &settings).await?;
    bench.settle().await;
    let before = a.store.count(Op::Renew);
    bench.jump(a.ttl() / 2).await;
    bench.settle().await;
    bench.pass(a.ttl() / 80).await;
    let burst = a.store.count(Op::Renew) - before;
    lease.check()?;
    // In real time the watchdog went on renewing meanwhile.
    let most = if bench.manual().is_some() { 2 } else { 12 };
    check!((1..=most).contains(&burst), "{burst} renewals after a stall of ten intervals");
    Ok(())
}

/// A fixed lease is renewed by hand.
pub(crate) async fn fixed_lease_is_renewed_by_hand(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings().fixed()).await?;
    let mut sent_at = bench.now();
    for _ in 0..3 {
        bench.pass(a.ttl() / 2).await;
        sent_at = bench.now();
        lease.renew().await?;
        lease.check()?;
    }
    stays_taken(&bench, &b, &name, sent_at + a.ttl() / 2).await?;
    lease.release().await?;
    Ok(())
}

/// A ttl that is changed while held is the store's too, shorter and longer.
pub(crate) async fn changed_ttl_reaches_the_store(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    let left = async |node: &Node| Ok::<_, Failed>(node.store_inspect(&name).await?.free_in);
    lease.set_ttl(a.long_ttl()).await?;
    check!(lease.ttl() == a.long_ttl(), "ttl {:?}", lease.ttl());
    let seen = left(&b).await?;
    check!(seen > Some(a.long_ttl() / 2), "{seen:?} left in the store after a longer ttl");
    lease.set_ttl(a.ttl()).await?;
    let seen = left(&b).await?;
    check!(seen <= Some(a.ttl()), "{seen:?} left in the store after a shorter ttl");
    check!(lease.remaining() <= a.ttl(), "{:?} left here after a shorter ttl", lease.remaining());
    bench.pass(a.ttl() * 2).await;
    lease.check()?;
    check!(lease.set_ttl(a.profile().ttl_max * 2).await.is_err(), "an impossible ttl was taken");
    lease.release().await?;
    bench.until_true("nobody is left", SOON, || a.watchdog.stats().held == 0).await?;
    Ok(())
}
