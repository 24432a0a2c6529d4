//! The resource's side: values, and transactions of the user's own, that refuse a late writer.
//!
//! The highest token seen under a name is a key of its own, apart from the leases and without an end. It holds twenty
//! digits, so that etcd's comparison of values is the comparison of tokens, and a write of one's own is refused in the
//! same transaction:
//!
//! ```
//! use etcd_client::{Txn, TxnOp};
//! use leasehold_core::{LeaseName, Token};
//! use leasehold_etcd::fence_compare;
//!
//! let name: LeaseName = "reports/nightly".parse()?;
//! let token = Token::new(8)?; // of the lease you hold
//! // Once, when the work begins: backend.facets().fenced … .advance(&name, token)
//! let txn = Txn::new()
//!     .when([fence_compare("leasehold", &name, token)])
//!     .and_then([TxnOp::put("report", "done", None)]);
//! // client.txn(txn).await?.succeeded() is false when somebody newer was here: nothing was written.
//! # let _ = txn;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use leasehold_core::{
    BackendError, Fenced, FencedStore, FencedValue, LeaseName, Stale, Token, async_trait, refuse_fenced,
};

use crate::SCHEME;
use crate::backend::EtcdBackend;
use crate::core::{Store, TRIES_MAX};
use crate::error::{Does, busy};
use crate::keys::{Keys, end_of};
use crate::record::{corrupt, digits, undigits};

/// A condition for a transaction of your own: no larger token than `token` was seen under the name, in the store of
/// this prefix. It is false also when none was seen at all: advance the mark once, when the work begins.
pub fn fence_compare(prefix: &str, name: &LeaseName, token: Token) -> Compare {
    at_most(&Keys::new(prefix).mark(name), token)
}

fn at_most(mark: &str, token: Token) -> Compare {
    Compare::value(mark, CompareOp::Less, digits(token.get().saturating_add(1)))
}

#[async_trait]
impl FencedStore for EtcdBackend {
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        self.store.fenced("advance", name, token, Vec::new()).await
    }

    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError> {
        refuse_fenced(SCHEME, key, value)?;
        let mut stored = digits(token.get()).into_bytes();
        stored.extend_from_slice(value);
        let put = TxnOp::put(self.store.keys.value(name, key), stored, None);
        self.store.fenced("put", name, token, vec![put]).await
    }

    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError> {
        const OP: &str = "get";
        let link = &self.store.link;
        let give_up = link.give_up(Duration::MAX);
        let read = link.call(OP, Does::Read, give_up, async {
            link.client().kv_client().get(self.store.keys.value(name, key), None).await
        });
        let read = read.await.map_err(|failure| failure.into_error(OP))?;
        let Some(kv) = read.kvs().first() else { return Ok(None) };
        let parts = kv.value().split_at_checked(20);
        let parts = parts.and_then(|(token, value)| Some((undigits(token)?, value.to_vec())));
        let (token, value) = parts.ok_or_else(|| corrupt(OP, "fenced value").with_name(name))?;
        Ok(Some(FencedValue { value, token }))
    }

    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError> {
        const OP: &str = "list";
        let link = &self.store.link;
        let give_up = link.give_up(Duration::MAX);
        let (all, start) = (self.store.keys.values(name), self.store.keys.value(name, prefix));
        let options = GetOptions::new().with_range(end_of(&start)).with_keys_only();
        let read = link.call(OP, Does::Read, give_up, async {
            link.client().kv_client().get(start.as_str(), Some(options)).await
        });
        let read = read.await.map_err(|failure| failure.into_error(OP))?;
        let key = |kv: &etcd_client::KeyValue| {
            Some(std::str::from_utf8(kv.key()).ok()?.strip_prefix(&*all)?.to_owned())
        };
        Ok(read.kvs().iter().filter_map(key).collect())
    }

    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        let start = self.store.keys.values(name);
        let range = DeleteOptions::new().with_range(end_of(&start));
        self.store.fenced("purge", name, token, vec![TxnOp::delete(start, Some(range))]).await
    }
}

impl Store {
    /// Moves the mark and does `then` in one transaction, or tells the highest token.
    async fn fenced(
        &self,
        op: &'static str,
        name: &LeaseName,
        token: Token,
        then: Vec<TxnOp>,
    ) -> Result<Fenced, BackendError> {
        let link = &self.link;
        let give_up = link.give_up(Duration::MAX);
        let mark = self.keys.mark(name);
        let mut writes = vec![TxnOp::put(mark.as_str(), digits(token.get()), None)];
        writes.extend(then);
        let mut compare = at_most(&mark, token);
        for _ in 0..TRIES_MAX {
            let txn = Txn::new()
                .when([compare])
                .and_then(writes.clone())
                .or_else([TxnOp::get(mark.as_str(), None)]);
            let call =
                link.call(op, Does::Write, give_up, async { link.client().kv_client().txn(txn).await });
            let answer = call.await.map_err(|failure| failure.into_error(op).with_name(name))?;
            if answer.succeeded() {
                return Ok(Fenced::Accepted);
            }
            let responses = answer.op_responses();
            let found = match responses.first() {
                Some(TxnOpResponse::Get(get)) => get.kvs().first(),
                _ => None,
            };
            compare = match found {
                // The first of all: no value is smaller than one that is not there.
                None => Compare::create_revision(mark.as_str(), CompareOp::Equal, 0),
                Some(kv) => {
                    let seen = undigits(kv.value());
                    let highest = seen.ok_or_else(|| corrupt(op, "fencing mark").with_name(name))?;
                    if highest > token {
                        return Ok(Fenced::Stale(Stale { presented: token, highest }));
                    }
                    at_most(&mark, token)
                }
            };
        }
        Err(busy(op).with_name(name))
    }
}
