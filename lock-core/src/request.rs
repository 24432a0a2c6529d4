//! What is asked of a backend and what it answers: small argument structs, owned replies.

use std::time::Duration;

use crate::{BootTime, HolderInfo, LeaseName, OwnerId, Token};

/// How a name is shared among its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of shared holders, and no exclusive one beside them.
    Shared,
    /// At most `of` holders.
    Permit {
        /// How many may hold at once; the same for everyone who asks for this name.
        of: u32,
    },
}

/// What becomes of a refused attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Admission {
    /// Nothing is left behind.
    #[default]
    Try,
    /// A leased place in the name's queue is taken; asking again with the same owner renews it.
    Queue,
}

/// One attempt at a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The name.
    pub name: LeaseName,
    /// Who asks; idempotent: the same owner asking again gets the same token and a fresh expiry.
    pub owner: OwnerId,
    /// How the name is shared.
    pub mode: Mode,
    /// How long the store keeps the name for this owner unless it is renewed: ttl + lock_delay.
    pub store_ttl: Duration,
    /// How much of `store_ttl` is grace for others after an unclean end. Session stores use it.
    pub lock_delay: Duration,
    /// What a refused attempt leaves behind.
    pub admission: Admission,
    /// The grant's token must be larger than this.
    pub token_floor: Option<Token>,
    /// What to tell others about the holder.
    pub holder_info: HolderInfo,
    /// The boot clock just before the call. Value stores return it as the grant's anchor (I3).
    pub sent_at: BootTime,
}

impl AcquireRequest {
    /// An exclusive attempt that leaves nothing behind, with no floor and no holder information.
    pub fn new(name: LeaseName, owner: OwnerId, store_ttl: Duration, sent_at: BootTime) -> Self {
        AcquireRequest {
            name,
            owner,
            mode: Mode::Exclusive,
            store_ttl,
            lock_delay: Duration::ZERO,
            admission: Admission::Try,
            token_floor: None,
            holder_info: HolderInfo::default(),
            sent_at,
        }
    }

    /// The claim that a release of this attempt needs, whether or not it was granted.
    pub fn claim(&self) -> Claim {
        Claim { name: self.name.clone(), owner: self.owner, token: None }
    }
}

/// The store's answer to an attempt: being refused is a value, not an error.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The name is this owner's.
    Granted(Grant),
    /// Somebody else's.
    Held(Contention),
}

/// A grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The name.
    pub name: LeaseName,
    /// Its owner.
    pub owner: OwnerId,
    /// The fencing token.
    pub token: Token,
    /// How long the store keeps the name, counted from its own start of the countdown.
    pub ttl: Duration,
    /// The holder's boot clock before the request that last started the store's countdown.
    pub anchor: BootTime,
}

impl Grant {
    /// The grant of a value store: the countdown began with this very request.
    pub fn of(request: &AcquireRequest, token: Token) -> Self {
        Grant {
            name: request.name.clone(),
            owner: request.owner,
            token,
            ttl: request.store_ttl,
            anchor: request.sent_at,
        }
    }

    /// The claim of this grant.
    pub fn claim(&self) -> Claim {
        Claim { name: self.name.clone(), owner: self.owner, token: Some(self.token) }
    }
}

/// Why an attempt was refused, as far as the store tells.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Contention {
    /// Who holds the name; none when it is kept free of holders (min_hold, lock_delay), or when it
    /// was freed while the store looked.
    pub holder: Option<HolderView>,
    /// How long until the name is free if nobody renews; none when the store cannot tell.
    pub remaining: Option<Duration>,
    /// How many wait before this owner, where there is a queue.
    pub ahead: Option<u64>,
    /// How long this owner's queue place lives unless asked for again.
    pub place: Option<Duration>,
}

impl Contention {
    /// A refusal by `holder`, whose time is over in `remaining`.
    pub fn new(holder: Option<HolderView>, remaining: Option<Duration>) -> Self {
        Contention { holder, remaining, ahead: None, place: None }
    }
}

/// A holder as others see it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderView {
    /// Eight digits that tell owners apart; the owner id itself is a capability and stays hidden.
    pub fingerprint: String,
    /// The holder's token.
    pub token: Token,
    /// What it tells about itself.
    pub info: HolderInfo,
    /// Since when it holds, as the store's wall clock saw it, in milliseconds since 1970. For
    /// people only.
    pub acquired_unix_ms: Option<u64>,
    /// How long until its grant runs out unless renewed.
    pub remaining: Option<Duration>,
}

impl HolderView {
    /// A view of `owner` under `token`, with nothing else known.
    pub fn new(owner: &OwnerId, token: Token) -> Self {
        HolderView {
            fingerprint: owner.fingerprint(),
            token,
            info: HolderInfo::default(),
            acquired_unix_ms: None,
            remaining: None,
        }
    }
}

/// What is needed to end a grant: an attempt that was cancelled has a claim and no grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The name.
    pub name: LeaseName,
    /// The owner that asked.
    pub owner: OwnerId,
    /// The token, when a grant was seen.
    pub token: Option<Token>,
}

impl Claim {
    /// A claim of `owner` on `name`.
    pub fn new(name: LeaseName, owner: OwnerId, token: Option<Token>) -> Self {
        Claim { name, owner, token }
    }
}

