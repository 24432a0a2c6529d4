//! The record of a name, and what each call makes of it: for backends that read, decide and write.
//!
//! A store without a language of its own (files, a key with compare-and-set, rows read under a lock)
//! needs the rules of a grant on the client's side. Here they are, without I/O: a call reads the
//! record of its name, asks [`Record`] what to answer and what to write, and writes that, all in one
//! atomic step of its store. Time is the store's own, read in that step.
//!
//! # What can go wrong, and where it is handled
//! * Two calls decide on one record: the store's lock or compare-and-set is the backend's.
//! * A removed record takes its token with it: [`Write::Remove`] says what the floor must keep.
//! * What the store holds was written by somebody else: [`Record::from_text`] refuses it.

use std::fmt;

use crate::{
    AcquireRequest, Attempt, BootTime, Contention, Grant, HolderInfo, HolderView, Inspection, LeaseName,
    LostCause, OwnerId, ReleaseRequest, Released, RenewAnswer, Renewal, Token, TokenError,
};

/// Who holds a name, under which token, and until when.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// None when the name is kept taken without an owner.
    pub owner: Option<OwnerId>,
    /// The token of the grant.
    pub token: Token,
    /// When it runs out, by the store's own time.
    pub expires: BootTime,
    /// When it was granted, in milliseconds since 1970, for people.
    pub acquired_unix_ms: u64,
    /// What the holder says about itself.
    pub info: HolderInfo,
}

/// What has to become of a record, in the same atomic step in which it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the answer is true only when this is done"]
pub enum Write {
    /// It stays as it is.
    Nothing,
    /// It is replaced.
    Put(Record),
    /// It is removed. A later grant of the name has to exceed this token: keep a floor of it, or keep
    /// the highest token of all grants.
    Remove(Token),
}

/// Why a text is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no lease record (its {part} is wrong): it was not written by leasehold, or by a newer version. Look at it, and remove it when nobody needs it"
)]
pub struct NoRecord {
    part: &'static str,
}

impl From<NoRecord> for std::io::Error {
    fn from(error: NoRecord) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

impl Record {
    /// First line of the text form: what it is, and its version.
    const FORMAT: &'static str = "lease 1";

    /// Whether it has not run out.
    pub fn is_live(&self, now: BootTime) -> bool {
        now < self.expires
    }

    /// One attempt at the name of `found`. `clock_us` is the store's wall clock in microseconds since
    /// 1970, `floor` the highest token that the store has granted or promised beside this record.
    ///
    /// # Errors
    /// [`TokenError`] when no larger token exists: nothing is to be written.
    pub fn acquire(
        found: Option<Record>,
        request: &AcquireRequest,
        now: BootTime,
        clock_us: u64,
        floor: Option<Token>,
    ) -> Result<(Attempt, Write), TokenError> {
        let expires = now + request.store_ttl;
        let last = found.as_ref().map(|record| record.token);
        let next = || Token::next(last, clock_us, floor.max(request.token_floor));
        let record = match found {
            Some(record) if record.is_live(now) && record.owner == Some(request.owner) => {
                // The same owner asks again: same token, fresh expiry. A floor above it is honoured.
                let raised = request.token_floor >= Some(record.token);
                Record { token: if raised { next()? } else { record.token }, expires, ..record }
            }
            Some(record) if record.is_live(now) => {
                let left = record.expires.since(now);
                return Ok((Attempt::Held(Contention::new(record.view(now), Some(left))), Write::Nothing));
            }
            _ => Record {
                owner: Some(request.owner),
                token: next()?,
                expires,
                acquired_unix_ms: clock_us / 1_000,
                info: request.holder_info.clone(),
            },
        };
        Ok((Attempt::Granted(Grant::of(request, record.token)), Write::Put(record)))
    }

