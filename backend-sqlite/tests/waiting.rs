//! Waiting, and attempts that nobody waits for any more.

mod support;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_core::{
    Attempt, LeaseBackend, LeaseClient, ReleaseRequest, Released, Settings, TryAcquire, Wait,
};
use support::*;

async fn waits(backend: &leasehold_sqlite::SqliteBackend, text: &str) -> Box<dyn leasehold_core::Waiter> {
    backend.waiter(&request(text, TTL)).await.expect("a waiter")
}

#[tokio::test]
async fn a_release_by_another_backend_of_this_process_wakes_at_once() {
    let fixture = Fixture::new().await;
    let rival = fixture.rival().await;
    let held = grant(&rival, "n", TTL).await;
    let mut waiter = waits(&fixture.backend, "n").await;
    let seen = refusal(&fixture.backend, "n", TTL).await;
    // Latched: the bell rang between the attempt and the wait.
    release(&rival, &held).await;
    let started = Instant::now();
    waiter.wait(&seen).await;
    assert!(started.elapsed() < Duration::from_millis(50), "{:?}", started.elapsed());
    // And while it waits.
    let held = grant(&rival, "n", TTL).await;
    let seen = refusal(&fixture.backend, "n", TTL).await;
    let waiting = tokio::spawn(async move {
        waiter.wait(&seen).await;
        Instant::now()
    });
    tokio::time::sleep(Duration::from_millis(300)).await; // long enough for its looks to be far apart
    let released = Instant::now();
    release(&rival, &held).await;
    let took = waiting.await.expect("woken").since(released);
    println!("woken {took:?} after the release was asked for");
    assert!(took < Duration::from_millis(50), "{took:?}");
}

trait Since {
    fn since(self, earlier: Instant) -> Duration;
}

impl Since for Instant {
    fn since(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// I9: nobody tells anything, and the waiter returns when the holder it saw has run out, not much earlier.
#[tokio::test]
async fn a_waiter_returns_when_the_seen_time_is_over() {
    let ttl = Duration::from_millis(700);
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", ttl).await;
    let mut waiter = waits(&fixture.backend, "n").await;
    let seen = refusal(&fixture.backend, "n", TTL).await;
    let started = Instant::now();
    waiter.wait(&seen).await;
    let took = started.elapsed();
    let left = seen.remaining.expect("known");
    assert!(
        took + Duration::from_millis(5) >= left && took < left + Duration::from_millis(200),
        "{took:?} of {left:?}"
    );
    grant(&fixture.backend, "n", TTL).await;
}

/// Commits that concern other names, and renewals of the holder, wake nobody; looks stay spaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_peoples_commits_are_not_wake_ups() {
    let fixture = Fixture::new().await;
    let (rival, busy) = (fixture.rival().await, fixture.rival().await);
    let held = grant(&rival, "n", TTL).await;
    let mut waiter = waits(&fixture.backend, "n").await;
    let seen = refusal(&fixture.backend, "n", TTL).await;
    let before = fixture.backend.counters().calls;
    let started = Instant::now();
    let mut waiting = tokio::spawn(async move { waiter.wait(&seen).await });
    let mut commits = 0;
    while started.elapsed() < Duration::from_secs(1) {
        let other = grant(&busy, "other", TTL).await;
        release(&busy, &other).await;
        renew(&rival, &held).await;
        commits += 3;
    }
    assert!(!waiting.is_finished(), "woken for nothing");
    let looks = fixture.backend.counters().calls - before;
    println!("{commits} commits, {looks} looks in a second");
    assert!(commits > 20 && looks >= 5, "the watch saw them: {looks} looks at {commits} commits");
    assert!(looks < 130, "spaced: {looks}");
    release(&rival, &held).await;
    tokio::time::timeout(Duration::from_secs(2), &mut waiting).await.expect("woken").expect("joined");
}

#[tokio::test]
async fn a_waiter_notices_that_the_file_was_replaced() {
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", TTL).await;
    let mut waiter = waits(&fixture.backend, "n").await;
    let seen = refusal(&fixture.backend, "n", TTL).await;
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(fixture.dir.path().join(format!("leases.db{suffix}"))).expect("removed");
    }
    tokio::time::timeout(Duration::from_secs(2), waiter.wait(&seen)).await.expect("noticed");
    grant(&fixture.backend, "n", TTL).await;
}

/// A caller that holds its attempt back without polling it keeps the connection from nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_is_not_polled_blocks_nobody() {
    let fixture = Fixture::new().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let mut held_back = Vec::new();
    for n in 0..40 {
        let mine = request(&format!("held back/{n}"), TTL);
        let backend = fixture.backend.clone();
        let mut attempt = Box::pin(async move { backend.acquire(&mine).await });
        let mut nobody = Context::from_waker(Waker::noop());
        match attempt.as_mut().poll(&mut nobody) {
            // SQLite's thread may be faster than this one, where this one has to wait for a processor.
            Poll::Ready(answer) => assert!(matches!(answer, Ok(Attempt::Granted(_)))),
            Poll::Pending => held_back.push(attempt),
        }
    }
    println!("{} attempts are held back", held_back.len());
    assert!(held_back.len() >= 10, "hardly any attempt is held back");
    // All of them stand before this one.
    let (other, settings) = (name("other"), Settings::new());
    let others = client.try_acquire(&other, &settings);
    let answer = tokio::time::timeout(Duration::from_secs(5), others).await.expect("not blocked");
    assert!(matches!(answer, Ok(TryAcquire::Granted(_))));
    for attempt in held_back {
        assert!(matches!(attempt.await, Ok(Attempt::Granted(_))));
    }
}

