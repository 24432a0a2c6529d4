//! The traits that a store implements. See CONTRIBUTING for the recipe, and the conformance suite
//! for what each sentence here means in practice.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    AcquireRequest, Attempt, BackendError, Contention, Inspection, LeaseName, Profile, ReleaseRequest,
    Released, RenewAnswer, Renewal, Token,
};

/// A store of leases: the least that an implementor must write. All sugar is on
/// [`crate::LeaseClient`]; no method has a default body, because a default would be a promise made
/// for someone else's store.
///
/// # Contract
/// * At most one unexpired exclusive grant per name (I1, `mutex/second_holder_is_refused`).
/// * Every grant's token is larger than all before it (I2, `fence/token_strictly_increases`).
/// * Every renewal and release compares the owner in the same atomic step (I4).
/// * Every future may be dropped at any await. What then happens in the store is unknown, and is
///   settled by asking again, or releasing, with the same owner (I7).
/// * Every call is bounded in time by the backend's own operation timeout.
/// * [`Effect::None`](crate::Effect::None) is claimed only where the store provably did not change.
#[async_trait]
pub trait LeaseBackend: Debug + Send + Sync + 'static {
    /// What this store promises. Constant for the life of the value.
    fn profile(&self) -> &Profile;

    /// One attempt at a name, in one atomic step of the store.
    ///
    /// # Behaviour
    /// * Idempotent per owner: the same owner asking again gets the same token, and its expiry is
    ///   set anew in the same step. What has run out is granted anew, with a larger token, to its
    ///   former owner too: somebody may have been there meanwhile.
    /// * A refused [`Admission::Try`](crate::Admission::Try) leaves nothing behind.
    /// * The grant's token is larger than `token_floor`.
    /// * What [`Profile::refuse`] refuses never reaches the store.
    ///
    /// # Errors
    /// Any kind; contention is a value.
    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError>;

    /// Renews a batch of at most [`Profile::batch_max`] grants. Answers have the same length and
    /// order as `renewals`.
    ///
    /// # Behaviour
    /// * Never creates a grant, and never extends one that has run out by the store's own time.
    /// * A larger `token_floor` is written to record and floor in the same step (value stores).
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>>;

    /// Ends the grant of one owner, whatever its state, and touches no other owner's.
    ///
    /// # Behaviour
    /// * A claim that was never granted, or not any more, is answered by a value.
    /// * With `keep_for` the name stays taken that long, without an owner.
    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError>;

    /// The name as the store holds it now. Changes nothing.
    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError>;

    /// A waiter for a refused attempt: subscribed, when it is returned, to whatever tells that the
    /// name of `request` may be free.
    ///
    /// Whoever waits has been refused once more before each wait, by an attempt made after the waiter was: a store may
    /// tell of the end of a grant only where somebody was refused meanwhile.
    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError>;

    /// What this store can do beyond leases.
    fn facets(&self) -> Facets<'_>;

    /// Ends connections and background work in order. Idempotent; later calls answer
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Grants stay as they are.
    async fn close(&self);
}

const _: fn(&dyn LeaseBackend) = |_| {};

/// Tells when trying again makes sense. Made once per waiting acquire.
///
/// # Contract
/// * Latching: a wake-up since the waiter was made, or since `wait` last returned, makes the next
///   `wait` return at once (I9, `wait/wake_between_attempt_and_wait_is_kept`).
/// * `wait` returns at the latest when `seen.remaining` is over, and may return early.
/// * Dropping it only unsubscribes.
#[async_trait]
pub trait Waiter: Debug + Send {
    /// Waits until trying again makes sense. Cancel-safe: dropping the future loses no wake-up.
    async fn wait(&mut self, seen: &Contention);
}

/// What a store can do beyond leases. Non-exhaustive: fields will be added.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct Facets<'a> {
    /// Operations for people.
    pub admin: Option<&'a dyn LeaseAdmin>,
    /// Values that refuse a late writer.
    pub fenced: Option<&'a dyn FencedStore>,
}

/// Operations for people who look after leases. They never touch a grant without comparing it.
#[async_trait]
pub trait LeaseAdmin: Debug + Send + Sync {
    /// Names that are taken and start with `prefix`, sorted, from after `page.after`.
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError>;

    /// Ends the grant of `request.name` if its token is still `request.token`, raises the name's
    /// floor above it, and records by whom and why, so that the old holder is told at its next
    /// renewal.
    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError>;

