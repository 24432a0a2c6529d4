//! Rows of the table, and what they mean to this clock.
//!
//! A row's end is a reading of one boot clock, named by its clock id:
//! 1. Dated by this clock: it has run out when this clock says so.
//! 2. Dated by another clock, or later than now: its end says nothing. Whoever asks notes a **sighting** of
//!    this very version (token and seq; every write moves seq), which ends one ttl of the row after the
//!    version was read, by the asker's clock. If the sighting runs out and the version is still the same, the
//!    holder has not renewed for a whole ttl, and the name is free for this clock.
//!
//! The row itself is never re-dated by a waiter: two waiters with two clocks would keep a dead holder's lease
//! alive for ever. Sightings stay in the file, so that a job that only looks in once a minute gets over a
//! reboot too.
//!
//! Nothing in a row is trusted: what leasehold did not write is [`ErrorKind::Corrupt`] and stays as it is.

use std::time::Duration;

use leasehold_core::{
    BackendError, BootTime, Contention, Effect, ErrorKind, HolderInfo, HolderView, Inspection, LeaseName,
    LostCause, OwnerId, Token,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row as _, Sqlite, Type, TypeInfo, ValueRef};

use crate::SCHEME;

/// Layout of a row.
const FORMAT: i64 = 1;

/// One name as a look found it.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// The floor of the namespace.
    pub(crate) floor: Option<Token>,
    /// The name's row, if it has one.
    pub(crate) row: Option<Row>,
}

/// A row that leasehold wrote.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: LeaseName,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) token: Token,
    pub(crate) seq: i64,
    expires_us: u64,
    pub(crate) ttl_us: u64,
    clock_id: String,
    acquired_ms: u64,
    info: HolderInfo,
    revoked: Option<(OwnerId, String, String)>,
    sighted_until_us: Option<u64>,
}

/// What a row means to one clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Free,
    /// Held, or kept without a holder.
    Taken {
        remaining: Duration,
        /// Dated by another clock, and this one has not sighted this version.
        unsighted: bool,
    },
}

impl Look {
    /// Reads a row of `look.sql` or `look_many.sql`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub(crate) fn read(op: &'static str, found: &SqliteRow) -> Result<Self, BackendError> {
        let floor = floor(op, found)?;
        let present = get::<bool>(found, "present").map_err(|what| corrupt(op, None, &what))?;
        let row = if present { Some(Row::read(op, found)?) } else { None };
        Ok(Look { floor, row })
    }

    /// Reads a row of `list.sql` for a person. A row that cannot be read has a name all the same, which is taken
    /// by nobody for ever: [`Duration::MAX`].
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a floor that is none, and for a row whose name is no lease name.
    pub(crate) fn listed(
        op: &'static str,
        found: &SqliteRow,
        clock_id: &str,
        now: BootTime,
    ) -> Result<Inspection, BackendError> {
        let floor = floor(op, found)?;
        match Row::read(op, found) {
            Ok(row) => {
                let name = row.name.clone();
                Ok(Look { floor, row: Some(row) }.inspection(name, clock_id, now))
            }
            Err(e) => {
                let mut unreadable = Inspection::free(e.name().cloned().ok_or(e)?);
                unreadable.free_in = Some(Duration::MAX);
                Ok(unreadable)
            }
        }
    }

    /// What keeps an asker from the name, if anything does.
    pub(crate) fn contention(&self, clock_id: &str, now: BootTime) -> Option<Contention> {
        let row = self.row.as_ref()?;
        match row.standing(clock_id, now) {
            Standing::Free => None,
            Standing::Taken { remaining, .. } => {
                Some(Contention::new(row.view(clock_id, now), Some(remaining)))
            }
        }
    }

    /// The name for a person.
    pub(crate) fn inspection(&self, name: LeaseName, clock_id: &str, now: BootTime) -> Inspection {
        let mut inspection = Inspection::free(name);
        inspection.token_floor = self.floor;
        if let Some(row) = &self.row {
            inspection.token_floor = self.floor.max(Some(row.token));
            if let Standing::Taken { remaining, .. } = row.standing(clock_id, now) {
                inspection.holders.extend(row.view(clock_id, now));
                inspection.free_in = Some(remaining);
            }
        }
        inspection
    }

    /// Why a grant of `owner` was not renewed; none when it stands after all.
    pub(crate) fn lost(&self, owner: OwnerId, clock_id: &str, now: BootTime) -> Option<LostCause> {
        let Some(row) = &self.row else {
            let detail = "its row is gone: deleted by somebody, or collected after it had run out".to_owned();
            return Some(LostCause::StoreForgot { detail });
        };
        if let Some((revoked, by, reason)) = &row.revoked
            && *revoked == owner
        {
            return Some(LostCause::Revoked { by: by.clone(), reason: reason.clone() });
        }
        let is_taken = matches!(row.standing(clock_id, now), Standing::Taken { .. });
        match row.view(clock_id, now) {
            Some(_) if is_taken && row.owner == Some(owner) => None,
            Some(view) if is_taken => Some(LostCause::taken(&view)),
            _ => Some(LostCause::ExpiredInStore),
        }
    }
}

