//! A campaign: many runs of the program contend for a few names in one store, while wrappers, guardians and
//! jobs are killed and frozen at random times, and whatever else the store's test does to the store. Then the
//! jobs' own log is judged.
//!
//! The jobs append a line whenever they do anything. Who wrote later stands later in the file, so that
//! the file's order is what happened, whatever anybody's clock says. An overlap is a line of a job
//! whose name has been begun under a larger token before. (I1, I2, I6; nothing outlives its lease.)
//!
//! What a campaign cannot pass without: most grants were waited for, some were taken over from a holder that
//! a fault had hit, and some were held for longer than the ttl.

#![allow(dead_code, reason = "each store's test uses a part")]

pub(crate) mod faults;
pub(crate) mod job;
pub(crate) mod judge;
mod probe;
mod store;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use faults::{Ended, Fault};
use leasehold_conformance::checker;
use leasehold_testkit::{Proc, Scratch, boot_now, quick};
pub(crate) use store::StoreFault;

/// Long enough for a job to be started, kept and killed on a loaded machine with a slow disk, short enough
/// for many takeovers.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// Runs of the program at any time.
const CONTENDERS: usize = 12;
/// The machine stood still for so long that a renewal may have come too late for it: the time that is
/// left when the third try of a renewal begins.
const STALL: Duration = Duration::from_millis(500);
/// A run that hangs fails here, not at somebody else's limit.
const CAMPAIGN_MAX: Duration = Duration::from_secs(540);

/// One run of the program: what it was to do, and what became of it.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) id: usize,
    pub(crate) hold: Duration,
    pub(crate) spawned: Duration,
    pub(crate) fault: Fault,
    pub(crate) ended: Ended,
}

/// How long a round's job works.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Short,
    Medium,
    Long,
}

/// What each block of rounds consists of, in an order that the seed shuffles: chance decides when and
/// who meets whom, not whether something happens at all.
const BLOCK: [(Hold, Fault); 20] = [
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Short, Fault::None),
    (Hold::Medium, Fault::None),
    (Hold::Medium, Fault::None),
    (Hold::Long, Fault::None),
    (Hold::Long, Fault::None),
    (Hold::Short, Fault::KillWaiting),
    (Hold::Medium, Fault::KillWrapper),
    (Hold::Long, Fault::KillWrapper),
    (Hold::Medium, Fault::KillGuardian),
    (Hold::Medium, Fault::KillJob),
    (Hold::Long, Fault::FreezeWrapper),
    (Hold::Long, Fault::FreezeWrapperAndJob),
    (Hold::Long, Fault::FreezeAll),
    (Hold::Medium, Fault::FreezeGuardian),
];

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A time from `low` to `high` percent of `whole`.
    pub(crate) fn part(&mut self, whole: Duration, low: u64, high: u64) -> Duration {
        whole * (low + self.below(high - low + 1)) as u32 / 100
    }
}

/// What a store's test brings.
#[derive(Debug)]
pub(crate) struct Arena {
    /// As the program is told it.
    pub(crate) store: String,
    /// Names that are contended for.
    pub(crate) names: usize,
    /// The jobs write through a fence that refuses a stale token.
    pub(crate) is_fenced: bool,
}

pub(crate) struct Campaign {
    arena: Arena,
    /// A file beside the store, to see whether the disk stalls.
    disk: Scratch,
    /// The log and everything else.
    scratch: Scratch,
    pub(crate) seed: u64,
    rounds: usize,
    /// Grants that there must be: all rounds but those that are killed while they wait.
    grants_min: usize,
    next: AtomicUsize,
    done: Mutex<Vec<Round>>,
    stalls: probe::Stalls,
    over: AtomicBool,
    /// What was done to the store.
    store_faults: Mutex<Vec<StoreFault>>,
}

/// What the log and the rounds showed.
pub(crate) struct Outcome {
    pub(crate) grants: Vec<judge::Grant>,
    pub(crate) rounds: Vec<Round>,
    pub(crate) store_faults: Vec<StoreFault>,
    /// Writes that the fence refused.
    pub(crate) refused: usize,
}

/// The seed: `LEASEHOLD_TEST_SEED` repeats the choices of an earlier run (not the scheduler's).
fn seed() -> u64 {
    let given = std::env::var("LEASEHOLD_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
    })
}

