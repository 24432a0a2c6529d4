//! A lease on Redis beside what any lock on Redis needs.
//!
//! The yardstick is `SET NX PX` and a script that deletes the key if it is still the caller's, by the same
//! library, over one connection of the same kind, on the same runtime: no token, no holder, nobody woken.
//! Both go through the same proxy where the link has a delay.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncCommands, Client, Script, cmd};
use leasehold_core::{Lease, LeaseClient, LeaseName, Settings, TryAcquire, Wait, Watchdog};
use leasehold_redis::{Address, RedisBackend, RedisConfig};
use leasehold_testkit::proxy::{Direction, Proxy};
use leasehold_testkit::redis::RedisServer;

use crate::memory::{Failure, runtime};
use crate::report::{Report, Target};
use crate::stats::{median, percentile};
use crate::{alloc, handover};

/// How near to the bare commands a lease must come: with one task and with many on loopback, and with one
/// task over a link that takes a millisecond.
pub const RATIO_ALONE_MIN: f64 = 0.75;
/// With [`MANY`] tasks.
pub const RATIO_MANY_MIN: f64 = 0.55;
/// With a delay on the link.
pub const RATIO_DELAYED_MIN: f64 = 0.95;
/// Tasks at once.
pub const MANY: usize = 64;
/// Calls that renew [`HELD`] leases once.
pub const CALLS_MAX: f64 = 20.0;
/// Leases held at once.
pub const HELD: usize = 10_000;
/// How much longer than a round trip and the way of a published message a hand-over may take.
pub const HANDOVER_MAX: f64 = 2.5;
/// Waiters that hand a name around.
const WAITERS: usize = 50;

const DELETE_OWN: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// How long measurements take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Pairs of one round.
    pub pairs: usize,
    /// Hand-overs.
    pub handovers: usize,
    /// Periods that held leases are renewed for.
    pub periods: u32,
}

/// A server of its own, a proxy before it, a lease client and a bare connection through it.
struct Bench {
    server: RedisServer,
    link: Proxy,
    client: LeaseClient,
    backend: RedisBackend,
    raw: MultiplexedConnection,
    _watchdog: Watchdog,
}

impl Bench {
    /// With the connections straight to the server, or through the proxy.
    async fn open(is_direct: bool) -> Result<Self, Failure> {
        let server = RedisServer::plain()?;
        let link = server.proxy()?;
        let addr = if is_direct { server.addr() } else { link.addr() };
        let watchdog = Watchdog::start()?;
        let address = Address::Tcp { host: addr.ip().to_string(), port: addr.port() };
        let backend = RedisBackend::connect(RedisConfig::new(address), watchdog.context()).await?;
        let client = LeaseClient::new(backend.clone(), &watchdog);
        let raw = Client::open(format!("redis://{addr}"))?.get_multiplexed_async_connection().await?;
        Ok(Bench { server, link, client, backend, raw, _watchdog: watchdog })
    }

    /// Requests that this backend sent.
    fn requests(&self) -> u64 {
        self.backend.counters().requests
    }
}

fn names(prefix: &str, count: usize) -> Result<Vec<LeaseName>, Failure> {
    (0..count).map(|n| Ok(format!("bench/{prefix}/lease-number-{n:08}").parse()?)).collect()
}

async fn lease_pairs(client: LeaseClient, name: LeaseName, pairs: usize) -> Result<(), Failure> {
    let settings = Settings::new();
    for _ in 0..pairs {
        match client.try_acquire(&name, &settings).await? {
            TryAcquire::Granted(lease) => lease.release().await?,
            TryAcquire::Held(_) => return Err(format!("{name} is held by somebody").into()),
        };
    }
    Ok(())
}

async fn raw_pairs(mut raw: MultiplexedConnection, name: LeaseName, pairs: usize) -> Result<(), Failure> {
    let (key, owner) = (format!("raw:{name}"), "0123456789abcdef0123456789abcdef");
    let delete = Script::new(DELETE_OWN);
    for _ in 0..pairs {
        let granted: Option<String> =
            cmd("SET").arg(&key).arg(owner).arg("NX").arg("PX").arg(30_000).query_async(&mut raw).await?;
        let deleted: i64 = delete.key(&key).arg(owner).invoke_async(&mut raw).await?;
        if granted.is_none() || deleted != 1 {
            return Err(format!("{key} is held by somebody").into());
        }
    }
    Ok(())
}

