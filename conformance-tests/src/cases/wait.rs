//! Waiting: woken at once where the store tells, and never for ever (I9).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{AcquireError, Contention, Lease, LeaseBackend, LeaseName, Settings, Wait};
use tokio::task::JoinHandle;

use super::{SOON, becomes_free};
use crate::case::{check, take};
use crate::checker::Property;
use crate::{Bench, Failed, Node, Op};

/// An acquire on its way, in a task of its own.
pub(super) fn acquiring(
    node: &Node,
    name: &LeaseName,
    settings: Settings,
    wait: Wait,
) -> JoinHandle<Result<Lease, AcquireError>> {
    let (client, name) = (node.client.clone(), name.clone());
    tokio::spawn(async move { client.acquire(&name, &settings, wait).await })
}

/// Until the acquire of `node` was refused and waits.
pub(super) async fn waits(bench: &Bench, node: &Node) -> Result<(), Failed> {
    let before = node.store.count(Op::Acquire);
    // It is refused, subscribes, looks once more, and waits.
    bench.until_true("the waiter waits", SOON, || node.store.count(Op::Acquire) >= before.max(2)).await?;
    bench.settle().await;
    Ok(())
}

/// I9: a wake-up between the refused attempt and the wait is kept.
pub(crate) async fn wake_between_attempt_and_wait_is_kept(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let request = b.request(&name, b.ttl());
    let mut waiter = b.store.waiter(&request).await?;
    b.refused(&name, b.ttl()).await?;
    a.release(&grant.claim()).await?;
    // A moment for a store whose notification travels.
    bench.pass(Duration::from_millis(50)).await;
    let waited = tokio::spawn(async move {
        let seen = Contention::new(None, Some(Duration::from_secs(3600)));
        waiter.wait(&seen).await;
    });
    bench.until_true("the kept wake-up", SOON, || waited.is_finished()).await?;
    Ok(())
}

/// A release wakes who waits, long before the holder's time is over.
pub(crate) async fn release_wakes_a_waiter(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let acquire = acquiring(&b, &name, b.settings(), Wait::Forever);
    waits(&bench, &b).await?;
    check!(!acquire.is_finished(), "granted beside a holder");
    a.release(&grant.claim()).await?;
    bench.until_true("the waiter is granted", SOON, || acquire.is_finished()).await?;
    let lease = acquire.await??;
    check!(lease.token() > grant.token, "token {} after {}", lease.token(), grant.token);
    Ok(())
}

/// I9: when the holder just stops, a waiter is granted as soon as its time is over, and not before.
pub(crate) async fn expiry_wakes_a_waiter(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.ttl()).await?;
    let acquire = acquiring(&b, &name, b.settings(), Wait::Forever);
    bench.until_true("the waiter is granted", a.ttl() + SOON, || acquire.is_finished()).await?;
    let early = (grant.anchor + grant.ttl).since(bench.now());
    check!(early.is_zero(), "granted {early:?} before the holder's time was over");
    acquire.await??.release().await?;
    Ok(())
}

/// I9: with every notification lost a waiter is granted all the same when the holder's time is over.
pub(crate) async fn lost_notifications_only_delay(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    b.store.lose_wakes();
    bench.excuse(Property::H9);
    let name = bench.name();
    let grant = a.grant(&name, a.ttl()).await?;
    let acquire = acquiring(&b, &name, b.settings(), Wait::Forever);
    waits(&bench, &b).await?;
    a.release(&grant.claim()).await?;
    bench.until_true("the waiter is granted", a.ttl() + SOON, || acquire.is_finished()).await?;
    acquire.await??.release().await?;
    Ok(())
}

/// A dropped waiter leaves nothing that waits.
pub(crate) async fn dropped_waiter_leaves_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let waiter = b.store.waiter(&b.request(&name, b.ttl())).await?;
    let seen = a.store_inspect(&name).await?.waiting;
    check!(seen.is_none_or(|waiting| waiting >= 1), "nobody waits beside a waiter");
    drop(waiter);
    let nobody = async || Ok((a.store_inspect(&name).await?.waiting.unwrap_or(0) == 0).then_some(()));
    bench.until("nobody waits", SOON, nobody).await?;
    a.release(&grant.claim()).await?;
    check!(b.is_free(&name).await?.is_some(), "a dropped waiter holds the name");
    Ok(())
}

