//! `leasehold run`: a command under a lease.
//!
//! 1. Signals are caught before the first word with the store; while it waits, one of them ends the
//!    wait and leaves nothing behind.
//! 2. The lease is acquired, with a watchdog that renews it on threads of its own.
//! 3. A [`guardian`] is started, and the command below it, unless a signal came meanwhile.
//! 4. The [`supervise`]d command runs until it ends or the lease does.
//! 5. Command reaped, its leftovers killed, lease released, store closed: in this order, so that
//!    nobody is granted the name while anything of the tree runs.
//!
//! What can go wrong, and where it is handled:
//! * Watchdog or guardian cannot start: the lease is released, the command never started (70).
//! * The store does not answer: 69 within the operation timeout, however long the wait may be.
//! * The lease is lost: the tree is dead before the deadline ([`supervise`]); 76 whatever the
//!   command's own code is.
//! * The release fails or nobody knows: a warning; the code stays the command's.
//! * Processes of the command are known to be left: the lease is not released, since they run under
//!   it; it ends by its ttl. A command that succeeded ends with 70 then.
//! * `/proc` does not show this process: refused before the store is asked for anything (70).

pub(crate) mod guardian;
mod handle;
mod outcome;
mod plan;
mod proc;
mod protocol;
pub(crate) mod report;
pub(crate) mod signals;
mod supervise;
mod tree;

use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::{
    AcquireError, Effect, HolderInfo, Lease, LeaseClient, LeaseState, LostCause, Released, Settings,
    SettingsError, TryAcquire, Wait, Watchdog,
};
use serde_json::json;

use crate::args::RunArgs;
use crate::config::{STORE_VAR, Store};
use crate::connect::Patience;
use crate::duration::show;
use crate::exit::{Ending, Exit, Failure, of_kind};
use handle::Guardian;
use outcome::{JobEnd, Outcome};
use plan::Plan;
use report::{Talk, Weight, held_by, in_words};
use signals::{Bell, Signals};
use supervise::Supervisor;

/// How long the end waits for clean-ups under way.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// Runs the command and tells how the program is to end.
pub(crate) fn run(store: Option<&str>, op_timeout: Duration, args: RunArgs) -> Ending {
    let talk = Talk::new(args.quiet, args.verbose > 0, args.json);
    let ending = run_or_fail(store, op_timeout, args, talk).unwrap_or_else(|failure| {
        let (code, name) = (failure.ending.code(), failure.ending.name());
        // Busy is an answer and an interruption was asked for: -q is not told.
        let weight = match failure.ending {
            Ending::Busy(_) | Ending::Interrupted(_) => Weight::Warning,
            _ => Weight::Error,
        };
        talk.say(
            weight,
            "error",
            json!({ "code": code, "name": name, "message": failure.message }),
            format_args!("{}", failure.message),
        );
        failure.ending
    });
    talk.say(
        Weight::Detail,
        "exit",
        json!({ "code": ending.code(), "name": ending.name() }),
        format_args!("exit {} ({})", ending.code(), ending.name()),
    );
    ending
}

fn run_or_fail(
    store: Option<&str>,
    op_timeout: Duration,
    args: RunArgs,
    talk: Talk,
) -> Result<Ending, Failure> {
    let signals = Signals::catch()
        .map_err(|e| Failure::new(Exit::Internal, format_args!("cannot catch signals: {e}")))?;
    // Who could not find the command's processes could not end them.
    proc::Proc::open().map_err(|e| Failure::new(Exit::Internal, e))?;
    let plan = Plan::new(args.ttl, args.max_hold, args.kill_after, args.signal, args.on_lost)?;
    let settings = settings(&args)?;
    let store = crate::config::Surroundings::of_process().store(store)?;
    let runtime = crate::connect::runtime()?;
    let ending = runtime.block_on(async {
        let bell = signals
            .bell()
            .map_err(|e| Failure::new(Exit::Internal, format_args!("cannot wait for signals: {e}")))?;
        let session = Session { args: &args, talk, signals: &signals, bell: &bell, plan, op_timeout };
        session.run(&store, settings).await
    });
    // A call that hangs in a store must not hold the program.
    runtime.shutdown_background();
    ending
}

