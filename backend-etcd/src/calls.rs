//! Acquire, release, inspect: what is asked of the servers, and what the answers mean.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, KeyValue, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use leasehold_core::{
    AcquireRequest, Attempt, BackendError, BootTime, Claim, Effect, ErrorKind, Grant, HolderInfo, Inspection,
    LeaseName, LostCause, OwnerId, ReleaseRequest, Released, Token,
};

use crate::chunk::{Fresh, Seat, grant, revoke, seconds};
use crate::core::{Found, Store, TRIES_MAX, found};
use crate::error::{Does, Failure, busy, exhausted, refused};
use crate::record::Record;
use crate::table::Entry;
use crate::tokens::Known;

/// Longest `keep_for`: what is longer is for ever.
const KEEP_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// What became of somebody's own record.
pub(crate) enum Adopted {
    /// It is on a lease of ours that was just seen to be alive.
    Kept {
        token: Token,
        anchor: BootTime,
        ttl: Duration,
    },
    Lost(LostCause),
}

/// What an attempt's transaction came to.
enum Tried {
    Granted(Entry, Token),
    /// Somebody has it: perhaps we do.
    Taken(Found),
    /// Epoch or base were changed.
    OtherMeta,
    LeaseGone,
    /// The owner was released meanwhile.
    Buried,
}

