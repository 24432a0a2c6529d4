//! Running foreign code on a thread of its own: it may panic, and it may never come back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// What happened, for a person.
    pub(crate) why: String,
    /// Whether the time was over: the thread is still there, and is left alone.
    pub(crate) hung: bool,
}

impl Stop {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Stop { why: why.into(), hung: false }
    }
}

/// Runs `body` to its end, or to the limit.
pub(crate) fn limited<T: Send + 'static>(
    name: &str,
    limit: Duration,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stop> {
    let (done, outcome) = channel();
    let started = Instant::now();
    let guarded = move || {
        // The receiver is gone when the limit passed.
        let _ = done.send(catch_unwind(AssertUnwindSafe(body)));
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
        .map_err(|error| Stop::failed(format!("no thread for {name}: {error}")))?;
    match outcome.recv_timeout(limit) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(Stop::failed(format!("panicked: {text}")))
        }
        Err(RecvTimeoutError::Timeout) => {
            let why = format!("still running after {:?}: stopped by force", started.elapsed());
            Err(Stop { why, hung: true })
        }
        Err(RecvTimeoutError::Disconnected) => Err(Stop::failed(format!("the thread of {name} is gone"))),
    }
}
