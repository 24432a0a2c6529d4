//! Everything is bounded, and nothing secret is shown (I10, I12).

use std::fmt::Debug;

use leasehold_core::{
    Effect, ErrorKind, FENCED_KEY_BYTES_MAX, FENCED_VALUE_BYTES_MAX, HolderInfo, OwnerId, Token,
};

use crate::case::{check, take};
use crate::{Bench, Failed, Op};

/// I10: an uncontended lease costs one acquire, one release, and its renewals one an interval.
pub(crate) async fn lease_costs_few_store_calls(bench: Bench) -> Result<(), Failed> {
    const TTLS: u32 = 4;
    let a = bench.node().await?;
    let lease = a.lease(&bench.name(), &a.settings()).await?;
    bench.pass(a.ttl() * TTLS).await;
    lease.release().await?;
    bench.settle().await;
    let calls = [Op::Acquire, Op::Release].map(|op| a.store.count(op));
    check!(calls == [1, 1], "{calls:?} acquires and releases");
    // Three a ttl, each up to a tenth early, and one more for each of the ends.
    let renewals = a.store.count(Op::Renew) as u32;
    check!(renewals <= TTLS * 4 + 2, "{renewals} renewals in {TTLS} ttls");
    Ok(())
}

/// Renewals that are due together travel in batches, and no batch is larger than the store takes.
pub(crate) async fn watchdog_keeps_to_the_batch_size(bench: Bench) -> Result<(), Failed> {
    const LEASES: usize = 20;
    const BATCH_MAX: usize = 3;
    let a = bench.node_with(|profile| profile.with_batch_max(BATCH_MAX)).await?;
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        leases.push(a.lease(&bench.name(), &a.settings()).await?);
    }
    bench.pass(a.ttl() * 2).await;
    for lease in &leases {
        lease.check()?;
    }
    let batches = a.store.batches();
    check!(batches.iter().all(|size| *size <= BATCH_MAX), "batches of {batches:?}");
    check!(batches.contains(&BATCH_MAX), "nothing was batched: {batches:?}");
    Ok(())
}

/// What a holder says about itself is shown as it was said, up to the bound.
pub(crate) async fn holder_info_round_trips(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let meta = [("job", "nightly \"{}\" 'x'; --"), ("\u{e9}", "\u{1F402}"), ("%s", "$(x) \\ </a>")];
    let mut full = String::from("x");
    while HolderInfo::new(format!("{full}y"), [("k", "v")]).is_ok() {
        full.push('y');
    }
    for info in [HolderInfo::new("web-1", meta)?, HolderInfo::new(full, [("k", "v")])?] {
        let name = bench.name();
        let mut request = a.request(&name, a.long_ttl());
        request.holder_info = info.clone();
        let grant = a.granted(&request).await?;
        let seen = b.store_inspect(&name).await?;
        let holder = take!(seen.holder(), Some(h) => h, "no holder");
        check!(holder.info == info, "shown as {:?}", holder.info);
        let refusal = b.refused(&name, b.ttl()).await?;
        check!(refusal.holder.is_some_and(|h| h.info == info), "a refusal shows something else");
        // It goes with its grant.
        a.release(&grant.claim()).await?;
        b.grant(&name, b.ttl()).await?;
        let seen = b.store_inspect(&name).await?;
        check!(seen.holder().is_some_and(|h| h.info.is_empty()), "the next holder inherited it: {seen:?}");
    }
    check!(HolderInfo::new("x".repeat(5_000), [("k", "v")]).is_err(), "5,000 bytes were taken");
    Ok(())
}

