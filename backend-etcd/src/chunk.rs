//! Shared etcd leases.
//!
//! 1. Names of one ttl (in whole seconds: its class) share an etcd lease, up to [`KEYS_MAX`] of them: a chunk. A grant
//!    is then one transaction, and a renewal of all of them one keep-alive.
//! 2. The anchor of a chunk is the boot clock before the last *acknowledged* keep-alive, or before the request that
//!    made the lease: the server's countdown began later. A grant that joins a chunk takes the chunk's anchor, not the
//!    time of its own request (I3).
//! 3. A chunk whose anchor is older than a quarter of its ttl is kept alive before anybody joins it; one that is older
//!    than three quarters is left alone, and a new lease made.
//! 4. A retired chunk is neither joined nor kept alive: whoever is on it moves to another with its next renewal.
//!
//! What can go wrong, and where it is handled:
//! * Keep-alive streams hang under a frozen server, and never heal after a broken connection: each exchange has a time
//!   limit, and a stream that missed it is thrown away ([`Chunk::keep_alive`]). So no late answer is ever taken for
//!   the answer to a later question.
//! * Queueing a keep-alive says nothing: only its answer moves the anchor.
//! * The lease is gone: its answer has no ttl, or the first call of a stream fails ([`Failure::LeaseGone`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use leasehold_core::{BackendError, BootTime, ErrorKind};

use crate::error::{Does, Failure, refused};
use crate::link::Link;

/// Most names on one lease: as many as a stock server reads in one transaction (`--max-txn-ops`).
pub(crate) const KEYS_MAX: usize = 128;
/// Ttl classes that are remembered; above it those without a lease are forgotten.
const CLASSES_MAX: usize = 64;

/// One etcd lease, and who is on it.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) id: i64,
    /// The ttl that was asked for.
    pub(crate) ttl_s: u64,
    /// The ttl that the server gave: never less.
    pub(crate) granted: Duration,
    state: Mutex<State>,
    stream: tokio::sync::Mutex<Option<Stream>>,
}

#[derive(Debug)]
struct State {
    anchor: BootTime,
    seats: usize,
    is_retired: bool,
    is_gone: bool,
}

#[derive(Debug)]
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// Of which client.
    generation: u64,
}

/// A place on a chunk. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) chunk: Arc<Chunk>,
    /// The chunk's anchor when it was joined.
    pub(crate) anchor: BootTime,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.chunk.state().seats -= 1;
    }
}

/// How fresh a chunk has to be to be joined.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fresh {
    /// Its last keep-alive was sent within a quarter of its ttl.
    Enough,
    /// Its last keep-alive was sent after this moment.
    Since(BootTime),
}

impl Chunk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the last acknowledged keep-alive was sent.
    pub(crate) fn anchor(&self) -> BootTime {
        self.state().anchor
    }

    /// Whether names on it may go on as they are.
    pub(crate) fn is_kept(&self) -> bool {
        let state = self.state();
        !state.is_retired && !state.is_gone
    }

    /// Nobody joins it or keeps it alive any more.
    pub(crate) fn retire(&self) {
        self.state().is_retired = true;
    }

    /// The server does not know the lease any more.
    pub(crate) fn lost(&self) {
        self.state().is_gone = true;
    }

    fn is_over(&self, now: BootTime) -> bool {
        let state = self.state();
        state.is_retired || state.is_gone || now >= state.anchor + self.granted
    }

    fn sit(self: &Arc<Self>) -> Option<Seat> {
        let mut state = self.state();
        if state.seats >= KEYS_MAX || state.is_retired || state.is_gone {
            return None;
        }
        state.seats += 1;
        Some(Seat { chunk: Arc::clone(self), anchor: state.anchor })
    }

    /// Keeps the lease alive, and returns when it was asked for. Those who ask at the same time share an answer.
    ///
    /// # Errors
    /// [`Failure::LeaseGone`], or why there was no answer: then nobody knows, and the anchor stays.
    ///
    /// # Cancel safety
    /// The stream is thrown away.
    pub(crate) async fn keep_alive(
        &self,
        link: &Arc<Link>,
        op: &'static str,
        give_up: BootTime,
    ) -> Result<BootTime, Failure> {
        let asked = link.now();
        let mut slot = self.stream.lock().await;
        {
            let state = self.state();
            if state.is_gone {
                return Err(Failure::LeaseGone);
            }
            if state.anchor >= asked {
                return Ok(state.anchor);
            }
        }
        let old = slot.take().filter(|stream| stream.generation == link.generation());
        let generation = link.generation();
        if let Some(mut stream) = old {
            let sent = link.now();
            // A keep-alive writes nothing that an error would have to tell of.
            let exchange = link.call(op, Does::Read, give_up, async {
                stream.keeper.keep_alive().await?;
                stream.answers.message().await
            });
            match exchange.await {
                Ok(Some(answer)) if answer.ttl() > 0 => {
                    *slot = Some(stream);
                    return Ok(self.kept(sent));
                }
                Ok(Some(_)) | Err(Failure::LeaseGone) => return Err(self.gone()),
                Err(Failure::Error(error)) if error.kind() != ErrorKind::Unavailable => {
                    return Err(error.into());
                }
                // Streams do not heal: a new one, at once.
                Ok(None) | Err(_) => {}
            }
        }
        let sent = link.now();
        let opening = link
            .call(op, Does::Read, give_up, async { link.client().lease_client().keep_alive(self.id).await });
        match opening.await {
            Ok((keeper, answers)) => {
                *slot = Some(Stream { keeper, answers, generation });
                Ok(self.kept(sent))
            }
            Err(Failure::LeaseGone) => Err(self.gone()),
            Err(failure) => Err(failure),
        }
    }

    fn kept(&self, sent: BootTime) -> BootTime {
        let mut state = self.state();
        state.anchor = state.anchor.max(sent);
        sent
    }

    fn gone(&self) -> Failure {
        self.lost();
        Failure::LeaseGone
    }
}

