//! "Did you mean": the nearest of the words that would have been right.

/// The candidate nearest to `word`, if it is near enough to be what was meant: at most a third of
/// its letters differ, and at most three.
///
/// ```
/// assert_eq!(leasehold::did_you_mean("bsuy_timeout", ["busy_timeout", "mode"]), Some("busy_timeout"));
/// assert_eq!(leasehold::did_you_mean("colour", ["busy_timeout", "mode"]), None);
/// ```
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|&(distance, candidate)| {
            let letters = word.chars().count().max(candidate.chars().count());
            distance <= letters.div_ceil(3).min(3) && distance < letters
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits from `a` to `b`: insert, delete, replace, or swap two neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i);
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_and_far_words_are_not_offered() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("sqlite", "sqlite"), 0);
        assert_eq!(distance("sqliet", "sqlite"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(did_you_mean("SQLITE3", ["memory", "sqlite"]), Some("sqlite"));
        assert_eq!(did_you_mean("x", ["y"]), None);
        assert_eq!(did_you_mean("", ["a"]), None);
    }
}