/// Runs one round in `tasks` tasks; pairs per second.
async fn timed<F>(tasks: usize, pairs: usize, work: impl Fn(usize, usize) -> F) -> Result<f64, Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let began = Instant::now();
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(work(task, pairs / tasks))).collect();
    for task in running {
        task.await??;
    }
    Ok((pairs / tasks * tasks) as f64 / began.elapsed().as_secs_f64())
}

/// Leases and bare commands in turn; the median rates and the median ratio.
async fn compare(bench: &Bench, tasks: usize, rounds: usize, pairs: usize) -> Result<[f64; 3], Failure> {
    let names = names("pair", tasks)?;
    let lease = |task: usize, pairs| lease_pairs(bench.client.clone(), names[task].clone(), pairs);
    let bare = |task: usize, pairs| raw_pairs(bench.raw.clone(), names[task].clone(), pairs);
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // Each goes first in turn, so that a drift of the machine hits both.
        let (our, their) = if round % 2 == 0 {
            let their = timed(tasks, pairs, bare).await?;
            (timed(tasks, pairs, lease).await?, their)
        } else {
            let our = timed(tasks, pairs, lease).await?;
            (our, timed(tasks, pairs, bare).await?)
        };
        // The first round warms both.
        if round > 0 {
            ours.push(our);
            theirs.push(their);
            ratios.push(our / their);
        }
    }
    Ok([median(&ours), median(&theirs), median(&ratios)])
}

/// Measures everything.
///
/// # Errors
/// The server's, or when a name is held by somebody.
pub fn measure(report: &mut Report, effort: Effort) -> Result<(), Failure> {
    alloc::pause(true);
    let pairs = measure_pairs(report, effort);
    alloc::pause(false);
    pairs?;
    measure_operations(report)?;
    measure_held(report, effort.periods)?;
    measure_handovers(report, effort.handovers)
}

/// The runtime that `#[tokio::main]` makes: what most programs run on.
fn users_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

fn measure_pairs(report: &mut Report, effort: Effort) -> Result<(), Failure> {
    for delay_ms in [0, 1, 20] {
        for tasks in [1, MANY] {
            users_runtime()?.block_on(async {
                let bench = Bench::open(delay_ms == 0).await?;
                bench.link.latency(Direction::ToClient, Duration::from_millis(delay_ms), Duration::ZERO);
                // A slow link leaves time for fewer.
                let divisor = [1, 10, 100][[0, 1, 20].iter().position(|&d| d == delay_ms).unwrap_or(0)];
                let pairs = (effort.pairs * if tasks == 1 { 1 } else { 8 } / divisor).max(2 * tasks);
                let [ours, theirs, ratio] = compare(&bench, tasks, effort.rounds, pairs).await?;
                let at = match (delay_ms, tasks) {
                    (0, 1) => "1 task".to_owned(),
                    (0, _) => format!("{tasks} tasks"),
                    (_, 1) => format!("1 task, {delay_ms} ms on the link"),
                    _ => format!("{tasks} tasks, {delay_ms} ms on the link"),
                };
                report.note(format!("redis, {at}: acquire and release"), ours, "pairs/s");
                report.note(format!("redis, {at}: SET NX PX and compare-delete"), theirs, "pairs/s");
                let least = match (delay_ms, tasks) {
                    (0, 1) => Target::AtLeast(RATIO_ALONE_MIN),
                    (0, _) => Target::AtLeast(RATIO_MANY_MIN),
                    (_, 1) => Target::AtLeast(RATIO_DELAYED_MIN),
                    _ => Target::None,
                };
                report.check(format!("redis, {at}: lease over commands"), ratio, "ratio", least);
                if delay_ms == 0 {
                    let absolute = server_benchmark(&bench.server, tasks)?;
                    report.note(format!("redis, {at}: redis-benchmark, SET"), absolute, "commands/s");
                }
                Ok::<_, Failure>(())
            })?;
        }
    }
    Ok(())
}

