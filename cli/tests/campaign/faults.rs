//! What is done to the processes of a round, and what must then be seen.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_testkit::{ExitWatch, Proc, Process, boot_now, children_of, stat_of};

use super::Rng;

/// For what needs a few schedulings of other processes on a loaded machine.
const SOON: Duration = Duration::from_secs(30);
/// For a turn in line: others hold the name for their time before.
const TURN_MAX: Duration = Duration::from_secs(120);

/// Who is hit. Guardian and wrapper watch each other: hitting both while the job runs on leaves nobody
/// to end it, which no program of its kind survives, and is only done to all three at once, as when a
/// machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    None,
    /// Killed while it waits for its turn.
    KillWaiting,
    KillWrapper,
    KillGuardian,
    KillJob,
    FreezeWrapper,
    FreezeGuardian,
    FreezeWrapperAndJob,
    /// Everything stops, beyond the lease, and goes on.
    FreezeAll,
}

impl Fault {
    fn is_kill(self) -> bool {
        matches!(self, Fault::KillWrapper | Fault::KillGuardian | Fault::KillJob)
    }

    /// Whether the holder cannot give the name back itself.
    pub(crate) fn leaves_name_taken(self) -> bool {
        matches!(
            self,
            Fault::KillWrapper | Fault::FreezeWrapper | Fault::FreezeWrapperAndJob | Fault::FreezeAll
        )
    }
}

/// How a round ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The wrapper's exit code; 128+N for a signal.
    pub(crate) code: i32,
    /// Whether the fault was done: the job may have ended before.
    pub(crate) hit: bool,
    /// By how much the job outlived its lease.
    pub(crate) late: Option<Duration>,
    /// When the wrapper ended, on the boot clock.
    pub(crate) at: Option<Duration>,
}

/// The three processes of a round.
struct Trio {
    guardian: Process,
    job: Process,
    job_end: ExitWatch,
    /// When the lease is over at the latest, once no renewal can have been sent any more.
    over_at: Cell<Option<Duration>>,
}

impl Trio {
    /// By how much the job outlived its lease, where that is known.
    fn late(&self) -> Option<Duration> {
        self.job_end.ended_at()?.checked_sub(self.over_at.get()?).filter(|late| !late.is_zero())
    }
}

/// Waits for the job, does `fault` to it or its keepers, and sees the wrapper's end.
pub(crate) fn inject(
    fault: Fault,
    wrapper: &mut Proc,
    begun: &Path,
    hold: Duration,
    ttl: Duration,
    rng: &mut Rng,
) -> Ended {
    if fault == Fault::KillWaiting {
        std::thread::sleep(rng.part(ttl, 0, 30));
        wrapper.kill();
        let code = code(wrapper, "it was killed");
        return Ended { code, hit: code != 0, late: None, at: wrapper.ended_at() };
    }
    let job = wait_for_job(wrapper, begun);
    // When in the job's time it happens is chance.
    std::thread::sleep(if fault == Fault::None { Duration::ZERO } else { rng.part(hold, 5, 70) });
    let trio = job.and_then(|pid| trio(wrapper, pid));
    let hit = trio.as_ref().is_some_and(|trio| hit(fault, wrapper, trio, ttl, rng));
    let code = code(wrapper, "its job is over");
    // A signal to a process that has ended and was not reaped is no error, and no fault.
    let came_too_late = fault.is_kill() && code == 0;
    let late = trio.as_ref().and_then(Trio::late);
    Ended { code, hit: hit && !came_too_late, late, at: wrapper.ended_at() }
}

