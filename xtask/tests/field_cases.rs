//! Goal: the page of faults met in the field names only what exists.

use std::path::Path;

fn read(path: impl AsRef<Path>) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let path = root.join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Whether a source text has a test function of this name: an attribute with `test` stands before it.
fn has_test(source: &str, function: &str) -> bool {
    let head = format!("fn {function}(");
    source.split("\n\n").any(|item| item.contains(&head) && item.contains("test"))
}

#[test]
fn every_name_on_the_page_exists() {
    let page = read("docs/field-cases.md");
    let table = read("conformance-tests/src/table.rs");
    let (mut rows, mut names, mut missing) = (0, 0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| B")) {
        rows += 1;
        let shown = row.trim_end_matches(['|', ' ']).rsplit('|').next().expect("a last column");
        let found: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!found.is_empty(), "nothing shows {row}");
        for name in found {
            names += 1;
            let exists = match name.split_once("::") {
                Some((file, function)) => has_test(&read(file), function),
                None => table.contains(&format!("\"{name}\" needs")),
            };
            if !exists {
                missing.push(name.to_owned());
            }
        }
    }
    println!("{rows} faults, shown by {names} names");
    assert!(missing.is_empty(), "no such case or test: {missing:#?}");
    assert!(rows >= 40, "the page has lost rows: {rows}");
}