impl Store {
    /// One attempt: one transaction where nothing stands against it.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        const OP: &str = "acquire";
        self.link.refuse_closed(OP)?;
        let give_up = self.link.give_up(request.store_ttl);
        let asking = self.asking(request.owner);
        let answer = self.attempt(request, give_up).await;
        match &answer {
            Err(error) if error.effect() == Effect::Unknown => self.tokens.doubt(),
            Err(error) => {
                if error.kind() == ErrorKind::Unavailable {
                    self.tokens.doubt();
                }
                asking.settled();
            }
            Ok(_) => asking.settled(),
        }
        answer
    }

    async fn attempt(
        self: &Arc<Self>,
        request: &AcquireRequest,
        give_up: BootTime,
    ) -> Result<Attempt, BackendError> {
        const OP: &str = "acquire";
        let ttl_s = seconds(request.store_ttl);
        for _ in 0..TRIES_MAX {
            let known = self.tokens.known(&self.link, OP, request.token_floor, give_up).await?;
            let seat = self.pool.join(&self.link, OP, ttl_s, Fresh::Enough, give_up).await?;
            let (mut anchor, ttl) = (seat.anchor, seat.chunk.granted);
            if leasehold_core::mutant!(EtcdAnchorOfTheAcquire) {
                anchor = request.sent_at;
            }
            match self.try_once(request, known, seat, give_up).await? {
                Tried::Granted(entry, token) => {
                    self.table.put(request.owner, entry);
                    let mut grant = Grant::of(request, token);
                    (grant.anchor, grant.ttl) = (anchor, ttl);
                    return Ok(Attempt::Granted(grant));
                }
                Tried::Taken(found) if found.record.owner == Some(request.owner) => {
                    return self.again(request, found.token, give_up).await;
                }
                Tried::Taken(found) => return Ok(Attempt::Held(found.contention())),
                Tried::OtherMeta => self.tokens.doubt(),
                Tried::LeaseGone => {}
                Tried::Buried => {
                    let message = "this owner was released before its attempt arrived; nothing was granted";
                    return Err(refused(OP, ErrorKind::Other, message));
                }
            }
        }
        Err(busy(OP))
    }

    /// The transaction: the key is free, nobody lifted the tokens' base, and the owner is still wanted.
    async fn try_once(
        &self,
        request: &AcquireRequest,
        known: Known,
        seat: Seat,
        give_up: BootTime,
    ) -> Result<Tried, BackendError> {
        const OP: &str = "acquire";
        let link = &self.link;
        let key = self.keys.lease(&request.name);
        let record = Record {
            owner: Some(request.owner),
            epoch: known.meta.epoch,
            base: known.meta.base,
            ttl_s: seat.chunk.ttl_s,
            acquired_ms: link.context.clock().unix_micros() / 1_000,
            info: request.holder_info.clone(),
        };
        let on_lease = PutOptions::new().with_lease(seat.chunk.id);
        let txn = Txn::new()
            .when([
                Compare::create_revision(key.as_str(), CompareOp::Equal, 0),
                Compare::mod_revision(self.tokens.key(), CompareOp::Equal, known.modified),
                Compare::create_revision(self.keys.gone(&request.owner), CompareOp::Equal, 0),
            ])
            .and_then([TxnOp::put(key.as_str(), record.to_text(), Some(on_lease))])
            .or_else([TxnOp::get(key.as_str(), None), TxnOp::get(self.tokens.key(), None)]);
        let call = link.call(OP, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
        let answer = match call.await {
            Ok(answer) => answer,
            Err(Failure::LeaseGone) => {
                seat.chunk.lost();
                return Ok(Tried::LeaseGone);
            }
            Err(Failure::Error(error)) => return Err(error),
        };
        let revision = answer.header().map_or(0, |header| header.revision());
        if answer.succeeded() {
            let expires = seat.anchor + seat.chunk.granted;
            let name = request.name.clone();
            let entry =
                Entry { name, key, created: revision, modified: revision, seat, expires, is_ending: false };
            return match record.token(revision) {
                Ok(token) => Ok(Tried::Granted(entry, token)),
                Err(_) => {
                    // Taken back by the sweeper, at once.
                    self.table.put(request.owner, entry);
                    self.table.end_now(&request.owner, link.now());
                    Err(exhausted(OP).with_unknown_effect())
                }
            };
        }
        let mut gets = answer.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        });
        let (holder, meta) = (gets.next(), gets.next());
        if let Some(kv) = holder.as_ref().and_then(|get| get.kvs().first()) {
            return found(OP, kv).map(Tried::Taken);
        }
        let modified = meta.as_ref().and_then(|get| get.kvs().first()).map_or(0, KeyValue::mod_revision);
        Ok(if modified == known.modified { Tried::Buried } else { Tried::OtherMeta })
    }

    /// The same owner asks again: the same token, and a fresh end.
    async fn again(
        self: &Arc<Self>,
        request: &AcquireRequest,
        token: Token,
        give_up: BootTime,
    ) -> Result<Attempt, BackendError> {
        const OP: &str = "acquire";
        if request.token_floor.is_some_and(|floor| floor >= token) {
            let message = "this owner's grant has a token below the floor that it asks for, and a held grant keeps its token here: release it, and acquire it anew";
            return Err(refused(OP, ErrorKind::TokenRegression, message));
        }
        let claim = request.claim();
        match self.adopt(OP, &claim, seconds(request.store_ttl), give_up).await? {
            Adopted::Kept { token, anchor, ttl } => {
                let mut grant = Grant::of(request, token);
                (grant.anchor, grant.ttl) = (anchor, ttl);
                Ok(Attempt::Granted(grant))
            }
            // It ended in between; whoever asks again is granted anew.
            Adopted::Lost(_) => Err(busy(OP)),
        }
    }

    /// Puts the claim's own record on a lease of this ttl that is kept alive now. Whoever held it before, on whichever
    /// lease: the owner is compared, and the token stays.
    pub(crate) async fn adopt(
        self: &Arc<Self>,
        op: &'static str,
        claim: &Claim,
        ttl_s: u64,
        give_up: BootTime,
    ) -> Result<Adopted, BackendError> {
        let asked = self.link.now();
        for _ in 0..TRIES_MAX {
            let Some(mine) = self.own(op, claim, give_up).await? else {
                let other = self.read(op, &claim.name, give_up).await?.and_then(|found| found.view());
                let cause = self.cause(op, &claim.name, claim.token, other, give_up).await;
                return Ok(Adopted::Lost(cause));
            };
            let seat = self.pool.join(&self.link, op, ttl_s, Fresh::Since(asked), give_up).await?;
            let (token, anchor, ttl) = (mine.token, seat.anchor, seat.chunk.granted);
            let record = Record { ttl_s: seat.chunk.ttl_s, ..mine.record };
            let key = self.keys.lease(&claim.name);
            let on_lease = PutOptions::new().with_lease(seat.chunk.id);
            let txn = Txn::new()
                .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, mine.modified)])
                .and_then([TxnOp::put(key.as_str(), record.to_text(), Some(on_lease))]);
            let link = &self.link;
            let call =
                link.call(op, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
            match call.await {
                Ok(answer) if answer.succeeded() => {
                    let modified = answer.header().map_or(0, |header| header.revision());
                    let (name, expires) = (claim.name.clone(), anchor + ttl);
                    let entry =
                        Entry { name, key, created: mine.created, modified, seat, expires, is_ending: false };
                    self.table.put(claim.owner, entry);
                    return Ok(Adopted::Kept { token, anchor, ttl });
                }
                Ok(_) => {}
                Err(Failure::LeaseGone) => seat.chunk.lost(),
                Err(Failure::Error(error)) => return Err(error),
            }
        }
        Err(busy(op))
    }

    /// The claim's own record, if it is there and not over; otherwise nothing of it is kept in mind.
    async fn own(
        &self,
        op: &'static str,
        claim: &Claim,
        give_up: BootTime,
    ) -> Result<Option<Found>, BackendError> {
        let is_ending = self.table.held(&claim.owner, &claim.name).is_some_and(|held| held.is_ending);
        if is_ending {
            return Ok(None);
        }
        let found = self.read(op, &claim.name, give_up).await?;
        let mine = found.filter(|found| found.record.owner == Some(claim.owner));
        if mine.is_none() && self.table.held(&claim.owner, &claim.name).is_some() {
            self.table.remove(&claim.owner);
        }
        Ok(mine)
    }

    /// Ends the grant of one owner.
    pub(crate) async fn release(
        self: &Arc<Self>,
        request: &ReleaseRequest,
    ) -> Result<Released, BackendError> {
        const OP: &str = "release";
        self.link.refuse_closed(OP)?;
        let claim = &request.claim;
        let give_up = self.link.give_up(Duration::MAX);
        if self.is_unclear(&claim.owner) {
            self.bury(OP, &claim.owner, give_up).await?;
        }
        let ending = Ending { store: self, owner: claim.owner, is_known: false };
        let answer = self.end(request, &ending, give_up).await;
        match &answer {
            Ok(_) => {
                self.settled(&claim.owner);
                ending.gone();
            }
            Err(error) if error.effect() == Effect::None => ending.taken_back(),
            // What may be left is deleted by the sweeper.
            Err(_) => drop(ending),
        }
        answer
    }

    async fn end(
        self: &Arc<Self>,
        request: &ReleaseRequest,
        ending: &Ending<'_>,
        give_up: BootTime,
    ) -> Result<Released, BackendError> {
        const OP: &str = "release";
        let claim = &request.claim;
        let mut known = self.table.held(&claim.owner, &claim.name).map(|held| held.created);
        if known.is_some() {
            ending.begins();
        }
        for _ in 0..TRIES_MAX {
            let (created, found) = match known.take() {
                Some(created) if request.keep_for.is_zero() => (created, None),
                _ => match self.read(OP, &claim.name, give_up).await? {
                    Some(found) if found.record.owner == Some(claim.owner) => (found.created, Some(found)),
                    other => return Ok(not_ours(other)),
                },
            };
            let ended = match found {
                Some(found) if !request.keep_for.is_zero() => {
                    self.keep(OP, &claim.name, found, request.keep_for, give_up).await?
                }
                _ => self.delete(OP, &claim.name, created, give_up).await?,
            };
            match ended {
                Ended::Done => return Ok(Released::Released),
                Ended::Instead(Some(found)) if found.record.owner == Some(claim.owner) => {}
                Ended::Instead(other) => return Ok(not_ours(other)),
            }
        }
        Err(busy(OP))
    }

    /// Deletes the key that this revision made: the owner of that revision's record, and no other.
    pub(crate) async fn delete(
        &self,
        op: &'static str,
        name: &LeaseName,
        created: i64,
        give_up: BootTime,
    ) -> Result<Ended, BackendError> {
        let key = self.keys.lease(name);
        let mut compares = vec![Compare::create_revision(key.as_str(), CompareOp::Equal, created)];
        if leasehold_core::mutant!(EtcdReleaseIgnoresOwner) {
            compares.clear();
        }
        self.replace(op, &key, compares, TxnOp::delete(key.as_str(), None), give_up).await
    }

    /// Leaves the name taken without an owner, on a lease of its own.
    pub(crate) async fn keep(
        &self,
        op: &'static str,
        name: &LeaseName,
        mut found: Found,
        keep_for: Duration,
        give_up: BootTime,
    ) -> Result<Ended, BackendError> {
        let key = self.keys.lease(name);
        let ttl_s = seconds(keep_for.min(KEEP_MAX));
        let (lease, _) = grant(&self.link, op, ttl_s, give_up).await?;
        (found.record.owner, found.record.info, found.record.ttl_s) = (None, HolderInfo::default(), ttl_s);
        let put = TxnOp::put(key.as_str(), found.record.to_text(), Some(PutOptions::new().with_lease(lease)));
        let compares = vec![Compare::mod_revision(key.as_str(), CompareOp::Equal, found.modified)];
        let ended = self.replace(op, &key, compares, put, give_up).await;
        if matches!(ended, Ok(Ended::Instead(_))) {
            revoke(&self.link, op, lease, give_up).await;
        }
        ended
    }

    /// Does one thing to a key, or reads what stands there instead.
    async fn replace(
        &self,
        op: &'static str,
        key: &str,
        compares: Vec<Compare>,
        then: TxnOp,
        give_up: BootTime,
    ) -> Result<Ended, BackendError> {
        let link = &self.link;
        let txn = Txn::new().when(compares).and_then([then]).or_else([TxnOp::get(key, None)]);
        let call = link.call(op, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
        let answer = call.await.map_err(|failure| failure.into_error(op))?;
        if answer.succeeded() {
            return Ok(Ended::Done);
        }
        match answer.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(get)) => {
                get.kvs().first().map(|kv| found(op, kv)).transpose().map(Ended::Instead)
            }
            _ => Ok(Ended::Instead(None)),
        }
    }

    /// The name as the servers hold it now.
    pub(crate) async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        const OP: &str = "inspect";
        self.link.refuse_closed(OP)?;
        let give_up = self.link.give_up(Duration::MAX);
        let Some(found) = self.read(OP, name, give_up).await? else {
            return Ok(Inspection::free(name.clone()));
        };
        let left = self.left(OP, found.lease, give_up).await?;
        Ok(shown(name.clone(), &found, left))
    }

    /// How long an etcd lease lives at most unless it is renewed; none for a key without one.
    pub(crate) async fn left(
        &self,
        op: &'static str,
        lease: i64,
        give_up: BootTime,
    ) -> Result<Option<Duration>, BackendError> {
        if lease == 0 {
            return Ok(None);
        }
        let link = &self.link;
        let look = link.call(op, Does::Read, give_up, async {
            link.client().lease_client().time_to_live(lease, Some(LeaseTimeToLiveOptions::new())).await
        });
        match look.await {
            // The servers cut off what is below a second, and tell -1 of a lease that is over.
            Ok(seen) => {
                let left = u64::try_from(seen.ttl()).map_or(0, |left| left + 1);
                let granted = u64::try_from(seen.granted_ttl()).unwrap_or(0);
                Ok(Some(Duration::from_secs(left.min(granted))))
            }
            Err(Failure::LeaseGone) => Ok(Some(Duration::ZERO)),
            Err(failure) => Err(failure.into_error(op)),
        }
    }
}