/// What the server's own tool reaches with so many clients, each waiting for its answer.
fn server_benchmark(server: &RedisServer, clients: usize) -> Result<f64, Failure> {
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-q", "--csv", "-n", "20000"])
        .args(["-c", &clients.to_string(), "-P", "1", "SET", "bench:__rand_int__", "x"])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("redis-benchmark (of redis-tools): {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate =
        text.lines().last().and_then(|line| line.split("\",\"").nth(1)).map(|rate| rate.trim_matches('"'));
    rate.and_then(|rate| rate.parse().ok()).ok_or_else(|| format!("redis-benchmark said {text:?}").into())
}

/// Commands that the server ran for one acquire, one release, and one renewal of a batch.
fn measure_operations(report: &mut Report) -> Result<(), Failure> {
    const PAIRS: usize = 1_000;
    runtime()?.block_on(async {
        let bench = Bench::open(true).await?;
        let name: LeaseName = "bench/operations".parse()?;
        // The first pair loads the scripts.
        lease_pairs(bench.client.clone(), name.clone(), 1).await?;
        let sent = |bench: &Bench| bench.server.command_stats().get("evalsha").map_or(0, |stat| stat.calls);
        let (mut acquires, mut releases, mut renewals) = (0, 0, 0);
        for _ in 0..PAIRS {
            let before = sent(&bench);
            let TryAcquire::Granted(lease) = bench.client.try_acquire(&name, &Settings::new()).await? else {
                return Err("held by somebody".into());
            };
            let granted = sent(&bench);
            lease.renew().await?;
            let renewed = sent(&bench);
            lease.release().await?;
            let released = sent(&bench);
            acquires += granted - before;
            renewals += renewed - granted;
            releases += released - renewed;
        }
        for (what, calls) in [("acquire", acquires), ("renewal", renewals), ("release", releases)] {
            let each = calls as f64 / PAIRS as f64;
            report.check(format!("redis: round trips of {what}"), each, "", Target::AtMost(1.0));
        }
        Ok(())
    })
}

/// Many leases: how many calls renew them, and what they take here and there.
fn measure_held(report: &mut Report, periods: u32) -> Result<(), Failure> {
    // A period is a third of it.
    let ttl = Duration::from_secs(9);
    runtime()?.block_on(async {
        let bench = Bench::open(true).await?;
        let settings = Settings::new().ttl(ttl);
        let used = |bench: &Bench| {
            bench.server.info("memory").get("used_memory").and_then(|n| n.parse::<f64>().ok())
        };
        let first = acquire_all(&bench.client, &names("first", 1)?, &settings).await?;
        let (there, here) = (used(&bench).unwrap_or(0.0), alloc::counts().live_bytes);
        let leases = acquire_all(&bench.client, &names("held", HELD)?, &settings).await?;
        if alloc::is_counting() {
            let bytes = (alloc::counts().live_bytes - here) as f64 / HELD as f64;
            report.note("redis, held 10,000: memory of a lease", bytes, "bytes");
        }
        let bytes = (used(&bench).unwrap_or(0.0) - there) / HELD as f64;
        report.note("redis, held 10,000: memory of a lease on the server", bytes, "bytes");
        // The first period spreads what was granted within an instant.
        tokio::time::sleep(ttl / 3).await;
        let before = bench.requests();
        tokio::time::sleep(ttl / 3 * periods).await;
        let calls = (bench.requests() - before) as f64 / f64::from(periods);
        report.check("redis, held 10,000: calls of a renewal period", calls, "", Target::AtMost(CALLS_MAX));
        let lost = leases.iter().filter(|lease| lease.check().is_err()).count();
        report.check("redis, held 10,000: leases lost", lost as f64, "", Target::AtMost(0.0));
        drop((first, leases));
        bench.client.shutdown(Duration::from_secs(30)).await;
        Ok(())
    })
}

async fn acquire_all(
    client: &LeaseClient,
    names: &[LeaseName],
    settings: &Settings,
) -> Result<Vec<Lease>, Failure> {
    let mut leases = Vec::with_capacity(names.len());
    for name in names {
        match client.try_acquire(name, settings).await? {
            TryAcquire::Granted(lease) => leases.push(lease),
            TryAcquire::Held(_) => return Err(format!("{name} is held by somebody").into()),
        }
    }
    Ok(leases)
}

/// Hand-overs between two processes beside the least that any must take, and among many waiters.
fn measure_handovers(report: &mut Report, rounds: usize) -> Result<(), Failure> {
    let server = RedisServer::plain()?;
    let url = server.url();
    let (round_trip, publish) = runtime()?.block_on(floor(&url, rounds))?;
    report.note("redis: round trip: p50", round_trip, "µs");
    report.note("redis: a published message: p50", publish, "µs");
    let latencies = handover::between_processes(&url, rounds)?;
    for percent in [50, 99] {
        let what = format!("handover between two processes on redis: p{percent}");
        report.note(what, percentile(&latencies, percent), "µs");
    }
    let ratio = percentile(&latencies, 50) / (round_trip + publish);
    let most = Target::AtMost(HANDOVER_MAX);
    report.check("handover between two processes on redis: p50 over the floor", ratio, "ratio", most);
    among_many(report, &server, rounds)
}

/// Medians of a round trip, and of the time from publishing a message to its arrival, in µs. As in a hand-over,
/// everybody has been idle before: what is asleep takes its time to wake.
async fn floor(url: &str, rounds: usize) -> Result<(f64, f64), Failure> {
    let client = Client::open(url)?;
    let mut raw = client.get_multiplexed_async_connection().await?;
    let mut subscription = client.get_async_pubsub().await?;
    subscription.subscribe("bench").await?;
    let mut messages = subscription.into_on_message();
    let (mut trips, mut ways) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(100) {
        handover::pause(handover::HOLD).await;
        let began = Instant::now();
        let _: () = cmd("PING").query_async(&mut raw).await?;
        trips.push(began.elapsed().as_nanos() as f64 / 1_000.0);
        handover::pause(handover::HOLD).await;
        let began = Instant::now();
        let publish = raw.publish::<_, _, i64>("bench", "");
        let (receivers, message) = tokio::join!(publish, futures_util::StreamExt::next(&mut messages));
        if receivers? != 1 || message.is_none() {
            return Err("a published message did not arrive".into());
        }
        ways.push(began.elapsed().as_nanos() as f64 / 1_000.0);
    }
    Ok((percentile(&trips, 50), percentile(&ways, 50)))
}

/// Many clients that know nothing of each other hand one name around, each holding it for a millisecond.
fn among_many(report: &mut Report, server: &RedisServer, handovers: usize) -> Result<(), Failure> {
    let each = (handovers / WAITERS).max(2);
    runtime()?.block_on(async {
        let mut waiters = Vec::new();
        for _ in 0..WAITERS {
            waiters.push(crate::place::Opened::open(&server.url()).await?);
        }
        let name: LeaseName = "bench/among".parse()?;
        server.reset_stats();
        let began = Instant::now();
        let running: Vec<_> = waiters
            .iter()
            .map(|waiter| {
                let (client, name) = (waiter.client().clone(), name.clone());
                tokio::spawn(async move {
                    let mut waited = Vec::with_capacity(each);
                    for _ in 0..each {
                        let asked = Instant::now();
                        let lease = client
                            .acquire(&name, &Settings::new(), Wait::AtMost(Duration::from_secs(120)))
                            .await?;
                        waited.push(asked.elapsed().as_secs_f64() * 1_000.0);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        lease.release().await?;
                    }
                    Ok::<_, Failure>(waited)
                })
            })
            .collect();
        let mut waited = Vec::new();
        for task in running {
            waited.extend(task.await??);
        }
        let took = began.elapsed().as_secs_f64();
        let grants = (each * WAITERS) as f64;
        let calls = server.command_stats().get("evalsha").map_or(0, |stat| stat.calls) as f64;
        report.note(format!("handover among {WAITERS} on redis: {grants} grants of 1 ms"), took, "s");
        report.note(format!("handover among {WAITERS} on redis: calls of a grant"), calls / grants, "");
        for percent in [50, 99] {
            let what = format!("handover among {WAITERS} on redis: wait p{percent}");
            report.note(what, percentile(&waited, percent), "ms");
        }
        Ok(())
    })
}
