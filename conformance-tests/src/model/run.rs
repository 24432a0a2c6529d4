//! Runs sequences on a store beside the model, and cuts down those that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Declared, Expiry, Profile, TokenSource, TtlChange};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::store::Store;
use super::{Abilities, Call, Model, NODES, sequences};
use crate::{Bench, Failed, Node};

/// Runs of shorter sequences in search of the shortest that still fails.
const CUTS_MAX: u32 = 400;

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sequences.
    pub(crate) sequences: u32,
    /// Calls of one sequence, at most.
    pub(crate) calls: usize,
    /// A slow store is given fewer sequences.
    pub(crate) time: Duration,
}

/// What was agreed on. Agreement proves nothing unless there was something to disagree on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) sequences: u32,
    pub(crate) calls: u32,
    pub(crate) grants: u32,
    pub(crate) refusals: u32,
    /// Calls of owners whose grant was over: by time, or by somebody else.
    pub(crate) late: u32,
    /// Writes that were refused as stale.
    pub(crate) stale: u32,
}

/// Runs random sequences, made from `seed`, until the limits are reached.
///
/// # Errors
/// The shortest sequence found on which store and model do not agree.
pub(crate) async fn agree(bench: &Bench, seed: u64, limits: Limits) -> Result<Agreed, Failed> {
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(bench.node().await?);
    }
    let profile: &Profile = nodes[0].profile();
    let abilities = Abilities {
        time: bench.manual().is_some() && profile.expiry == Expiry::Ttl,
        keep_for: profile.keep_for == Declared::Yes,
        floors: profile.token == TokenSource::Value,
        ttl_change: profile.ttl_change != TtlChange::Refused,
        batch_max: profile.batch_max,
        admin: nodes[0].store_admin().is_some(),
        fenced: nodes[0].fenced().is_ok(),
        own: !bench.is_shared(),
    };
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = sequences(abilities, limits.calls);
    let mut agreed = Agreed::default();
    let started = Instant::now();
    while agreed.sequences < limits.sequences && started.elapsed() < limits.time {
        let tree =
            strategy.new_tree(&mut runner).map_err(|why| Failed::new(format!("no sequence: {why}")))?;
        let (sequence, current) = (agreed.sequences, tree.current());
        let calls = current.1.clone();
        if let Err(failed) = run(bench, &nodes, current, &mut agreed).await {
            let (calls, failed) = shortest(bench, &nodes, tree, (calls, failed)).await;
            let calls: Vec<String> = calls.iter().map(|call| format!("\n  {call:?}")).collect();
            return Err(Failed::new(format!(
                "sequence {sequence} of seed {seed} (LEASEHOLD_TEST_SEED={seed}), cut down to:{}\n{failed}",
                calls.concat()
            )));
        }
        agreed.sequences += 1;
    }
    Ok(agreed)
}

type Sequence = (Model, Vec<Call>, Option<Arc<AtomicUsize>>);

/// Cuts a failing sequence down.
async fn shortest(
    bench: &Bench,
    nodes: &[Node],
    mut tree: impl ValueTree<Value = Sequence>,
    mut best: (Vec<Call>, Failed),
) -> (Vec<Call>, Failed) {
    let mut smaller = tree.simplify();
    for _ in 0..CUTS_MAX {
        if !smaller {
            break;
        }
        let (model, calls, seen) = tree.current();
        smaller = match run(bench, nodes, (model, calls.clone(), seen), &mut Agreed::default()).await {
            Err(failed) => {
                best = (calls, failed);
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    best
}

/// One sequence, on names of its own.
async fn run(
    bench: &Bench,
    nodes: &[Node],
    (mut model, calls, seen): Sequence,
    agreed: &mut Agreed,
) -> Result<(), Failed> {
    let mut store = Store::new(bench, nodes);
    for call in &calls {
        // How far a sequence came is where cutting it down begins.
        if let Some(seen) = &seen {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        let after = model.clone().after(call);
        store.apply(&model, &after, call, agreed).await?;
        agreed.calls += 1;
        model = after;
    }
    store.give_back(&model).await
}
