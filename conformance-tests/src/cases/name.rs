//! Names: what is legal, and that no two are one (B74, B80).

use leasehold_core::{LeaseName, NameError, Page, Released};

use crate::case::{check, take};
use crate::{Bench, Failed};

/// Endings that differ only where some store, path, pattern or locale sees no difference.
fn tricky(bench: &Bench) -> Vec<LeaseName> {
    const TAILS: &[&str] = &[
        "a/b",
        "a//b",
        "a/b/",
        "/a/b",
        "a",
        "A",
        ".",
        "..",
        "./a",
        "a/../a",
        "a%2Fb",
        "a%2fb",
        "a%252Fb",
        "zookeeper",
        "file:///x",
        "\u{1F402}",
        "\u{1F403}",
        "\u{e9}",
        "e\u{301}",
        " a",
        "a ",
        "a  ",
        "{}",
        "{}x",
        "{a}b",
        "a{b}c",
        "}{",
        "a:b",
        "a::b",
        "a*b",
        "a?b",
        "a[b]",
        "a'b",
        "a\"b",
        "a;b--",
        "a\\b",
        "a_b",
        "a-b",
        "xy",
        "xyz",
        "\u{fffd}",
        "a\u{a0}",
        "\u{feff}a",
        "$a",
        "#a",
        "a@b",
        "NULL",
        "0",
        "00",
        // The same beginning, and ends that a short column would cut off.
        concat!(
            "a long name that goes on for more bytes than a short column or a short index takes of it, ",
            "and then for as many again, because the shortest that was met in the field had two hundred: 1"
        ),
        concat!(
            "a long name that goes on for more bytes than a short column or a short index takes of it, ",
            "and then for as many again, because the shortest that was met in the field had two hundred: 2"
        ),
    ];
    let stem = bench.named("/");
    let mut names: Vec<LeaseName> =
        TAILS.iter().filter_map(|tail| LeaseName::new(format!("{stem}{tail}")).ok()).collect();
    for fill in ["x", "y"] {
        let long = LeaseName::BYTES_MAX - stem.as_str().len();
        names.extend(LeaseName::new(format!("{stem}{}", fill.repeat(long))));
    }
    names
}

/// The longest names, in pairs that differ only where a store with too little room does not look: in
/// the last byte, and in the first one behind the prefix that all names of a run begin with.
fn long_pairs(bench: &Bench) -> Vec<LeaseName> {
    let stem = bench.named("/");
    let fill = LeaseName::BYTES_MAX - 1 - stem.as_str().len();
    let longest = |first: &str, last: &str| {
        LeaseName::new(format!("{stem}{first}{}{last}", "x".repeat(fill - first.len()))).ok()
    };
    let pairs = [("", "1"), ("", "2"), ("a", "3"), ("b", "3")];
    pairs.into_iter().filter_map(|(first, last)| longest(first, last)).collect()
}

/// B74: every legal name works, and each of any two names is a lease of its own.
pub(crate) async fn distinct_names_are_independent(bench: Bench) -> Result<(), Failed> {
    let (a, b) = bench.pair().await?;
    let mut names = tricky(&bench);
    check!(names.len() > 40, "only {} names are legal", names.len());
    let long = long_pairs(&bench);
    check!(long.len() == 4 && long.iter().all(|n| n.as_str().len() == LeaseName::BYTES_MAX), "{long:?}");
    names.extend(long);
    let mut grants = Vec::new();
    for name in &names {
        // Every earlier one is held: this one must be free all the same.
        let grant = a.grant(name, a.long_ttl()).await?;
        grants.push(grant);
    }
    for (name, grant) in names.iter().zip(&grants) {
        let seen = b.store_inspect(name).await?;
        let holder = take!(seen.holder(), Some(h) => h, "{name:?} is not held");
        check!(seen.name == *name && holder.token == grant.token, "{name:?} shows {seen:?}");
    }
    for (i, grant) in grants.iter().enumerate() {
        take!(b.release(&grant.claim()).await?, Released::Released => (), "{:?}", names[i]);
        // The next one is still held: a release frees its own name alone.
        if let Some(next) = names.get(i + 1) {
            b.refused(next, b.ttl()).await?;
        }
    }
    Ok(())
}

/// B74: every legal name comes back from the store as it went in.
pub(crate) async fn names_round_trip_through_a_list(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    let mut names = tricky(&bench);
    for name in &names {
        a.grant(name, a.long_ttl()).await?;
    }
    names.sort_unstable();
    let stem = common_stem(&names);
    let listed = a.admin()?.list(&stem, &Page::first()).await?;
    let listed: Vec<LeaseName> = listed.into_iter().map(|seen| seen.name).collect();
    let missing: Vec<_> = names.iter().filter(|name| !listed.contains(name)).collect();
    check!(missing.is_empty(), "not listed: {missing:?}");
    check!(listed == names, "listed {} of {}, or not sorted", listed.len(), names.len());
    Ok(())
}

fn common_stem(names: &[LeaseName]) -> String {
    let first = names[0].as_str();
    let mut stem = first.len();
    for name in names {
        let same = first.bytes().zip(name.as_str().bytes()).take_while(|(x, y)| x == y).count();
        stem = stem.min(same);
    }
    first[..first.floor_char_boundary(stem)].to_owned()
}

/// A list shows what starts with the prefix, literally, page by page, and nothing that is free.
pub(crate) async fn list_keeps_to_prefix_and_page(bench: Bench) -> Result<(), Failed> {
    const NAMES: usize = 7;
    let a = bench.node().await?;
    let stem = bench.named("/");
    // A prefix is no pattern and no path.
    for other in ["a%", "a_", "b/1", "a"] {
        a.grant(&LeaseName::new(format!("{stem}{other}"))?, a.long_ttl()).await?;
    }
    let mut names = Vec::new();
    for i in 0..NAMES {
        let name = LeaseName::new(format!("{stem}a_b/{i}"))?;
        a.grant(&name, a.long_ttl()).await?;
        names.push(name);
    }
    let freed = a.grant(&LeaseName::new(format!("{stem}a_b/freed"))?, a.long_ttl()).await?;
    a.release(&freed.claim()).await?;
    let admin = a.admin()?;
    let mut seen = Vec::new();
    let mut page = Page::first();
    page.limit = 3;
    loop {
        let part = admin.list(&format!("{stem}a_b/"), &page).await?;
        check!(part.len() <= 3, "{} names on a page of 3", part.len());
        let Some(last) = part.last() else { break };
        page.after = Some(last.name.clone());
        seen.extend(part.into_iter().map(|inspection| inspection.name));
        check!(seen.len() <= NAMES, "the pages do not end: {seen:?}");
    }
    check!(seen == names, "listed {seen:?}");
    Ok(())
}

/// What is no name is refused before any store hears of it, with the reason.
pub(crate) async fn illegal_names_are_refused(bench: Bench) -> Result<(), Failed> {
    let a = bench.node().await?;
    check!(LeaseName::new("") == Err(NameError::Empty), "an empty name");
    let long = LeaseName::new("x".repeat(1 << 20));
    check!(long == Err(NameError::TooLong { bytes: 1 << 20 }), "a name of a mebibyte: {long:?}");
    for bad in ["a\u{0}b", "a\nb", "\u{7f}", "\u{85}", "\u{1b}[31m"] {
        let name = LeaseName::new(bad);
        check!(matches!(name, Err(NameError::ControlCharacter { .. })), "{bad:?}: {name:?}");
    }
    check!(a.store.log().is_empty(), "the store was asked");
    Ok(())
}
