//! The resource's side: values, and transactions of the user's own, that refuse a late writer.
//!
//! The highest token seen under a name is a row of `leasehold_fence`, apart from the leases. [`fence`] checks
//! and raises it inside the user's own transaction: mark and write are committed together or not at all.
//!
//! **A long transaction delays renewals.** SQLite has one writer for the whole file: while a transaction that
//! has written is open, renewals of leases in the *same* file wait for it. A transaction shorter than what a
//! lease has left after a due renewal (two thirds of its ttl) costs nothing; a longer one loses the lease, which
//! is reported on time. Keep them short, or keep the leases in a file of their own.

use std::sync::Arc;

use leasehold_core::{
    BackendError, Fenced, FencedStore, FencedValue, LeaseName, Stale, Token, async_trait, refuse_fenced,
};
use sqlx::{Connection, Row as _, SqliteConnection};

use crate::SCHEME;
use crate::backend::SqliteBackend;
use crate::core::Store;
use crate::error::{is_busy, native, native_code};
use crate::line::{Driver, Turn};

const TABLES: &str = include_str!("sql/schema_fence.sql");
const ADVANCE: &str = include_str!("sql/fence_advance.sql");
const HIGHEST: &str = "SELECT highest FROM leasehold_fence WHERE name = ?1";
const PUT: &str = "INSERT INTO leasehold_fence_values (name, key, value, token) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (name, key) DO UPDATE SET value = excluded.value, token = excluded.token";
const GET: &str = "SELECT value, token FROM leasehold_fence_values WHERE name = ?1 AND key = ?2";
const LIST: &str = "SELECT key FROM leasehold_fence_values
     WHERE name = ?1 AND key >= ?2 AND key < ?2 || CAST(x'FF' AS TEXT) ORDER BY key";
const PURGE: &str = "DELETE FROM leasehold_fence_values WHERE name = ?1";

/// Why a token was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Somebody with a larger token was here. Roll the transaction back.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The table of marks is missing: call [`prepare_fence`] once.
    #[error(
        "the table leasehold_fence is missing in this file: call prepare_fence once, before the first transaction"
    )]
    NotPrepared,
    /// The mark of this name is no token: something else wrote it.
    #[error("the mark of this name in leasehold_fence was not written by leasehold: nothing was accepted")]
    Corrupt,
    /// SQLite could not answer. Roll the transaction back.
    #[error("the fence could not be asked: {0}")]
    Sqlx(#[from] sqlx::Error),
}

/// Makes the tables of marks where they are missing. Call it once, outside of transactions that matter: it
/// takes the write lock for a moment.
///
/// # Errors
/// What SQLite answers.
pub async fn prepare_fence(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLES).execute(connection).await.map(drop)
}

/// Accepts `token` for `name` inside the caller's transaction, and remembers it there.
///
/// Call it first in the transaction: it takes the write lock, so that nothing that is read after it can be
/// older than the mark. Give the transaction up when it fails.
///
/// ```
/// # use leasehold_core::{LeaseName, Token};
/// # use sqlx::{Connection, SqliteConnection};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut db = SqliteConnection::connect("sqlite::memory:").await?;
/// leasehold_sqlite::prepare_fence(&mut db).await?;
/// # sqlx::query("CREATE TABLE report (day TEXT)").execute(&mut db).await?;
/// # let (name, token): (LeaseName, Token) = ("reports/nightly".parse()?, Token::new(8)?);
/// let mut tx = db.begin().await?;
/// leasehold_sqlite::fence(&mut tx, &name, token).await?; // the token of the lease you hold
/// sqlx::query("INSERT INTO report VALUES ('monday')").execute(&mut *tx).await?;
/// tx.commit().await?;
///
/// let mut late = db.begin().await?;
/// assert!(leasehold_sqlite::fence(&mut late, &name, Token::new(7)?).await.is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`FenceError`]; the mark is unchanged then.
///
/// # Cancel safety
/// The mark is the transaction's: rolled back with it.
pub async fn fence(
    transaction: &mut SqliteConnection,
    name: &LeaseName,
    token: Token,
) -> Result<(), FenceError> {
    let missing = |e: sqlx::Error| match native_code(&e) {
        Some(1) => FenceError::NotPrepared,
        _ => FenceError::Sqlx(e),
    };
    // All rows are taken, so that the statement is over when this returns.
    let rows = sqlx::query(ADVANCE)
        .bind(name.as_str())
        .bind(token.as_i64())
        .fetch_all(&mut *transaction)
        .await
        .map_err(missing)?;
    if !rows.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(HIGHEST).bind(name.as_str()).fetch_all(transaction).await?;
    let highest = rows.first().and_then(|row| row.try_get::<i64, _>(0).ok());
    match highest.and_then(|n| Token::try_from(n).ok()) {
        Some(highest) => Err(Stale { presented: token, highest }.into()),
        None => Err(FenceError::Corrupt),
    }
}

