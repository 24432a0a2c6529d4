//! The store's side of a sequence: each call is made, and its answer compared with the model's.

use std::time::Duration;

use leasehold_core::{
    Attempt, BootTime, Claim, Clock, Fenced, ForceRelease, HolderInfo, LeaseBackend, LeaseName, OwnerId,
    ReleaseRequest, Released, RenewAnswer, Renewal, Token,
};

use super::run::Agreed;
use super::{Call, KEYS, Model, NAMES, TTLS_MS};
use crate::case::{check, take};
use crate::{Bench, Failed, Node};

/// A floor lies so far above the last token: a second of the store's clock. Long enough to be told from
/// it, short enough that a store which others use too has caught up soon.
const FLOOR_AHEAD: u64 = 1_000_000;
/// An hour of the wall clock, in microseconds.
const HOUR_US: u64 = 3_600_000_000;

/// What an owner says about itself.
fn info(owner: usize) -> Result<HolderInfo, Failed> {
    Ok(HolderInfo::new(format!("owner {owner}"), [("of", "a sequence")])?)
}

/// Which real names, owners and tokens stand for the model's.
pub(super) struct Store<'a> {
    bench: &'a Bench,
    nodes: &'a [Node],
    names: Vec<LeaseName>,
    owners: Vec<(OwnerId, Option<Token>)>,
    /// No later token of a name is at or below this.
    floors: Vec<Option<Token>>,
}

impl<'a> Store<'a> {
    pub(super) fn new(bench: &'a Bench, nodes: &'a [Node]) -> Self {
        let names: Vec<LeaseName> = (0..NAMES).map(|_| bench.name()).collect();
        let floors = vec![None; names.len()];
        Store { bench, nodes, names, owners: Vec::new(), floors }
    }

    fn ttl(&self, ttl: usize) -> Duration {
        match self.bench.manual() {
            Some(_) => Duration::from_millis(TTLS_MS[ttl]),
            None => self.nodes[0].long_ttl() / (ttl as u32 + 1),
        }
    }

    fn claim(&self, model: &Model, owner: usize) -> Claim {
        let (id, token) = self.owners[owner];
        Claim::new(self.names[model.owners[owner].name].clone(), id, token)
    }

    /// A floor above everything that a name is known to have.
    fn floor_above(&self, name: usize) -> Result<Token, Failed> {
        let last = self.floors[name].map_or(1, Token::get);
        Ok(Token::new(last + FLOOR_AHEAD)?)
    }

    pub(super) async fn apply(
        &mut self,
        model: &Model,
        after: &Model,
        call: &Call,
        agreed: &mut Agreed,
    ) -> Result<(), Failed> {
        match *call {
            Call::Try { node, name: _, ttl, floor } => {
                self.owners.push((OwnerId::random(), None));
                self.ask(model, after, (node, self.owners.len() - 1), ttl, floor, agreed).await
            }
            Call::Again { node, owner, ttl, floor } => {
                self.ask(model, after, (node, owner), ttl, floor, agreed).await
            }
            Call::Renew { node, owner, ttl, floor } => {
                self.renew(model, node, &[(owner, model.ttl_of(owner, ttl), floor)], agreed).await
            }
            Call::RenewBatch { node, ttls } => {
                let batch = model.batch(ttls).into_iter().enumerate();
                // Each of a batch has its own ttl and floor.
                let batch = batch.map(|(i, (owner, ttl))| (owner, ttl, i == 1 && model.abilities.floors));
                self.renew(model, node, &batch.collect::<Vec<_>>(), agreed).await
            }
            Call::Release { node, owner, keep } => self.release(model, (node, owner), keep, agreed).await,
            Call::Look { node, name } => self.look(model, node, name).await,
            Call::Force { node, name, right } => self.force(model, node, name, right).await,
            Call::RaiseFloor { node, name, all } => self.raise_floor(node, name, all).await,
            Call::Pass { .. } => {
                if let Some(clock) = self.bench.manual() {
                    clock.advance(Duration::from_millis(after.now_ms - model.now_ms));
                    self.bench.settle().await;
                }
                Ok(())
            }
            Call::StepBack => {
                if let Some(clock) = self.bench.manual() {
                    clock.set_unix_micros(clock.unix_micros() - HOUR_US);
                }
                Ok(())
            }
            Call::Advance { .. } | Call::Put { .. } | Call::Values { .. } | Call::Purge { .. } => {
                self.fence(model, after, call, agreed).await
            }
        }
    }

