//! A small reference model of a store, and random sequences of calls that store and model must agree
//! on.
//!
//! The model knows names, owners and time; which tokens a store grants is the store's business, and
//! only their order is compared. Calls come from several connections, one after the other. A sequence
//! that fails is cut down to the calls that matter, and shown with the seed that brings it back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::Union;
use proptest_state_machine::Sequential;

mod run;
mod store;

pub(crate) use run::{Limits, agree};

/// How many names one sequence is about.
const NAMES: usize = 2;
/// How many owners are renewed in one call, where the store takes so many.
const BATCH: usize = 3;
/// How many connections call.
const NODES: usize = 3;
/// How many keys of fenced values there are.
const KEYS: u8 = 2;
/// Ttls in milliseconds: none divides another, so that an end is nobody else's end.
const TTLS_MS: [u64; 3] = [5_003, 11_027, 60_013];
/// Steps in time, in milliseconds.
const STEPS_MS: [u64; 4] = [701, 2_903, 7_307, 31_121];
/// So close to an end it is the store's granularity that decides: no step in time ends there.
const NEAR_AN_END_MS: u64 = 50;

/// What the store of a run can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Time is virtual, and grants run out by it.
    time: bool,
    keep_for: bool,
    floors: bool,
    ttl_change: bool,
    /// Renewals of one call, at most.
    batch_max: usize,
    admin: bool,
    fenced: bool,
    /// What holds for all names may be changed.
    own: bool,
}

/// Whose a name is. A grant that has run out stays until somebody comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Never,
    By { owner: usize, until_ms: u64 },
    Kept { until_ms: u64 },
}

/// An acquisition, granted or not.
#[derive(Clone, Copy, Debug)]
struct Owner {
    name: usize,
    ttl: usize,
    /// Released or forced out: such an owner never asks again.
    over: bool,
}

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    abilities: Abilities,
    now_ms: u64,
    names: [Taken; NAMES],
    owners: Vec<Owner>,
    /// The highest token presented to the fence of each name.
    marks: [Option<u64>; NAMES],
    /// What was written last: token and value.
    values: BTreeMap<(usize, u8), (u64, u8)>,
}

/// One call, from one of the connections, or a step in time.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// A new owner asks.
    Try {
        node: usize,
        name: usize,
        ttl: usize,
        floor: bool,
    },
    /// An owner asks again.
    Again {
        node: usize,
        owner: usize,
        ttl: usize,
        floor: bool,
    },
    Renew {
        node: usize,
        owner: usize,
        ttl: usize,
        floor: bool,
    },
    /// The last owners in one call.
    RenewBatch {
        node: usize,
        ttls: [usize; BATCH],
    },
    Release {
        node: usize,
        owner: usize,
        keep: bool,
    },
    Look {
        node: usize,
        name: usize,
    },
    /// By the right token, or by one that nobody holds.
    Force {
        node: usize,
        name: usize,
        right: bool,
    },
    RaiseFloor {
        node: usize,
        name: usize,
        all: bool,
    },
    Pass {
        step: usize,
    },
    /// The wall clock is set back by an hour. Nothing but tokens looks at it.
    StepBack,
    Advance {
        node: usize,
        name: usize,
        token: u64,
    },
    Put {
        node: usize,
        name: usize,
        key: u8,
        token: u64,
        value: u8,
    },
    /// Reads every value of a name.
    Values {
        node: usize,
        name: usize,
    },
    Purge {
        node: usize,
        name: usize,
        token: u64,
    },
}

impl Abilities {
    fn model(self) -> Model {
        Model {
            abilities: self,
            now_ms: 0,
            names: [Taken::Never; NAMES],
            owners: Vec::new(),
            marks: [None; NAMES],
            values: BTreeMap::new(),
        }
    }
}

impl Model {
    /// Who holds the name now.
    fn holder(&self, name: usize) -> Option<usize> {
        match self.names[name] {
            Taken::By { owner, until_ms } if self.now_ms < until_ms => Some(owner),
            _ => None,
        }
    }

    /// How long until the name is free, in milliseconds; none when it is, or when nothing runs out.
    fn free_in_ms(&self, name: usize) -> Option<u64> {
        match self.names[name] {
            Taken::By { until_ms, .. } | Taken::Kept { until_ms } if self.now_ms < until_ms => {
                (until_ms < u64::MAX).then(|| until_ms - self.now_ms)
            }
            _ => None,
        }
    }