impl Campaign {
    pub(crate) fn new(arena: Arena) -> Self {
        Campaign {
            arena,
            disk: Scratch::new(),
            scratch: Scratch::in_memory(),
            seed: seed(),
            rounds: if quick() { 40 } else { 540 },
            grants_min: if quick() { 36 } else { 500 },
            next: AtomicUsize::new(0),
            done: Mutex::default(),
            stalls: probe::Stalls::default(),
            over: AtomicBool::new(false),
            store_faults: Mutex::default(),
        }
    }

    /// Runs all rounds with `beside` in a thread of its own, and judges them.
    pub(crate) fn run(self, beside: impl FnOnce(&Campaign) + Send) -> Outcome {
        println!("seed {} (LEASEHOLD_TEST_SEED), {} rounds", self.seed, self.rounds);
        let began = Instant::now();
        let probe = std::fs::File::create(self.disk.join("probe")).expect("own directory");
        std::thread::scope(|scope| {
            let campaign = &self;
            scope.spawn(move || campaign.stalls.watch(probe, STALL, &campaign.over));
            let beside = scope.spawn(move || beside(campaign));
            let contend = |contender| scope.spawn(move || campaign.contend(contender % campaign.arena.names));
            let contenders: Vec<_> = (0..CONTENDERS).map(contend).collect();
            // All are waited for, so that one failure neither hides another nor leaves the probe running.
            let failed = contenders.into_iter().filter_map(|contender| contender.join().err()).count();
            campaign.over.store(true, Ordering::Release);
            println!("longest stall of the machine: {:.1?}", campaign.stalls.longest());
            assert!(beside.join().is_ok(), "seed {}: the store's part failed, see above", campaign.seed);
            assert_eq!(failed, 0, "seed {}: contenders failed, see above", campaign.seed);
        });
        let took = began.elapsed();
        let outcome = self.judge(took);
        assert!(took < CAMPAIGN_MAX, "{took:?}");
        outcome
    }

    /// Whether all rounds have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes what was done to the store.
    pub(crate) fn note(&self, fault: StoreFault) {
        self.store_faults.lock().expect("nobody panics with it").push(fault);
    }

    /// Runs the program again and again for one name, until all rounds are given out.
    fn contend(&self, name: usize) {
        loop {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            if id >= self.rounds {
                return;
            }
            // Each round has choices of its own, whoever takes it.
            let mut rng = Rng(self.seed ^ (id as u64) << 20);
            let (hold, fault) = self.plan(id);
            let hold = match hold {
                Hold::Short => rng.part(TTL, 1, 10),
                Hold::Medium => rng.part(TTL, 20, 60),
                Hold::Long => rng.part(TTL, 120, 200),
            };
            let round = self.round(id, &format!("name-{name}"), hold, fault, rng);
            self.done.lock().expect("no contender panics with it").push(round);
        }
    }

    fn plan(&self, id: usize) -> (Hold, Fault) {
        let mut rng = Rng(self.seed ^ (id / BLOCK.len()) as u64);
        let mut block = BLOCK;
        for last in (1..block.len()).rev() {
            block.swap(last, rng.below(last as u64 + 1) as usize);
        }
        block[id % BLOCK.len()]
    }

    fn round(&self, id: usize, name: &str, hold: Duration, fault: Fault, mut rng: Rng) -> Round {
        let with_daemon = rng.below(4) == 0;
        let mut command = self.program(id, name, hold, with_daemon);
        let spawned = boot_now();
        let mut wrapper = Proc::spawn(&mut command).expect("the program starts");
        let ended = faults::inject(fault, &mut wrapper, &self.begun(id), hold, TTL, &mut rng);
        let diagnosis = format!("round {id}, {fault:?}: {ended:?}");
        // Guardians kill with a grace of a sixth of the ttl; the rest is for a loaded machine.
        wrapper.wait_gone(Duration::from_secs(20), &diagnosis);
        Round { id, hold, spawned, fault, ended }
    }

