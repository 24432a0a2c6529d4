//! Tables: made on first use, migrated forward, and refused when they are newer than this version.
//!
//! Everything leasehold keeps begins with `leasehold_`; the version is a row of `leasehold_meta`. The rest of
//! the file, `user_version` included, belongs to the user. Any number of processes may start on one new file
//! at once: each takes the write lock, looks again, and finds the work done.

use std::time::Duration;

use leasehold_core::{BackendError, ErrorKind};
use sqlx::{Connection, SqliteConnection};
use tokio::time::Instant;

use crate::SchemaMode;
use crate::error::{is_busy, native, refused};

/// The version that this code writes and reads.
pub(crate) const CURRENT: i64 = 2;
/// One step for each version: `MIGRATIONS[n]` leads from version n to n + 1.
const MIGRATIONS: [&str; CURRENT as usize] =
    [include_str!("sql/schema_v1.sql"), include_str!("sql/schema_v2.sql")];

/// Makes sure that the tables are there and of this version.
///
/// # Errors
/// [`ErrorKind::ConfigInvalid`] when they are missing or old and `mode` forbids to mend that, or newer than
/// this code.
pub(crate) async fn ensure(
    op: &'static str,
    connection: &mut SqliteConnection,
    mode: SchemaMode,
    until: Instant,
) -> Result<(), BackendError> {
    loop {
        match attempt(op, connection, mode).await {
            Ok(done) => return done,
            Err(e) if is_busy(&e) && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(e) => return Err(native(op, e)),
        }
    }
}

async fn attempt(
    op: &'static str,
    connection: &mut SqliteConnection,
    mode: SchemaMode,
) -> Result<Result<(), BackendError>, sqlx::Error> {
    match (version(connection).await?, mode) {
        (CURRENT, _) => return Ok(Ok(())),
        (found, _) if !(0..CURRENT).contains(&found) => return Ok(Err(newer(op, found))),
        (found, SchemaMode::Refuse) => return Ok(Err(missing(op, found))),
        (_, SchemaMode::Auto) => {}
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let found = version(&mut transaction).await?;
    if !(0..=CURRENT).contains(&found) {
        return Ok(Err(newer(op, found)));
    }
    let done = usize::try_from(found).unwrap_or(0);
    for step in MIGRATIONS.iter().skip(done) {
        sqlx::raw_sql(*step).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(Ok(()))
}

/// The version in the file; 0 when leasehold was never here.
async fn version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let table: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'leasehold_meta'")
            .fetch_optional(&mut *connection)
            .await?;
    if table.is_none() {
        return Ok(0);
    }
    // A table without a readable version is taken for one of the future: nothing is done to it.
    let found: Option<Option<i64>> = sqlx::query_scalar(
        "SELECT CASE WHEN typeof(value) = 'integer' THEN value END FROM leasehold_meta WHERE key = 'schema'",
    )
    .fetch_optional(connection)
    .await?;
    Ok(found.flatten().unwrap_or(-1))
}

fn newer(op: &'static str, found: i64) -> BackendError {
    let what = match found {
        -1 => "hold no version that can be read".to_owned(),
        _ => format!("are of version {found}"),
    };
    let message = format!(
        "the tables of leasehold in this file {what}, and this program knows versions up to {CURRENT}: nothing was changed. Update this program"
    );
    refused(op, ErrorKind::ConfigInvalid, message)
}

fn missing(op: &'static str, found: i64) -> BackendError {
    let what = match found {
        0 => "there are no tables of leasehold in this file".to_owned(),
        _ => format!("the tables of leasehold in this file are of version {found}, older than {CURRENT}"),
    };
    let message = format!("{what}, and schema=refuse forbids to make them: run `leasehold init`");
    refused(op, ErrorKind::ConfigInvalid, message)
}