fn settings(args: &RunArgs) -> Result<Settings, Failure> {
    let owner = args.owner.clone().unwrap_or_else(crate::show::who);
    let info = HolderInfo::new(owner, args.meta.iter().cloned()).map_err(Failure::usage)?;
    let mut settings = Settings::new().ttl(args.ttl).min_hold(args.min_hold).holder(info);
    if let Some(max_hold) = args.max_hold {
        if args.min_hold > max_hold {
            let min_hold = args.min_hold;
            return Err(Failure::usage(SettingsError::HoldsContradict { min_hold, max_hold }));
        }
        settings = settings.max_hold(max_hold);
    }
    Ok(settings)
}

/// One run, from the connection to the release.
struct Session<'a> {
    args: &'a RunArgs,
    talk: Talk,
    signals: &'a Signals,
    bell: &'a Bell,
    plan: Plan,
    op_timeout: Duration,
}

/// How often a run that waits lets go of a grant whose answer came so late that too little of it is left. A store that
/// is always that slow is told.
const LATE_GRANTS_MAX: u32 = 3;

impl Session<'_> {
    async fn run(&self, store: &Store, settings: Settings) -> Result<Ending, Failure> {
        let watchdog = Watchdog::start().map_err(|e| Failure::new(Exit::Internal, e))?;
        let client = self.connect(store, &watchdog).await?;
        client
            .profile()
            .refuse_ttl(self.args.ttl)
            .map_err(|e| Failure::usage(format_args!("--ttl: {}", e.message())))?;
        self.refuse_min_hold(client.profile().ttl_max)?;
        if store.url.scheme() == "memory" {
            self.talk.say(
                Weight::Warning,
                "warning",
                json!({ "lease": self.args.name.as_str(), "message": "memory excludes no other program" }),
                format_args!("warning: a memory:// store is seen by this program alone: it keeps no other one from running"),
            );
        }
        let context = watchdog.context();
        let asked_at = context.now();
        let acquired = self.unless_interrupted(self.acquire(&client, &settings)).await;
        let lease = match acquired {
            Ok(Ok(lease)) => lease,
            Ok(Err(failure)) | Err(failure) => {
                crate::connect::finish(&client, &watchdog, SHUTDOWN_LIMIT).await;
                return Err(failure);
            }
        };
        self.talk.say(
            Weight::Detail,
            "granted",
            json!({
                "lease": lease.name().as_str(),
                "token": lease.token().to_string(),
                "owner": lease.fingerprint(),
                "waited_ms": crate::show::millis(context.now().since(asked_at)),
                "valid_ms": crate::show::millis(lease.remaining()),
            }),
            format_args!(
                "holding {:?} with token {} (#{})",
                lease.name(),
                lease.token(),
                lease.fingerprint()
            ),
        );
        let mut result = self.supervised(&lease, &watchdog, store).await;
        match &mut result {
            Ok(outcome) if outcome.left > 0 => self.leave(lease),
            Ok(outcome) => {
                let found = self.release(lease, outcome.loss.is_some()).await;
                // The release is the last look: what it finds lost was lost while the command ran.
                if outcome.loss.is_none() {
                    outcome.loss = found;
                }
            }
            Err(_) => drop(self.release(lease, false).await),
        }
        crate::connect::finish(&client, &watchdog, SHUTDOWN_LIMIT).await;
        let outcome = result?;
        if let JobEnd::Unguarded(errno) = outcome.job {
            return Err(Failure::new(
                Exit::Internal,
                format_args!(
                    "the guardian process cannot do its work ({}): the command was not started, or was killed. Is /proc mounted?",
                    std::io::Error::from(errno)
                ),
            ));
        }
        if let JobEnd::NotStarted(errno) = outcome.job {
            return Err(Failure::new(
                outcome.ending(),
                format_args!("cannot execute {:?}: {}", self.argv()[0], std::io::Error::from(errno)),
            ));
        }
        Ok(outcome.ending())
    }

    /// Refuses to keep the name longer than the store can: nobody could free it.
    fn refuse_min_hold(&self, longest: Duration) -> Result<(), Failure> {
        if self.args.min_hold <= longest {
            return Ok(());
        }
        Err(Failure::usage(format_args!(
            "--min-hold {} is not possible: this store keeps a name for {} at most",
            show(self.args.min_hold),
            show(longest)
        )))
    }

    /// The future's output, unless a signal that ends a wait came first: the future is dropped then,
    /// and what it may have been granted is taken back.
    async fn unless_interrupted<F: Future>(&self, future: F) -> Result<F::Output, Failure> {
        let mut future = std::pin::pin!(future);
        loop {
            self.refuse_if_interrupted()?;
            tokio::select! {
                biased;
                () = self.bell.rung() => {}
                output = &mut future => return Ok(output),
            }
        }
    }

    fn refuse_if_interrupted(&self) -> Result<(), Failure> {
        match self.signals.take().into_iter().find(|signal| signals::ends_a_wait(*signal)) {
            None => Ok(()),
            Some(signal) => Err(Failure::new(
                Ending::Interrupted(signal),
                format_args!("{}: nothing was started, nothing is held", crate::args::signal_name(signal)),
            )),
        }
    }

    /// How long to wait for the name.
    fn wait(&self) -> Duration {
        match self.args.wait {
            _ if self.args.no_wait => Duration::ZERO,
            Some(wait) => wait,
            None => Duration::MAX,
        }
    }

    async fn connect(&self, store: &Store, watchdog: &Watchdog) -> Result<LeaseClient, Failure> {
        let patience = if self.wait().is_zero() { Patience::None } else { Patience::Retry };
        let connecting = crate::connect::client(store, watchdog, self.op_timeout, patience);
        self.unless_interrupted(connecting).await?
    }

    async fn acquire(&self, client: &LeaseClient, settings: &Settings) -> Result<Lease, Failure> {
        let name = &self.args.name;
        let wait = self.wait();
        if wait.is_zero() {
            return match client.try_acquire(name, settings).await {
                Ok(TryAcquire::Granted(lease)) => Ok(lease),
                Ok(TryAcquire::Held(seen)) => Err(self.busy(&held_by(&seen))),
                Err(e) => Err(self.not_acquired(e)),
            };
        }
        let began = Instant::now();
        let mut told = None;
        let mut late = 0;
        loop {
            let wait = match wait {
                Duration::MAX => Wait::Forever,
                wait => Wait::AtMost(wait.saturating_sub(began.elapsed())),
            };
            let observe = |seen: &leasehold::Contention| {
                let holder = seen.holder.as_ref().map(|holder| holder.token);
                if told != Some(holder) {
                    told = Some(holder);
                    self.talk.waiting(name, seen);
                }
            };
            match client.acquire_observed(name, settings, wait, observe).await {
                // A link that was silent for a while: who waits is granted the name anew.
                Ok(lease) if late < LATE_GRANTS_MAX && lease.ensure(self.plan.least()).is_err() => {
                    drop(lease)
                }
                Err(AcquireError::GrantedTooLate { .. }) if late < LATE_GRANTS_MAX => {}
                acquired => return acquired.map_err(|e| self.not_acquired(e)),
            }
            late += 1;
        }
    }

    fn busy(&self, why: &str) -> Failure {
        let code = self.args.conflict_exit_code;
        Failure::new(Ending::Busy(code), format_args!("{:?} is {why}; nothing was started", self.args.name))
    }

    fn not_acquired(&self, error: AcquireError) -> Failure {
        match error {
            AcquireError::TimedOut { waited, seen, .. } => {
                self.busy(&format!("{}; waited for {}", held_by(&seen), show(waited)))
            }
            AcquireError::Settings(e) => Failure::usage(e),
            AcquireError::Backend(e) => Failure::new(of_kind(e.kind()), e),
            AcquireError::GrantedTooLate { name, took, ttl, .. } => Failure::new(
                Exit::Unavailable,
                format_args!(
                    "{name:?} was granted, but the store took {} of its ttl of {} to say so: it is given back. Use a longer ttl or a faster store",
                    show(took),
                    show(ttl)
                ),
            ),
            e => Failure::new(Exit::Internal, e),
        }
    }

    fn argv(&self) -> Vec<OsString> {
        match &self.args.shell_command {
            // A second "--" ends the options too, where a script guards a name that begins with a dash.
            None => match self.args.argv.split_first() {
                Some((first, rest)) if first == "--" && !rest.is_empty() => rest.to_vec(),
                _ => self.args.argv.clone(),
            },
            Some(text) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), text.clone()]
            }
        }
    }

    async fn supervised(
        &self,
        lease: &Lease,
        watchdog: &Watchdog,
        store: &Store,
    ) -> Result<Outcome, Failure> {
        let context = watchdog.context();
        lease.ensure(self.plan.least()).map_err(|over| {
            Failure::new(
                Exit::Unavailable,
                format_args!("the store took so long to grant {:?} that too little of it is left ({}): nothing was started", over.name, in_words(&over.state)),
            )
        })?;
        let guardian = Guardian::spawn(&self.environment(lease, store)).map_err(|e| {
            Failure::new(
                Exit::Internal,
                format_args!("the guardian process could not be started ({e}): nothing was started. Processes or descriptors may be exhausted (ulimit -u, ulimit -n)"),
            )
        })?;
        // The last moment before the command exists: from here on signals are handed on to it.
        self.refuse_if_interrupted()?;
        let watch = (self.signals, self.bell);
        let supervisor = Supervisor::new(lease, &context, self.plan, self.talk, watch, guardian);
        supervisor.run(&self.argv()).await.map_err(|e| {
            Failure::new(
                Exit::Internal,
                format_args!("the guardian took no order ({e}): nothing was started"),
            )
        })
    }

    /// What the command learns about its lease.
    fn environment(&self, lease: &Lease, store: &Store) -> Vec<(&'static str, Option<String>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut environment = vec![
            ("LEASEHOLD_HELD", Some("1".to_owned())),
            ("LEASEHOLD_NAME", Some(lease.name().to_string())),
            ("LEASEHOLD_TOKEN", Some(lease.token().to_string())),
            ("LEASEHOLD_OWNER", Some(lease.fingerprint())),
            ("LEASEHOLD_BACKEND", Some(store.url.scheme().to_owned())),
            ("LEASEHOLD_TTL_MS", Some(crate::show::millis(lease.ttl()).to_string())),
            ("LEASEHOLD_DEADLINE_UNIX_MS", Some(crate::show::millis(now + lease.remaining()).to_string())),
        ];
        match store.for_job() {
            Some(store) => environment.push((STORE_VAR, Some(store))),
            // It names another store than the flag did: better none than the wrong one.
            None if !store.from_variable => environment.push((STORE_VAR, None)),
            None => {}
        }
        environment
    }

    /// Lets the lease run out by itself: processes that could not be ended run under it.
    fn leave(&self, lease: Lease) {
        let (name, ttl) = (lease.name().clone(), lease.ttl());
        self.talk.say(
            Weight::Warning,
            "released",
            json!({ "lease": name.as_str(), "release": "not_released" }),
            format_args!(
                "warning: {name:?} is not released, because processes of the command run on; it ends within its ttl ({})",
                show(ttl)
            ),
        );
        // Dropped, it would be released. This process ends now, and its renewals with it.
        std::mem::forget(lease);
    }

    /// Gives the lease back; how it was lost, if the store had it no more.
    async fn release(&self, lease: Lease, lost: bool) -> Option<LeaseState> {
        let (name, token) = (lease.name().clone(), lease.token());
        if lost && lease.check().is_err() {
            // Over: the store is told in the background, as far as the end of the program allows.
            drop(lease);
            return None;
        }
        let mut cause = None;
        let (word, weight, line) = match lease.release().await {
            Ok(Released::Released) => ("released", Weight::Detail, format!("released {name:?}")),
            Ok(Released::AlreadyReleased) if lost => {
                ("already_released", Weight::Detail, format!("{name:?} had ended in the store"))
            }
            Ok(Released::AlreadyReleased) => {
                let detail = "the grant had gone before it was released".to_owned();
                cause = Some(LostCause::StoreForgot { detail });
                (
                    "already_released",
                    Weight::Error,
                    format!(
                        "the lease {name:?} was lost while the command ran: the store no longer had it when the command ended"
                    ),
                )
            }
            Ok(Released::NotHeld { by }) => {
                cause = Some(by.as_ref().map_or(LostCause::ExpiredInStore, LostCause::taken));
                (
                    "not_held",
                    Weight::Error,
                    format!(
                        "the lease {name:?} was lost while the command ran: somebody else had it when the command ended"
                    ),
                )
            }
            Err(e) if e.effect() == Effect::None => (
                "not_released",
                Weight::Warning,
                format!("warning: {name:?} was not released; it ends within its ttl ({e})"),
            ),
            Err(e) => (
                "unknown",
                Weight::Warning,
                format!("warning: nobody knows whether {name:?} was released; it ends within its ttl ({e})"),
            ),
        };
        let fields = json!({ "lease": name.as_str(), "release": word });
        self.talk.say(weight, "released", fields, format_args!("{line}"));
        let state = LeaseState::Lost(cause?);
        if !lost {
            let fields = json!({ "lease": name.as_str(), "token": token.to_string(), "cause": state.word() });
            self.talk.say(Weight::Detail, "lost", fields, format_args!("{name:?} is {state}"));
        }
        Some(state)
    }
}