    fn program(&self, id: usize, name: &str, hold: Duration, with_daemon: bool) -> Command {
        let errors = std::fs::File::create(self.scratch.join(format!("err-{id}"))).expect("own directory");
        let ttl = format!("{}ms", TTL.as_millis());
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(["run", "--store", &self.arena.store, "--ttl", &ttl, "--wait", "120s", name, "--"])
            .arg(std::env::current_exe().expect("this test"))
            .args(["--exact", "job", "--nocapture", "--test-threads=1"])
            .env(job::LOG, self.log())
            .env(job::BEGUN, self.begun(id))
            .env(job::ID, id.to_string())
            .env(job::HOLD_MS, hold.as_millis().to_string())
            .env_remove("LEASEHOLD_STORE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        if with_daemon {
            command.env(job::DAEMON, "1");
        }
        if self.arena.is_fenced {
            command.env(job::FENCE, self.scratch.join(format!("fence-{name}")));
        }
        command
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("log")
    }

    /// Where the job of a round leaves its process id.
    fn begun(&self, id: usize) -> PathBuf {
        self.scratch.join(format!("begun-{id}"))
    }

    /// A stall of the machine that explains why an undisturbed lease was lost, or a kill came late: of all, as the
    /// probe saw it; or of this round, whose job wrote nothing for half a ttl while nothing had ended it yet.
    fn excuse(&self, round: &Round, grants: &[judge::Grant]) -> Option<Duration> {
        let lost = round.ended.code == 76 || round.ended.late.is_some();
        let grant = grants.iter().find(|grant| grant.id == round.id)?;
        let silent = judge::silence(round, grant).filter(|silence| lost && *silence >= TTL / 2);
        if silent.is_some() {
            return silent;
        }
        self.stalls.between(grant.begun.saturating_sub(TTL), grant.last + TTL).filter(|_| lost)
    }

    fn judge(self, took: Duration) -> Outcome {
        let rounds = std::mem::take(&mut *self.done.lock().expect("all contenders have ended"));
        let store_faults =
            std::mem::take(&mut *self.store_faults.lock().expect("the store's part has ended"));
        let log = self.scratch.read("log");
        let grants = judge::grants(&log);
        let faults = judge::contradictions(&log, &store_faults);
        let refused = judge::refused(&log);
        let contended = judge::contended(&grants, &rounds);
        let taken_over = judge::taken_over(&grants, &rounds);
        let beyond = grants.iter().filter(|grant| grant.last.saturating_sub(grant.begun) > TTL).count();
        println!(
            "{} grants in {took:.1?}: {contended} waited for, {taken_over} taken over after a fault, {beyond} held beyond the ttl",
            grants.len(),
        );
        println!("{}", judge::endings(&rounds));
        assert!(faults.is_empty(), "seed {}: {}", self.seed, faults.join("\n"));
        // The same by the clock that all share: tokens in real time, and nobody believing at once.
        let verdict =
            checker::judge(&judge::history(&grants, &rounds, &store_faults), checker::Bounds::default());
        assert_eq!(verdict.violations, [], "seed {}", self.seed);
        assert_eq!(verdict.grants, grants.len());
        let mut excused = 0;
        for round in &rounds {
            let grant = grants.iter().find(|grant| grant.id == round.id);
            if let Some(wrong) = judge::wrong_ending(round, grant, &store_faults) {
                if let Some(stall) = self.excuse(round, &grants) {
                    println!("the machine stood still for {stall:.1?}: {wrong}");
                    excused += 1;
                    continue;
                }
                let said = self.scratch.read(format!("err-{}", round.id));
                panic!("seed {}: {wrong}\n{round:?}\n{grant:?}\n{store_faults:#?}\n{said}", self.seed);
            }
        }
        assert!(
            excused <= self.rounds / 10,
            "{excused} rounds were lost to stalls: this machine cannot tell"
        );
        // The danger was there.
        let unreached = rounds.iter().filter(|round| round.ended.code == judge::UNREACHABLE).count();
        let least = self.grants_min - unreached;
        assert!(grants.len() >= least, "only {} grants of {} rounds", grants.len(), self.rounds);
        assert!(unreached <= self.rounds / 10, "{unreached} rounds met a store that was down");
        assert!(contended >= least / 3, "only {contended} grants were waited for");
        assert!(taken_over >= least / 20, "only {taken_over} grants were taken over after a fault");
        assert!(beyond >= least / 20, "only {beyond} grants were held beyond the ttl");
        Outcome { grants, rounds, store_faults, refused }
    }
}
