//! Dropping any future, or any guard, anywhere leaves no grant (I7).

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{AcquireError, Effect, Wait};

use super::wait::{acquiring, waits};
use super::{SOON, becomes_free};
use crate::case::{check, take};
use crate::{Bench, Failed, Fate, Op};

/// How many polls each way takes: enough that an acquire is dropped in the middle of both.
const SLOW: u32 = 4;

/// Polls once; whether the future is done.
async fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = future;
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// B90, I7: an acquire that is dropped after its n-th poll leaves nothing, for every n.
pub(crate) async fn dropped_at_every_poll_leaves_nothing(bench: Bench) -> Result<(), Failed> {
    /// A store that takes longer has been dropped at enough places.
    const POLLS_MAX: u32 = 200;
    let (a, b) = bench.pair().await?;
    a.store.set(Op::Acquire, Fate::Slow(SLOW));
    let settings = a.settings().ttl(a.long_ttl());
    let mut polls = 0;
    loop {
        let name = bench.name();
        let mut acquire = Box::pin(a.client.try_acquire(&name, &settings));
        let mut done = None;
        for _ in 0..polls {
            done = poll_once(acquire.as_mut()).await;
            if done.is_some() {
                break;
            }
            // A store in another thread or process needs a moment to get on.
            match bench.manual() {
                Some(_) => tokio::task::yield_now().await,
                None => tokio::time::sleep(Duration::from_micros(200)).await,
            }
        }
        drop(acquire);
        let finished = done.is_some() || polls >= POLLS_MAX;
        drop(done);
        becomes_free(&bench, &b, &name, Bench::OPERATION_TIMEOUT * 2).await?;
        if finished {
            break;
        }
        polls += 1;
    }
    check!(polls > SLOW * 2, "an acquire took only {polls} polls");
    // Standard output belongs to the runner's lines.
    eprintln!("{}: an acquire was dropped after each of 0 to {polls} polls", bench.harness());
    Ok(())
}

/// B91: an acquire that is dropped while it waits leaves the holder alone and takes nothing later.
pub(crate) async fn dropped_wait_leaves_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let acquire = acquiring(&b, &name, b.settings(), Wait::Forever);
    waits(&bench, &b).await?;
    acquire.abort();
    check!(acquire.await.is_err(), "granted beside a holder");
    let nobody = async || Ok((a.store_inspect(&name).await?.waiting.unwrap_or(0) == 0).then_some(()));
    bench.until("nobody waits", SOON, nobody).await?;
    let holder = a.store_inspect(&name).await?.holder().map(|h| h.token);
    check!(holder == Some(grant.token), "the holder is {holder:?} now");
    a.release(&grant.claim()).await?;
    bench.pass(SOON).await;
    check!(a.is_free(&name).await?.is_some(), "the dropped wait took the name");
    Ok(())
}

/// B14, I5: an acquire whose reply never comes ends with an unknown outcome in time, and is taken
/// back within the operation timeout.
pub(crate) async fn lost_reply_is_cleaned_up(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    a.store.set_times(Op::Acquire, Fate::LoseReply, 1);
    let start = bench.now();
    let acquire = tokio::spawn({
        let (client, name, settings) = (a.client.clone(), name.clone(), a.settings().ttl(a.long_ttl()));
        async move { client.try_acquire(&name, &settings).await }
    });
    bench.until_true("the attempt ends", Bench::OPERATION_TIMEOUT + SOON, || acquire.is_finished()).await?;
    check!(bench.now() >= start + Bench::OPERATION_TIMEOUT, "gave up early");
    let error = take!(acquire.await?, Err(AcquireError::Backend(e)) => e, "no answer came");
    check!(error.effect() == Effect::Unknown, "an unknown outcome is called known: {error:?}");
    becomes_free(&bench, &b, &name, Bench::OPERATION_TIMEOUT).await?;
    Ok(())
}

/// I5, I7: an acquire that is told "nobody knows" is taken back as if it had been granted.
pub(crate) async fn unknown_outcome_is_cleaned_up(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    a.store.set_times(Op::Acquire, Fate::BreakReply, 1);
    let settings = a.settings().ttl(a.long_ttl());
    let error = a.client.try_acquire(&name, &settings).await.err();
    let unknown = error.as_ref().and_then(AcquireError::backend).map(|e| e.effect());
    check!(unknown == Some(Effect::Unknown), "an unknown outcome is called known: {error:?}");
    becomes_free(&bench, &b, &name, Bench::OPERATION_TIMEOUT).await?;
    // Who waits asks again with the same owner instead, and finds its own grant.
    a.store.set_times(Op::Acquire, Fate::BreakReply, 2);
    let acquire = acquiring(&a, &name, settings, Wait::Forever);
    bench.until_true("the same owner is granted", SOON * 2, || acquire.is_finished()).await?;
    acquire.await??.check()?;
    Ok(())
}

