//! Waiting for a name.
//!
//! 1. A release in this process rings the name's bell: return at once.
//! 2. A commit of anybody (the file watch), or a pause that is over: **look**, with a cheap read that waits for
//!    no writer. The name is free, or its holder is not the one that was seen: return. Else wait on.
//! 3. The time that the seen holder had left is over: return (I9).
//!
//! The kernel tells of a commit when its first byte is written to the log; others see it only after the log was
//! synchronised, which takes a disk some milliseconds. So one look is not enough: more follow, each after twice
//! the time ([`FOLLOW_UP_MIN`] to [`FOLLOW_UP_MAX`]).
//!
//! Looks are spaced: a file that is written to all the time costs a waiter 60 looks a second, not one for each
//! commit. Bell and watch are latching, and the spacing only delays a look, so that no wake-up is lost.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_core::{BootTime, Contention, LeaseName, PollWaiter, Token, Waiter, async_trait};
use tokio::sync::watch;

use crate::core::{File, Store};
use crate::record::Standing;

/// Time between two looks: the first commit after a quiet time is looked at almost at once.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);
/// Time between two looks while commits of others keep coming.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(16);

/// Looks that follow a commit come after this time and twice as late each, because the commit may not have been
/// visible yet: up to this one, which slow disks need.
const FOLLOW_UP_MIN: Duration = Duration::from_millis(1);
const FOLLOW_UP_MAX: Duration = Duration::from_millis(64);

pub(crate) struct SqliteWaiter {
    store: Arc<Store>,
    file: Arc<File>,
    name: LeaseName,
    bell: watch::Receiver<()>,
    commits: Option<watch::Receiver<u64>>,
    poll: PollWaiter,
    /// When to look again after a commit.
    follow_up: Option<Duration>,
    /// No look before this.
    next_look: BootTime,
    spacing: Duration,
}

/// What ended a nap.
enum Woken {
    Bell,
    Commit,
    Time,
}

impl SqliteWaiter {
    pub(crate) fn new(store: &Arc<Store>, file: Arc<File>, name: &LeaseName) -> Self {
        SqliteWaiter {
            bell: file.hub.subscribe(name),
            commits: file.commits.subscribe(),
            poll: PollWaiter::new(store.context.clone()),
            follow_up: None,
            next_look: store.now(),
            spacing: LOOK_EVERY_MIN,
            name: name.clone(),
            store: Arc::clone(store),
            file,
        }
    }

    /// Sleeps until the bell rings, a commit is seen, or `until`.
    async fn nap(&mut self, until: BootTime) -> Woken {
        let time = self.store.context.sleep_until(until);
        let bell = pin!(self.bell.changed());
        let commits = &mut self.commits;
        let commit = pin!(async {
            if let Some(counted) = commits {
                if counted.changed().await.is_ok() {
                    return;
                }
                // The task that counts has gone with its runtime.
                *commits = None;
            }
            std::future::pending().await
        });
        match select(bell, select(commit, time)).await {
            // An error means that the hub is gone, and it lives as long as this waiter's file.
            Either::Left(_) => Woken::Bell,
            Either::Right((Either::Left(_), _)) => Woken::Commit,
            Either::Right((Either::Right(_), _)) => Woken::Time,
        }
    }

    /// Whether trying again makes sense: the name is free, or its holder is another one, or nobody can tell.
    async fn has_changed(&mut self, seen: Option<Token>) -> bool {
        let now = self.store.now();
        self.spacing = if now.since(self.next_look) > LOOK_EVERY_MAX {
            LOOK_EVERY_MIN
        } else {
            (self.spacing * 2).min(LOOK_EVERY_MAX)
        };
        self.next_look = now + self.spacing;
        match self.store.look(&self.file, "wait", &self.name).await {
            Ok(look) => look.row.as_ref().is_none_or(|row| {
                let holder = row.owner.map(|_| row.token);
                row.standing(&self.store.clock_id, self.store.now()) == Standing::Free || holder != seen
            }),
            // The attempt will tell what is wrong.
            Err(_) => true,
        }
    }
}

#[async_trait]
impl Waiter for SqliteWaiter {
    async fn wait(&mut self, seen: &Contention) {
        let started = self.store.now();
        let end = started + seen.remaining.unwrap_or(PollWaiter::PAUSE_MAX);
        let holder = seen.holder.as_ref().map(|holder| holder.token);
        loop {
            let pause = self.follow_up.unwrap_or_else(|| self.poll.next_pause(seen));
            match self.nap((self.store.now() + pause).min(end)).await {
                Woken::Bell => return,
                Woken::Commit => self.follow_up = Some(FOLLOW_UP_MIN),
                Woken::Time => {
                    self.follow_up = self.follow_up.map(|d| d * 2).filter(|d| *d <= FOLLOW_UP_MAX);
                }
            }
            // The bell goes on ringing through the spacing; the commits that follow are in the same look.
            while self.store.now() < self.next_look.min(end) {
                let until = self.next_look.min(end);
                match self.nap(until).await {
                    Woken::Bell => return,
                    Woken::Commit => self.follow_up = Some(FOLLOW_UP_MIN),
                    Woken::Time => {}
                }
            }
            // A removed file has no commits any more: the attempt opens its successor.
            let is_over = self.store.now() >= end || !matches!(self.store.same_file("wait"), Ok(Ok(_)));
            if is_over {
                return;
            }
            let time = self.store.context.sleep_until(end);
            // A disk that takes its time must not make the waiter late.
            match select(pin!(self.has_changed(holder)), time).await {
                Either::Left((false, _)) => {}
                Either::Left((true, _)) | Either::Right(_) => return,
            }
        }
    }
}

impl Drop for SqliteWaiter {
    fn drop(&mut self) {
        self.file.hub.leave(&self.name);
    }
}

impl fmt::Debug for SqliteWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteWaiter").field("name", &self.name).finish_non_exhaustive()
    }
}