fn code(wrapper: &mut Proc, why: &str) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let status = wrapper.wait(SOON, why);
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The process id of the job, or none when the wrapper ended without one.
fn wait_for_job(wrapper: &Proc, begun: &Path) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(pid) = std::fs::read_to_string(begun).ok().and_then(|text| text.parse().ok()) {
            return Some(pid);
        }
        if wrapper.ended_at().is_some() {
            return None;
        }
        assert!(started.elapsed() < TURN_MAX, "no turn within {TURN_MAX:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Takes hold of guardian and job, if the job still runs.
fn trio(wrapper: &Proc, job: i32) -> Option<Trio> {
    let guardian = Process::open_same(children_of(wrapper.pid()).first()?).ok()?;
    let job = Process::open_same(children_of(guardian.pid()).iter().find(|stat| stat.pid == job)?).ok()?;
    let job_end = ExitWatch::start(&job).expect("a thread");
    job.is_alive().then_some(Trio { guardian, job, job_end, over_at: Cell::new(None) })
}

fn hit(fault: Fault, wrapper: &Proc, trio: &Trio, ttl: Duration, rng: &mut Rng) -> bool {
    match fault {
        Fault::None | Fault::KillWaiting => false,
        Fault::KillJob => trio.job.kill(),
        Fault::KillGuardian => trio.guardian.kill() && ends_in_time(trio, ttl),
        Fault::KillWrapper => wrapper.kill() && ends_in_time(trio, ttl),
        Fault::FreezeGuardian => {
            let hit = trio.guardian.freeze();
            std::thread::sleep(rng.part(ttl, 10, 150));
            trio.guardian.thaw();
            hit
        }
        Fault::FreezeWrapper => {
            let hit = freeze_outside_a_commit(wrapper) && ends_in_time(trio, ttl);
            std::thread::sleep(rng.part(ttl, 0, 50));
            wrapper.thaw();
            hit
        }
        Fault::FreezeWrapperAndJob => {
            let hit = freeze_outside_a_commit(wrapper) && trio.job.freeze() && ends_in_time(trio, ttl);
            // It was frozen and is to go on: there is nothing left that could.
            trio.job.thaw();
            wrapper.thaw();
            hit
        }
        Fault::FreezeAll => freeze_all(wrapper, trio, ttl, rng),
    }
}

/// Freezes a wrapper that is not in the middle of a commit. One that is would keep SQLite's only write
/// lock for as long as it is frozen, and nobody else could renew: the holds that this campaign calls
/// undisturbed would not be.
fn freeze_outside_a_commit(wrapper: &Proc) -> bool {
    // A commit takes a few milliseconds: a hundred tries that all meet one mean something else.
    for _ in 0..100 {
        if !wrapper.freeze() {
            return false;
        }
        if !holds_the_write_lock(wrapper.pid()) {
            return true;
        }
        wrapper.thaw();
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Whether a process holds the lock of byte 120 of a shared-memory file, which is SQLite's
/// WAL_WRITE_LOCK (<https://www.sqlite.org/walformat.html>, "Locks").
fn holds_the_write_lock(pid: i32) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(words[..], [_, "POSIX", _, "WRITE", owner, _, "120", _] if owner.parse() == Ok(pid))
    })
}

/// No renewal was sent after now, so that the lease is over by `ttl` from now, and the job with it.
fn ends_in_time(trio: &Trio, ttl: Duration) -> bool {
    trio.over_at.set(Some(boot_now() + ttl));
    trio.job_end.wait(SOON, "its keeper ends it before the lease is over");
    assert!(!trio.job.is_alive());
    true
}

/// Stops every process of the round until after the lease, and lets them go on: the keepers first, and
/// the rest when it has been ended, so that it does not run for an instant.
fn freeze_all(wrapper: &Proc, trio: &Trio, ttl: Duration, rng: &mut Rng) -> bool {
    let keepers = [wrapper.pid(), trio.guardian.pid()];
    let mut hit = freeze_outside_a_commit(wrapper) && trio.guardian.freeze();
    // Daemons too, and what was forked while the others were being stopped.
    let mut others: Vec<Process> = Vec::new();
    loop {
        let running = wrapper.living().into_iter().filter(|stat| stat.state != 'T');
        let running: Vec<Process> = running.filter_map(|stat| Process::open_same(&stat).ok()).collect();
        if running.is_empty() {
            break;
        }
        running.iter().for_each(|process| _ = process.freeze());
        others.extend(running);
    }
    others.retain(|process| !keepers.contains(&process.pid()));
    hit &= trio.job.is_alive();
    std::thread::sleep(ttl + rng.part(ttl, 0, 60));
    let guardian_first = rng.below(2) == 0;
    let thaw = |first: bool| if first == guardian_first { trio.guardian.thaw() } else { wrapper.thaw() };
    thaw(true);
    if hit {
        trio.job_end.wait(SOON, "whoever goes on first finds the lease over and ends it");
    }
    thaw(false);
    for process in &others {
        let started = Instant::now();
        while process.is_alive() {
            let kin = [process.pid(), trio.job.pid(), keepers[0], keepers[1]].map(stat_of);
            assert!(
                started.elapsed() < SOON,
                "frozen beyond the lease, and neither run again nor ended: {kin:#?} (it, job, wrapper, guardian; the guardian went on first: {guardian_first}, the job was frozen: {hit})",
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    hit
}