    /// Who is renewed by a batch, each for which ttl.
    fn batch(&self, ttls: [usize; BATCH]) -> Vec<(usize, usize)> {
        let owners = self.owners.len();
        let last = owners.saturating_sub(BATCH.min(self.abilities.batch_max))..owners;
        last.zip(ttls).map(|(owner, ttl)| (owner, self.ttl_of(owner, ttl))).collect()
    }

    /// The ttl of a renewal: the owner's, where it cannot be changed.
    fn ttl_of(&self, owner: usize, ttl: usize) -> usize {
        if self.abilities.ttl_change { ttl } else { self.owners[owner].ttl }
    }

    fn renew(&mut self, owner: usize, ttl: usize) {
        if self.holder(self.owners[owner].name) == Some(owner) {
            self.grant(owner, ttl);
        }
    }

    /// Whether the name is kept taken without an owner.
    fn is_kept(&self, name: usize) -> bool {
        matches!(self.names[name], Taken::Kept { until_ms } if self.now_ms < until_ms)
    }

    /// Whether this owner's grant was the last one, and has run out.
    fn has_run_out(&self, owner: usize) -> bool {
        let name = self.owners[owner].name;
        matches!(self.names[name], Taken::By { owner: last, .. } if last == owner)
            && self.holder(name).is_none()
    }

    /// When a countdown that starts now is over. Without virtual time nothing runs out.
    fn end_ms(&self, ttl: usize) -> u64 {
        if self.abilities.time { self.now_ms + TTLS_MS[ttl] } else { u64::MAX }
    }

    fn grant(&mut self, owner: usize, ttl: usize) {
        self.owners[owner].ttl = ttl;
        let until_ms = self.end_ms(ttl);
        self.names[self.owners[owner].name] = Taken::By { owner, until_ms };
    }

    fn ask(&mut self, owner: usize, ttl: usize) {
        let name = self.owners[owner].name;
        let free = self.holder(name).is_none_or(|holder| holder == owner) && !self.is_kept(name);
        if free {
            self.grant(owner, ttl);
        }
    }

    fn pass(&mut self, step: usize) {
        self.now_ms += STEPS_MS[step];
        let near = |now: u64, taken: &Taken| match taken {
            Taken::By { until_ms, .. } | Taken::Kept { until_ms } => now.abs_diff(*until_ms) < NEAR_AN_END_MS,
            Taken::Never => false,
        };
        while self.names.iter().any(|taken| near(self.now_ms, taken)) {
            self.now_ms += NEAR_AN_END_MS;
        }
    }

    fn fence(&mut self, name: usize, token: u64) -> bool {
        let accepted = self.marks[name] <= Some(token);
        if accepted {
            self.marks[name] = Some(token);
        }
        accepted
    }
}

impl Model {
    /// The model after a call.
    fn after(mut self, call: &Call) -> Model {
        match *call {
            Call::Try { name, ttl, .. } => {
                self.owners.push(Owner { name, ttl, over: false });
                self.ask(self.owners.len() - 1, ttl);
            }
            Call::Again { owner, ttl, .. } => self.ask(owner, ttl),
            Call::Renew { owner, ttl, .. } => {
                let ttl = self.ttl_of(owner, ttl);
                self.renew(owner, ttl);
            }
            Call::RenewBatch { ttls, .. } => {
                self.batch(ttls).into_iter().for_each(|(owner, ttl)| self.renew(owner, ttl));
            }
            Call::Release { owner, keep, .. } => {
                let name = self.owners[owner].name;
                self.owners[owner].over = true;
                if self.holder(name) == Some(owner) {
                    let until_ms = self.end_ms(0);
                    self.names[name] = if keep { Taken::Kept { until_ms } } else { Taken::Never };
                } else if self.has_run_out(owner) {
                    self.names[name] = Taken::Never;
                }
            }
            Call::Force { name, right, .. } => {
                if let Some(holder) = self.holder(name).filter(|_| right) {
                    self.owners[holder].over = true;
                    self.names[name] = Taken::Never;
                }
            }
            Call::Pass { step } => self.pass(step),
            Call::Advance { name, token, .. } => _ = self.fence(name, token),
            Call::Put { name, key, token, value, .. } => {
                if self.fence(name, token) {
                    self.values.insert((name, key), (token, value));
                }
            }
            Call::Purge { name, token, .. } => {
                if self.fence(name, token) {
                    self.values.retain(|(of, _), _| *of != name);
                }
            }
            Call::Look { .. } | Call::RaiseFloor { .. } | Call::StepBack | Call::Values { .. } => {}
        }
        self
    }
}

