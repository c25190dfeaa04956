//! docs/contribute/GLOSSARY.md names code that there is: each name is in the file, or below the folder, of its row.

use std::path::Path;

use super::markdown::{self, quoted};
use super::{Problems, document, none};

/// The Rust sources at this path, in one text. None when there is no such path.
fn sources(path: &Path) -> Option<String> {
    if path.is_file() {
        return std::fs::read_to_string(path).ok();
    }
    let mut text = String::new();
    for entry in std::fs::read_dir(path).ok()? {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&sources(&path).expect("the file can be read"));
        }
    }
    Some(text)
}

/// Whether the text defines or uses the name: as it is, not as a part of a longer one.
fn has(text: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(name).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_of_name)
            && !text[at + name.len()..].chars().next().is_some_and(is_of_name)
    })
}

/// Each row: concept, word with names of code in backticks, definition, paths in backticks.
fn problems(rows: &[Vec<String>], sources: impl Fn(&str) -> Option<String>) -> Problems {
    let mut problems = Problems::new();
    for row in rows {
        let [concept, word, _, places] = row.as_slice() else {
            problems.push(format!("not four cells: {row:?}"));
            continue;
        };
        let mut text = String::new();
        for path in quoted(places) {
            match sources(&path) {
                Some(found) => text.push_str(&found),
                None => problems.push(format!("{concept}: there is no {path}")),
            }
        }
        for name in quoted(word) {
            // `Action::Reservation` is the variant of a type.
            if !name.split("::").all(|part| has(&text, part)) {
                problems.push(format!("{concept}: {name} is not in {places}"));
            }
        }
    }
    problems
}

#[test]
fn every_name_of_the_glossary_is_where_it_says() {
    let documents = markdown::all();
    let rows = document(&documents, "docs/contribute/GLOSSARY.md").table("Words");
    assert!(rows.len() > 40, "only {} rows", rows.len());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    none(&problems(&rows, |path| sources(&root.join(path))));
}

#[test]
fn an_invented_name_or_path_of_the_glossary_is_found() {
    let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
    let rows = [
        row(["good", "`Action::Claim`, lane", "x", "`src/a.rs`"]),
        row(["part", "`Claim`", "x", "`src/b.rs`"]),
        row(["gone", "`Action`", "x", "`src/c.rs`"]),
    ];
    let found = problems(&rows, |path| match path {
        "src/a.rs" => Some("enum Action { Claim(Write) }".to_owned()),
        "src/b.rs" => Some("struct Claims;".to_owned()),
        _ => None,
    });
    assert_eq!(
        found,
        [
            "part: Claim is not in `src/b.rs`",
            "gone: there is no src/c.rs",
            "gone: Action is not in `src/c.rs`"
        ]
    );
}
