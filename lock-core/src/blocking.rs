//! Blocking calls off the runtime: for backends over files, or over clients that block.
//!
//! Calls of one [`Blocking`] stand in one line and run one at a time, in the order in which they were
//! made, on a thread that the I/O runtime lends for it. A caller that goes away leaves its call in the
//! line: a release that follows an abandoned acquire of the same owner runs after it (I7).
//!
//! # What can go wrong, and where it is handled
//! * A call hangs: whoever waits for it, or behind it, is told after the time limit that nobody knows.
//! * Calls come faster than they end: beyond [`Blocking::CALLS_MAX`] they are refused untried.
//! * A call panics: an error of unknown effect, and the line goes on.
//! * The watchdog has stopped: nothing runs any more, and waiting ends at once.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::{BackendContext, BackendError, Effect, ErrorKind, TokenError};

type Job = Box<dyn FnOnce() + Send>;

/// A line of blocking calls. Clones share it.
#[derive(Clone)]
pub struct Blocking {
    backend: &'static str,
    context: BackendContext,
    limit: Duration,
    line: Arc<Mutex<Line>>,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    /// Whether a thread takes jobs out of the line.
    running: bool,
    closed: bool,
}

fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Blocking {
    /// How many calls may stand in line: more than a store that is alive ever has.
    pub const CALLS_MAX: usize = 4096;

    /// A line for the backend of this name, each call of which is waited for `limit` at most.
    pub fn new(backend: &'static str, context: BackendContext, limit: Duration) -> Self {
        Blocking { backend, context, limit, line: Arc::default() }
    }

    /// Runs `work` when its turn has come.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] and [`ErrorKind::Unavailable`] with [`Effect::None`] when it was not put
    /// into the line; [`ErrorKind::Timeout`] after the limit. What `work` returns becomes, by its kind:
    /// `InvalidData` [`ErrorKind::Corrupt`] and [`TokenError`] [`ErrorKind::TokenRegression`], both
    /// with [`Effect::None`], so return them before anything is written; permissions and read-only
    /// media [`ErrorKind::PermissionDenied`]; the rest [`ErrorKind::Unavailable`]; with
    /// [`Effect::Unknown`].
    ///
    /// # Cancel safety
    /// Dropped, the call runs all the same.
    pub async fn call<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (done, answer) = oneshot::channel();
        let job = move || {
            // Whoever asked may have gone.
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        };
        self.put(op, Box::new(job))?;
        let timeout = self.context.sleep_until(self.context.now() + self.limit);
        match select(answer, timeout).await {
            Either::Left((Ok(Ok(result)), _)) => result.map_err(|error| self.failed(op, error)),
            Either::Left((Ok(Err(_)), _)) => {
                Err(self.error(ErrorKind::Other, Effect::Unknown, op, "the call panicked"))
            }
            Either::Left((Err(_), _)) => {
                Err(self.error(ErrorKind::Other, Effect::Unknown, op, "the call was dropped"))
            }
            Either::Right(_) => {
                let message = format!("no answer within {:?}", self.limit);
                Err(self.error(ErrorKind::Timeout, Effect::Unknown, op, message))
            }
        }
    }

    /// Takes no more calls; those in line run to their end. Idempotent.
    pub fn close(&self) {
        locked(&self.line).closed = true;
    }

    fn put(&self, op: &'static str, job: Job) -> Result<(), BackendError> {
        let mut line = locked(&self.line);
        // why: neither was put into the line.
        if line.closed && !crate::mutant!(CloseForgotten) {
            return Err(self.error(ErrorKind::Closed, Effect::None, op, "the store was closed"));
        }
        if line.jobs.len() >= Self::CALLS_MAX {
            let message = format!("{} calls wait already, and none of them ends", Self::CALLS_MAX);
            return Err(self.error(ErrorKind::Unavailable, Effect::None, op, message));
        }
        line.jobs.push_back(job);
        if !line.running {
            line.running = true;
            let line = Arc::clone(&self.line);
            self.context.io().spawn_blocking(move || run(&line));
        }
        Ok(())
    }

    fn failed(&self, op: &'static str, error: io::Error) -> BackendError {
        let no_token = error.get_ref().is_some_and(|inner| inner.is::<TokenError>());
        let (kind, effect) = match error.kind() {
            // why: by the contract of `call` nothing was written before.
            io::ErrorKind::InvalidData => (ErrorKind::Corrupt, Effect::None),
            _ if no_token => (ErrorKind::TokenRegression, Effect::None),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                (ErrorKind::PermissionDenied, Effect::Unknown)
            }
            _ => (ErrorKind::Unavailable, Effect::Unknown),
        };
        self.error(kind, effect, op, error.to_string()).with_source(error)
    }

    fn error(
        &self,
        kind: ErrorKind,
        effect: Effect,
        op: &'static str,
        message: impl Into<String>,
    ) -> BackendError {
        BackendError::new(kind, effect, self.backend, op, message)
    }
}