/// A look at a name shows its holder, since when and for how long, and changes nothing.
pub(crate) async fn look_shows_holder_and_time(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let free = b.store_inspect(&name).await?;
    check!(free.holders.is_empty() && free.free_in.is_none(), "a free name shows {free:?}");
    let grant = a.grant(&name, a.long_ttl()).await?;
    for _ in 0..3 {
        let seen = b.store_inspect(&name).await?;
        let holder = take!(seen.holder(), Some(h) => h, "no holder");
        check!(holder.token == grant.token, "token {} instead of {}", holder.token, grant.token);
        check!(holder.fingerprint == grant.owner.fingerprint(), "fingerprint {}", holder.fingerprint);
        for left in [holder.remaining, seen.free_in] {
            let left = take!(left, Some(left) => left, "no remaining time");
            check!(!left.is_zero() && left <= grant.ttl, "{left:?} left of {:?}", grant.ttl);
        }
    }
    a.release(&grant.claim()).await?;
    let after = b.store_inspect(&name).await?;
    check!(after.holders.is_empty() && after.free_in.is_none(), "a released name shows {after:?}");
    check!(after.token_floor.is_none_or(|floor| floor >= grant.token), "floor {:?}", after.token_floor);
    Ok(())
}

/// I12: an owner id is a capability: nothing that is printed shows it.
pub(crate) async fn owner_id_is_never_shown(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let name = bench.name();
    let request = a.request(&name, a.long_ttl());
    let owner: OwnerId = request.owner;
    let grant = a.granted(&request).await?;
    let refusal = b.refused(&name, b.ttl()).await?;
    let look = b.store_inspect(&name).await?;
    let release = b.release(&leasehold_core::Claim::new(name.clone(), OwnerId::random(), None)).await?;
    let lost = b.renew(&leasehold_core::Claim::new(name.clone(), OwnerId::random(), None), b.ttl()).await?;
    let printed: [&dyn Debug; 9] =
        [&request, &grant, &refusal, &look, &release, &lost, &a.store, &owner, &grant.claim()];
    let mut texts: Vec<String> = printed.iter().map(|value| format!("{value:?}{value:#?}")).collect();
    texts.push(format!("{owner}"));
    let lease = b.lease(&bench.name(), &b.settings()).await?;
    texts.push(format!("{lease:?} {:?}", b.client));
    if let Some(admin) = a.store_admin() {
        let page = leasehold_core::Page::first();
        texts.push(format!("{:?} {admin:?}", admin.list(name.as_str(), &page).await?));
    }
    let hex = owner.to_hex();
    for text in &texts {
        check!(!text.contains(&hex) && !text.contains(&hex.to_uppercase()), "shows the owner id: {text}");
        let digits = text.as_bytes().chunk_by(|x, y| x.is_ascii_hexdigit() && y.is_ascii_hexdigit());
        let longest = digits.filter(|run| run[0].is_ascii_hexdigit()).map(<[u8]>::len).max();
        check!(longest < Some(32), "shows {longest:?} hexadecimal digits in a row: {text}");
    }
    Ok(())
}

/// A key or a value beyond the bounds is refused before it is written; at the bounds it is not.
pub(crate) async fn fenced_values_have_bounds(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let name = bench.name();
    let token = Token::new(7_000)?;
    let (key, value) = ("k".repeat(FENCED_KEY_BYTES_MAX), vec![7u8; FENCED_VALUE_BYTES_MAX]);
    let fenced = a.fenced()?;
    check!(fenced.put(&name, &key, &value, token).await? == leasehold_core::Fenced::Accepted, "refused");
    let read = take!(fenced.get(&name, &key).await?, Some(v) => v, "not written");
    check!(read.value == value, "{} bytes came back", read.value.len());
    let (key_long, value_long) = (format!("{key}k"), vec![7u8; FENCED_VALUE_BYTES_MAX + 1]);
    for (key, value) in [("", &b"v"[..]), (&key_long, b"v"), ("k", &value_long)] {
        let error = take!(fenced.put(&name, key, value, token).await, Err(e) => e, "beyond the bounds");
        check!(error.kind() == ErrorKind::ConfigInvalid, "refused as {error:?}");
        check!(error.effect() == Effect::None, "a refusal of unknown effect: {error:?}");
    }
    check!(fenced.list(&name, "").await?.len() == 1, "something beyond the bounds was written");
    Ok(())
}
