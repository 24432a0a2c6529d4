//! A connection and the line of those who want it, first come, first served.
//!
//! A call is a **job** that owns all it needs. Alone, it is driven by its caller, without a detour. When
//! somebody else wants the connection meanwhile, the job is driven by the I/O runtime as well, and the
//! newcomer's job is queued there. So nobody waits for a future that is not polled: a caller that holds one back
//! (in a `select!`, in a queue of clean-ups, on a runtime that is blocked) does not keep the connection from
//! others.
//!
//! SQLite's write lock is not fair: acquires in a row could keep renewals out for long. So a renewal announces
//! itself, and the writer of this process **gives way**: it sends nothing while a renewal is waiting, but not for
//! longer than [`GIVE_WAY_MAX`].
//!
//! A statement that was sent is finished by SQLite's own thread, and what is sent next stands behind it. A job
//! whose caller has gone sends nothing more.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use leasehold_core::{BackendContext, BackendError, Effect, ErrorKind};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{ConnectOptions, Sqlite};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{OwnedMutexGuard, oneshot, watch};

use crate::SCHEME;
use crate::error::{cut_off, is_broken, opening, refused};
use crate::file::{Compared, Identity, Place};

/// A statement with its arguments.
pub(crate) type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// Longest time that one statement of the writer waits for renewals.
const GIVE_WAY_MAX: Duration = Duration::from_millis(250);

/// What a line has to do with the renewals of this process.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// It is theirs: its jobs are counted here.
    Announced(watch::Sender<usize>),
    /// It writes: its statements wait until none is counted.
    Given(watch::Sender<usize>),
    /// It only reads.
    Free,
}

/// One counted job.
struct Announced(watch::Sender<usize>);

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Way {
    fn announce(&self) -> Option<Announced> {
        match self {
            Way::Announced(count) => {
                count.send_modify(|n| *n += 1);
                Some(Announced(count.clone()))
            }
            Way::Given(_) | Way::Free => None,
        }
    }

    async fn give(&self, context: &BackendContext) {
        if let Way::Given(count) = self
            && *count.borrow() > 0
        {
            let mut renewals = count.subscribe();
            let none = pin!(renewals.wait_for(|n| *n == 0));
            select(none, context.sleep_until(context.now() + GIVE_WAY_MAX)).await;
        }
    }
}

/// Where a connection is, or is to be.
type Slot = Option<SqliteConnection>;

/// Who drives a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Its caller, as long as nobody else wants the connection.
    Caller,
    /// The I/O runtime: for transactions of several statements, which hold the write lock in between.
    Io,
}

/// A connection, and the line of those who wait for it.
pub(crate) struct Line {
    connection: Arc<tokio::sync::Mutex<Slot>>,
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
}

/// What the jobs of a line share.
struct Shared {
    opening: Opening,
    way: Way,
    context: BackendContext,
}

/// How to make the connection anew.
struct Opening {
    options: SqliteConnectOptions,
    /// What must be at the path then.
    expected: (Identity, Place),
}

#[derive(Default)]
struct Queue {
    /// Jobs handed to the I/O runtime that do not have the connection yet.
    waiting: Arc<()>,
    /// The job that its caller drives.
    current: Option<Arc<Driven>>,
}

/// A job that its caller drives, until somebody takes it over.
///
/// `futures_util`'s `Shared` would do, but it wakes the very task that has just driven it to its end, which costs
/// the caller an idle turn of its runtime in every call.
struct Driven(Mutex<Drive>);

struct Drive {
    /// None when it has ended, or was taken over.
    job: Option<BoxFuture<'static, ()>>,
    /// The caller, who is told of a take-over.
    caller: Option<Waker>,
}

impl Driven {
    fn new(job: BoxFuture<'static, ()>) -> Arc<Self> {
        Arc::new(Driven(Mutex::new(Drive { job: Some(job), caller: None })))
    }

    /// One poll by the caller. Ready when there is nothing to drive any more.
    fn drive(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut drive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = &mut drive.job else { return Poll::Ready(()) };
        if job.as_mut().poll(cx).is_ready() {
            drive.job = None;
            return Poll::Ready(());
        }
        if !drive.caller.as_ref().is_some_and(|caller| caller.will_wake(cx.waker())) {
            drive.caller = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The job, for another driver. Its first poll there takes over all wake-ups.
    fn take_over(&self) -> Option<BoxFuture<'static, ()>> {
        let (job, caller) = {
            let mut drive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (drive.job.take(), drive.caller.take())
        };
        // Outside the lock: a waker may run any code.
        if let (Some(_), Some(caller)) = (&job, caller) {
            caller.wake();
        }
        job
    }
}

/// The use of the connection by one job.
pub(crate) struct Turn {
    slot: OwnedMutexGuard<Slot>,
    caller: Weak<()>,
    line: Arc<Shared>,
}

impl Line {
    pub(crate) fn new(
        connection: Option<SqliteConnection>,
        options: &SqliteConnectOptions,
        expected: (Identity, Place),
        way: Way,
        context: BackendContext,
    ) -> Self {
        let opening = Opening { options: options.clone(), expected };
        Line {
            connection: Arc::new(tokio::sync::Mutex::new(connection)),
            shared: Arc::new(Shared { opening, way, context }),
            queue: Mutex::default(),
        }
    }

