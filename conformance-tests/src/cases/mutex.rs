//! One holder at a time (I1).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::{Attempt, Token, TryAcquire};

use crate::case::{check, take};
use crate::{Bench, Failed, Node};

/// I1: while a grant is unexpired, nobody else gets one.
pub(crate) async fn second_holder_is_refused(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    b.refused(&name, b.long_ttl()).await?;
    a.refused(&name, a.long_ttl()).await?;
    a.release(&grant.claim()).await?;
    b.grant(&name, b.ttl()).await?;
    Ok(())
}

/// I1 through the client: a refusal is a value, and the holder is undisturbed.
pub(crate) async fn client_is_refused_beside_a_lease(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let settings = a.settings().ttl(a.long_ttl());
    let lease = a.lease(&name, &settings).await?;
    for node in [&a, &b] {
        let answer = node.client.try_acquire(&name, &settings).await?;
        check!(matches!(answer, TryAcquire::Held(_)), "granted beside a lease");
    }
    lease.check()?;
    lease.release().await?;
    drop(b.lease(&name, &settings).await?);
    Ok(())
}

/// A refusal says who holds the name and for how long at most, and never who by the owner id.
pub(crate) async fn refusal_tells_who_and_how_long(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let seen = b.refused(&name, b.ttl()).await?;
    let holder = take!(&seen.holder, Some(h) => h, "no holder");
    check!(holder.token == grant.token, "token {} instead of {}", holder.token, grant.token);
    check!(holder.fingerprint == grant.owner.fingerprint(), "fingerprint {}", holder.fingerprint);
    let left = take!(seen.remaining, Some(left) => left, "no remaining time");
    check!(!left.is_zero() && left <= grant.ttl, "{left:?} left of {:?}", grant.ttl);
    let left = holder.remaining;
    check!(left.is_none_or(|left| left <= grant.ttl), "the holder has {left:?} of {:?}", grant.ttl);
    Ok(())
}

/// B03, I1, I2: 32 tasks race for one name; one is inside at a time, and tokens rise in order.
pub(crate) async fn racing_tasks_are_inside_one_by_one(bench: Bench) -> Result<(), Failed> {
    const TASKS: u32 = 32;
    const ROUNDS: u32 = 200;
    /// Where a store is slow, the race ends early, with so many grants at least.
    const TIME: Duration = Duration::from_secs(4);
    const GRANTS_MIN: usize = 20;
    /// A slow store on a busy machine is waited for no longer: that is a grant in a second.
    const TIME_MAX: Duration = Duration::from_secs(20);
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let inside = Arc::new(AtomicBool::new(false));
    let refusals = Arc::new(AtomicU32::new(0));
    let tokens = Arc::new(Mutex::new(Vec::<Token>::new()));
    let began = Instant::now();
    let (done, race) = tokio::sync::oneshot::channel();
    let mut tasks = tokio::task::JoinSet::new();
    // The case has one thread, and a race needs more.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    for task in 0..TASKS {
        let node: Node = if task % 2 == 0 { a.clone() } else { b.clone() };
        let (name, inside, refusals, tokens) =
            (name.clone(), Arc::clone(&inside), Arc::clone(&refusals), Arc::clone(&tokens));
        let racer = async move {
            let mut rounds = 0;
            let goes_on = || {
                let enough = tokens.lock().expect("no panic under it").len() >= GRANTS_MIN;
                began.elapsed() < if enough { TIME } else { TIME_MAX }
            };
            while rounds < ROUNDS && goes_on() {
                match node.attempt(&node.request(&name, node.long_ttl())).await? {
                    Attempt::Held(_) => _ = refusals.fetch_add(1, Ordering::Relaxed),
                    Attempt::Granted(grant) => {
                        rounds += 1;
                        check!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        tokens.lock().expect("no panic under it").push(grant.token);
                        tokio::task::yield_now().await;
                        check!(inside.swap(false, Ordering::SeqCst), "somebody else was inside");
                        node.release(&grant.claim()).await?;
                    }
                }
                tokio::task::yield_now().await;
            }
            Ok::<(), Failed>(())
        };
        tasks.spawn_on(racer, runtime.handle());
    }
    runtime.spawn(async move { done.send(tasks.join_all().await) });
    let raced = race.await;
    // Before anything fails: a runtime must not be dropped within another.
    runtime.shutdown_background();
    for raced in raced? {
        raced?;
    }
    let tokens = tokens.lock().expect("no panic under it");
    let refusals = refusals.load(Ordering::Relaxed);
    let rising = tokens.windows(2).all(|pair| pair[0] < pair[1]);
    check!(rising, "tokens do not rise in the order of the grants");
    // The danger was there.
    check!(refusals > 0, "nobody ever met anybody in {} grants", tokens.len());
    check!(tokens.len() >= GRANTS_MIN, "only {} grants within {TIME_MAX:?}", tokens.len());
    Ok(())
}

/// B72: how long a grant lasts is the record's business, not the rival's.
pub(crate) async fn rival_with_a_shorter_ttl_does_not_steal(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let end = grant.anchor + b.ttl() * 2;
    let mut tries = 0;
    while bench.now() < end {
        b.refused(&name, b.profile().ttl_min).await?;
        tries += 1;
        bench.pass(b.ttl() / 4).await;
    }
    check!(tries >= 4, "only {tries} tries");
    Ok(())
}

/// The same owner asking again gets its own grant, under the same token.
pub(crate) async fn same_owner_gets_the_same_token(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let request = a.request(&bench.name(), a.long_ttl());
    let first = a.granted(&request).await?;
    // Also over another connection: the owner decides, not who carries it.
    for node in [&a, &b, &a] {
        let again = node.granted(&request).await?;
        check!(again.token == first.token, "token {} after {}", again.token, first.token);
    }
    b.refused(&request.name, b.ttl()).await?;
    Ok(())
}

/// A refused try changes nothing: neither the holder's time, nor what comes after it.
pub(crate) async fn refused_try_leaves_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    for _ in 0..10 {
        b.refused(&name, b.profile().ttl_max).await?;
    }
    let left = a.store_inspect(&name).await?.free_in;
    check!(left.is_some_and(|left| left <= grant.ttl), "{left:?} left of {:?}", grant.ttl);
    a.release(&grant.claim()).await?;
    check!(a.is_free(&name).await?.is_some(), "a refused try holds the name");
    Ok(())
}