    /// Raises the floor of one name, or of all when `name` is none: later tokens are larger than
    /// `token`. A smaller `token` changes nothing.
    async fn raise_floor(&self, name: Option<&LeaseName>, token: Token) -> Result<(), BackendError>;

    /// Raises the epoch by one, above everything this store has granted; for use after the store
    /// was restored from a copy. Returns the new epoch.
    async fn raise_epoch(&self) -> Result<u64, BackendError>;

    /// Makes schema, directory or prefix where they are missing.
    async fn prepare(&self) -> Result<(), BackendError>;

    /// Asks the store for a sign of life.
    async fn probe(&self) -> Result<(), BackendError>;
}

/// A forced release: compare-and-delete by token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The name.
    pub name: LeaseName,
    /// The token that the caller saw: another one is left alone.
    pub token: Token,
    /// How long the name stays taken all the same.
    pub keep_for: Duration,
    /// Who does it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The boot clock just before the call.
    pub sent_at: crate::BootTime,
}

impl ForceRelease {
    /// A forced release that frees the name at once.
    pub fn new(
        name: LeaseName,
        token: Token,
        by: impl Into<String>,
        reason: impl Into<String>,
        sent_at: crate::BootTime,
    ) -> Self {
        ForceRelease { name, token, keep_for: Duration::ZERO, by: by.into(), reason: reason.into(), sent_at }
    }
}

/// A piece of a sorted list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// Only what sorts after this name.
    pub after: Option<LeaseName>,
    /// At most so many.
    pub limit: usize,
}

impl Page {
    /// Largest piece.
    pub const LIMIT_MAX: usize = 1000;

    /// The first piece.
    pub fn first() -> Self {
        Page { after: None, limit: Self::LIMIT_MAX }
    }

    /// The piece after `name`.
    pub fn after(name: LeaseName) -> Self {
        Page { after: Some(name), limit: Self::LIMIT_MAX }
    }
}

/// Values that refuse a late writer: the resource side of a lease, kept by the store itself, in
/// places of their own beside the leases.
///
/// A token is accepted when it is not smaller than the highest one seen under the name; the mark
/// moves in the same atomic step as the write.
#[async_trait]
pub trait FencedStore: Debug + Send + Sync {
    /// Records `token` as the highest seen.
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError>;

    /// Writes a value under the token. Keys have 1 to 512 bytes, values at most 64 KiB.
    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError>;

    /// Reads a value and the token that wrote it.
    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError>;

    /// The keys that start with `prefix`, sorted.
    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError>;

    /// Deletes all values under the name; the mark stays.
    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError>;
}

/// The answer of a resource to a presented token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// Not smaller than any seen before; done.
    Accepted,
    /// Smaller: nothing was done.
    Stale(Stale),
}

/// A token that came too late: somebody with a larger one was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "stale fencing token {presented}: the resource has seen {highest}; the lease belongs to someone newer, and nothing was written"
)]
pub struct Stale {
    /// The token that was presented.
    pub presented: Token,
    /// The highest token seen.
    pub highest: Token,
}

/// A value of a [`FencedStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedValue {
    /// What was written.
    pub value: Vec<u8>,
    /// Under which token.
    pub token: Token,
}

/// Longest key of a [`FencedStore`], in bytes.
pub const FENCED_KEY_BYTES_MAX: usize = 512;
/// Largest value of a [`FencedStore`], in bytes.
pub const FENCED_VALUE_BYTES_MAX: usize = 64 * 1024;

/// Refuses a key or value out of bounds, for implementors of [`FencedStore`].
///
/// # Errors
/// [`ErrorKind::ConfigInvalid`](crate::ErrorKind::ConfigInvalid) with
/// [`Effect::None`](crate::Effect::None).
pub fn refuse_fenced(backend: &'static str, key: &str, value: &[u8]) -> Result<(), BackendError> {
    let message = if key.is_empty() || key.len() > FENCED_KEY_BYTES_MAX {
        format!(
            "a key has 1 to {FENCED_KEY_BYTES_MAX} bytes and this one has {}; nothing was written",
            key.len()
        )
    } else if value.len() > FENCED_VALUE_BYTES_MAX {
        format!(
            "a value has at most {FENCED_VALUE_BYTES_MAX} bytes and this one has {}; nothing was written",
            value.len()
        )
    } else {
        return Ok(());
    };
    if crate::mutant!(FencedBoundsIgnored) {
        return Ok(());
    }
    // why: refused before anything was sent.
    Err(BackendError::new(crate::ErrorKind::ConfigInvalid, crate::Effect::None, backend, "put", message))
}
