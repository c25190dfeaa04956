//! Links within the repository lead to files and headings that are there.

use super::markdown::{self, Document};
use super::{Problems, none};

/// Resolves `target` from the folder of `path`.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn problems(documents: &[Document], exists: impl Fn(&str) -> bool) -> Problems {
    let mut problems = Problems::new();
    for document in documents {
        for (line, link) in document.links() {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                document.path.clone()
            } else {
                resolve(&document.path, file)
            };
            let place = format!("{}:{line}", document.path);
            if !exists(&target) {
                problems.push(format!("{place}: there is no {target}"));
                continue;
            }
            let Some(other) = documents.iter().find(|other| other.path == target) else {
                continue;
            };
            if !anchor.is_empty() && !other.anchors().contains(anchor) {
                problems.push(format!("{place}: {target} has no heading #{anchor}"));
            }
        }
    }
    problems
}

#[test]
fn every_link_leads_somewhere() {
    let documents = markdown::all();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    none(&problems(&documents, |path| root.join(path).exists()));
    let count: usize = documents.iter().map(|document| document.links().len()).sum();
    assert!(count > 150, "only {count} links were found");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "[a](../B.md#there) [b](../B.md#not-there) [c](C.md) [d](#here) [e](#gone) [f](https://example.com/x)\n# Here\n";
    let documents = [Document::new("docs/A.md", text), Document::new("B.md", "# There\n")];
    let found = problems(&documents, |path| ["docs/A.md", "B.md"].contains(&path));
    assert_eq!(
        found,
        [
            "docs/A.md:1: B.md has no heading #not-there",
            "docs/A.md:1: there is no docs/C.md",
            "docs/A.md:1: docs/A.md has no heading #gone",
        ]
    );
}

/// Whoever reads docs/README.md finds every document.
#[test]
fn the_index_names_every_document() {
    let documents = markdown::all();
    let index = super::document(&documents, "docs/README.md");
    let linked: Vec<String> = index
        .links()
        .iter()
        .map(|(_, link)| resolve(&index.path, link))
        .collect();
    for document in &documents {
        let (path, own) = (&document.path, document.path.starts_with("docs/"));
        let runbook = path.starts_with("docs/runbooks/") && !path.ends_with("README.md");
        if own && !runbook && path != "docs/README.md" {
            assert!(linked.contains(path), "docs/README.md has no link to {path}");
        }
    }
}
