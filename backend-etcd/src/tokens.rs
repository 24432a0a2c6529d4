//! Where tokens come from: a base, and the revision that makes a holder's key.
//!
//! 1. `PREFIX/meta` holds epoch and base. Every grant's transaction compares its revision, so that nobody grants
//!    under a base that is not the present one; tokens are `epoch << 52 | base + create revision`.
//! 2. Whoever connects, or has lost the connection, looks at it: if base + revision lies more than [`BEHIND_MAX`]
//!    behind the own wall clock, the base is lifted to it by compare-and-set. So tokens go on rising after the data
//!    were lost, or restored from a copy that is older than that: revisions begin again, and the clock does not.
//! 3. A watch on that key tells when it was changed, and ends when the connection does: then what was known is doubted
//!    ([`guard`]). While there is no watch, every grant looks first.
//! 4. A floor is imposed by lifting the base, for all names at once. The base and the epoch never sink.
//!
//! What can go wrong, and where it is handled:
//! * Somebody lifts it in between: the compare fails, and it is read again ([`Tokens::lift`]).
//! * The key holds something else: *corrupt*, and nothing is granted.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, WatchStream};
use futures_util::future::{Either, select};
use leasehold_core::{BackendContext, BackendError, BootTime, Token};
use tokio::sync::oneshot;

use crate::core::Store;
use crate::error::{Does, busy, exhausted};
use crate::link::Link;
use crate::record::{Meta, corrupt};

/// How far tokens may lie behind the wall clock before the base is lifted.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How often a lift is tried while others lift it too.
const TRIES_MAX: usize = 8;
/// Between two tries to watch.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Epoch and base as they were last seen.
#[derive(Debug)]
pub(crate) struct Tokens {
    key: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    /// The client over which the key is watched.
    watched: Option<u64>,
    /// Counts the doubts: what was read before one is not kept.
    doubts: u64,
    /// The last change that the watch told of.
    changed: i64,
}

/// What a grant's transaction has to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) meta: Meta,
    /// The revision that wrote it.
    pub(crate) modified: i64,
    /// The store's revision when it was read: later grants have larger ones.
    pub(crate) revision: i64,
}

impl Known {
    /// Whether every later grant exceeds `floor`.
    pub(crate) fn exceeds(&self, floor: Token) -> bool {
        let native = self.meta.base.saturating_add(u64::try_from(self.revision).unwrap_or(0));
        (self.meta.epoch, native) >= (floor.epoch(), floor.native())
    }
}

