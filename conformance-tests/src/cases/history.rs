//! What holders believe while many contend and calls get lost, judged from its recording.

use std::time::Duration;

use leasehold_core::{
    AcquireError, BackendContext, Effect, Fenced, HolderInfo, Lease, LeaseName, Released, Settings, Token,
    TryAcquire, Wait,
};
use tokio::task::JoinHandle;

use super::SOON;
use crate::case::check;
use crate::checker::{Bounds, Property, Verdict, judge};
use crate::history::{Action, Kind, Recorder};
use crate::seed::{Numbers, seed};
use crate::{Bench, Failed, Fate, Node, Op};

/// Processes that contend.
const NODES: usize = 3;
/// Tasks of each.
const TASKS: usize = 2;
/// Names that they contend for.
const NAMES: usize = 2;
/// What holders write, beside their lease.
const KEY: &str = "sum";

/// H1 to H11: with lost, late and unclear answers, holders that stop, and callers that go away, the
/// recorded history of what everybody believed keeps every property.
pub(crate) async fn contention_under_faults_breaks_no_property(bench: Bench) -> Result<(), Failed> {
    let rounds = if bench.manual().is_some() { 40 } else { 4 };
    let seed = seed()?;
    // The store sees nothing of a request that is lost on its way: whoever sent it seems to sleep.
    bench.excuse(Property::H9);
    let recorder = Recorder::new();
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(bench.node().await?);
    }
    let names: Vec<LeaseName> = (0..NAMES).map(|_| bench.name()).collect();
    let mut contenders = Vec::new();
    for task in 0..NODES * TASKS {
        let contender = Contender {
            node: nodes[task % NODES].clone(),
            names: names.clone(),
            numbers: Numbers::of(seed, task as u64),
            recorder: recorder.clone(),
            label: format!("t{task}"),
        };
        contenders.push(tokio::spawn(contender.contend(rounds)));
    }
    // Each round holds for two ttls at most, waits for as long, and may run into two time limits.
    let round = nodes[0].ttl() * 4 + Bench::OPERATION_TIMEOUT * 2;
    let all = || contenders.iter().all(JoinHandle::is_finished);
    bench.until_true("all rounds end", round * rounds, all).await?;
    for contender in contenders {
        contender.await??;
    }
    // What was given up has its time, and then nothing is left.
    nodes.iter().for_each(|node| node.store.open());
    bench.pass(Bench::OPERATION_TIMEOUT * 2 + SOON).await;
    for name in &names {
        let what = format!("{name} becomes free");
        bench.until(&what, nodes[0].ttl() * 2, async || nodes[0].is_free(name).await).await?;
        look(&recorder, &nodes[0], name).await?;
    }
    verdict(&bench, &recorder, seed)
}

/// Judges the recording, and asserts that there was something to judge.
fn verdict(bench: &Bench, recorder: &Recorder, seed: u64) -> Result<(), Failed> {
    let history = recorder.history().map_err(|e| Failed::new(e.to_string()))?;
    let history = history.ok_or_else(|| Failed::new("the recording is full"))?;
    let bounds = Bounds {
        loss_told_within: bench.patient(Duration::from_millis(10)) + bench.step(),
        // The attempt's own time, and a release whose reply is lost too, and one more.
        cleaned_up_within: bench.patient(Bench::OPERATION_TIMEOUT * 3) + bench.step(),
        ..Bounds::default()
    };
    let verdict = judge(&history, bounds);
    if let Some(found) = verdict.violations.first() {
        let message = format!("seed {seed} (LEASEHOLD_TEST_SEED={seed}) breaks {found}");
        return Err(Failed::new(message).with_history(&history.about(&found.name)));
    }
    let Verdict { grants, refusals, unknown, cancelled, losses, takeovers, .. } = verdict;
    eprintln!(
        "{}: seed {seed}: {grants} grants, {refusals} refusals, {unknown} unknown, {cancelled} given up, \
         {losses} losses, {takeovers} takeovers",
        bench.harness()
    );
    check!(grants > 5 && refusals > 0, "nobody contended: {grants} grants, {refusals} refusals");
    check!(losses > 0 && takeovers > 0, "nothing was lost: {losses} losses, {takeovers} takeovers");
    check!(unknown + cancelled > 0, "every answer came");
    Ok(())
}

/// One task of one process. It is recorded under the label that its leases show.
struct Contender {
    node: Node,
    names: Vec<LeaseName>,
    numbers: Numbers,
    recorder: Recorder,
    label: String,
}

impl Contender {
    async fn contend(mut self, rounds: u32) -> Result<(), Failed> {
        for round in 0..rounds {
            let name = self.names[self.numbers.below(NAMES as u64) as usize].clone();
            let owner = format!("{}-{round}", self.label);
            self.trouble();
            if let Some(lease) = self.acquire(&name, &owner).await? {
                self.hold(&name, &owner, lease).await?;
            }
            self.pause(4).await;
            look(&self.recorder, &self.node, &name).await?;
        }
        Ok(())
    }

    fn context(&self) -> BackendContext {
        self.node.context()
    }

    /// Lets up to a part of a ttl pass.
    async fn pause(&mut self, part: u64) {
        let ms = self.node.ttl().as_millis() as u64 / part;
        let context = self.context();
        context.sleep_until(context.now() + Duration::from_millis(self.numbers.below(ms.max(1)))).await;
    }

    /// Orders that something of what comes next goes wrong on this process's link, or nothing.
    fn trouble(&mut self) {
        let op = [Op::Acquire, Op::Acquire, Op::Renew, Op::Release][self.numbers.below(4) as usize];
        let fate = match self.numbers.below(12) {
            0 | 1 => Fate::LoseReply,
            2 => Fate::BreakReply,
            3 => Fate::Refuse,
            4 => Fate::DropRequest,
            5 | 6 => Fate::LateReply(Duration::from_millis(500 + self.numbers.below(1_400))),
            _ => return,
        };
        self.node.store.set_times(op, fate, 1);
    }

