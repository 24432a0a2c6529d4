//! Operations for people: list, forced release, floors, epoch.

use std::sync::Arc;

use leasehold_core::{
    BackendError, Effect, ErrorKind, ForceRelease, Inspection, LeaseAdmin, LeaseName, Page, Released, Token,
    async_trait,
};
use sqlx::Row as _;

use crate::SCHEME;
use crate::backend::SqliteBackend;
use crate::calls::{end_us, micros, now_us};
use crate::core::Patience;
use crate::error::{native, refused};
use crate::line::Driver;
use crate::record::{Look, bad_floor};
use crate::schema;

const LIST: &str = include_str!("sql/list.sql");
const FORCE_RELEASE: &str = include_str!("sql/force_release.sql");
const RAISE_FLOOR: &str = include_str!("sql/raise_floor.sql");
const RAISE_EPOCH: &str = include_str!("sql/raise_epoch.sql");

/// A floor that can be read.
const FLOOR: &str =
    "SELECT value FROM leasehold_meta WHERE key = 'floor' AND typeof(value) = 'integer' AND value >= 0";

/// Longest text that is kept of who forced a release, and of why.
const NOTE_BYTES_MAX: usize = 1024;

#[async_trait]
impl LeaseAdmin for SqliteBackend {
    /// A row that leasehold did not write is in the list too, as a name that nobody holds and that stays taken for
    /// [`Duration::MAX`](std::time::Duration::MAX): nothing is granted under it, and
    /// [`inspect`](leasehold_core::LeaseBackend::inspect) tells what is wrong with it. A row whose very name is no
    /// lease name is nobody's lease, and an error only where there is nothing else.
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        const OP: &str = "list";
        let store = &self.store;
        let file = store.file(OP).await?;
        let limit = page.limit.min(Page::LIMIT_MAX);
        let mut after = page.after.as_ref().map_or("", LeaseName::as_str).to_owned();
        let (mut found, mut unnamed) = (Vec::new(), None);
        // A page is only short when it is the last one: what is left out is made up for.
        loop {
            let (prefix, from, clock_id) = (prefix.to_owned(), after.clone(), Arc::clone(&store.clock_id));
            let wanted = limit.saturating_sub(found.len());
            let rows = store
                .persist(OP, &file.reader, store.give_up(None), move |now| {
                    sqlx::query(LIST)
                        .bind(prefix.clone())
                        .bind(from.clone())
                        .bind(wanted as i64)
                        .bind(Arc::clone(&clock_id))
                        .bind(now_us(now))
                })
                .await?;
            let now = store.now();
            for row in &rows {
                match Look::listed(OP, row, &store.clock_id, now) {
                    Ok(inspection) => found.push(inspection),
                    Err(e) => unnamed = Some(e),
                }
            }
            // A name that is no text has no successor.
            let last = rows.last().and_then(|row| row.try_get::<String, _>("name").ok());
            match last {
                Some(last) if rows.len() >= wanted && found.len() < limit => after = last,
                _ => break,
            }
        }
        unnamed.filter(|_| found.is_empty()).map_or(Ok(found), Err)
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        const OP: &str = "force_release";
        for (what, text) in [("who does it", &request.by), ("why", &request.reason)] {
            if text.len() > NOTE_BYTES_MAX {
                let message = format!(
                    "the text that tells {what} has {} bytes and may have {NOTE_BYTES_MAX}: nothing was released",
                    text.len()
                );
                return Err(refused(OP, ErrorKind::ConfigInvalid, message));
            }
        }
        let store = &self.store;
        let file = store.file(OP).await?;
        let look = store.look(&file, OP, &request.name).await?;
        let Some(seen) = look.contention(&store.clock_id, store.now()) else {
            return Ok(Released::AlreadyReleased);
        };
        let keep = request.keep_for;
        let (wanted, clock_id) = (request.clone(), Arc::clone(&store.clock_id));
        let rows = store
            .persist(OP, &file.writer, store.give_up(None), move |now| {
                sqlx::query(FORCE_RELEASE)
                    .bind(wanted.name.as_str().to_owned())
                    .bind(wanted.token.as_i64())
                    .bind(if keep.is_zero() { 0 } else { end_us(now, keep) })
                    .bind(micros(keep))
                    .bind(Arc::clone(&clock_id))
                    .bind(wanted.by.clone())
                    .bind(wanted.reason.clone())
                    .bind(now_us(now))
            })
            .await
            .map_err(|e| e.with_name(&request.name))?;
        if rows.is_empty() {
            // With another token; or nobody holds it, and it is kept after another one.
            return Ok(Released::NotHeld { by: seen.holder });
        }
        file.hub.wake(&request.name);
        Ok(Released::Released)
    }

    async fn raise_floor(&self, name: Option<&LeaseName>, token: Token) -> Result<(), BackendError> {
        // One floor serves all names: raising it for all is raising it for one.
        let _ = name;
        const OP: &str = "raise_floor";
        let store = &self.store;
        let file = store.file(OP).await?;
        let raise = move |_| sqlx::query(RAISE_FLOOR).bind(token.as_i64());
        let raised = store.persist(OP, &file.writer, store.give_up(None), raise).await?;
        if raised.is_empty() { Err(bad_floor(OP)) } else { Ok(()) }
    }

    async fn raise_epoch(&self) -> Result<u64, BackendError> {
        const OP: &str = "raise_epoch";
        let store = &self.store;
        let file = store.file(OP).await?;
        let rows = store.persist(OP, &file.writer, store.give_up(None), |_| sqlx::query(RAISE_EPOCH)).await?;
        let Some(row) = rows.first() else {
            // Either there is no floor to raise, or it is in the last epoch.
            let look = |_| sqlx::query(FLOOR);
            if store.persist(OP, &file.reader, store.give_up(None), look).await?.is_empty() {
                return Err(bad_floor(OP));
            }
            let message = format!("no larger epoch exists: {} is the last one", Token::EPOCH_MAX);
            // why: the statement found no row to change.
            return Err(BackendError::new(ErrorKind::TokenRegression, Effect::None, SCHEME, OP, message));
        };
        let epoch: i64 = row.try_get(0).map_err(|e| native(OP, e))?;
        Ok(epoch as u64)
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        const OP: &str = "prepare";
        let store = &self.store;
        let file = store.file(OP).await?;
        let mode = store.config.schema;
        let patience = Patience { context: store.context.clone(), until: store.give_up(None) };
        file.writer
            .run(OP, Driver::Io, async move |mut turn| {
                turn.begin(OP).await?;
                let connection = turn.connection().map_err(|e| native(OP, e))?;
                schema::ensure(OP, connection, mode, &patience).await
            })
            .await
    }

    async fn probe(&self) -> Result<(), BackendError> {
        let store = &self.store;
        let file = store.file("probe").await?;
        store
            .persist("probe", &file.reader, store.give_up(None), |_| {
                sqlx::query("SELECT value FROM leasehold_meta WHERE key = 'schema'")
            })
            .await
            .map(drop)
    }
}
