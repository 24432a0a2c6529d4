//! Planted defects: each breaks one promise on purpose, so that the conformance suite can show that
//! it would notice. Compiled only with `--cfg leasehold_mutants`; a product build has none of it,
//! and [`mutant!`](crate::mutant!) is the constant `false` there.
//!
//! One defect is planted at a time, for the whole process.

use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $variant:ident,)+) => {
        /// A defect that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Mutant {
            /// Every defect.
            pub const ALL: &'static [Mutant] = &[$(Mutant::$variant,)+];

            /// The defect's name, as a case's `proven_by` writes it.
            pub fn name(self) -> &'static str {
                match self { $(Mutant::$variant => stringify!($variant),)+ }
            }

            /// The defect in one sentence.
            pub fn sentence(self) -> &'static str {
                match self { $(Mutant::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

mutants! {
    // The store's side, in the memory backend.
    /// A name that was held before is granted under its old token again.
    StuckToken,
    /// Tokens count from one instead of from the wall clock.
    TokenWithoutClock,
    /// A released record takes its token with it.
    ReleasedTokenForgotten,
    /// A record that ran out takes its token with it.
    ExpiredTokenForgotten,
    /// A record that is collected takes its token with it.
    SweptTokenForgotten,
    /// A token floor in an acquire is ignored.
    TokenFloorIgnored,
    /// A token floor in a repeated acquire is ignored.
    RepeatedFloorIgnored,
    /// A token floor in a renewal is ignored.
    RenewFloorIgnored,
    /// A held name is granted to whoever asks.
    GrantsTwice,
    /// The look at the record and the write of the grant are two steps.
    GrantsOnRace,
    /// A held name is granted to a rival whose ttl is shorter than what the holder has left.
    ShorterTtlSteals,
    /// The same owner asking again gets a new token.
    ReacquireNewToken,
    /// The same owner asking again does not start the countdown anew.
    ReacquireKeepsExpiry,
    /// An owner whose grant has run out is granted the name under its old token.
    OwnExpiredKeepsToken,
    /// A refused try prolongs what it was refused for.
    RefusedTryLeavesTrace,
    /// A refusal does not tell by whom and for how long.
    RefusalTellsNothing,
    /// A grant never runs out.
    ExpiryNeverFires,
    /// A grant runs out at half its time.
    ExpiryTooEarly,
    /// A grant runs out at the last whole second before its time.
    ExpiryInWholeSeconds,
    /// The anchor of a grant lies after the start of the store's countdown.
    GrantAnchorLate,
    /// A release ends anybody's grant.
    ReleaseIgnoresOwner,
    /// A release frees a name that is to stay taken.
    ReleaseIgnoresKeepFor,
    /// A store that cannot keep a name taken releases it all the same when it is asked to.
    KeepForNotRefused,
    /// A second release frees a name that is kept taken.
    KeptNameIsFreedAgain,
    /// A release of nothing says that it released something.
    ReleaseAlwaysReleased,
    /// A renewal extends a grant that has run out.
    RenewRevivesExpired,
    /// A renewal makes a grant that is gone anew.
    RenewRecreates,
    /// A renewal extends anybody's grant.
    RenewIgnoresOwner,
    /// A renewal is acknowledged and not written.
    RenewExtendsNothing,
    /// A renewal changes the token.
    RenewChangesToken,
    /// A batch is answered in reverse order.
    RenewReversesBatch,
    /// A batch is renewed with the ttl of its first renewal.
    RenewUsesFirstTtl,
    /// A batch is renewed with the token floor of its first renewal.
    RenewUsesFirstFloor,
    /// The anchor of a renewal lies after the start of the store's countdown.
    RenewAnchorLate,
    /// A failed batch is answered by one error, however long it is.
    FailedBatchIsShort,
    /// A renewal of unknown outcome is told as a loss.
    FailedRenewalIsLost,
    /// A call whose reply was lost says that nothing was done.
    LostReplyCalledNoEffect,
    /// A release wakes nobody.
    WakeLost,
    /// A wake-up before the wait is forgotten.
    WakeNotLatched,
    /// A waiter does not look again when the holder's time is over.
    WaiterSleepsThroughExpiry,
    /// A dropped waiter stays subscribed.
    WaiterLeaks,
    /// A forced release does not compare the token.
    ForceReleaseBlind,
    /// A forced release takes the token with it.
    ForcedTokenForgotten,
    /// A forced release does not tell the holder by whom and why.
    ForceReleaseSilent,
    /// A raised floor is not written.
    RaisedFloorIgnored,
    /// A raised epoch is not written.
    RaisedEpochIgnored,
    /// A look at a name shows the owner id.
    InspectLeaksOwner,
    /// A look at a name shows a time that is beyond the ttl.
    InspectOverstatesRemaining,
    /// What the holder says about itself is not kept.
    HolderInfoDropped,
    /// Names that look alike are one.
    NamesCollapse,
    /// Of a name only the first 200 bytes count.
    NamesCutBehind,
    /// Of a name only the last 200 bytes count.
    NamesCutInFront,
    /// A list leaves out names with unusual characters.
    ListHidesNames,
    /// A list shows names that do not start with the prefix.
    ListIgnoresPrefix,
    /// A resource accepts a token below the highest one.
    FenceAcceptsLower,
    /// A resource refuses the token that it has seen last.
    FenceRefusesEqual,
    /// A purge forgets the highest token.
    PurgeForgetsMark,
    /// A key or a value beyond the bounds is written.
    FencedBoundsIgnored,
    /// What the profile does not declare is granted all the same.
    UndeclaredIsGranted,
    /// The profile declares less than this store is shipped with.
    ProfileDeclaresLess,
    /// The second connection to a store declares other bounds than the first.
    ProfileOfSecondDiffers,
    /// The margin is as long as the shortest ttl.
    MarginEatsTtl,
    /// A record that cannot be read is granted to whoever asks.
    CorruptIsGranted,
    /// A record that cannot be read is shown as a free name.
    CorruptIsFree,
    /// Preparing the store again empties it.
    PrepareEmpties,
    /// A closed backend goes on.
    CloseForgotten,

    // The holder's side, in client, guard and watchdog.
    /// The deadline is counted from the reply.
    DeadlineFromReply,
    /// A reply after the end makes a lease valid again.
    LateReplyResurrects,
    /// One failed renewal ends the lease.
    FailedRenewalLoses,
    /// A check looks at no clock.
    CheckIgnoresDeadline,
    /// Nobody is told that a lease is lost.
    LossSignalNeverFires,
    /// Nobody is warned that a renewal failed.
    RiskNeverShown,
    /// Nobody notices that the process was paused.
    PauseUnnoticed,
    /// Work goes on after the loss of its lease.
    RunIgnoresLoss,
    /// A step that needs more time than is left may start.
    EnsureIgnoresNeed,
    /// The watchdog does not renew.
    WatchdogNeverRenews,
    /// A fixed lease is renewed.
    FixedIsRenewed,
    /// A release leaves the watchdog renewing.
    RenewsAfterRelease,
    /// A release is told as a loss.
    ReleaseTellsLoss,
    /// One due renewal is sent three times.
    RenewalBurst,
    /// A batch is larger than the store takes.
    BatchMaxIgnored,
    /// A maximum hold does not end the lease.
    MaxHoldIgnored,
    /// A business deadline does not end the lease.
    BusinessDeadlineIgnored,
    /// A shortest hold is not kept.
    MinHoldIgnored,
    /// A shortest hold is taken on although the store keeps no name taken.
    MinHoldNotRefused,
    /// A ttl is changed although the store cannot change it.
    FixedTtlIsChanged,
    /// Settings that contradict each other are taken.
    ContradictionsTaken,
    /// Anything that is text is taken for a name.
    IllegalNamesTaken,
    /// A changed ttl does not reach the store.
    SetTtlIgnored,
    /// An attempt whose caller went away is dropped with it.
    AbandonedNotCleaned,
    /// An attempt of unknown outcome is taken for a failed one.
    UnknownTakenForFailure,
    /// An attempt that is granted after everybody gave it up is not taken back.
    LateGrantNotReleased,
    /// A release whose caller went away is dropped with it.
    DroppedReleaseForgotten,
    /// A background release is not tried again.
    ReleaseNotRetried,
    /// A dropped guard releases nothing.
    DropReleasesNothing,
    /// A wait has no end.
    WaitNeverTimesOut,
    /// A store that does not answer is waited for without end.
    OperationsUnbounded,
    /// A waiter that was woken does not try again.
    WokenDoesNotLook,
    /// Local waiters do not stand in line.
    LineIsSkipped,
    /// A token that is not larger than one seen before is accepted.
    RegressionUnnoticed,
    /// A shutdown does not wait for clean-ups.
    ShutdownDoesNotWait,
    /// A client that was shut down acquires.
    ShutdownForgotten,
    /// An owner id prints itself.
    OwnerIdPrinted,

    // Other stores: planted in their own statements.
    /// SQLite: a release ends anybody's grant.
    SqliteReleaseIgnoresOwner,
    /// SQLite: a row dated by another clock is taken for expired.
    SqliteTakeoverOfForeignClock,
    /// Redis: a release ends anybody's grant.
    RedisReleaseIgnoresOwner,
    /// Redis: a token is not made of the server's clock.
    RedisTokenWithoutClock,
    /// Redis: a refused attempt leaves no mark, so that the release wakes nobody.
    RedisRefusalUnmarked,
    /// etcd: a grant on a shared lease is dated by its own acquire, and joins any lease that has not run out.
    EtcdAnchorOfTheAcquire,
    /// etcd: a name whose time is over stays taken as long as others keep its lease alive.
    EtcdEndedNameStays,
    /// etcd: the answer to a keep-alive is taken for a sign of life of every key on the lease.
    EtcdKeepAliveProvesTheKey,
    /// etcd: a release ends anybody's grant.
    EtcdReleaseIgnoresOwner,
}

/// Nothing planted: beyond every index.
const NONE: usize = usize::MAX;
static PLANTED: AtomicUsize = AtomicUsize::new(NONE);

/// Plants a defect in this process instead of the one before, or none.
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.store(mutant.map_or(NONE, |m| m as usize), Ordering::SeqCst);
}

/// Whether this defect is planted.
pub fn is_planted(mutant: Mutant) -> bool {
    PLANTED.load(Ordering::Relaxed) == mutant as usize
}