/// I7: a request that arrives after everybody gave it up is taken back when it is granted.
pub(crate) async fn late_grant_is_taken_back(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    a.store.set_times(Op::Acquire, Fate::HoldRequest, 1);
    let acquire = tokio::spawn({
        let (client, name, settings) = (a.client.clone(), name.clone(), a.settings().ttl(a.long_ttl()));
        async move { client.try_acquire(&name, &settings).await.err() }
    });
    bench.until_true("the attempt ends", Bench::OPERATION_TIMEOUT + SOON, || acquire.is_finished()).await?;
    check!(acquire.await?.is_some(), "an attempt without an answer succeeded");
    let released = || a.store.count(Op::Release) >= 1;
    bench.until_true("a first release", Bench::OPERATION_TIMEOUT, released).await?;
    a.store.open();
    let again = || a.store.count(Op::Release) >= 2;
    bench.until_true("a release after the late grant", Bench::OPERATION_TIMEOUT, again).await?;
    becomes_free(&bench, &b, &name, SOON).await?;
    Ok(())
}

/// B93: a guard dropped in a task, on a plain thread, or by a panic frees the name soon (B19).
pub(crate) async fn dropped_guard_frees_the_name(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let settings = a.settings().ttl(a.long_ttl());
    let name = bench.name();
    drop(a.lease(&name, &settings).await?);
    becomes_free(&bench, &b, &name, SOON).await?;

    let lease = a.lease(&name, &settings).await?;
    let thread = std::thread::spawn(move || drop(lease));
    check!(thread.join().is_ok(), "dropping a guard on a plain thread panics");
    becomes_free(&bench, &b, &name, SOON).await?;

    let lease = a.lease(&name, &settings).await?;
    let task = tokio::spawn(async move {
        let _lease = lease;
        // Unwinds without the message that a panic prints.
        std::panic::resume_unwind(Box::new("a panic under a lease"));
    });
    check!(task.await.is_err(), "the task did not panic");
    becomes_free(&bench, &b, &name, SOON).await?;

    // A runtime that is shutting down drops its tasks, and the guards in them.
    let lease = a.lease(&name, &settings).await?;
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.spawn(async move {
            let _lease = lease;
            std::future::pending::<()>().await;
        });
        runtime.block_on(tokio::task::yield_now());
        drop(runtime);
        Ok::<(), std::io::Error>(())
    });
    check!(matches!(ended.join(), Ok(Ok(()))), "dropping a runtime with a guard in it fails");
    becomes_free(&bench, &b, &name, SOON).await?;
    check!(a.watchdog.stats().held == 0, "the watchdog keeps a dropped lease");
    Ok(())
}

/// I7: a release that is dropped at any poll goes on in the background.
pub(crate) async fn dropped_release_goes_on(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let settings = a.settings().ttl(a.long_ttl());
    for polls in 0..SLOW {
        let name = bench.name();
        let lease = a.lease(&name, &settings).await?;
        a.store.set_times(Op::Release, Fate::Slow(SLOW), 1);
        let mut release = Box::pin(lease.release());
        for _ in 0..polls {
            check!(poll_once(release.as_mut()).await.is_none(), "a slow release ended at once");
        }
        drop(release);
        becomes_free(&bench, &b, &name, SOON).await?;
    }
    Ok(())
}

/// Work under `run` is dropped where it waits when its lease is lost.
pub(crate) async fn run_stops_the_work_at_a_loss(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    check!(lease.run(async { 6 * 7 }).await? == 42, "work under a held lease");
    a.store.set(Op::Renew, Fate::DropRequest);
    let (started, alive) = tokio::sync::oneshot::channel::<()>();
    let work = tokio::spawn(async move {
        let work = async {
            let _started = started;
            std::future::pending::<()>().await;
        };
        lease.run(work).await
    });
    bench.until_true("the work is stopped", a.ttl() + SOON, || work.is_finished()).await?;
    let state = take!(work.await?, Err(cut) => cut.over().state.clone(), "endless work ended");
    check!(state.is_loss(), "stopped by {state:?}");
    check!(alive.await.is_err(), "the work still runs");
    Ok(())
}

/// A shutdown waits for the clean-ups under way, and then nothing is acquired any more.
pub(crate) async fn shutdown_waits_for_clean_ups(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let settings = a.settings().ttl(a.long_ttl());
    let names: Vec<_> = (0..20).map(|_| bench.name()).collect();
    let mut leases = Vec::new();
    for name in &names {
        leases.push(a.lease(name, &settings).await?);
    }
    a.store.set(Op::Release, Fate::HoldRequest);
    drop(leases);
    let shutdown = tokio::spawn({
        let client = a.client.clone();
        async move { client.shutdown(Duration::from_secs(60)).await }
    });
    bench.pass(SOON / 4).await;
    check!(!shutdown.is_finished(), "the shutdown did not wait");
    a.store.open();
    bench.until_true("the shutdown ends", SOON, || shutdown.is_finished()).await?;
    let left = shutdown.await?;
    check!(left == 0, "{left} clean-ups were left behind");
    for name in &names {
        check!(b.is_free(name).await?.is_some(), "{name} is still taken after the shutdown");
    }
    Ok(())
}

/// A client that was shut down acquires nothing and says why.
pub(crate) async fn client_that_was_shut_down_acquires_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    a.client.shutdown(SOON).await;
    a.client.shutdown(SOON).await;
    let error = a.client.try_acquire(&name, &a.settings()).await.err();
    check!(matches!(error, Some(AcquireError::Closed)), "told {error:?}");
    let error = a.client.acquire(&name, &a.settings(), Wait::Forever).await.err();
    check!(matches!(error, Some(AcquireError::Closed)), "told {error:?}");
    check!(b.is_free(&name).await?.is_some(), "it took the name all the same");
    Ok(())
}