/// Random sequences of up to `calls` calls, on a store with these abilities.
fn sequences(
    abilities: Abilities,
    calls: usize,
) -> Sequential<Model, Call, Just<Model>, BoxedStrategy<Call>> {
    let begin = move || Just(abilities.model());
    Sequential::new((1..=calls).into(), begin, is_possible, next_calls, Model::after)
}

/// Whether the model knows what has to come of a call.
fn is_possible(model: &Model, call: &Call) -> bool {
    let known = |owner: &usize| *owner < model.owners.len();
    match call {
        // An owner id is never used again after its end.
        Call::Again { owner, .. } => known(owner) && !model.owners[*owner].over,
        // Whether a grant that has run out can still be kept is left to the store.
        Call::Release { owner, keep, .. } => known(owner) && !(*keep && model.has_run_out(*owner)),
        Call::Renew { owner, .. } => known(owner),
        // Who frees a kept name, and how, is left to the store.
        Call::Force { name, .. } => !model.is_kept(*name),
        _ => true,
    }
}

/// What may come next: only what the store can do, and what is about owners only when there are some.
fn next_calls(model: &Model) -> BoxedStrategy<Call> {
    let Abilities { time, keep_for, floors, admin, fenced, own, .. } = model.abilities;
    let node = || 0..NODES;
    let name = || 0..NAMES;
    let ttl = || 0..TTLS_MS.len();
    let rarely = |able: bool| prop::bool::weighted(if able { 0.15 } else { 0.0 });
    let mut all: Vec<(u32, BoxedStrategy<Call>)> = vec![
        (
            6,
            (node(), name(), ttl(), rarely(floors))
                .prop_map(|(node, name, ttl, floor)| Call::Try { node, name, ttl, floor })
                .boxed(),
        ),
        (2, (node(), name()).prop_map(|(node, name)| Call::Look { node, name }).boxed()),
    ];
    if !model.owners.is_empty() {
        // The last ones are those that may hold.
        let owners = model.owners.len();
        let owner = move || (owners.saturating_sub(4)..owners).boxed();
        let asked = (node(), owner(), ttl(), rarely(floors));
        let again = asked.prop_map(|(node, owner, ttl, floor)| Call::Again { node, owner, ttl, floor });
        let renewed = (node(), owner(), ttl(), rarely(floors));
        let renew = renewed.prop_map(|(node, owner, ttl, floor)| Call::Renew { node, owner, ttl, floor });
        let released = (node(), owner(), rarely(keep_for));
        let release = released.prop_map(|(node, owner, keep)| Call::Release { node, owner, keep });
        let batch = (node(), [ttl(), ttl(), ttl()]);
        let batch = batch.prop_map(|(node, ttls)| Call::RenewBatch { node, ttls });
        all.extend([(2, again.boxed()), (3, renew.boxed()), (2, batch.boxed()), (4, release.boxed())]);
    }
    if time {
        all.push((4, (0..STEPS_MS.len()).prop_map(|step| Call::Pass { step }).boxed()));
        all.push((1, Just(Call::StepBack).boxed()));
    }
    if admin {
        let force = (node(), name(), any::<bool>());
        all.push((1, force.prop_map(|(node, name, right)| Call::Force { node, name, right }).boxed()));
    }
    if admin && floors {
        let floor = (node(), name(), rarely(own));
        all.push((1, floor.prop_map(|(node, name, all)| Call::RaiseFloor { node, name, all }).boxed()));
    }
    if fenced {
        all.push((4, fence_calls()));
    }
    Union::new_weighted(all).boxed()
}

fn fence_calls() -> BoxedStrategy<Call> {
    let place = || (0..NODES, 0..NAMES);
    let token = || 1_000u64..1_005;
    let key = || 0..KEYS;
    prop_oneof![
        (place(), token()).prop_map(|((node, name), token)| Call::Advance { node, name, token }),
        (place(), key(), token(), any::<u8>())
            .prop_map(|((node, name), key, token, value)| { Call::Put { node, name, key, token, value } }),
        place().prop_map(|(node, name)| Call::Values { node, name }),
        (place(), token()).prop_map(|((node, name), token)| Call::Purge { node, name, token }),
    ]
    .boxed()
}