    /// Tries, or waits; or goes away before the answer.
    async fn acquire(&mut self, name: &LeaseName, owner: &str) -> Result<Option<Lease>, Failed> {
        let none: [(&str, &str); 0] = [];
        let holder = HolderInfo::new(owner, none)?;
        // Renewed by hand: then this recording knows every deadline.
        let settings: Settings = self.node.settings().fixed().holder(holder);
        let (client, context) = (self.node.client.clone(), self.context());
        let open = self.recorder.begin(&context, Action::Acquire, name, owner, None);
        let answer = match self.numbers.below(4) {
            0 => client.try_acquire(name, &settings).await.map(|tried| match tried {
                TryAcquire::Granted(lease) => Ok(lease),
                TryAcquire::Held(seen) => Err(seen),
            }),
            1 => {
                let end = context.now() + Duration::from_millis(self.numbers.below(300));
                let waiting = client.acquire(name, &settings, Wait::Forever);
                tokio::select! {
                    lease = waiting => lease.map(Ok),
                    () = context.sleep_until(end) => {
                        open.cancel();
                        return Ok(None);
                    }
                }
            }
            _ => client.acquire(name, &settings, Wait::AtMost(self.node.ttl() * 2)).await.map(Ok),
        };
        let label = |holder: Option<leasehold_core::HolderView>| holder.map(|h| h.info.label().to_owned());
        match answer {
            Ok(Ok(lease)) => {
                let until = lease.valid_until().map(|at| at.as_nanos());
                open.ok(|end| (end.token, end.until_ns) = (Some(lease.token().get()), until.or(Some(0))));
                return Ok(Some(lease));
            }
            Ok(Err(seen)) => open.fail(|end| end.holder = label(seen.holder)),
            Err(AcquireError::TimedOut { seen, .. }) => open.fail(|end| end.holder = label(seen.holder)),
            // The client takes back what it may have got.
            Err(AcquireError::Backend(error)) if error.effect() == Effect::Unknown => open.cancel(),
            Err(AcquireError::Backend(_)) => open.fail(|_| {}),
            Err(other) => return Err(Failed::new(format!("{owner}: {other}"))),
        }
        Ok(None)
    }

    /// Works under the lease, and gives it back or lets it run out.
    async fn hold(&mut self, name: &LeaseName, owner: &str, lease: Lease) -> Result<(), Failed> {
        let context = self.context();
        self.write(name, owner, lease.token()).await?;
        for _ in 0..self.numbers.below(2) {
            self.pause(2).await;
            let valid = lease.check().is_ok();
            let kind = if valid { Kind::Ok } else { Kind::Fail };
            self.recorder.moment(&context, Action::Check, kind, name, owner);
            if !valid {
                return Ok(());
            }
            self.renew(name, owner, &lease).await;
        }
        if self.numbers.below(3) == 0 {
            // It stops renewing, and is told.
            lease.lost().await;
            self.recorder.moment(&context, Action::Lost, Kind::Ok, name, owner);
            // Too late: only the resource can refuse it.
            self.pause(1).await;
            return self.write(name, owner, lease.token()).await;
        }
        let open = self.recorder.begin(&context, Action::Release, name, owner, None);
        match lease.release().await {
            Ok(answer) => open.ok(|end| end.released = Some(matches!(answer, Released::Released))),
            Err(error) if error.effect() == Effect::None => open.fail(|_| {}),
            Err(_) => open.info(),
        }
        Ok(())
    }

    async fn renew(&self, name: &LeaseName, owner: &str, lease: &Lease) {
        let open = self.recorder.begin(&self.context(), Action::Renew, name, owner, None);
        match (lease.renew().await, lease.valid_until()) {
            (Ok(()), Some(until)) => open.ok(|end| end.until_ns = Some(until.as_nanos())),
            // Whatever the store did, the deadline is the old one.
            _ => open.info(),
        }
    }

    /// Adds one to a sum that the resource keeps: reads it after its token was seen there.
    async fn write(&self, name: &LeaseName, owner: &str, token: Token) -> Result<(), Failed> {
        let Ok(fenced) = self.node.fenced() else { return Ok(()) };
        let (context, token_seen) = (self.context(), Some(token));
        let open = self.recorder.begin(&context, Action::Write, name, owner, token_seen);
        match fenced.advance(name, token).await? {
            Fenced::Accepted => open.ok(|_| {}),
            Fenced::Stale(_) => {
                open.fail(|_| {});
                return Ok(());
            }
        }
        let read = fenced.get(name, KEY).await?;
        let sum = read.and_then(|read| Some(u64::from_be_bytes(read.value.try_into().ok()?))).unwrap_or(0);
        let open = self.recorder.begin(&context, Action::Write, name, owner, token_seen);
        match fenced.put(name, KEY, &(sum + 1).to_be_bytes(), token).await? {
            Fenced::Accepted => open.ok(|end| end.version = Some(sum + 1)),
            Fenced::Stale(_) => open.fail(|_| {}),
        }
        Ok(())
    }
}

/// Looks at a name, and records whom it sees.
async fn look(recorder: &Recorder, node: &Node, name: &LeaseName) -> Result<(), Failed> {
    let open = recorder.begin(&node.context(), Action::Look, name, "", None);
    let seen = node.store_inspect(name).await?;
    open.ok(|end| end.holder = seen.holder().map(|holder| holder.info.label().to_owned()));
    Ok(())
}