    async fn ask(
        &mut self,
        model: &Model,
        after: &Model,
        (node, owner): (usize, usize),
        ttl: usize,
        floor: bool,
        agreed: &mut Agreed,
    ) -> Result<(), Failed> {
        let name = after.owners[owner].name;
        let mut request = self.nodes[node].request(&self.names[name], self.ttl(ttl));
        request.owner = self.owners[owner].0;
        request.holder_info = info(owner)?;
        request.token_floor = floor.then(|| self.floor_above(name)).transpose()?;
        let attempt = self.nodes[node].attempt(&request).await?;
        if after.holder(name) != Some(owner) {
            let seen = take!(attempt, Attempt::Held(seen) => seen, "granted beside {:?}", model.names[name]);
            let shown = seen.holder.map(|holder| holder.fingerprint);
            let holder = model.holder(name).map(|holder| self.owners[holder].0.fingerprint());
            check!(shown == holder, "refused by {shown:?} instead of {holder:?}");
            agreed.refusals += 1;
            return Ok(());
        }
        let grant = take!(attempt, Attempt::Granted(grant) => grant, "refused where nobody else holds");
        check!(grant.owner == request.owner, "granted to another owner");
        self.counted_from_now("the grant", grant.anchor, grant.ttl, request.store_ttl)?;
        check!(request.token_floor < Some(grant.token), "token {} at its floor", grant.token);
        let held = owner < model.owners.len() && model.holder(name) == Some(owner);
        match self.owners[owner].1.filter(|_| held && !floor) {
            Some(token) => check!(grant.token == token, "token {} after {token}: it was held", grant.token),
            None => {
                let floor = self.floors[name];
                check!(Some(grant.token) > floor, "token {} after {floor:?}", grant.token);
            }
        }
        self.owners[owner].1 = Some(grant.token);
        self.floors[name] = self.floors[name].max(Some(grant.token));
        agreed.grants += 1;
        Ok(())
    }

    /// Renews owners in one call, each with its ttl, and with a floor or without.
    async fn renew(
        &mut self,
        model: &Model,
        node: usize,
        batch: &[(usize, usize, bool)],
        agreed: &mut Agreed,
    ) -> Result<(), Failed> {
        let now = self.bench.now();
        let mut renewals = Vec::new();
        for &(owner, ttl, floor) in batch {
            let mut renewal = Renewal::new(self.claim(model, owner), self.ttl(ttl), now);
            let name = model.owners[owner].name;
            renewal.token_floor = floor.then(|| self.floor_above(name)).transpose()?;
            renewals.push(renewal);
        }
        let answers = self.nodes[node].store.renew(&renewals).await;
        check!(answers.len() == renewals.len(), "{} answers to {}", answers.len(), renewals.len());
        for ((&(owner, ..), renewal), answer) in batch.iter().zip(&renewals).zip(answers) {
            let name = model.owners[owner].name;
            if model.holder(name) != Some(owner) {
                take!(answer?, RenewAnswer::Lost(_) => (), "renewed beside {:?}", model.names[name]);
                agreed.late += 1;
                continue;
            }
            let answer = answer?;
            let (anchor, ttl) = take!(
                answer, RenewAnswer::Renewed { anchor, ttl, .. } => (anchor, ttl), "the holder was not renewed"
            );
            self.counted_from_now("the renewal", anchor, ttl, renewal.store_ttl)?;
            if let Some(floor) = renewal.token_floor {
                let seen = self.nodes[node].store_inspect(&self.names[name]).await?;
                let token = take!(seen.holder(), Some(holder) => holder.token, "renewed and not shown");
                check!(token > floor, "token {token} at a floor of {floor}");
                self.owners[owner].1 = Some(token);
                self.floors[name] = self.floors[name].max(Some(token));
            }
        }
        Ok(())
    }

    /// Where time is virtual it stood still during the call.
    fn counted_from_now(
        &self,
        what: &str,
        anchor: BootTime,
        ttl: Duration,
        asked: Duration,
    ) -> Result<(), Failed> {
        check!(ttl >= asked, "{what} lasts {ttl:?} of {asked:?}");
        let now = self.bench.now();
        check!(anchor <= now, "the anchor of {what} lies {:?} in the future", anchor.since(now));
        let exact = self.bench.manual().is_none() || anchor == now;
        check!(exact, "the anchor of {what} lies {:?} before the call", now.since(anchor));
        Ok(())
    }

    async fn release(
        &mut self,
        model: &Model,
        (node, owner): (usize, usize),
        keep: bool,
        agreed: &mut Agreed,
    ) -> Result<(), Failed> {
        let name = model.owners[owner].name;
        let mut request = ReleaseRequest::new(self.claim(model, owner), self.bench.now());
        if keep {
            request.keep_for = self.ttl(0);
        }
        let answer = self.nodes[node].store.release(&request).await?;
        let holder = model.holder(name);
        if holder == Some(owner) {
            take!(answer, Released::Released => (), "the holder's release");
            return Ok(());
        }
        agreed.late += 1;
        match answer {
            Released::NotHeld { .. } if holder.is_some() => Ok(()),
            Released::AlreadyReleased if holder.is_none() => Ok(()),
            // Its own, which ran out, and nobody came after it.
            Released::Released if model.has_run_out(owner) => Ok(()),
            other => {
                Err(Failed::new(format!("a late release beside {:?} says {other:?}", model.names[name])))
            }
        }
    }

