//! Operations for people. They never touch a grant without comparing it.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};
use leasehold_core::{
    BackendError, ForceRelease, Inspection, LeaseAdmin, LeaseName, Page, Released, Token, async_trait,
};

use crate::backend::EtcdBackend;
use crate::calls::{Ended, not_ours, shown};
use crate::chunk::grant;
use crate::core::{ASIDE_TTL_S, Store, TRIES_MAX, found};
use crate::error::{Does, busy};
use crate::keys::end_of;
use crate::record::{Meta, Note};
use crate::tokens::raised;

/// Keys in one read of a list.
const KEYS_AT_ONCE: i64 = 500;

#[async_trait]
impl LeaseAdmin for EtcdBackend {
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        self.store.list(prefix, page).await
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        self.store.force_release(request).await.map_err(|e| e.with_name(&request.name))
    }

    /// The floor of one name is the floor of all: tokens come from one counter.
    async fn raise_floor(&self, _name: Option<&LeaseName>, token: Token) -> Result<(), BackendError> {
        const OP: &str = "raise_floor";
        let store = &self.store;
        let give_up = store.link.give_up(Duration::MAX);
        let lift = |meta, revision| raised(meta, revision, Some(token));
        store.tokens.lift(&store.link, OP, give_up, lift).await.map(drop)
    }

    async fn raise_epoch(&self) -> Result<u64, BackendError> {
        const OP: &str = "raise_epoch";
        let store = &self.store;
        let give_up = store.link.give_up(Duration::MAX);
        let lift =
            |meta: Meta, _| (meta.epoch < Token::EPOCH_MAX).then_some(Meta { epoch: meta.epoch + 1, ..meta });
        Ok(store.tokens.lift(&store.link, OP, give_up, lift).await?.meta.epoch)
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        const OP: &str = "prepare";
        let store = &self.store;
        store.tokens.doubt();
        let give_up = store.link.give_up(Duration::MAX);
        store.tokens.known(&store.link, OP, None, give_up).await.map(drop)
    }

    async fn probe(&self) -> Result<(), BackendError> {
        const OP: &str = "probe";
        let link = &self.store.link;
        let give_up = link.give_up(Duration::MAX);
        let read = link.call(OP, Does::Read, give_up, async {
            link.client().kv_client().get(self.store.keys.meta(), None).await
        });
        read.await.map(drop).map_err(|failure| failure.into_error(OP))
    }
}

impl Store {
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        const OP: &str = "list";
        let limit = page.limit.min(Page::LIMIT_MAX);
        let start = self.keys.leases(prefix);
        let end = end_of(&start);
        let after = page.after.as_ref().map(|name| format!("{}\0", self.keys.lease(name)));
        let mut from = after.filter(|after| *after > start).unwrap_or(start);
        let mut lives: HashMap<i64, Option<Duration>> = HashMap::new();
        let mut listed = Vec::new();
        while listed.len() < limit {
            let give_up = self.link.give_up(Duration::MAX);
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(KEYS_AT_ONCE)
                .with_sort(SortTarget::Key, SortOrder::Ascend);
            let link = &self.link;
            let read = link.call(OP, Does::Read, give_up, async {
                link.client().kv_client().get(from.as_str(), Some(options)).await
            });
            let read = read.await.map_err(|failure| failure.into_error(OP))?;
            for kv in read.kvs() {
                let Some(name) = self.keys.name_of(kv.key()).filter(|_| listed.len() < limit) else {
                    continue;
                };
                // Names are told that are taken, also by what nobody can read.
                let Ok(found) = found(OP, kv) else {
                    let mut taken = Inspection::free(name);
                    taken.free_in = Some(Duration::MAX);
                    listed.push(taken);
                    continue;
                };
                let left = match lives.get(&found.lease) {
                    Some(left) => *left,
                    None => {
                        let left = self.left(OP, found.lease, link.give_up(Duration::MAX)).await?;
                        lives.insert(found.lease, left);
                        left
                    }
                };
                listed.push(shown(name, &found, left));
            }
            match read.kvs().last() {
                Some(last) if read.more() => {
                    let Ok(last) = std::str::from_utf8(last.key()) else { break };
                    from = format!("{last}\0");
                }
                _ => break,
            }
        }
        Ok(listed)
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        const OP: &str = "force_release";
        self.link.refuse_closed(OP)?;
        let give_up = self.link.give_up(Duration::MAX);
        for _ in 0..TRIES_MAX {
            let found = match self.read(OP, &request.name, give_up).await? {
                Some(found) if found.token == request.token => found,
                other => return Ok(not_ours(other)),
            };
            self.note(OP, request, found.modified, give_up).await?;
            let ended = if request.keep_for.is_zero() {
                self.delete(OP, &request.name, found.created, give_up).await?
            } else {
                self.keep(OP, &request.name, found, request.keep_for, give_up).await?
            };
            match ended {
                Ended::Done => return Ok(Released::Released),
                Ended::Instead(Some(found)) if found.token == request.token => {}
                Ended::Instead(other) => return Ok(not_ours(other)),
            }
        }
        Err(busy(OP))
    }

    /// Writes down who ends the grant and why, before it is ended: a holder that finds it gone finds the note.
    async fn note(
        &self,
        op: &'static str,
        request: &ForceRelease,
        modified: i64,
        give_up: leasehold_core::BootTime,
    ) -> Result<(), BackendError> {
        let (lease, _) = grant(&self.link, op, ASIDE_TTL_S, give_up).await?;
        let (by, reason) = (request.by.clone(), request.reason.clone());
        let note = Note { token: request.token, by, reason }.to_text();
        let key = self.keys.note(&request.name);
        let txn = Txn::new()
            .when([Compare::mod_revision(self.keys.lease(&request.name), CompareOp::Equal, modified)])
            .and_then([TxnOp::put(key, note, Some(PutOptions::new().with_lease(lease)))]);
        let link = &self.link;
        let put = link.call(op, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
        // A note ends nothing.
        put.await.map(drop).map_err(|failure| failure.into_error(op))
    }
}
