//! All that the documents can speak of: the words of the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Folders and files whose words are looked at.
const LOOKED_AT: [&str; 14] = [
    "src",
    "crates",
    "proto",
    "crds",
    "config",
    "charts",
    "image",
    "tests",
    ".ci",
    "Makefile",
    "Dockerfile",
    "Cargo.toml",
    "deny.toml",
    "build.rs",
];

/// The text of the sources, without documents and without the tests of documents.
pub fn text() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for place in LOOKED_AT {
        gather(&root.join(place), &mut text);
    }
    assert!(text.len() > 1_000_000, "only {} bytes of sources", text.len());
    text
}

fn gather(path: &Path, text: &mut String) {
    let is_of_documents = path.ends_with("tests/it/documents") || path.ends_with("tests/it/documents.rs");
    if is_of_documents || path.extension().is_some_and(|extension| extension == "md") {
        return;
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("the folder can be read");
        for entry in entries {
            gather(&entry.expect("the folder can be read").path(), text);
        }
    } else if let Ok(content) = fs::read_to_string(path) {
        // The names of files are spoken of too.
        text.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        text.push('\n');
        text.push_str(&content);
        text.push('\n');
    }
}

const fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The words of a text.
pub fn words(text: &str) -> BTreeSet<&str> {
    text.split(|letter| !is_of_word(letter))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Names of variables that the code reads, by how it reads them.
pub fn variables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for call in ["env::var(\"", "env::var_os(\"", "env = \""] {
        for rest in text.split(call).skip(1) {
            found.extend(rest.split('"').next().map(str::to_owned));
        }
    }
    found
}

/// The text of what is in the operator, without tests and the mock driver.
pub fn operator() -> String {
    let mut text = String::new();
    let mut folders = ["src", "crates"]
        .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let skipped = ["tests", "mock", "simulation", "kubectl-attacher"].contains(&&*name)
                || name.contains("tests.rs")
                || name.ends_with("_tests");
            if path.is_dir() && !skipped {
                folders.push(path);
            } else if !path.is_dir() && !skipped {
                text.push_str(&fs::read_to_string(path).unwrap_or_default());
            }
        }
    }
    text
}

#[test]
fn words_and_variables_are_found() {
    let text = "let a = std::env::var(\"ONE\").ok(); #[arg(env = \"TWO\")] b_c";
    assert_eq!(variables(text), BTreeSet::from(["ONE".to_owned(), "TWO".to_owned()]));
    assert!(words(text).contains("b_c") && !words(text).contains("b"));
}
