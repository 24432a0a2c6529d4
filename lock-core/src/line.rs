//! The line of one process for one name: whoever is at its head contends in the store.
//!
//! Fifty tasks that wait for one name cost the store one waiter. The line is served first come,
//! first served; leaving it costs nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::LeaseName;

#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<LeaseName, Arc<Semaphore>>>);

/// The head of a line; dropped, the next one comes forward.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    lines: &'a Lines,
    name: &'a LeaseName,
    permit: Option<OwnedSemaphorePermit>,
    line: Arc<Semaphore>,
}

impl Lines {
    /// Waits for the head of the line of `name`. Cancel-safe: dropping it leaves the line.
    pub(crate) async fn turn<'a>(&'a self, name: &'a LeaseName) -> Turn<'a> {
        let line = {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lines.entry(name.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // Made before the wait, so that a cancelled one removes an empty line too.
        let mut turn = Turn { lines: self, name, permit: None, line };
        // A line is never closed.
        if crate::mutant!(LineIsSkipped) {
            return turn;
        }
        turn.permit = Arc::clone(&turn.line).acquire_owned().await.ok();
        turn
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and this turn: nobody else stands in line. Newcomers take the lock first.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(self.name);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_left() {
        let lines = Lines::default();
        let name: LeaseName = "n".parse().expect("legal");
        let first = lines.turn(&name).await;
        let second = lines.turn(&name);
        tokio::pin!(second);
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(
                std::future::Future::poll(second.as_mut(), cx).is_pending()
            ))
            .await
        );
        {
            let third = lines.turn(&name);
            tokio::pin!(third);
            assert!(
                std::future::poll_fn(|cx| std::task::Poll::Ready(
                    std::future::Future::poll(third.as_mut(), cx).is_pending()
                ))
                .await
            );
        }
        drop(first);
        drop(second.await);
        assert_eq!(lines.len(), 0);
    }
}