    async fn look(&self, model: &Model, node: usize, name: usize) -> Result<(), Failed> {
        let seen = self.nodes[node].store_inspect(&self.names[name]).await?;
        let shown = seen.holder().map(|holder| (holder.fingerprint.clone(), holder.token));
        let holding = model.holder(name);
        let holder = holding.map(|holder| self.owners[holder]);
        let holder = holder.and_then(|(id, token)| Some((id.fingerprint(), token?)));
        check!(shown == holder, "{shown:?} is shown instead of {holder:?}");
        if let (Some(owner), Some(holder)) = (holding, seen.holder()) {
            check!(holder.info == info(owner)?, "it says of itself {:?}", holder.info);
        }
        let taken = holder.is_some() || model.is_kept(name);
        check!(seen.free_in.is_some() == taken, "free in {:?} with {:?}", seen.free_in, model.names[name]);
        if let Some(left_ms) = model.free_in_ms(name) {
            let left = Duration::from_millis(left_ms);
            let off = seen.free_in.unwrap_or_default().abs_diff(left);
            let granularity = self.nodes[node].profile().ttl_granularity;
            check!(off <= granularity, "free in {:?} instead of {left:?}", seen.free_in);
        }
        Ok(())
    }

    async fn force(&mut self, model: &Model, node: usize, name: usize, right: bool) -> Result<(), Failed> {
        let holder = model.holder(name);
        let held = holder.and_then(|holder| self.owners[holder].1);
        let other = Token::new(self.floors[name].map_or(1, Token::get) + 1)?;
        let token = held.filter(|_| right).unwrap_or(other);
        let request =
            ForceRelease::new(self.names[name].clone(), token, "a model", "a sequence", self.bench.now());
        let answer = self.nodes[node].admin()?.force_release(&request).await?;
        match (answer, holder) {
            (Released::Released, Some(_)) if right => Ok(()),
            (Released::NotHeld { .. }, Some(_)) if !right => Ok(()),
            (Released::AlreadyReleased, None) => Ok(()),
            (other, _) => Err(Failed::new(format!("a forced release of {holder:?} says {other:?}"))),
        }
    }

    async fn raise_floor(&mut self, node: usize, name: usize, all: bool) -> Result<(), Failed> {
        let floor = self.floor_above(name)?;
        let scope = (!all).then_some(&self.names[name]);
        self.nodes[node].admin()?.raise_floor(scope, floor).await?;
        let raised = self.floors.iter_mut().enumerate().filter(|(of, _)| all || *of == name);
        raised.for_each(|(_, known)| *known = (*known).max(Some(floor)));
        Ok(())
    }

    async fn fence(
        &self,
        model: &Model,
        after: &Model,
        call: &Call,
        agreed: &mut Agreed,
    ) -> Result<(), Failed> {
        let (node, name) = match *call {
            Call::Advance { node, name, .. }
            | Call::Put { node, name, .. }
            | Call::Values { node, name, .. }
            | Call::Purge { node, name, .. } => (node, name),
            _ => return Ok(()),
        };
        let (fenced, of) = (self.nodes[node].fenced()?, &self.names[name]);
        let (token, answer) = match *call {
            Call::Advance { token, .. } => (token, fenced.advance(of, Token::new(token)?).await?),
            Call::Put { key, token, value, .. } => {
                (token, fenced.put(of, &key.to_string(), &[value], Token::new(token)?).await?)
            }
            Call::Purge { token, .. } => (token, fenced.purge(of, Token::new(token)?).await?),
            _ => return self.values(after, node, name).await,
        };
        let accepted = model.marks[name] <= Some(token);
        agreed.stale += u32::from(!accepted);
        match answer {
            Fenced::Accepted if accepted => Ok(()),
            Fenced::Stale(stale) if !accepted => {
                let highest = Some(stale.highest.get());
                check!(
                    highest == model.marks[name],
                    "stale by {highest:?} instead of {:?}",
                    model.marks[name]
                );
                Ok(())
            }
            other => Err(Failed::new(format!("{other:?} for {token} at {:?}", model.marks[name]))),
        }
    }

    /// Compares every value of a name.
    async fn values(&self, model: &Model, node: usize, name: usize) -> Result<(), Failed> {
        let (fenced, of) = (self.nodes[node].fenced()?, &self.names[name]);
        for key in 0..KEYS {
            let read = fenced.get(of, &key.to_string()).await?;
            let read = read.map(|read| (read.token.get(), read.value));
            let written = model.values.get(&(name, key)).map(|(token, value)| (*token, vec![*value]));
            check!(read == written, "{read:?} was read and {written:?} written under key {key}");
        }
        Ok(())
    }

    /// Leaves nothing that is held: the next sequence has other names, and the store may be shared.
    pub(super) async fn give_back(&self, model: &Model) -> Result<(), Failed> {
        for name in 0..self.names.len() {
            self.look(model, 0, name).await?;
            if let Some(holder) = model.holder(name) {
                let released = self.nodes[0].release(&self.claim(model, holder)).await?;
                take!(released, Released::Released => (), "the last release");
            }
        }
        Ok(())
    }
}