/// So that a call may say `?`; [`Blocking::call`] knows it again.
impl From<TokenError> for io::Error {
    fn from(error: TokenError) -> Self {
        io::Error::other(error)
    }
}

/// Takes jobs out of the line until none is left.
fn run(line: &Mutex<Line>) {
    loop {
        let job = {
            let mut line = locked(line);
            let Some(job) = line.jobs.pop_front() else {
                line.running = false;
                return;
            };
            job
        };
        job();
    }
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("backend", &self.backend).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::poll_immediate;

    use super::*;
    use crate::Watchdog;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn calls_run_in_order_and_an_abandoned_one_keeps_its_place() {
        let watchdog = Watchdog::start().expect("threads");
        let blocking = Blocking::new("test", watchdog.context(), LIMIT);
        let (open, gate) = mpsc::channel::<()>();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |n: u32| {
            let seen = Arc::clone(&seen);
            move || {
                seen.lock().expect("no panic under it").push(n);
                Ok(n)
            }
        };
        let first = blocking.call("first", move || gate.recv().map_err(io::Error::other));
        let mut first = Box::pin(first);
        assert!(poll_immediate(first.as_mut()).await.is_none());
        let mut abandoned = Box::pin(blocking.call("second", note(2)));
        assert!(poll_immediate(abandoned.as_mut()).await.is_none());
        drop(abandoned);
        let third = blocking.call("third", note(3));
        open.send(()).expect("the first call waits for it");
        assert_eq!(third.await.expect("answered"), 3);
        assert_eq!(*seen.lock().expect("no panic under it"), [2, 3]);
        first.await.expect("answered");
    }

    #[tokio::test]
    async fn errors_say_what_they_mean_for_the_store() {
        let watchdog = Watchdog::start().expect("threads");
        let blocking = Blocking::new("test", watchdog.context(), LIMIT);
        let of = async |error: io::Error| {
            let error = blocking.call("op", move || Err::<(), _>(error)).await.expect_err("an error");
            (error.kind(), error.effect())
        };
        let kind = |kind| io::Error::new(kind, "why");
        assert_eq!(of(kind(io::ErrorKind::InvalidData)).await, (ErrorKind::Corrupt, Effect::None));
        assert_eq!(of(kind(io::ErrorKind::StorageFull)).await, (ErrorKind::Unavailable, Effect::Unknown));
        let denied = of(kind(io::ErrorKind::PermissionDenied)).await;
        assert_eq!(denied, (ErrorKind::PermissionDenied, Effect::Unknown));
        let no_token = of(TokenError::NativeExhausted.into()).await;
        assert_eq!(no_token, (ErrorKind::TokenRegression, Effect::None));
        let panicked = blocking.call::<()>("op", || std::panic::resume_unwind(Box::new(()))).await;
        assert_eq!(panicked.expect_err("an error").effect(), Effect::Unknown);
        assert_eq!(blocking.call("op", || Ok(7)).await.expect("the line goes on"), 7);
        blocking.close();
        let closed = blocking.call("op", || Ok(())).await.expect_err("closed");
        assert_eq!((closed.kind(), closed.effect()), (ErrorKind::Closed, Effect::None));
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_unknown_in_time_and_a_full_line_refuses() {
        let watchdog = Watchdog::start().expect("threads");
        let blocking = Blocking::new("test", watchdog.context(), Duration::from_millis(50));
        let (open, gate) = mpsc::channel::<()>();
        let hangs = blocking.call("op", move || gate.recv().map_err(io::Error::other)).await;
        let error = hangs.expect_err("no answer");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown));
        for _ in 0..Blocking::CALLS_MAX {
            blocking.put("op", Box::new(|| {})).expect("room");
        }
        let error = blocking.call("op", || Ok(())).await.expect_err("full");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        drop(open);
    }
}
