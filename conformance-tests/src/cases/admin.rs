//! What people may do to leases: compared, recorded, and told to the holder.

use leasehold_core::{ForceRelease, LeaseState, LostCause, Released, RenewAnswer, Token};

use super::{FLOOR_AHEAD, SOON, becomes_free, stays_taken};
use crate::case::{check, take};
use crate::{Bench, Failed};

const BY: &str = "an operator";
const REASON: &str = "the host is gone (\"rack 7\")";

fn force(bench: &Bench, name: &leasehold_core::LeaseName, token: Token) -> ForceRelease {
    ForceRelease::new(name.clone(), token, BY, REASON, bench.now())
}

/// A forced release compares the token: another one leaves the holder as it is, and says who it is.
pub(crate) async fn forced_release_compares_the_token(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    for wrong in [grant.token.get() - 1, grant.token.get() + 1] {
        let answer = b.admin()?.force_release(&force(&bench, &name, Token::new(wrong)?)).await?;
        let by = take!(answer, Released::NotHeld { by } => by, "released by token {wrong}");
        check!(by.is_none_or(|by| by.token == grant.token), "somebody else holds it");
    }
    b.refused(&name, b.ttl()).await?;
    take!(a.renew(&grant.claim(), a.ttl()).await?, RenewAnswer::Renewed { .. } => (), "the holder lost");
    let free = b.admin()?.force_release(&force(&bench, &bench.name(), grant.token)).await?;
    take!(free, Released::AlreadyReleased => (), "a forced release of a free name");
    Ok(())
}

/// A forced release frees the name at once, and the next token is larger than the one it ended.
pub(crate) async fn forced_release_raises_the_floor(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let answer = b.admin()?.force_release(&force(&bench, &name, grant.token)).await?;
    take!(answer, Released::Released => (), "the forced release");
    let next = b.grant(&name, b.long_ttl()).await?;
    check!(next.token > grant.token, "token {} after {}", next.token, grant.token);
    let answer = b.admin()?.force_release(&force(&bench, &name, grant.token)).await?;
    take!(answer, Released::NotHeld { .. } => (), "the same forced release again");
    take!(a.release(&grant.claim()).await?, Released::NotHeld { .. } => (), "the old holder's release");
    a.refused(&name, a.ttl()).await?;
    Ok(())
}

/// B50: the holder learns at its next renewal that it was revoked, by whom and why.
pub(crate) async fn holder_learns_who_revoked_and_why(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let lease = a.lease(&name, &a.settings()).await?;
    b.admin()?.force_release(&force(&bench, &name, lease.token())).await?;
    // No later than half a ttl: the longest interval between renewals.
    let lost = || lease.state().is_over();
    bench.until_true("the holder is told", a.ttl() / 2 + SOON, lost).await?;
    let state = lease.state();
    let expected = LostCause::Revoked { by: BY.to_owned(), reason: REASON.to_owned() };
    check!(state == LeaseState::Lost(expected), "over as {state:?}");
    check!(lease.check().is_err(), "valid after it was revoked");
    Ok(())
}

/// A forced release may keep the name taken, by nobody, for as long as it says.
pub(crate) async fn forced_release_may_keep_the_name(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, (a.ttl() / 2).max(a.profile().ttl_min)).await?;
    let mut request = force(&bench, &name, grant.token);
    request.keep_for = a.ttl();
    let end = bench.now() + request.keep_for;
    take!(b.admin()?.force_release(&request).await?, Released::Released => (), "the forced release");
    check!(b.store_inspect(&name).await?.holders.is_empty(), "a kept name has a holder");
    stays_taken(&bench, &b, &name, end).await?;
    becomes_free(&bench, &b, &name, request.keep_for).await?;
    Ok(())
}

/// A raised floor binds later tokens of its name; a lower one changes nothing.
pub(crate) async fn raised_floor_binds_later_tokens(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let first = a.grant(&name, a.long_ttl()).await?;
    a.release(&first.claim()).await?;
    let floor = Token::new(first.token.get() + FLOOR_AHEAD)?;
    b.admin()?.raise_floor(Some(&name), floor).await?;
    b.admin()?.raise_floor(Some(&name), first.token).await?;
    for node in [&a, &b] {
        let grant = node.grant(&name, node.long_ttl()).await?;
        check!(grant.token > floor, "token {} at a floor of {floor}", grant.token);
        node.release(&grant.claim()).await?;
    }
    Ok(())
}

/// A floor raised for all names binds every later token, of names that were never used too.
pub(crate) async fn floor_of_all_binds_every_name(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let first = a.grant(&name, a.long_ttl()).await?;
    a.release(&first.claim()).await?;
    let floor = Token::new(first.token.get() + FLOOR_AHEAD)?;
    b.admin()?.raise_floor(None, floor).await?;
    b.admin()?.raise_floor(None, first.token).await?;
    for name in [name, bench.name()] {
        let grant = a.grant(&name, a.long_ttl()).await?;
        check!(grant.token > floor, "token {} at a floor of {floor} for all", grant.token);
        a.release(&grant.claim()).await?;
    }
    Ok(())
}

/// A raised epoch lifts every later token above everything granted before.
pub(crate) async fn raised_epoch_lifts_every_token(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let before = a.grant(&name, a.ttl()).await?;
    a.release(&before.claim()).await?;
    let epoch = b.admin()?.raise_epoch().await?;
    check!(epoch > before.token.epoch(), "epoch {epoch} after {}", before.token.epoch());
    let after = a.grant(&name, a.ttl()).await?;
    check!(after.token.epoch() >= epoch, "a token of epoch {} after {epoch}", after.token.epoch());
    check!(after.token > before.token, "token {} after {}", after.token, before.token);
    Ok(())
}

/// Preparing a store again and asking it for a sign of life change nothing.
pub(crate) async fn prepare_and_probe_change_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    for _ in 0..2 {
        b.admin()?.prepare().await?;
        b.admin()?.probe().await?;
    }
    b.refused(&name, b.ttl()).await?;
    take!(a.renew(&grant.claim(), a.ttl()).await?, RenewAnswer::Renewed { .. } => (), "the holder lost");
    Ok(())
}
