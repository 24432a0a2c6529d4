//! The pages of the project: where they are, and the program they speak of.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cargo::{Cargo, root, target_dir};
use crate::leftovers::Marked;

/// Every Markdown file of the top folder, of `docs`, and at the top of each package.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    folders.extend(entries(root()).into_iter().filter(|path| path.join("Cargo.toml").is_file()));
    let mut docs = vec![root().join("docs")];
    while let Some(folder) = docs.pop() {
        docs.extend(entries(&folder).into_iter().filter(|path| path.is_dir()));
        folders.push(folder);
    }
    for folder in folders {
        pages.extend(entries(&folder).into_iter().filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    pages.sort();
    pages
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).map_or_else(|_| Vec::new(), |dir| dir.flatten().map(|e| e.path()).collect())
}

/// Builds the program and returns the folder it lies in.
///
/// # Errors
/// When it does not build.
pub(crate) fn program(mark: &Marked, until: Instant) -> Result<PathBuf, String> {
    Cargo::new("build").args(["--quiet", "-p", "leasehold-cli", "--bin", "leasehold"]).run(mark, until)?;
    Ok(target_dir().join("debug"))
}

/// The path below the top folder, for messages.
pub(crate) fn short(page: &Path) -> String {
    page.strip_prefix(root()).unwrap_or(page).display().to_string()
}