/// A record as a person sees it.
pub(crate) fn shown(name: LeaseName, found: &Found, left: Option<Duration>) -> Inspection {
    let mut inspection = Inspection::free(name);
    inspection.token_floor = Some(found.token);
    // A key without a lease was put there by hand: it stays.
    let left = left.unwrap_or(KEEP_MAX);
    inspection.holders.extend(found.view().map(|mut view| {
        view.remaining = Some(left);
        view
    }));
    inspection.free_in = Some(left);
    inspection
}

/// What a conditional write came to.
pub(crate) enum Ended {
    Done,
    /// What stands there instead.
    Instead(Option<Found>),
}

/// The answer to a release whose grant is not there.
pub(crate) fn not_ours(found: Option<Found>) -> Released {
    match found.and_then(|found| found.view()) {
        Some(by) => Released::NotHeld { by: Some(by) },
        None => Released::AlreadyReleased,
    }
}

/// A release under way: dropped in the middle, its grant is over all the same.
struct Ending<'a> {
    store: &'a Store,
    owner: OwnerId,
    is_known: bool,
}

impl Ending<'_> {
    fn begins(&self) {
        self.store.table.mark_ending(&self.owner, true);
    }

    /// The grant is known to be gone.
    fn gone(mut self) {
        self.is_known = true;
        self.store.table.remove(&self.owner);
    }

    /// The grant is as it was.
    fn taken_back(mut self) {
        self.is_known = true;
        self.store.table.mark_ending(&self.owner, false);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.store.table.end_now(&self.owner, self.store.link.now());
        }
    }
}