impl Row {
    fn read(op: &'static str, found: &SqliteRow) -> Result<Self, BackendError> {
        let text = get::<String>(found, "name").map_err(|what| corrupt(op, None, &what))?;
        let Ok(name) = LeaseName::new(&text) else {
            return Err(corrupt(op, None, &format!("its name {text:?} is no lease name")));
        };
        Row::fields(found, name.clone()).map_err(|what| corrupt(op, Some(&name), &what))
    }

    fn fields(found: &SqliteRow, name: LeaseName) -> Result<Self, String> {
        let format = get::<i64>(found, "format")?;
        if format != FORMAT {
            return Err(format!("its format is {format} and this version knows {FORMAT}"));
        }
        let owner = |column| match maybe::<String>(found, column)? {
            None => Ok(None),
            // Never printed: it may be a capability all the same.
            Some(hex) => OwnerId::from_hex(&hex).map(Some).ok_or(format!("its {column} is no owner id")),
        };
        let count = |column| {
            let value = get::<i64>(found, column)?;
            u64::try_from(value).map_err(|_| format!("its {column} is {value}"))
        };
        let token = get::<i64>(found, "token")?;
        // A note for people: garbage is none.
        let revoked = owner("revoked_owner").unwrap_or_default().map(|owner| {
            let note = |column| maybe::<String>(found, column).ok().flatten().unwrap_or_default();
            (owner, note("revoked_by"), note("revoked_reason"))
        });
        Ok(Row {
            name,
            owner: owner("owner")?,
            token: Token::try_from(token).map_err(|_| format!("its token is {token}"))?,
            seq: get(found, "seq")?,
            expires_us: count("expires_us")?,
            ttl_us: count("ttl_us")?,
            clock_id: get(found, "clock_id")?,
            acquired_ms: count("acquired_ms")?,
            // For people only; garbage is nothing.
            info: HolderInfo::from_json(&get::<String>(found, "info")?),
            revoked,
            sighted_until_us: maybe::<i64>(found, "sighted_until_us")?
                .map(|us| u64::try_from(us).unwrap_or(u64::MAX)),
        })
    }

    /// What the row means to the clock `clock_id`, which read `now` after the row was read.
    pub(crate) fn standing(&self, clock_id: &str, now: BootTime) -> Standing {
        let now = now.as_micros();
        if self.expires_us == 0 {
            return Standing::Free;
        }
        let is_own = self.clock_id == clock_id && self.expires_us <= now.saturating_add(self.ttl_us);
        let until = match self.sighted_until_us {
            _ if is_own => Some(self.expires_us),
            // A sighting that ends later than one of now would was noted before this clock began anew.
            Some(until) if until <= now.saturating_add(self.ttl_us) => Some(until),
            _ => None,
        };
        match until {
            Some(until) if until <= now => Standing::Free,
            Some(until) => {
                Standing::Taken { remaining: Duration::from_micros(until - now), unsighted: false }
            }
            None => Standing::Taken { remaining: Duration::from_micros(self.ttl_us), unsighted: true },
        }
    }

    /// The holder as others see it; none when nobody holds the name.
    pub(crate) fn view(&self, clock_id: &str, now: BootTime) -> Option<HolderView> {
        let mut view = HolderView::new(&self.owner?, self.token);
        view.info = self.info.clone();
        view.acquired_unix_ms = Some(self.acquired_ms);
        view.remaining = match self.standing(clock_id, now) {
            Standing::Free => Some(Duration::ZERO),
            Standing::Taken { remaining, .. } => Some(remaining),
        };
        Some(view)
    }
}