/// I7: an attempt that was dropped with its statement under way stands before the release that follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_ordered_after_the_abandoned_attempt() {
    let fixture = Fixture::on_disk().await;
    let (mut was_granted, mut was_not, mut was_answered) = (0, 0, 0);
    for n in 0..300 {
        let text = format!("n{}", n % 7);
        let mine = request(&text, TTL);
        {
            let mut attempt = pin!(fixture.backend.acquire(&mine));
            let mut nobody = Context::from_waker(Waker::noop());
            // The first poll sends the statement; then nobody waits for it any more.
            if attempt.as_mut().poll(&mut nobody).is_ready() {
                // This thread was held up in the middle of the poll, and SQLite's was not.
                was_answered += 1;
            }
        }
        let released =
            fixture.backend.release(&ReleaseRequest::new(mine.claim(), now())).await.expect("answers");
        match released {
            Released::Released => was_granted += 1,
            Released::AlreadyReleased => was_not += 1,
            Released::NotHeld { by } => panic!("{by:?}"),
        }
        let inspection = fixture.backend.inspect(&name(&text)).await.expect("inspect");
        assert!(inspection.holders.is_empty(), "round {n}: {inspection:?}");
    }
    let dropped = was_granted - was_answered;
    println!("{dropped} attempts were granted after they were dropped, {was_not} were not sent");
    assert!(dropped > 50, "the danger was there");
}

/// B90, B14: attempts cut off at random leave nothing; how many were cut while their statement was under way is
/// printed, and must be some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_cut_off_at_random_leave_nothing() {
    const CUTS: u64 = 500;
    let fixture = Fixture::on_disk().await;
    let client = LeaseClient::new(fixture.backend.clone(), &fixture.watchdog);
    let rival = fixture.rival().await;
    let (mut cut, mut under_way, mut slowest) = (0, 0, Duration::ZERO);
    for n in 0..CUTS {
        let text = format!("cut/{}", n % 16);
        let before = fixture.backend.counters().calls;
        let limit = Duration::from_micros(n * 7_919 % 600);
        // A random limit; the runtime's timers have milliseconds, so it is spun for.
        let (wanted, settings) = (name(&text), Settings::new().ttl(Duration::from_secs(60)));
        let finished = {
            let mut attempt = pin!(client.try_acquire(&wanted, &settings));
            let mut nobody = Context::from_waker(Waker::noop());
            let started = Instant::now();
            loop {
                match attempt.as_mut().poll(&mut nobody) {
                    Poll::Ready(answer) => break Some(answer),
                    Poll::Pending if started.elapsed() >= limit => break None,
                    Poll::Pending => std::hint::spin_loop(),
                }
            }
        };
        let finished_too = finished.is_some();
        match finished {
            Some(answer) => {
                let TryAcquire::Granted(lease) = answer.expect("answers") else { panic!("held") };
                lease.release().await.expect("released");
            }
            None => {
                cut += 1;
                under_way += u32::from(fixture.backend.counters().calls > before);
            }
        }
        let mine = request(&text, TTL);
        let (grant, took) = until(
            &format!("{n} {finished_too}: free within the operation timeout"),
            Duration::from_secs(2),
            async || match attempt(&rival, &mine).await {
                Attempt::Granted(grant) => Some(grant),
                Attempt::Held(_) => None,
            },
        )
        .await;
        slowest = slowest.max(took);
        release(&rival, &grant).await;
    }
    println!(
        "{cut} of {CUTS} cut off, {under_way} while the statement was under way; free after {slowest:?} at the latest"
    );
    assert!(under_way > 50, "the danger was there");
    // The last clean-ups may still be under way.
    let mut raw = fixture.raw().await;
    until("nothing is left", Duration::from_secs(10), async || {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM leasehold_leases WHERE owner IS NOT NULL")
            .fetch_one(&mut raw)
            .await
            .expect("count");
        (left == 0).then_some(())
    })
    .await;
}

/// The name of a holder that has died is granted to a waiter when its time is over, and to one waiter only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_two_backends_get_a_name_that_runs_out() {
    let ttl = Duration::from_millis(500);
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", ttl).await;
    let started = Instant::now();
    let mut waiting = Vec::new();
    for backend in [fixture.backend.clone(), fixture.rival().await] {
        let client = LeaseClient::new(backend, &fixture.watchdog);
        waiting.push(tokio::spawn(async move {
            let lease = client.acquire(&name("n"), &Settings::new(), Wait::AtMost(TTL)).await.expect("held");
            let token = lease.token();
            lease.release().await.expect("released");
            token
        }));
    }
    let first = waiting.remove(0).await.expect("joined");
    let second = waiting.remove(0).await.expect("joined");
    let took = started.elapsed();
    assert_ne!(first, second);
    assert!(took >= ttl - Duration::from_millis(20) && took < ttl + Duration::from_secs(1), "{took:?}");
}