/// Ends a grant, or whatever an attempt left.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// Whose grant.
    pub claim: Claim,
    /// How long the name stays taken all the same (min_hold, lock_delay). A kept name has no owner.
    pub keep_for: Duration,
    /// The boot clock just before the call.
    pub sent_at: BootTime,
}

impl ReleaseRequest {
    /// A release that frees the name at once.
    pub fn new(claim: Claim, sent_at: BootTime) -> Self {
        ReleaseRequest { claim, keep_for: Duration::ZERO, sent_at }
    }
}

/// The store's answer to a release. Releasing again is safe and says so.
#[derive(Clone, Debug)]
pub enum Released {
    /// The grant was this owner's and is gone now.
    Released,
    /// This owner holds nothing, and neither does anybody else.
    AlreadyReleased,
    /// This owner holds nothing; somebody else does, untouched.
    NotHeld {
        /// Who, where the store tells.
        by: Option<HolderView>,
    },
}

/// One renewal of a batch. The owner alone is compared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// Whose grant.
    pub claim: Claim,
    /// The store's new countdown: ttl + lock_delay.
    pub store_ttl: Duration,
    /// Value stores write a floor above the record's token into record and floor in the same step.
    pub token_floor: Option<Token>,
    /// The boot clock just before the call.
    pub sent_at: BootTime,
}

impl Renewal {
    /// A renewal of `claim`.
    pub fn new(claim: Claim, store_ttl: Duration, sent_at: BootTime) -> Self {
        Renewal { claim, store_ttl, token_floor: None, sent_at }
    }
}

/// The store's answer to one renewal. An unknown outcome is an error, never one of these (I5).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RenewAnswer {
    /// The countdown was started anew.
    Renewed {
        /// The holder's boot clock before the request that started it.
        anchor: BootTime,
        /// Its length.
        ttl: Duration,
        /// Somebody asks the holder to give the lease back.
        revoke: Option<Revoke>,
    },
    /// The grant is gone for good.
    Lost(LostCause),
}

impl RenewAnswer {
    /// The answer of a value store to `renewal`: its countdown began with this very request.
    pub fn renewed(renewal: &Renewal) -> Self {
        RenewAnswer::Renewed { anchor: renewal.sent_at, ttl: renewal.store_ttl, revoke: None }
    }
}

/// A request to give a lease back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revoke {
    /// Who asks.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Why a lease was lost: one enumeration for states, errors and exit messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// Its time ran out by the holder's own clock: no renewal was acknowledged in time.
    #[error("no renewal was acknowledged in time")]
    Expired,
    /// The store had let it run out and nobody has it now.
    #[error("the store had let it run out")]
    ExpiredInStore,
    /// Somebody else holds the name now.
    #[error("the name belongs to another holder now (token {})", .by.token)]
    Taken {
        /// Who.
        by: Box<OtherHolder>,
    },
    /// An operator ended it.
    #[error("it was revoked by {by}: {reason}")]
    Revoked {
        /// Who ended it.
        by: String,
        /// Why.
        reason: String,
    },
    /// The store no longer knows the grant, or is another store now (removed, wiped, restored).
    #[error("the store no longer knows it: {detail}")]
    StoreForgot {
        /// What was seen.
        detail: String,
    },
    /// The session that carried it has ended.
    #[error("the session that carried it has ended")]
    SessionEnded,
    /// The process did not run (frozen, suspended) until after the deadline.
    #[error("the process was paused for {paused:?}, longer than the lease had left")]
    Paused {
        /// How long nothing ran.
        paused: Duration,
    },
}

/// The other holder, as a cause keeps it: the comparable part of a [`HolderView`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherHolder {
    /// The other holder's token.
    pub token: Token,
    /// Its fingerprint.
    pub fingerprint: String,
    /// Its label.
    pub label: String,
}

impl LostCause {
    /// The cause "taken by `holder`".
    pub fn taken(holder: &HolderView) -> Self {
        LostCause::Taken {
            by: Box::new(OtherHolder {
                token: holder.token,
                fingerprint: holder.fingerprint.clone(),
                label: holder.info.label().to_owned(),
            }),
        }
    }

    /// A short stable word for metrics and JSON.
    pub fn word(&self) -> &'static str {
        match self {
            LostCause::Expired => "expired",
            LostCause::ExpiredInStore => "expired_in_store",
            LostCause::Taken { .. } => "taken",
            LostCause::Revoked { .. } => "revoked",
            LostCause::StoreForgot { .. } => "store_forgot",
            LostCause::SessionEnded => "session_ended",
            LostCause::Paused { .. } => "paused",
        }
    }
}

/// A name as the store holds it now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The name.
    pub name: LeaseName,
    /// All unexpired holders.
    pub holders: Vec<HolderView>,
    /// How many wait, where the store knows.
    pub waiting: Option<u64>,
    /// How long until the name is free unless somebody renews: the holders' time, or the rest of a
    /// min_hold or lock_delay. None when it is free.
    pub free_in: Option<Duration>,
    /// The highest token that this store is known to have granted or promised for the name.
    pub token_floor: Option<Token>,
}

impl Inspection {
    /// A name that nobody holds.
    pub fn free(name: LeaseName) -> Self {
        Inspection { name, holders: Vec::new(), waiting: None, free_in: None, token_floor: None }
    }

    /// The holder of an exclusive name.
    pub fn holder(&self) -> Option<&HolderView> {
        self.holders.first()
    }
}
