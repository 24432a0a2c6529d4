//! Tables: made on first use, brought forward, mended where one is missing, and refused when they are newer than
//! this version.
//!
//! Everything leasehold keeps begins with `leasehold_`; the version is a row of `leasehold_meta`. The rest of
//! the file, `user_version` included, belongs to the user. Any number of processes may start on one new file
//! at once: each takes the write lock, looks again, and finds the work done.
//!
//! A new file, an old one and one that has lost a table go the same way: what is missing is made ([`mend`]). The
//! version alone is not believed, since somebody may have dropped a table of a file that is up to date.
//!
//! What can go wrong, and where it is handled:
//! * The leases are lost: tokens go on above the floor and the wall clock. Holders are told *lost, the store
//!   forgot* by their next renewal.
//! * The floor is lost: it is made anew above every token that is in the file.
//! * The floor is there and is none: nothing is guessed ([`bad_floor`]).

use leasehold_core::{BackendError, ErrorKind};
use sqlx::{Connection, Row as _, SqliteConnection};

use crate::SchemaMode;
use crate::core::Patience;
use crate::error::{is_busy, opening, refused};
use crate::record::bad_floor;

/// The version that this code writes and reads.
pub(crate) const CURRENT: i64 = 2;

const FOUND: &str = include_str!("sql/schema_found.sql");
const ROWS: &str = include_str!("sql/schema_rows.sql");
const META: &str = include_str!("sql/schema_meta.sql");
const LEASES: &str = include_str!("sql/schema_leases.sql");
const NOTES: &str = include_str!("sql/schema_notes.sql");
const SIGHTINGS: &str = include_str!("sql/schema_sightings.sql");
const FLOOR: &str = include_str!("sql/schema_floor.sql");

/// Makes sure that the tables are there and of this version; a busy file is asked again as long as there is `patience`.
///
/// # Errors
/// [`ErrorKind::ConfigInvalid`] when they are missing or old and `mode` forbids to mend that, or newer than
/// this code; [`ErrorKind::Corrupt`] when the floor of the tokens is none.
pub(crate) async fn ensure(
    op: &'static str,
    connection: &mut SqliteConnection,
    mode: SchemaMode,
    patience: &Patience,
) -> Result<(), BackendError> {
    loop {
        match attempt(op, connection, mode).await {
            Ok(done) => return done,
            Err(e) if is_busy(&e) && patience.pause().await => {}
            Err(e) => return Err(opening(op, e)),
        }
    }
}

async fn attempt(
    op: &'static str,
    connection: &mut SqliteConnection,
    mode: SchemaMode,
) -> Result<Result<(), BackendError>, sqlx::Error> {
    match Found::read(connection).await?.judge(op) {
        Ok(None) => return Ok(Ok(())),
        Ok(Some(what)) if mode == SchemaMode::Refuse => return Ok(Err(missing(op, &what))),
        Ok(Some(_)) => {}
        Err(e) => return Ok(Err(e)),
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let found = Found::read(&mut transaction).await?;
    if let Err(e) = found.judge(op) {
        return Ok(Err(e));
    }
    mend(&mut transaction, &found).await?;
    transaction.commit().await?;
    Ok(Ok(()))
}

/// Makes what is missing. Changes nothing where nothing is.
async fn mend(connection: &mut SqliteConnection, found: &Found) -> Result<(), sqlx::Error> {
    let steps =
        [(true, META), (!found.leases, LEASES), (!found.notes, NOTES), (true, SIGHTINGS), (true, FLOOR)];
    for (_, step) in steps.into_iter().filter(|(is_missing, _)| *is_missing) {
        sqlx::raw_sql(step).execute(&mut *connection).await?;
    }
    Ok(())
}

/// What is in the file.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    meta: bool,
    leases: bool,
    sightings: bool,
    /// The trigger that raises the floor.
    deleted: bool,
    /// The columns of version 2.
    notes: bool,
    version: Value,
    floor: Value,
}

/// A row of `leasehold_meta`.
#[derive(Clone, Copy, Debug, Default)]
enum Value {
    #[default]
    Missing,
    Unreadable,
    Is(i64),
}

impl Found {
    async fn read(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(FOUND).fetch_one(&mut *connection).await?;
        let mut found = Found {
            meta: row.try_get("meta")?,
            leases: row.try_get("leases")?,
            sightings: row.try_get("sightings")?,
            deleted: row.try_get("deleted")?,
            notes: row.try_get("notes")?,
            ..Found::default()
        };
        if found.meta {
            let rows: Vec<(String, Option<i64>)> = sqlx::query_as(ROWS).fetch_all(connection).await?;
            for (key, value) in rows {
                let value = value.map_or(Value::Unreadable, Value::Is);
                *(if key == "schema" { &mut found.version } else { &mut found.floor }) = value;
            }
        }
        Ok(found)
    }

    /// What is to be mended, in words; none when all is as it should be.
    ///
    /// # Errors
    /// When nothing may be done about it.
    fn judge(&self, op: &'static str) -> Result<Option<String>, BackendError> {
        let version = match self.version {
            Value::Missing => None,
            Value::Is(found @ 0..=CURRENT) => Some(found),
            // A version that cannot be read is taken for one of the future.
            Value::Is(found) => return Err(newer(op, &format!("are of version {found}"))),
            Value::Unreadable => return Err(newer(op, "hold no version that can be read")),
        };
        if matches!(self.floor, Value::Unreadable | Value::Is(..0)) {
            return Err(bad_floor(op));
        }
        if !self.meta && !self.leases && !self.sightings {
            return Ok(Some("there are no tables of leasehold in this file".to_owned()));
        }
        if let Some(old) = version.filter(|found| *found < CURRENT) {
            return Ok(Some(format!(
                "the tables of leasehold in this file are of version {old}, older than {CURRENT}"
            )));
        }
        let missing = [
            (self.meta, "the table leasehold_meta"),
            (self.leases, "the table leasehold_leases"),
            (!self.leases || self.notes, "columns of the table leasehold_leases"),
            (self.sightings, "the table leasehold_sightings"),
            (!self.leases || self.deleted, "the trigger leasehold_leases_deleted"),
            (!self.meta || version.is_some(), "the row 'schema' of leasehold_meta"),
            (!self.meta || !matches!(self.floor, Value::Missing), "the row 'floor' of leasehold_meta"),
        ];
        let missing: Vec<&str> =
            missing.into_iter().filter(|(is_there, _)| !is_there).map(|(_, what)| what).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!("this file has lost {}", missing.join(", "))))
    }
}

fn newer(op: &'static str, what: &str) -> BackendError {
    let message = format!(
        "the tables of leasehold in this file {what}, and this program knows versions up to {CURRENT}: nothing was changed. Update this program"
    );
    refused(op, ErrorKind::ConfigInvalid, message)
}

fn missing(op: &'static str, what: &str) -> BackendError {
    let message = format!("{what}, and schema=refuse forbids to make them: run `leasehold init`");
    refused(op, ErrorKind::ConfigInvalid, message)
}
