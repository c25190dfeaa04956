//! The runbooks quote the log as the operator writes it, and name fields so that they are found in both of its formats.

use super::markdown::{self, Document, quoted};
use super::{Problems, none, sources};

/// The sources with each text on one line, and with `…` in place of what is filled in.
fn texts(sources: &str) -> String {
    let mut joined = String::new();
    for (index, piece) in sources.split("\\\n").enumerate() {
        joined.push_str(if index == 0 { piece } else { piece.trim_start() });
    }
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_.:?".contains(letter);
    let (mut texts, mut rest) = (String::new(), joined.as_str());
    while let Some((before, after)) = rest.split_once('{') {
        texts.push_str(before);
        let name = after.trim_start_matches(is_of_name);
        rest = name.strip_prefix('}').unwrap_or(after);
        texts.push(if name.starts_with('}') { '…' } else { '{' });
    }
    texts.push_str(rest);
    texts
}

/// What stands in double quotes, outside of backticks, with the number of its line.
fn quotes(document: &Document) -> Vec<(usize, String)> {
    let mut quotes = Vec::new();
    for (line, text) in document.prose() {
        let outside: String = text.split('`').step_by(2).collect();
        let inside = outside.split('"').skip(1).step_by(2);
        quotes.extend(inside.map(|quote| (line, quote.to_owned())));
    }
    quotes
}

/// Quotes with which no text of the sources begins.
fn quote_problems(documents: &[Document], sources: &str) -> Problems {
    let texts = texts(sources);
    let mut problems = Problems::new();
    for document in documents {
        for (line, quote) in quotes(document) {
            if !texts.contains(&format!("\"{quote}")) {
                problems.push(format!(
                    "{}:{line}: the operator does not write \"{quote}\"",
                    document.path
                ));
            }
        }
    }
    problems
}

/// Fields of the log as one of its formats alone writes them.
fn field_problems(documents: &[Document]) -> Problems {
    let mut problems = Problems::new();
    for document in documents {
        for (line, text) in document.prose() {
            let Some((_, log)) = text.split_once("Log: ") else {
                continue;
            };
            let others = ["Event: ", "Status: ", "Trace: "].iter();
            let end = others.filter_map(|other| log.find(other)).min().unwrap_or(log.len());
            let fields = quoted(&log[..end]);
            let told = fields
                .iter()
                .filter(|field| field.contains('=') && !field.contains(' '));
            problems.extend(told.map(|field| format!("{}:{line}: the log in JSON has no {field}", document.path)));
        }
    }
    problems
}

fn runbooks() -> Vec<Document> {
    let mut documents = markdown::all();
    documents.retain(|document| document.path.starts_with("docs/runbooks/"));
    documents
}

#[test]
fn the_log_is_quoted_as_it_is_written() {
    let runbooks = runbooks();
    let count: usize = runbooks.iter().map(|runbook| quotes(runbook).len()).sum();
    assert!(count >= 10, "only {count} quotes");
    none(&quote_problems(&runbooks, &sources::operator()));
}

#[test]
fn fields_of_the_log_are_found_in_both_formats() {
    none(&field_problems(&runbooks()));
}

#[test]
fn a_wrong_quote_and_a_field_of_one_format_are_found() {
    let sources = "warn!(%error, \"cannot take the \\\n        Lease of {name}; retrying\"); if a { \"b\" }";
    let text = "* Log: \"cannot take the Lease of …; retrying\", \"Lease of\", \"cannot read the Lease\"; `finding=a`, `kubectl logs \
                -l a=b`. Trace: `c=d`.\n";
    let documents = [Document::new("R.md", text)];
    assert_eq!(
        quote_problems(&documents, sources),
        [
            "R.md:1: the operator does not write \"Lease of\"",
            "R.md:1: the operator does not write \"cannot read the Lease\""
        ]
    );
    assert_eq!(field_problems(&documents), ["R.md:1: the log in JSON has no finding=a"]);
}
