//! Fencing tokens (I2), and the resource that compares them.

use std::time::Duration;

use leasehold_core::{Expiry, Fenced, LeaseBackend, Released, RenewAnswer, Renewal, Token};

use super::{FLOOR_AHEAD, becomes_free};
use crate::case::{check, take};
use crate::{Bench, Failed};

/// I2: each grant has a larger token than all before it, however the one before ended.
pub(crate) async fn token_strictly_increases(bench: Bench) -> Result<(), Failed> {
    const ROUNDS: u32 = 4;
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let mut last: Option<Token> = None;
    let mut rises = |token: Token| {
        let before = last.replace(token);
        check!(before < Some(token), "token {token} after {before:?}");
        Ok::<(), Failed>(())
    };
    for _ in 0..ROUNDS {
        // Ended by a release, at once and without any time passing.
        for node in [&a, &b] {
            let grant = node.grant(&name, a.long_ttl()).await?;
            rises(grant.token)?;
            node.release(&grant.claim()).await?;
        }
    }
    // Ended by expiry.
    rises(a.grant(&name, a.profile().ttl_min).await?.token)?;
    becomes_free(&bench, &b, &name, a.profile().ttl_min * 3).await?;
    rises(b.grant(&name, b.long_ttl()).await?.token)
}

/// I2: a token is larger than those that an earlier connection was granted, and what that one held
/// is still held.
pub(crate) async fn token_survives_a_reconnect(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let (freed, held) = (bench.name(), bench.name());
    let before = a.grant(&freed, a.long_ttl()).await?;
    a.release(&before.claim()).await?;
    let kept = a.grant(&held, a.long_ttl()).await?;
    a.store.close().await;
    let b = bench.node().await?;
    let after = b.grant(&freed, b.long_ttl()).await?;
    check!(after.token > before.token, "token {} after {}", after.token, before.token);
    // A session store ends what its session held.
    if b.profile().expiry == Expiry::Ttl {
        b.refused(&held, b.ttl()).await?;
        let released = b.release(&kept.claim()).await?;
        take!(released, Released::Released => (), "the owner over another connection");
    }
    let next = b.grant(&held, b.ttl()).await?;
    check!(next.token > kept.token, "token {} after {}", next.token, kept.token);
    Ok(())
}

/// I2: the wall clock is the floor of a value store's tokens, which survives a lost counter.
pub(crate) async fn token_is_not_below_the_wall_clock(bench: Bench) -> Result<(), Failed> {
    /// A store on another machine has a clock of its own.
    const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(300);
    let a = bench.node().await?;
    let clock_us = a.context().clock().unix_micros() - CLOCKS_DIFFER_MAX.as_micros() as u64;
    let token = a.grant(&bench.name(), a.ttl()).await?.token;
    check!(token.native() >= clock_us, "token {token} lies before the wall clock {clock_us}");
    Ok(())
}

/// A grant's token is larger than the floor that its request names.
pub(crate) async fn grant_exceeds_its_floor(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let before = a.grant(&name, a.ttl()).await?;
    a.release(&before.claim()).await?;
    let mut request = a.request(&name, a.ttl());
    let floor = Token::new(before.token.get() + FLOOR_AHEAD)?;
    request.token_floor = Some(floor);
    let grant = a.granted(&request).await?;
    check!(grant.token > floor, "token {} at a floor of {floor}", grant.token);
    a.release(&grant.claim()).await?;
    let next = a.grant(&name, a.ttl()).await?;
    check!(next.token > grant.token, "token {} after {}", next.token, grant.token);
    Ok(())
}

/// The same owner asking again with a floor above its token gets a larger one.
pub(crate) async fn repeated_acquire_honours_a_floor(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let mut request = a.request(&bench.name(), a.long_ttl());
    let first = a.granted(&request).await?;
    let floor = Token::new(first.token.get() + FLOOR_AHEAD)?;
    request.token_floor = Some(floor);
    let raised = a.granted(&request).await?;
    check!(raised.token > floor, "token {} at a floor of {floor}", raised.token);
    // Below its token a floor asks for nothing.
    request.token_floor = Some(first.token);
    let again = a.granted(&request).await?;
    check!(again.token == raised.token, "token {} after {}", again.token, raised.token);
    Ok(())
}