    /// One renewal.
    ///
    /// # Errors
    /// As [`Record::acquire`].
    pub fn renew(
        found: Option<Record>,
        renewal: &Renewal,
        now: BootTime,
        clock_us: u64,
    ) -> Result<(RenewAnswer, Write), TokenError> {
        let lost = |cause| Ok((RenewAnswer::Lost(cause), Write::Nothing));
        match found.filter(|record| record.is_live(now)) {
            Some(record) if record.owner == Some(renewal.claim.owner) => {
                let raised = renewal.token_floor >= Some(record.token);
                let next = || Token::next(Some(record.token), clock_us, renewal.token_floor);
                let token = if raised { next()? } else { record.token };
                let record = Record { token, expires: now + renewal.store_ttl, ..record };
                Ok((RenewAnswer::renewed(renewal), Write::Put(record)))
            }
            Some(record) => match record.view(now) {
                Some(other) => lost(LostCause::taken(&other)),
                None => lost(LostCause::ExpiredInStore),
            },
            None => lost(LostCause::ExpiredInStore),
        }
    }

    /// One release.
    pub fn release(found: Option<Record>, request: &ReleaseRequest, now: BootTime) -> (Released, Write) {
        match found {
            Some(record) if record.owner == Some(request.claim.owner) => {
                if request.keep_for.is_zero() {
                    return (Released::Released, Write::Remove(record.token));
                }
                let (expires, info) = (now + request.keep_for, HolderInfo::default());
                (Released::Released, Write::Put(Record { owner: None, expires, info, ..record }))
            }
            Some(record) if record.is_live(now) && record.owner.is_some() => {
                (Released::NotHeld { by: record.view(now) }, Write::Nothing)
            }
            _ => (Released::AlreadyReleased, Write::Nothing),
        }
    }

    /// A look at the name.
    pub fn inspect(
        found: Option<&Record>,
        name: &LeaseName,
        now: BootTime,
        floor: Option<Token>,
    ) -> Inspection {
        let mut inspection = Inspection::free(name.clone());
        inspection.token_floor = floor.max(found.map(|record| record.token));
        if let Some(record) = found.filter(|record| record.is_live(now)) {
            inspection.holders.extend(record.view(now));
            inspection.free_in = Some(record.expires.since(now));
        }
        inspection
    }

    /// The holder as others may see it; none for a kept name.
    pub fn view(&self, now: BootTime) -> Option<HolderView> {
        let mut view = HolderView::new(&self.owner?, self.token);
        view.info = self.info.clone();
        view.acquired_unix_ms = Some(self.acquired_unix_ms);
        view.remaining = Some(self.expires.since(now));
        Some(view)
    }

    /// The record as text of six lines, for stores that keep text. It holds the owner id: whoever can
    /// read it can renew and release.
    pub fn to_text(&self) -> String {
        let owner = self.owner.map_or_else(|| "-".to_owned(), |owner| owner.to_hex());
        let Record { token, acquired_unix_ms, .. } = self;
        let (expires, info) = (self.expires.as_nanos(), self.info.to_json());
        format!("{}\n{owner}\n{token}\n{expires}\n{acquired_unix_ms}\n{info}\n", Self::FORMAT)
    }