/// A wait that is over says so, with the holder that was seen; not before its time, and soon after.
pub(crate) async fn wait_ends_with_the_holder_seen(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let limit = b.ttl() / 2;
    let start = bench.now();
    let acquire = acquiring(&b, &name, b.settings(), Wait::AtMost(limit));
    bench.until_true("the wait ends", limit + SOON, || acquire.is_finished()).await?;
    check!(bench.now() >= start + limit, "ended {:?} early", (start + limit).since(bench.now()));
    let error = take!(acquire.await?, Err(error) => error, "granted beside a holder");
    let (waited, seen) =
        take!(error, AcquireError::TimedOut { waited, seen, .. } => (waited, seen), "another error");
    check!(waited >= limit, "waited {waited:?} of {limit:?}");
    let holder = seen.holder.map(|h| h.token);
    check!(holder == Some(grant.token), "the holder seen is {holder:?}");
    // B91: nothing of it comes back when the name is free.
    a.release(&grant.claim()).await?;
    check!(a.is_free(&name).await?.is_some(), "the wait that ended took the name");
    Ok(())
}

/// B40: a wait may be longer than the ttl, and the grant at its end has a whole one.
pub(crate) async fn wait_may_exceed_the_ttl(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let acquire = acquiring(&b, &name, b.settings(), Wait::AtMost(a.long_ttl()));
    bench.pass(b.ttl() * 2).await;
    check!(!acquire.is_finished(), "granted beside a holder");
    a.release(&grant.claim()).await?;
    bench.until_true("the waiter is granted", SOON, || acquire.is_finished()).await?;
    let lease = acquire.await??;
    check!(lease.remaining() > b.ttl() / 2, "{:?} left of {:?}", lease.remaining(), b.ttl());
    Ok(())
}

/// B37: fifty tasks of one client that wait for one name are served first come, first served, and
/// cost the store one waiter.
pub(crate) async fn local_waiters_are_served_in_order(bench: Bench) -> Result<(), Failed> {
    const WAITERS: usize = 50;
    let a = bench.node().await?;
    let name = bench.name();
    let settings = a.settings().ttl(a.long_ttl());
    let first = a.lease(&name, &settings).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..WAITERS {
        let (client, name, settings, served) =
            (a.client.clone(), name.clone(), settings.clone(), Arc::clone(&served));
        let (queued, in_line) = tokio::sync::oneshot::channel();
        tasks.push(tokio::spawn(async move {
            let mut acquire = Box::pin(client.acquire(&name, &settings, Wait::Forever));
            // The first poll takes the place in line.
            let early = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(match acquire.as_mut().poll(cx) {
                    std::task::Poll::Ready(early) => Some(early),
                    std::task::Poll::Pending => None,
                })
            });
            let early = early.await;
            let _ = queued.send(());
            let lease = match early {
                Some(early) => early?,
                None => acquire.await?,
            };
            served.lock().expect("no panic under it").push((i, lease.token()));
            lease.release().await?;
            Ok::<(), Failed>(())
        }));
        in_line.await?;
    }
    let asked = a.store.count(Op::Acquire);
    check!(asked <= 4, "{asked} attempts for one place in the store's line");
    first.release().await?;
    bench.until_true("all are served", a.long_ttl(), || tasks.iter().all(JoinHandle::is_finished)).await?;
    for task in tasks {
        task.await??;
    }
    let served = served.lock().expect("no panic under it");
    let in_order = served.iter().enumerate().all(|(place, (i, _))| place == *i);
    check!(in_order, "served in the order {:?}", served.iter().map(|(i, _)| i).collect::<Vec<_>>());
    check!(served.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens do not rise along the line");
    Ok(())
}

/// Every waiter gets its turn when several processes wait for one name.
pub(crate) async fn waiters_of_two_processes_are_all_granted(bench: Bench) -> Result<(), Failed> {
    const ROUNDS: usize = 5;
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let settings = a.settings().ttl(a.long_ttl());
    let tasks: Vec<_> = (0..ROUNDS * 2)
        .map(|i| {
            let (client, name, settings) = ([&a, &b][i % 2].client.clone(), name.clone(), settings.clone());
            tokio::spawn(async move {
                client.acquire(&name, &settings, Wait::Forever).await?.release().await?;
                Ok::<(), Failed>(())
            })
        })
        .collect();
    waits(&bench, &b).await?;
    a.release(&grant.claim()).await?;
    let all = || tasks.iter().all(JoinHandle::is_finished);
    bench.until_true("all are granted", SOON * 2 * ROUNDS as u32, all).await?;
    for task in tasks {
        task.await??;
    }
    becomes_free(&bench, &a, &name, SOON).await?;
    Ok(())
}