/// A renewal with a floor above the record's token writes it into record and floor.
pub(crate) async fn renewal_honours_a_floor(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    let floor = Token::new(grant.token.get() + FLOOR_AHEAD)?;
    let mut renewal = Renewal::new(grant.claim(), a.long_ttl(), bench.now());
    renewal.token_floor = Some(floor);
    let answers = a.store.renew(&[renewal]).await;
    check!(matches!(answers[..], [Ok(RenewAnswer::Renewed { .. })]), "not renewed: {answers:?}");
    let seen = a.store_inspect(&name).await?.holder().map(|h| h.token);
    check!(seen >= Some(floor), "the record's token is {seen:?} at a floor of {floor}");
    a.release(&grant.claim()).await?;
    let next = a.grant(&name, a.ttl()).await?;
    check!(next.token > floor, "token {} after a floor of {floor}", next.token);
    Ok(())
}

/// A token stays the same from the grant to the end, however often it is renewed.
pub(crate) async fn renewal_keeps_the_token(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let grant = a.grant(&name, a.long_ttl()).await?;
    for _ in 0..100 {
        a.renew(&grant.claim(), a.long_ttl()).await?;
    }
    let seen = b.store_inspect(&name).await?;
    let holder = take!(seen.holder(), Some(h) => h, "no holder");
    check!(holder.token == grant.token, "token {} after {}", holder.token, grant.token);
    Ok(())
}

/// The regression alarm: a client never accepts a token that is not larger than one it has seen.
pub(crate) async fn regressed_token_is_not_accepted(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let first = a.lease(&name, &a.settings()).await?;
    let old = first.token();
    first.release().await?;
    a.store.fake_tokens(Some(old));
    let error = a.client.try_acquire(&name, &a.settings()).await.err();
    let regressed = matches!(
        error,
        Some(leasehold_core::AcquireError::TokenRegression { granted, seen, .. }) if granted == old && seen == old
    );
    check!(regressed, "token {old} was accepted twice: {error:?}");
    becomes_free(&bench, &b, &name, super::SOON).await?;
    a.store.fake_tokens(None);
    check!(a.lease(&name, &a.settings()).await?.token() > old, "the store itself regressed");
    Ok(())
}

/// A resource accepts the highest token and higher ones, and names both when it refuses a lower one.
pub(crate) async fn resource_refuses_a_lower_token(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let (low, high) = (Token::new(7_000)?, Token::new(7_001)?);
    for token in [low, low, high, high] {
        let answer = a.fenced()?.advance(&name, token).await?;
        check!(answer == Fenced::Accepted, "{token} was refused: {answer:?}");
    }
    let stale = take!(b.fenced()?.advance(&name, low).await?, Fenced::Stale(s) => s, "accepted");
    check!(stale.presented == low && stale.highest == high, "told {stale:?}");
    // Another name is another resource.
    check!(b.fenced()?.advance(&bench.name(), low).await? == Fenced::Accepted, "names share a mark");
    Ok(())
}

/// A value is written with the token that wrote it, in one step with the mark; a stale writer
/// changes nothing.
pub(crate) async fn stale_writer_changes_nothing(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let (low, high) = (Token::new(7_000)?, Token::new(7_001)?);
    let accepted = |answer: Fenced| answer == Fenced::Accepted;
    check!(accepted(a.fenced()?.put(&name, "step/1", b"one", low).await?), "refused");
    check!(accepted(b.fenced()?.put(&name, "step/2", b"two", high).await?), "refused");
    let late = a.fenced()?.put(&name, "step/2", b"late", low).await?;
    let stale = take!(late, Fenced::Stale(s) => s, "a stale writer wrote");
    check!(stale.highest == high, "told {stale:?}");
    let value = take!(a.fenced()?.get(&name, "step/2").await?, Some(v) => v, "no value");
    check!(value.value == b"two" && value.token == high, "read {value:?}");
    let keys = b.fenced()?.list(&name, "step/").await?;
    check!(keys == ["step/1", "step/2"], "keys {keys:?}");
    check!(b.fenced()?.list(&name, "other").await?.is_empty(), "keys beyond the prefix");
    check!(b.fenced()?.get(&name, "none").await?.is_none(), "a value that nobody wrote");
    Ok(())
}

/// Purging takes the values and leaves the mark: who was stale stays stale.
pub(crate) async fn purge_keeps_the_mark(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let (low, high) = (Token::new(7_000)?, Token::new(7_001)?);
    a.fenced()?.put(&name, "key", b"value", high).await?;
    let early = a.fenced()?.purge(&name, low).await?;
    check!(matches!(early, Fenced::Stale(_)), "a stale purge: {early:?}");
    check!(a.fenced()?.get(&name, "key").await?.is_some(), "a stale purge took the value");
    check!(a.fenced()?.purge(&name, high).await? == Fenced::Accepted, "refused");
    check!(a.fenced()?.list(&name, "").await?.is_empty(), "values are left");
    let late = a.fenced()?.advance(&name, low).await?;
    check!(matches!(late, Fenced::Stale(_)), "the mark is gone: {late:?}");
    Ok(())
}
