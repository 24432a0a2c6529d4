//! How soon the next one has it.
//!
//! From just before the holder's release to just after the waiter's grant, on the clock that both
//! share, with the waiter waiting for long. Once between two tasks of one process, and once between
//! two processes that know nothing of each other but the store.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BootTime, Clock, LeaseClient, LeaseName, Settings, SystemClock, Wait};
use leasehold_testkit::{Proc, Scratch};
use tokio::sync::Notify;

use crate::memory::{Failure, runtime};
use crate::place::Opened;
use crate::report::Report;
use crate::stats::percentile;

/// How long the name is held, so that the other one is surely waiting by then.
pub const HOLD: Duration = Duration::from_millis(10);
/// How long the last holder stands back, so that the other one gets its turn.
const STAND_BACK: Duration = Duration::from_millis(4);
/// First argument of the second process.
const PEER: &str = "--handover-peer";

/// Measures `rounds` hand-overs of each kind.
///
/// # Errors
/// The store's, or the second process's.
pub fn measure(report: &mut Report, rounds: usize) -> Result<(), Failure> {
    let scratch = Scratch::new();
    let url = format!("sqlite://{}", scratch.join("leases.db").display());
    for (kind, latencies) in
        [("tasks", between_tasks(&url, rounds)?), ("processes", between_processes(&url, rounds)?)]
    {
        for percent in [50, 99] {
            let what = format!("handover between two {kind} on sqlite: p{percent}");
            report.note(what, percentile(&latencies, percent), "µs");
        }
    }
    Ok(())
}

fn name() -> Result<LeaseName, Failure> {
    Ok("bench/handover".parse()?)
}

fn micros(from: BootTime, to: BootTime) -> f64 {
    to.since(from).as_nanos() as f64 / 1_000.0
}

async fn acquire(client: &LeaseClient, name: &LeaseName) -> Result<leasehold_core::Lease, Failure> {
    Ok(client.acquire(name, &Settings::new(), Wait::AtMost(Duration::from_secs(30))).await?)
}

fn between_tasks(url: &str, rounds: usize) -> Result<Vec<f64>, Failure> {
    let name = name()?;
    runtime()?.block_on(async {
        let leases = Opened::open(url).await?;
        let mut latencies = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let lease = acquire(leases.client(), &name).await?;
            let refused = Arc::new(Notify::new());
            let waiter = tokio::spawn({
                let (client, name, refused) = (leases.client().clone(), name.clone(), Arc::clone(&refused));
                async move {
                    let tell = |_: &_| refused.notify_one();
                    let lease = client
                        .acquire_observed(
                            &name,
                            &Settings::new(),
                            Wait::AtMost(Duration::from_secs(30)),
                            tell,
                        )
                        .await?;
                    let got = SystemClock.now();
                    lease.release().await?;
                    Ok::<_, Failure>(got)
                }
            });
            refused.notified().await;
            pause(HOLD).await;
            let released = SystemClock.now();
            lease.release().await?;
            latencies.push(micros(released, waiter.await??));
        }
        Ok(latencies)
    })
}

/// Sleeps on another thread, so that the tasks of this one go on.
pub async fn pause(d: Duration) {
    // A pool thread that only sleeps cannot fail to be joined.
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(d)).await;
}

/// One of two processes that hand a name back and forth.
#[derive(Debug)]
pub struct Peer {
    url: String,
    rounds: usize,
}

/// When somebody got the name, or was about to release it.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: u64,
    got: bool,
    mine: bool,
}

impl Peer {
    /// The peer that the arguments of this process ask for, if they do.
    pub fn from_args() -> Option<Self> {
        let mut args = std::env::args().skip(1);
        (args.next()? == PEER).then_some(())?;
        Some(Peer { url: args.next()?, rounds: args.next()?.parse().ok()? })
    }

    /// Goes through its turns and prints them.
    ///
    /// # Errors
    /// The store's.
    pub fn run(&self) -> Result<(), Failure> {
        for moment in self.turns()? {
            println!("{} {}", if moment.got { "got" } else { "releases" }, moment.at);
        }
        Ok(())
    }

    fn turns(&self) -> Result<Vec<Moment>, Failure> {
        let name = name()?;
        runtime()?.block_on(async {
            let leases = Opened::open(&self.url).await?;
            let mut moments = Vec::with_capacity(2 * self.rounds);
            let now = || SystemClock.now().as_nanos();
            for _ in 0..self.rounds {
                let lease = acquire(leases.client(), &name).await?;
                moments.push(Moment { at: now(), got: true, mine: true });
                pause(HOLD).await;
                moments.push(Moment { at: now(), got: false, mine: true });
                lease.release().await?;
                pause(STAND_BACK).await;
            }
            Ok(moments)
        })
    }
}

/// Hand-overs between this process and another one on the store that `url` names, in µs.
///
/// # Errors
/// The store's, or the second process's.
pub fn between_processes(url: &str, rounds: usize) -> Result<Vec<f64>, Failure> {
    // What the store needs is there before the second process opens it.
    runtime()?.block_on(async { Opened::open(url).await.map(drop) })?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(PEER).arg(url).arg(rounds.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut peer = Proc::spawn(&mut command)?;
    let mut moments = Peer { url: url.to_owned(), rounds }.turns()?;
    let output = peer.child_mut().stdout.take().ok_or("the peer's output is piped")?;
    moments.extend(read(output)?);
    let status = peer.wait(Duration::from_secs(60), "it had as many rounds as this process");
    if !status.success() {
        return Err(format!("the second process failed ({status})").into());
    }
    moments.sort_unstable_by_key(|moment| moment.at);
    let latencies: Vec<f64> = moments
        .windows(2)
        .filter(|pair| !pair[0].got && pair[1].got && pair[0].mine != pair[1].mine)
        .map(|pair| (pair[1].at - pair[0].at) as f64 / 1_000.0)
        .collect();
    // Only hand-overs to the other process count; if they hardly took turns, nothing was measured.
    if latencies.len() < rounds / 2 { Err("the processes did not take turns".into()) } else { Ok(latencies) }
}

fn read(output: impl std::io::Read) -> Result<Vec<Moment>, Failure> {
    let mut moments = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let (what, at) = line.split_once(' ').ok_or_else(|| format!("the second process said {line:?}"))?;
        moments.push(Moment { at: at.parse()?, got: what == "got", mine: false });
    }
    Ok(moments)
}