/// One column that must not be NULL, with its type checked: SQLite keeps any type in any column.
fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T, String>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    maybe(row, column)?.ok_or_else(|| format!("its {column} is NULL"))
}

/// One column, or none for NULL.
fn maybe<'r, T>(row: &'r SqliteRow, column: &str) -> Result<Option<T>, String>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    let raw = row.try_get_raw(column).map_err(|_| format!("it has no column {column}"))?;
    if raw.is_null() {
        return Ok(None);
    }
    let found = raw.type_info().into_owned();
    if !T::compatible(&found) {
        return Err(format!("its {column} is of type {}", found.name()));
    }
    T::decode(raw).map(Some).map_err(|_| format!("its {column} cannot be read"))
}

/// The floor of all names; zero is none.
fn floor(op: &'static str, found: &SqliteRow) -> Result<Option<Token>, BackendError> {
    let floor = get::<i64>(found, "floor").ok().and_then(|n| u64::try_from(n).ok());
    floor.map(|n| Token::new(n).ok()).ok_or_else(|| bad_floor(op))
}

/// The floor of all names is missing, or is none.
pub(crate) fn bad_floor(op: &'static str) -> BackendError {
    let message = "the row 'floor' of leasehold_meta is missing, or is no token: something altered it, and tokens that were granted before may be larger than any that is known. Nothing was granted. Delete that row, run `leasehold init`, which makes it anew above all tokens in the file, and raise the epoch with `leasehold epoch raise`, as often as it was raised before";
    // why: no statement grants without it, and the look changed nothing.
    BackendError::new(ErrorKind::Corrupt, Effect::None, SCHEME, op, message)
}

fn corrupt(op: &'static str, name: Option<&LeaseName>, what: &str) -> BackendError {
    let message = format!(
        "a row of leasehold_leases was not written by leasehold, or by a newer version ({what}); it was left as it is and nothing was granted. Update leasehold, or delete the row"
    );
    // why: a row that cannot be read is refused by the statement too, which changes nothing then.
    let error = BackendError::new(ErrorKind::Corrupt, Effect::None, SCHEME, op, message);
    match name {
        Some(name) => error.with_name(name),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(clock_id: &str, expires_us: u64, ttl_us: u64, sighted_until_us: Option<u64>) -> Row {
        Row {
            name: "n".parse().expect("legal"),
            owner: Some(OwnerId::random()),
            token: Token::new(7).expect("legal"),
            seq: 1,
            expires_us,
            ttl_us,
            clock_id: clock_id.to_owned(),
            acquired_ms: 0,
            info: HolderInfo::default(),
            revoked: None,
            sighted_until_us,
        }
    }

    #[test]
    fn only_the_own_clock_or_a_sighting_frees_a_row() {
        let at = |us: u64| BootTime::from_nanos(us * 1_000);
        let taken = |us, unsighted| Standing::Taken { remaining: Duration::from_micros(us), unsighted };
        for (row, now, expected) in [
            // Released: free for every clock.
            (row("other", 0, 0, None), 5_000, Standing::Free),
            // The own clock.
            (row("mine", 5_000, 1_000, None), 4_999, taken(1, false)),
            (row("mine", 5_000, 1_000, None), 5_000, Standing::Free),
            // The own clock's name on a date that this clock cannot have written yet.
            (row("mine", 5_000, 1_000, None), 3_999, taken(1_000, true)),
            (row("mine", 5_000, 1_000, Some(3_500)), 3_600, Standing::Free),
            // Another clock: run out long ago, and still taken until a sighting has run out.
            (row("other", 1, 1_000, None), 9_000, taken(1_000, true)),
            (row("other", 1, 1_000, Some(9_400)), 9_000, taken(400, false)),
            (row("other", 90_000, 1_000, Some(9_000)), 9_000, Standing::Free),
            // A sighting from before the clock began anew.
            (row("other", 1, 1_000, Some(99_000)), 9_000, taken(1_000, true)),
        ] {
            assert_eq!(row.standing("mine", at(now)), expected, "{row:?} at {now}");
        }
    }
}