    /// Reverses [`Record::to_text`].
    ///
    /// # Errors
    /// [`NoRecord`] for anything else: what a store holds is untrusted input. As an
    /// [`io::Error`](std::io::Error) it is `InvalidData`.
    pub fn from_text(text: &str) -> Result<Self, NoRecord> {
        let wrong = |part| NoRecord { part };
        let lines: Vec<&str> = text.strip_suffix('\n').ok_or(wrong("end"))?.split('\n').collect();
        let [format, owner, token, expires, acquired, info] = lines[..] else { return Err(wrong("length")) };
        if format != Self::FORMAT {
            return Err(wrong("first line"));
        }
        let owner = match owner {
            "-" => None,
            hex => Some(OwnerId::from_hex(hex).ok_or(wrong("owner"))?),
        };
        Ok(Record {
            owner,
            token: token.parse().map_err(|_| wrong("token"))?,
            expires: BootTime::from_nanos(expires.parse().map_err(|_| wrong("expiry"))?),
            acquired_unix_ms: acquired.parse().map_err(|_| wrong("time of the grant"))?,
            info: HolderInfo::from_json(info),
        })
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Claim;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> BootTime {
        BootTime::ZERO + SECOND * seconds as u32
    }

    fn request(owner: OwnerId) -> AcquireRequest {
        let name = LeaseName::new("n").expect("legal");
        AcquireRequest::new(name, owner, SECOND * 10, at(0))
    }

    fn granted(found: Option<Record>, owner: OwnerId, now: u64) -> Record {
        match Record::acquire(found, &request(owner), at(now), 1_000, None).expect("tokens are left") {
            (Attempt::Granted(_), Write::Put(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_live_record_refuses_others_and_a_dead_one_gives_a_larger_token() {
        let (a, b) = (OwnerId::random(), OwnerId::random());
        let held = granted(None, a, 5);
        let refused = Record::acquire(Some(held.clone()), &request(b), at(14), 1_000, None);
        assert!(matches!(refused, Ok((Attempt::Held(_), Write::Nothing))), "{refused:?}");
        // Its end belongs to the next one.
        assert!(granted(Some(held.clone()), b, 15).token > held.token);
        let again = granted(Some(held.clone()), a, 14);
        assert_eq!((again.token, again.expires), (held.token, at(24)));
        assert!(granted(Some(held.clone()), a, 15).token > held.token, "it was anybody's for a while");
        let mut raised = request(a);
        raised.token_floor = Some(held.token);
        let raised = Record::acquire(Some(held.clone()), &raised, at(6), 1_000, None);
        assert!(matches!(raised, Ok((_, Write::Put(record))) if record.token > held.token));
    }

    #[test]
    fn renewals_and_releases_compare_the_owner() {
        let (a, b) = (OwnerId::random(), OwnerId::random());
        let held = granted(None, a, 5);
        let claim = |owner| Claim::new(LeaseName::new("n").expect("legal"), owner, None);
        let renewal = |owner| Renewal::new(claim(owner), SECOND * 10, at(0));
        let renew =
            |owner, now| Record::renew(Some(held.clone()), &renewal(owner), at(now), 0).expect("room");
        assert!(matches!(renew(a, 14), (RenewAnswer::Renewed { .. }, Write::Put(r)) if r.expires == at(24)));
        assert!(matches!(renew(a, 15), (RenewAnswer::Lost(LostCause::ExpiredInStore), Write::Nothing)));
        assert!(matches!(renew(b, 6), (RenewAnswer::Lost(LostCause::Taken { .. }), Write::Nothing)));
        let release = |owner, keep_for| {
            let mut request = ReleaseRequest::new(claim(owner), at(0));
            request.keep_for = keep_for;
            Record::release(Some(held.clone()), &request, at(6))
        };
        assert!(matches!(release(b, SECOND), (Released::NotHeld { .. }, Write::Nothing)));
        assert!(matches!(release(a, Duration::ZERO), (_, Write::Remove(token)) if token == held.token));
        let (_, Write::Put(kept)) = release(a, SECOND) else { panic!("kept") };
        assert_eq!((kept.owner, kept.expires), (None, at(7)));
        let mut request = ReleaseRequest::new(claim(a), at(0));
        request.keep_for = SECOND;
        let again = Record::release(Some(kept), &request, at(6));
        assert!(matches!(again, (Released::AlreadyReleased, Write::Nothing)), "{again:?}");
    }

    #[test]
    fn text_round_trips_and_anything_else_is_refused() {
        let mut record = granted(None, OwnerId::random(), 5);
        record.info = HolderInfo::new("web-1 \"x\"", [("k", "\u{1F402}")]).expect("legal");
        let kept = Record { owner: None, info: HolderInfo::default(), ..record.clone() };
        for record in [record.clone(), kept] {
            assert_eq!(Record::from_text(&record.to_text()), Ok(record));
        }
        let text = record.to_text();
        for cut in 0..text.len() {
            assert!(text.get(..cut).is_none_or(|part| Record::from_text(part).is_err()), "cut at {cut}");
        }
        for bad in [
            text.replace("lease 1", "lease 2"),
            format!("{text}x\n"),
            text.replacen(&record.token.to_string(), "0", 1),
        ] {
            assert!(Record::from_text(&bad).is_err(), "{bad}");
        }
        assert!(!format!("{record:?}").contains(&record.owner.expect("owned").to_hex()));
    }
}