type Class = Arc<tokio::sync::Mutex<Vec<Arc<Chunk>>>>;

/// All chunks, by class.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    classes: Mutex<HashMap<u64, Class>>,
}

impl Pool {
    fn class(&self, ttl_s: u64) -> Class {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        if classes.len() >= CLASSES_MAX && !classes.contains_key(&ttl_s) {
            classes.retain(|_, class| class.try_lock().is_ok_and(|chunks| !chunks.is_empty()));
        }
        Arc::clone(classes.entry(ttl_s).or_default())
    }

    /// A seat on a lease of this ttl.
    ///
    /// # Errors
    /// Why there is none. Nothing is left behind but a lease without keys, which runs out by itself.
    pub(crate) async fn join(
        &self,
        link: &Arc<Link>,
        op: &'static str,
        ttl_s: u64,
        fresh: Fresh,
        give_up: BootTime,
    ) -> Result<Seat, BackendError> {
        let class = self.class(ttl_s);
        // Whoever is before us has a time limit too.
        let mut chunks = class.lock().await;
        chunks.retain(|chunk| !chunk.is_over(link.now()));
        for chunk in chunks.iter() {
            if chunk.state().seats >= KEYS_MAX {
                continue;
            }
            let age = link.now().since(chunk.anchor());
            let is_fresh = match fresh {
                Fresh::Enough => age < chunk.granted / 4,
                Fresh::Since(moment) => chunk.anchor() >= moment,
            };
            // A defect for the tests: any lease is good enough that has not run out.
            let is_fresh = is_fresh || leasehold_core::mutant!(EtcdAnchorOfTheAcquire);
            if !is_fresh {
                if age >= chunk.granted * 3 / 4 {
                    continue;
                }
                match chunk.keep_alive(link, op, give_up).await {
                    Ok(_) => {}
                    Err(Failure::LeaseGone) => continue,
                    Err(Failure::Error(error)) => return Err(error),
                }
            }
            if let Some(seat) = chunk.sit() {
                return Ok(seat);
            }
        }
        let chunk = make(link, op, ttl_s, give_up).await?;
        let no_seat = || refused(op, ErrorKind::Other, "a new etcd lease has no room");
        let seat = chunk.sit().ok_or_else(no_seat)?;
        chunks.push(chunk);
        Ok(seat)
    }

    /// Leases that nobody is on, to be given back when the backend is closed.
    pub(crate) async fn idle(&self) -> Vec<i64> {
        let classes: Vec<Class> = {
            let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
            classes.values().cloned().collect()
        };
        let mut idle = Vec::new();
        for class in classes {
            let Ok(chunks) = class.try_lock() else { continue };
            let unused = chunks.iter().filter(|chunk| chunk.state().seats == 0);
            idle.extend(unused.map(|chunk| {
                chunk.retire();
                chunk.id
            }));
        }
        idle
    }
}

/// Makes an etcd lease. One that is made and not used runs out by itself: as to its caller, nothing was done.
async fn make(
    link: &Arc<Link>,
    op: &'static str,
    ttl_s: u64,
    give_up: BootTime,
) -> Result<Arc<Chunk>, BackendError> {
    let sent = link.now();
    let (id, granted) = grant(link, op, ttl_s, give_up).await?;
    let state = State { anchor: sent, seats: 0, is_retired: false, is_gone: false };
    Ok(Arc::new(Chunk {
        id,
        ttl_s,
        granted,
        state: Mutex::new(state),
        stream: tokio::sync::Mutex::new(None),
    }))
}

/// Makes an etcd lease that lives at least so long; returns its id and its ttl.
pub(crate) async fn grant(
    link: &Arc<Link>,
    op: &'static str,
    ttl_s: u64,
    give_up: BootTime,
) -> Result<(i64, Duration), BackendError> {
    let asked = i64::try_from(ttl_s).unwrap_or(i64::MAX);
    let made =
        link.call(op, Does::Read, give_up, async { link.client().lease_client().grant(asked, None).await });
    let made = made.await.map_err(|failure| failure.into_error(op))?;
    let given = u64::try_from(made.ttl()).unwrap_or(0);
    if given < ttl_s {
        let message = format!("the server gave a lease of {given} s where {ttl_s} s were asked for");
        return Err(refused(op, ErrorKind::Other, message));
    }
    Ok((made.id(), Duration::from_secs(given)))
}

/// Gives a lease back that has no keys.
pub(crate) async fn revoke(link: &Arc<Link>, op: &'static str, id: i64, give_up: BootTime) {
    let call = link.call(op, Does::Read, give_up, async { link.client().lease_client().revoke(id).await });
    // It runs out by itself otherwise.
    let _ = call.await;
}

/// Whole seconds, rounded up.
pub(crate) fn seconds(d: Duration) -> u64 {
    d.as_secs() + u64::from(d.subsec_nanos() > 0)
}
