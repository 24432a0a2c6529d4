//! The core of leasehold: what a lease is, on every store.
//!
//! A **lease** is a name that one owner holds until a deadline, unless it is renewed. This crate has
//! the [`LeaseBackend`] trait that stores implement, the [`Watchdog`] that renews and ends leases,
//! the [`LeaseClient`] and [`Lease`] guard that programs use, and a backend in memory. It knows no
//! store client and starts no thread but the watchdog's two.
//!
//! ```
//! use leasehold_core::{LeaseClient, MemoryBackend, Settings, TryAcquire, Watchdog};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let watchdog = Watchdog::start()?;
//! let client = LeaseClient::new(MemoryBackend::new(watchdog.context()), &watchdog);
//! let name = "reports/nightly".parse()?;
//! match client.try_acquire(&name, &Settings::new()).await? {
//!     TryAcquire::Granted(lease) => {
//!         let token = lease.token(); // hand it to the resource with every write
//!         lease.check()?; // stop when this fails
//!         lease.release().await?;
//! #       let _ = token;
//!     }
//!     TryAcquire::Held(contention) => println!("busy for {:?}", contention.remaining),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | lease | a name held until a deadline unless renewed |
//! | holder, owner id | who holds it; 128 random bits per acquisition |
//! | grant | the store's answer that gives a name to an owner, with a token |
//! | ttl | how long the store keeps a grant without a renewal |
//! | renew | start the store's countdown anew |
//! | release | give a lease back; revoke: have it ended by somebody else; expire: by the store's time |
//! | fencing token | a number that grows with every grant, for the resource to compare |
//! | lost | the lease ended against its holder's will: stop the work |
//!
//! The promises have ids, in [`invariants`].

/// Whether a defect of [`mutant::Mutant`] is planted: the constant `false` without
/// `--cfg leasehold_mutants`.
#[cfg(leasehold_mutants)]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutant::is_planted($crate::mutant::Mutant::$name)
    };
}

/// The constant `false`: this build has no planted defects.
#[cfg(not(leasehold_mutants))]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::no_mutant()
    };
}

/// Not a literal, so that lints see a condition where a defect can be planted.
#[cfg(not(leasehold_mutants))]
#[doc(hidden)]
#[inline(always)]
pub const fn no_mutant() -> bool {
    false
}

mod backend;
mod blocking;
mod cell;
mod client;
mod clock;
mod context;
pub mod deadline;
mod error;
mod fence;
mod holder;
pub mod invariants;
mod lease;
mod line;
mod memory;
#[cfg(leasehold_mutants)]
#[doc(hidden)]
pub mod mutant;
mod name;
mod owner;
mod profile;
mod record;
mod request;
mod rng;
mod seen;
mod settings;
mod state;
mod sync;
mod time;
mod timers;
mod token;
mod waiter;
mod watchdog;

pub use async_trait::async_trait;

pub use backend::{
    FENCED_KEY_BYTES_MAX, FENCED_VALUE_BYTES_MAX, Facets, Fenced, FencedStore, FencedValue, ForceRelease,
    LeaseAdmin, LeaseBackend, Page, Stale, Waiter, refuse_fenced,
};
pub use blocking::Blocking;
pub use client::{AcquireError, LeaseClient, TryAcquire, Wait};
pub use clock::{Alarm, Clock, ManualClock, SuspendDetector, SystemClock};
pub use context::BackendContext;
pub use error::{BackendError, Effect, ErrorKind};
pub use fence::FencePost;
pub use holder::{HolderInfo, HolderInfoError};
pub use lease::{Lease, RenewError, RunError};
pub use memory::MemoryBackend;
pub use name::{LeaseName, NameError};
pub use owner::OwnerId;
pub use profile::{Declared, Durability, Expiry, Order, Profile, TokenSource, TtlChange, WaitMode};
pub use record::{NoRecord, Record, Write};
pub use request::{
    AcquireRequest, Admission, Attempt, Claim, Contention, Grant, HolderView, Inspection, LostCause, Mode,
    OtherHolder, ReleaseRequest, Released, RenewAnswer, Renewal, Revoke,
};
pub use settings::{Settings, SettingsError};
pub use state::{EndReason, LeaseOver, LeaseState};
pub use time::BootTime;
pub use timers::Sleep;
pub use token::{Token, TokenError};
pub use waiter::PollWaiter;
pub use watchdog::{Watchdog, WatchdogError, WatchdogStats};
