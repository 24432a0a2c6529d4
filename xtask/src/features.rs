//! Each feature alone compiles, and none of them brings OpenSSL.

use std::time::Instant;

use crate::cargo::{Cargo, root};
use crate::leftovers::Marked;

/// Packages with features of their own.
const PACKAGES: &[(&str, &str)] = &[("leasehold", "leasehold"), ("leasehold-cli", "cli")];
/// Crates that must be in no build: TLS is rustls.
const BANNED: &[&str] = &["openssl", "openssl-sys", "native-tls", "aws-lc-sys"];

/// Checks the bare package and each of its features alone.
///
/// # Errors
/// What does not compile, or who brings a banned crate.
pub(crate) fn run(mark: &Marked, until: Instant) -> Result<(), String> {
    for (package, folder) in PACKAGES {
        let manifest = root().join(folder).join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
        let mut features = vec![String::new()];
        features.extend(features_of(&text));
        for feature in &features {
            let one = ["-p", package, "--no-default-features", "--features", feature];
            // Without any feature the facade has the memory store; the program has no store to run on.
            if !(feature.is_empty() && *package == "leasehold-cli") {
                Cargo::new("check").args(["--quiet"]).args(one).run(mark, until)?;
            }
            let tree = Cargo::new("tree").args(one).args(["-e", "normal,build", "--prefix", "none"]);
            refuse_banned(&tree.output()?, feature)?;
        }
    }
    Ok(())
}

fn refuse_banned(tree: &str, feature: &str) -> Result<(), String> {
    let found = tree.lines().filter_map(|line| line.split_whitespace().next()).find(|n| BANNED.contains(n));
    match found {
        Some(name) => Err(format!("feature {feature:?} brings {name}: {BANNED:?} are refused")),
        None => Ok(()),
    }
}

/// The names in the `[features]` table of a manifest, without `default`.
fn features_of(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[features]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with([' ', '\t', '#', ']']))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim().trim_matches('"').to_owned())
        .filter(|name| name != "default")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_their_table_alone() {
        let text = "[package]\nname = \"x\"\n[features]\n# why = not\ndefault = [\"a\"]\na = [\n  \"dep:y\",\n]\nb-c = []\n\n[dependencies]\nz = \"1\"\n";
        assert_eq!(features_of(text), ["a", "b-c"]);
    }

    #[test]
    fn a_banned_crate_is_found_by_its_whole_name() {
        assert_eq!(refuse_banned("rustls v0.23.0\nopenssl-probe v0.1.0\n", "x"), Ok(()));
        assert!(refuse_banned("tokio v1.0.0\nnative-tls v0.2.0 (*)\n", "x").is_err());
    }
}