impl Tokens {
    pub(crate) fn new(key: String) -> Self {
        Tokens { key, state: Mutex::default() }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever is at the other end now may be another store, or one restored from a copy: look again.
    pub(crate) fn doubt(&self) {
        let mut state = self.lock();
        state.known = None;
        state.doubts += 1;
    }

    fn watched(&self, client: Option<u64>) {
        let mut state = self.lock();
        // Revisions may have begun again.
        (state.watched, state.changed) = (client, 0);
        drop(state);
        self.doubt();
    }

    /// The watch tells of a change: ours, perhaps.
    fn changed(&self, revision: i64) {
        let mut state = self.lock();
        state.changed = state.changed.max(revision);
    }

    fn keep(&self, known: Known, doubts: u64) {
        let mut state = self.lock();
        if state.doubts == doubts {
            state.known = Some(known);
        }
    }

    /// Epoch and base, such that later grants exceed `floor`.
    pub(crate) async fn known(
        &self,
        link: &Arc<Link>,
        op: &'static str,
        floor: Option<Token>,
        give_up: BootTime,
    ) -> Result<Known, BackendError> {
        let cached = {
            let state = self.lock();
            let is_watched = state.watched == Some(link.generation());
            state.known.filter(|known| is_watched && known.modified >= state.changed)
        };
        if let Some(known) = cached.filter(|known| floor.is_none_or(|floor| known.exceeds(floor))) {
            return Ok(known);
        }
        self.lift(link, op, give_up, |meta, revision| raised(meta, revision, floor)).await
    }

    /// Reads epoch and base, and writes what `change` makes of them and of the store's revision.
    pub(crate) async fn lift(
        &self,
        link: &Arc<Link>,
        op: &'static str,
        give_up: BootTime,
        change: impl Fn(Meta, u64) -> Option<Meta>,
    ) -> Result<Known, BackendError> {
        for _ in 0..TRIES_MAX {
            let doubts = self.lock().doubts;
            let read = link.call(op, Does::Read, give_up, async {
                link.client().kv_client().get(self.key.as_str(), None).await
            });
            let read = read.await.map_err(|failure| failure.into_error(op))?;
            let revision = read.header().map_or(0, |header| header.revision());
            let found = match read.kvs().first() {
                None => None,
                Some(kv) => {
                    let meta = Meta::from_text(kv.value()).ok_or_else(|| corrupt(op, "key of the tokens"))?;
                    Some((meta, kv.mod_revision()))
                }
            };
            let counted = u64::try_from(revision).unwrap_or(0);
            let meta = found.map_or(Meta { epoch: 0, base: 0 }, |(meta, _)| meta);
            let lifted = change(by_clock(meta, counted, link), counted).ok_or_else(|| exhausted(op))?;
            let modified = found.map_or(0, |(_, modified)| modified);
            if found.is_some() && lifted == meta {
                let known = Known { meta, modified, revision };
                self.keep(known, doubts);
                return Ok(known);
            }
            let txn = Txn::new()
                .when([Compare::mod_revision(self.key.as_str(), CompareOp::Equal, modified)])
                .and_then([TxnOp::put(self.key.as_str(), lifted.to_text(), None)]);
            let written =
                link.call(op, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
            let written = written.await.map_err(|failure| failure.into_error(op))?;
            if written.succeeded() {
                let revision = written.header().map_or(0, |header| header.revision());
                let known = Known { meta: lifted, modified: revision, revision };
                self.keep(known, doubts);
                return Ok(known);
            }
        }
        Err(busy(op))
    }
}

/// Watches the key as long as the backend lives; `opened` is told when it does so for the first time, or cannot.
pub(crate) async fn guard(store: Weak<Store>, context: BackendContext, opened: oneshot::Sender<()>) {
    let mut opened = Some(opened);
    let mut pause = PAUSE_MIN;
    loop {
        let Some(strong) = store.upgrade().filter(|store| !store.link.is_closed()) else { return };
        let generation = strong.link.generation();
        let mut closing = strong.closing.subscribe();
        let watch = watch(&strong.link, strong.tokens.key()).await;
        if let Some(mut stream) = watch {
            strong.tokens.watched(Some(generation));
            drop(strong);
            // Nobody may wait for it any more.
            let _ = opened.take().map(|opened| opened.send(()));
            pause = PAUSE_MIN;
            loop {
                let message = match select(pin!(stream.message()), pin!(closing.changed())).await {
                    Either::Left((message, _)) => message,
                    // Closed, or dropped.
                    Either::Right(_) => return,
                };
                let Some(strong) = store.upgrade() else { return };
                match message {
                    Ok(Some(response)) if !response.canceled() => {
                        let changes = response.events().iter().filter_map(|event| event.kv());
                        changes.for_each(|kv| strong.tokens.changed(kv.mod_revision()));
                    }
                    _ => {
                        strong.tokens.watched(None);
                        break;
                    }
                }
            }
            continue;
        }
        drop(strong);
        opened = None;
        let until = context.now() + pause;
        pause = (pause * 2).min(PAUSE_MAX);
        context.sleep_until(until).await;
        if context.now() < until {
            // The watchdog has stopped.
            return;
        }
    }
}

/// Opens the watch, if the servers let us.
async fn watch(link: &Arc<Link>, key: &str) -> Option<WatchStream> {
    let give_up = link.give_up(Duration::MAX);
    let opening = link.call("watch", Does::Read, give_up, async {
        let mut stream = link.client().watch_client().watch(key, None).await?;
        let first = stream.message().await?;
        Ok((stream, first))
    });
    let (stream, first) = opening.await.ok()?;
    first.filter(|first| first.created() && !first.canceled()).map(|_| stream)
}

/// The base that the wall clock asks for, if it lies far behind.
fn by_clock(meta: Meta, revision: u64, link: &Link) -> Meta {
    let clock_us = link.context.clock().unix_micros();
    let behind = clock_us.saturating_sub(meta.base.saturating_add(revision));
    if u128::from(behind) <= BEHIND_MAX.as_micros() {
        return meta;
    }
    Meta { base: clock_us.saturating_sub(revision), ..meta }
}

/// The meta that later grants exceed `floor` with; none when there is no such one.
pub(crate) fn raised(meta: Meta, revision: u64, floor: Option<Token>) -> Option<Meta> {
    let Some(floor) = floor else { return Some(meta) };
    if floor.epoch() < meta.epoch {
        return Some(meta);
    }
    // The next grant's revision is larger than `revision`.
    let base = floor.native().saturating_sub(revision).max(meta.base);
    let legal = base.saturating_add(revision) < Token::NATIVE_MAX;
    legal.then_some(Meta { epoch: floor.epoch(), base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_lifts_the_base_and_never_sinks_it() {
        let meta = Meta { epoch: 1, base: 1_000 };
        let floor = |epoch, native| Some(Token::from_parts(epoch, native).expect("legal"));
        assert_eq!(raised(meta, 10, None), Some(meta));
        assert_eq!(raised(meta, 10, floor(0, 1 << 40)), Some(meta));
        assert_eq!(raised(meta, 10, floor(1, 500)), Some(meta));
        assert_eq!(raised(meta, 10, floor(1, 5_000)), Some(Meta { epoch: 1, base: 4_990 }));
        assert_eq!(raised(meta, 10, floor(3, 5)), Some(Meta { epoch: 3, base: 1_000 }));
        assert_eq!(raised(meta, 10, floor(1, Token::NATIVE_MAX)), None);
        let known = Known { meta: Meta { epoch: 1, base: 4_990 }, modified: 3, revision: 10 };
        assert!(known.exceeds(Token::from_parts(1, 5_000).expect("legal")));
        assert!(!known.exceeds(Token::from_parts(1, 5_001).expect("legal")));
    }
}
