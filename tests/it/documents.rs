//! The documents tell of what there is and of nothing else, their links lead somewhere, and their examples are accepted.
//!
//! Each check takes texts and gives back what is wrong with them, so that a test can show that it finds something.
//! `docs/contribute/CONTRIBUTING.md` tells what to do when one of them complains.

mod blocks;
mod commands;
mod links;
mod logs;
pub mod markdown;
mod names;
mod sources;
mod tables;

use std::collections::BTreeSet;

use markdown::Document;
pub use names::METRIC_PREFIXES;

/// What a check found, one line each.
type Problems = Vec<String>;

fn none(problems: &[String]) {
    assert!(
        problems.is_empty(),
        "{} complaints about documents; docs/contribute/CONTRIBUTING.md tells what to do:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// The document of this path.
fn document<'d>(documents: &'d [Document], path: &str) -> &'d Document {
    let found = documents.iter().find(|document| document.path == path);
    found.unwrap_or_else(|| panic!("there is no {path}"))
}

/// Names that are on one side only.
fn compare(told: &BTreeSet<String>, there: &BTreeSet<String>, place: &str) -> Problems {
    let missing = there
        .difference(told)
        .map(|name| format!("{place} does not tell of {name}"));
    let invented = told
        .difference(there)
        .map(|name| format!("{place} tells of {name}, which there is not"));
    missing.chain(invented).collect()
}

#[test]
fn a_missing_and_an_invented_name_are_found() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let found = compare(&set(&["a", "invented"]), &set(&["a", "missing"]), "X.md");
    assert_eq!(
        found,
        [
            "X.md does not tell of missing",
            "X.md tells of invented, which there is not"
        ]
    );
    assert_eq!(compare(&set(&["a"]), &set(&["a"]), "X.md"), Problems::new());
}
