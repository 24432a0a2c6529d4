//! Renewals: one keep-alive for all names on a lease, and one look at their keys.
//!
//! 1. The renewals of a batch are sorted by the etcd lease that their names are on. Each lease goes its own way: a slow
//!    one delays nobody.
//! 2. The lease is kept alive. Its answer proves the lease, not the keys: somebody may have deleted one, or moved it.
//! 3. So the keys are read, from a majority and after the keep-alive was sent: a renewal is answered only for a key that
//!    its own grant made and that is still on this lease (I3).
//! 4. Whatever is different (another ttl, a retired lease, another process's grant) is read and written anew by itself:
//!    [`Store::adopt`].
//!
//! What can go wrong, and where it is handled:
//! * No answer to the keep-alive, or to the read: unknown for all names on that lease, and for no others.
//! * The lease is gone, or a key is: a look tells why.
//! * The grant ran out by its own time while others kept the lease alive: lost, whatever the key says.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use futures_util::future::join_all;
use leasehold_core::{BackendError, BootTime, LostCause, RenewAnswer, Renewal};

use crate::calls::Adopted;
use crate::chunk::{KEYS_MAX, seconds};
use crate::core::Store;
use crate::error::{Does, Failure, refused};
use crate::table::Held;

const OP: &str = "renew";

type Answer = Result<RenewAnswer, BackendError>;

impl Store {
    /// Renews a batch.
    pub(crate) async fn renew_all(self: &Arc<Self>, renewals: &[Renewal]) -> Vec<Answer> {
        if let Err(error) = self.link.refuse_closed(OP) {
            return renewals.iter().map(|r| Err(error.clone().with_name(&r.claim.name))).collect();
        }
        let shortest = renewals.iter().map(|renewal| renewal.store_ttl).min().unwrap_or_default();
        let give_up = self.link.give_up(shortest);
        let mut shared: BTreeMap<i64, Vec<(usize, Held)>> = BTreeMap::new();
        let mut single = Vec::new();
        for (at, renewal) in renewals.iter().enumerate() {
            match self.table.held(&renewal.claim.owner, &renewal.claim.name) {
                Some(held) if held.chunk.is_kept() && held.chunk.ttl_s == seconds(renewal.store_ttl) => {
                    shared.entry(held.chunk.id).or_default().push((at, held));
                }
                _ => single.push(at),
            }
        }
        let chunks = shared.into_values().map(|held| self.renew_chunk(renewals, held, give_up));
        let singles =
            single.into_iter().map(|at| async move { (at, self.renew_one(&renewals[at], give_up).await) });
        let (chunks, singles) = futures_util::future::join(join_all(chunks), join_all(singles)).await;
        let mut answers: BTreeMap<usize, Answer> = chunks.into_iter().flatten().chain(singles).collect();
        renewals
            .iter()
            .enumerate()
            .map(|(at, renewal)| {
                let missing =
                    || Err(refused(OP, leasehold_core::ErrorKind::Other, "no answer").with_unknown_effect());
                answers.remove(&at).unwrap_or_else(missing).map_err(|e| e.with_name(&renewal.claim.name))
            })
            .collect()
    }

    /// All renewals whose names are on one lease.
    async fn renew_chunk(
        self: &Arc<Self>,
        renewals: &[Renewal],
        held: Vec<(usize, Held)>,
        give_up: BootTime,
    ) -> Vec<(usize, Answer)> {
        let Some((_, first)) = held.first() else { return Vec::new() };
        let chunk = Arc::clone(&first.chunk);
        let kept = chunk.keep_alive(&self.link, OP, give_up).await;
        let anchor = match kept {
            Ok(anchor) => anchor,
            Err(Failure::LeaseGone) => {
                let ones = held
                    .into_iter()
                    .map(|(at, _)| async move { (at, self.renew_one(&renewals[at], give_up).await) });
                return join_all(ones).await;
            }
            Err(Failure::Error(error)) => {
                // A keep-alive without an answer may have moved the end all the same.
                let error = error.with_unknown_effect();
                return held.into_iter().map(|(at, _)| (at, Err(error.clone()))).collect();
            }
        };
        let mut answers = Vec::with_capacity(held.len());
        for some in held.chunks(KEYS_MAX) {
            let seen = match self.seen(some, give_up).await {
                Ok(seen) => seen,
                Err(error) => {
                    let error = error.with_unknown_effect();
                    answers.extend(some.iter().map(|(at, _)| (*at, Err(error.clone()))));
                    continue;
                }
            };
            for ((at, held), is_there) in some.iter().zip(seen) {
                let renewal = &renewals[*at];
                let expires = anchor + chunk.granted;
                let is_renewed = is_there && self.table.renewed(&renewal.claim.owner, held.modified, expires);
                let answer = if is_renewed {
                    Ok(RenewAnswer::Renewed { anchor, ttl: chunk.granted, revoke: None })
                } else {
                    self.renew_one(renewal, give_up).await
                };
                answers.push((*at, answer));
            }
        }
        answers
    }

    /// Whether each key is still the one that its grant made, on its lease.
    async fn seen(&self, held: &[(usize, Held)], give_up: BootTime) -> Result<Vec<bool>, BackendError> {
        if leasehold_core::mutant!(EtcdKeepAliveProvesTheKey) {
            return Ok(vec![true; held.len()]);
        }
        let keys_only = || Some(GetOptions::new().with_keys_only());
        let gets: Vec<TxnOp> =
            held.iter().map(|(_, held)| TxnOp::get(held.key.as_str(), keys_only())).collect();
        let link = &self.link;
        let txn = Txn::new().and_then(gets);
        let read = link.call(OP, Does::Read, give_up, async { link.client().kv_client().txn(txn).await });
        let read = read.await.map_err(|failure| failure.into_error(OP))?;
        let responses = read.op_responses();
        let is_there = |(at, (_, held)): (usize, &(usize, Held))| match responses.get(at) {
            Some(TxnOpResponse::Get(get)) => get
                .kvs()
                .first()
                .is_some_and(|kv| kv.create_revision() == held.created && kv.lease() == held.chunk.id),
            _ => false,
        };
        Ok(held.iter().enumerate().map(is_there).collect())
    }

    /// One renewal by itself.
    async fn renew_one(self: &Arc<Self>, renewal: &Renewal, give_up: BootTime) -> Answer {
        let claim = &renewal.claim;
        if self.table.held(&claim.owner, &claim.name).is_some_and(|held| held.is_ending) {
            return Ok(RenewAnswer::Lost(LostCause::ExpiredInStore));
        }
        match self.adopt(OP, claim, seconds(renewal.store_ttl), give_up).await {
            Ok(Adopted::Kept { anchor, ttl, .. }) => Ok(RenewAnswer::Renewed { anchor, ttl, revoke: None }),
            Ok(Adopted::Lost(cause)) => Ok(RenewAnswer::Lost(cause)),
            // The keep-alive may have moved the end all the same.
            Err(error) if error.is_retryable() => Err(error.with_unknown_effect()),
            Err(error) => Err(error),
        }
    }
}