/// What a fenced transaction of the store itself does after its token was accepted.
enum Change {
    Nothing,
    Put { key: String, value: Vec<u8> },
    Purge,
}

/// One transaction: the mark, then the change, tried until the file is not busy.
async fn change(
    store: Arc<Store>,
    mut turn: Turn,
    op: &'static str,
    name: LeaseName,
    token: Token,
    change: Change,
) -> Result<Fenced, BackendError> {
    turn.begin(op).await?;
    let give_up = store.give_up(None);
    loop {
        match try_change(&mut turn, &name, token, &change).await {
            Ok(()) => return Ok(Fenced::Accepted),
            Err(FenceError::Stale(stale)) => return Ok(Fenced::Stale(stale)),
            Err(FenceError::NotPrepared) => {
                let connection = turn.connection().map_err(|e| native(op, e))?;
                match prepare_fence(connection).await {
                    Err(e) if !is_busy(&e) || store.now() >= give_up => return Err(native(op, e)),
                    Ok(()) | Err(_) => {}
                }
            }
            Err(FenceError::Sqlx(e)) if is_busy(&e) && store.now() < give_up => {}
            Err(FenceError::Sqlx(e)) => return Err(native(op, e).with_name(&name)),
            Err(e @ FenceError::Corrupt) => {
                let kind = leasehold_core::ErrorKind::Corrupt;
                // why: the transaction was rolled back.
                let effect = leasehold_core::Effect::None;
                return Err(BackendError::new(kind, effect, SCHEME, op, e.to_string()).with_name(&name));
            }
        }
    }
}

async fn try_change(
    turn: &mut Turn,
    name: &LeaseName,
    token: Token,
    change: &Change,
) -> Result<(), FenceError> {
    let mut transaction = turn.connection()?.begin_with("BEGIN IMMEDIATE").await?;
    fence(&mut transaction, name, token).await?;
    let query = match change {
        Change::Nothing => None,
        Change::Put { key, value } => {
            Some(sqlx::query(PUT).bind(name.as_str()).bind(key).bind(value).bind(token.as_i64()))
        }
        Change::Purge => Some(sqlx::query(PURGE).bind(name.as_str())),
    };
    if let Some(query) = query {
        query.execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}

impl SqliteBackend {
    async fn fenced(
        &self,
        op: &'static str,
        name: &LeaseName,
        token: Token,
        what: Change,
    ) -> Result<Fenced, BackendError> {
        let file = self.store.file(op).await?;
        let (store, name) = (Arc::clone(&self.store), name.clone());
        let job = async move |turn| change(store, turn, op, name, token, what).await;
        file.writer.run(op, Driver::Io, job).await
    }

    async fn fenced_rows(
        &self,
        op: &'static str,
        sql: &'static str,
        name: &LeaseName,
        argument: &str,
    ) -> Result<Vec<sqlx::sqlite::SqliteRow>, BackendError> {
        let store = &self.store;
        let file = store.file(op).await?;
        let (lookup, argument) = (name.as_str().to_owned(), argument.to_owned());
        let counted = Arc::clone(store);
        let job = async move |mut turn: Turn| {
            turn.begin(op).await?;
            match turn.once(&counted.calls, sqlx::query(sql).bind(lookup).bind(argument)).await {
                // Nothing was ever written under any name.
                Err(e) if native_code(&e) == Some(1) => Ok(Vec::new()),
                answer => answer.map_err(|e| native(op, e)),
            }
        };
        file.reader.run(op, Driver::Caller, job).await.map_err(|e| e.with_name(name))
    }
}

#[async_trait]
impl FencedStore for SqliteBackend {
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        self.fenced("advance", name, token, Change::Nothing).await
    }

    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError> {
        refuse_fenced(SCHEME, key, value)?;
        let what = Change::Put { key: key.to_owned(), value: value.to_vec() };
        self.fenced("put", name, token, what).await
    }

    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError> {
        let rows = self.fenced_rows("get", GET, name, key).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let token: i64 = row.try_get(1).map_err(|e| native("get", e))?;
        let value = row.try_get(0).map_err(|e| native("get", e))?;
        let token = Token::try_from(token).map_err(|e| {
            // why: a look changes nothing.
            let (kind, effect) = (leasehold_core::ErrorKind::Corrupt, leasehold_core::Effect::None);
            BackendError::new(kind, effect, SCHEME, "get", e.to_string()).with_name(name)
        })?;
        Ok(Some(FencedValue { value, token }))
    }

    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError> {
        let rows = self.fenced_rows("list", LIST, name, prefix).await?;
        rows.iter().map(|row| row.try_get(0).map_err(|e| native("list", e))).collect()
    }

    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        self.fenced("purge", name, token, Change::Purge).await
    }
}