    /// Runs a job when its turn has come. It begins with [`Turn::begin`].
    ///
    /// # Errors
    /// The job's; that of making the connection; [`ErrorKind::Closed`] of unknown effect when the I/O runtime ends.
    pub(crate) async fn run<T, W>(
        &self,
        op: &'static str,
        driver: Driver,
        job: impl FnOnce(Turn) -> W + Send + 'static,
    ) -> Result<T, BackendError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let (answer, mut answered) = oneshot::channel();
        let caller = Arc::new(());
        let work = {
            let (line, caller) = (Arc::clone(&self.shared), Arc::downgrade(&caller));
            let announced = self.shared.way.announce();
            move |slot: OwnedMutexGuard<Slot>| {
                let done = job(Turn { slot, caller, line });
                // A panic must not be handed to those who only help to drive. No block around the job: that would
                // keep it twice, and every call allocates its future.
                AssertUnwindSafe(done).catch_unwind().map(move |done| {
                    let _announced = announced;
                    if let Ok(done) = done {
                        // Nobody may be waiting any more.
                        let _ = answer.send(done);
                    }
                })
            }
        };
        let mine = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let is_alone = driver == Driver::Caller && Arc::strong_count(&queue.waiting) == 1;
            match Arc::clone(&self.connection).try_lock_owned() {
                Ok(slot) if is_alone => {
                    let job = Driven::new(work(slot).boxed());
                    queue.current = Some(Arc::clone(&job));
                    Some(job)
                }
                // A slot that was taken for nothing goes back here.
                _ => {
                    let (waits, before) = (Arc::clone(&queue.waiting), queue.current.take());
                    if let Some(before) = before.and_then(|before| before.take_over()) {
                        self.shared.context.io().spawn(before);
                    }
                    let connection = Arc::clone(&self.connection);
                    self.shared.context.io().spawn(async move {
                        let slot = connection.lock_owned().await;
                        drop(waits);
                        work(slot).await;
                    });
                    None
                }
            }
        };
        if let Some(job) = mine {
            poll_fn(|cx| job.drive(cx)).await;
            match answered.try_recv() {
                Ok(done) => return done,
                Err(TryRecvError::Closed) => return Err(crashed(op)),
                // The I/O runtime drives it now.
                Err(TryRecvError::Empty) => {}
            }
        }
        // Dropped unanswered: the runtime is gone, or the job panicked. It may have sent its statement before.
        answered.await.unwrap_or_else(|_| Err(cut_off(op)))
    }

    /// Ends the connection, after the jobs before.
    pub(crate) async fn close(&self) {
        let before = self.queue.lock().unwrap_or_else(PoisonError::into_inner).current.take();
        if let Some(before) = before.and_then(|before| before.take_over()) {
            before.await;
        }
        let connection = self.connection.lock().await.take();
        if let Some(connection) = connection {
            // It has no transaction open, and what it committed is in the log.
            let _ = sqlx::Connection::close(connection).await;
        }
    }
}

fn crashed(op: &'static str) -> BackendError {
    let message = "the call ended without an answer: ask again";
    BackendError::new(ErrorKind::Other, Effect::Unknown, SCHEME, op, message)
}

impl Opening {
    async fn connect(&self, op: &'static str) -> Result<SqliteConnection, BackendError> {
        let made = self.options.connect().await.map_err(|e| opening(op, e))?;
        let (identity, place) = &self.expected;
        if let Compared::Changed(what) = identity.compare(place, op)? {
            return Err(refused(op, ErrorKind::Unavailable, format!("{what}: ask again")));
        }
        Ok(made)
    }
}

impl Turn {
    /// Makes sure of the connection, and of somebody who waits for the job.
    pub(crate) async fn begin(&mut self, op: &'static str) -> Result<(), BackendError> {
        if self.slot.is_none() {
            // Boxed, as every rare way is: what is seldom awaited must not make each call's future large.
            *self.slot = Some(self.line.opening.connect(op).boxed().await?);
        }
        self.refuse_abandoned(op)
    }

    /// Sends one statement and takes all its rows: only then is it known whether it was committed.
    pub(crate) async fn once(
        &mut self,
        count: &AtomicU64,
        query: Query,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        self.line.way.give(&self.line.context).await;
        let Some(connection) = self.slot.as_mut() else { return Err(sqlx::Error::WorkerCrashed) };
        count.fetch_add(1, Ordering::Relaxed);
        let answer = query.fetch_all(connection).await;
        self.keep_or_drop(answer)
    }

    /// Sends one statement that returns no rows; how many it changed. A row would wake the caller once
    /// more, in the middle of the commit.
    pub(crate) async fn change(&mut self, count: &AtomicU64, query: Query) -> Result<u64, sqlx::Error> {
        self.line.way.give(&self.line.context).await;
        let Some(connection) = self.slot.as_mut() else { return Err(sqlx::Error::WorkerCrashed) };
        count.fetch_add(1, Ordering::Relaxed);
        let answer = query.execute(connection).await;
        self.keep_or_drop(answer).map(|done| done.rows_affected())
    }

    /// A broken connection is of no more use.
    fn keep_or_drop<T>(&mut self, answer: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if answer.as_ref().is_err_and(is_broken) {
            *self.slot = None;
        }
        answer
    }

    /// The connection itself, for a transaction.
    pub(crate) fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        self.slot.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// Fails when nobody waits for the job any more: then it sends nothing more.
    pub(crate) fn refuse_abandoned(&self, op: &'static str) -> Result<(), BackendError> {
        if self.caller.strong_count() > 0 {
            return Ok(());
        }
        // why: nothing was sent, or what was sent was refused.
        Err(BackendError::new(
            ErrorKind::Other,
            Effect::None,
            SCHEME,
            op,
            "nobody waits for the call any more",
        ))
    }
}
