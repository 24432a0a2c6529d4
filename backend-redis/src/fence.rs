//! The resource's side: values, and scripts of the user's own, that refuse a late writer.
//!
//! The highest token seen under a name is a key of its own, apart from the leases and without an end. A script of
//! the user's that begins with [`FENCE_PRELUDE`] compares and raises it in the same atomic step as its own writes.
//!
//! ```
//! use leasehold_core::{LeaseName, Token};
//! use leasehold_redis::{fence_script, fence_token, mark_key, stale};
//!
//! let name: LeaseName = "reports/nightly".parse()?;
//! let token = Token::new(8)?; // of the lease you hold
//! // KEYS[1] is the mark, ARGV[1] the token; your own keys and arguments follow.
//! let script = fence_script("return redis.call('SET', KEYS[2], ARGV[2])");
//! let (mark, presented) = (mark_key("default", &name)?, fence_token(token));
//! // redis::Script::new(&script).key(&mark).key("report").arg(&presented).arg("done").invoke_async(…)
//! # let _ = (script, mark, presented);
//!
//! // The error of a late writer tells the highest token.
//! let refused = "LEASEHOLDSTALE: 00000000000000000009";
//! assert_eq!(stale(refused, token).map(|stale| stale.highest.get()), Some(9));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use leasehold_core::{
    BackendError, Fenced, FencedStore, FencedValue, LeaseName, NameError, Stale, Token, async_trait,
    refuse_fenced,
};
use redis::Value;

use crate::SCHEME;
use crate::backend::RedisBackend;
use crate::calls::bad_floor;
use crate::core::Request;
use crate::error::{Does, strange};
use crate::keys::{Keys, What};
use crate::link::Purpose;
use crate::record::{digits, token};
use crate::scripts;

/// What a script begins with that is to refuse a late writer: `KEYS[1]` is the mark ([`mark_key`]) and `ARGV[1]` the
/// token ([`fence_token`]). A stale token ends the script with the error `LEASEHOLDSTALE`, before anything is written.
pub const FENCE_PRELUDE: &str = include_str!("lua/fence_prelude.lua");

/// [`FENCE_PRELUDE`], then `body`.
pub fn fence_script(body: &str) -> String {
    format!("{FENCE_PRELUDE}{body}")
}

/// The key of a name's mark, for `KEYS[1]`. Any other key will do as well, if every writer uses the same one; on a
/// cluster it has to be in the slot of the script's other keys.
///
/// # Errors
/// [`NameError`] when the namespace is none.
pub fn mark_key(namespace: &str, name: &LeaseName) -> Result<String, NameError> {
    Ok(Keys::new(&namespace.parse()?).of(name).key(What::Mark))
}

/// The text of a token for `ARGV[1]`: digits that order as the tokens do.
pub fn fence_token(token: Token) -> String {
    digits(token)
}

/// Reads the error of a script that refused `presented`; `None` for any other error.
pub fn stale(error: &str, presented: Token) -> Option<Stale> {
    let (_, rest) = error.split_once("LEASEHOLDSTALE")?;
    let highest = rest.trim_start_matches(|c: char| !c.is_ascii_digit()).get(..20)?;
    Some(Stale { presented, highest: token(highest.as_bytes())? })
}

impl RedisBackend {
    async fn fenced(
        &self,
        op: &'static str,
        name: &LeaseName,
        presented: Token,
        key: &str,
        value: &[u8],
    ) -> Result<Fenced, BackendError> {
        let store = &self.store;
        let keys = store.keys.of(name);
        let mut run = Request::new(&scripts::FENCE, 2, 6, value.len() + key.len() + 256);
        run.arg(keys.key(What::Mark))
            .arg(keys.key(What::Values))
            .arg(digits(presented))
            .arg(op)
            .arg(key)
            .arg(value);
        let give_up = store.now() + store.config.op_timeout;
        let answer = store.run(op, Does::Write, Purpose::Calls, &run, give_up).await;
        match answer.map_err(|e| e.with_name(name))? {
            Value::BulkString(highest) if highest.is_empty() => Ok(Fenced::Accepted),
            Value::BulkString(highest) => {
                let highest = token(&highest).ok_or_else(|| strange(op, Does::Write))?;
                Ok(Fenced::Stale(Stale { presented, highest }))
            }
            Value::Array(_) => Err(bad_floor(op, "mark or value").with_name(name)),
            _ => Err(strange(op, Does::Write)),
        }
    }

    fn values_key(&self, name: &LeaseName) -> String {
        self.store.keys.of(name).key(What::Values)
    }
}

#[async_trait]
impl FencedStore for RedisBackend {
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        self.fenced("advance", name, token, "", b"").await
    }

    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError> {
        refuse_fenced(SCHEME, key, value)?;
        self.fenced("put", name, token, key, value).await
    }

    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError> {
        const OP: &str = "get";
        let mut command = redis::cmd("HGET");
        command.arg(self.values_key(name)).arg(key);
        let answer = self.store.command(OP, Does::Read, &command).await.map_err(|e| e.with_name(name))?;
        match answer {
            Value::Nil => Ok(None),
            Value::BulkString(mut text) => {
                let written =
                    text.get(..20).and_then(token).ok_or_else(|| bad_floor(OP, "value").with_name(name))?;
                Ok(Some(FencedValue { value: text.split_off(20), token: written }))
            }
            _ => Err(strange(OP, Does::Read)),
        }
    }

    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError> {
        const OP: &str = "list";
        let mut command = redis::cmd("HKEYS");
        command.arg(self.values_key(name));
        let answer = self.store.command(OP, Does::Read, &command).await.map_err(|e| e.with_name(name))?;
        let mut keys: Vec<String> = redis::from_redis_value(answer).map_err(|_| strange(OP, Does::Read))?;
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        self.fenced("purge", name, token, "", b"").await
    }
}
