//! The pages have plain English: words that users search for, and none of a short list that the project used before.

use std::path::Path;

use super::markdown::{self, Document};
use super::{Problems, none};

/// A word or phrase that no page has, and what to write.
const REFUSED: &[(&str, &str)] = &[
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("mending", "fixing"),
    ("told", "reported, logged, recorded, returned"),
    ("anew", "again"),
    ("worked for", "served"),
    ("to who", "to clients that, to users who"),
    ("of who", "of clients that, of users who"),
    ("for who", "for clients that, for users who"),
    ("by who", "by clients that, by users who"),
    ("whoever", "the user who, the client that, the next attacher"),
    ("the definition", "the CRD"),
    ("away with it", "uninstall, remove"),
    ("good news", "Normal Events"),
    ("bad news", "Warning Events"),
    ("for ever", "permanently"),
    ("plug in", "plugin"),
    ("plug ins", "plugins"),
    ("in line volume", "inline volume"),
    ("in line volumes", "inline volumes"),
];

/// Ends a phrase where the text ends a sentence, a paragraph, a cell or an item.
const BREAK: &str = "";

/// The words in small letters with their lines. Code spans and quoted texts are left out, as they quote other texts.
fn words(document: &Document) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut quoted_until = None;
    for (number, line) in document.prose() {
        if line.trim().is_empty() || line.trim_start().starts_with(['|', '*', '#', '-']) {
            quoted_until = None;
            words.push((number, BREAK.to_owned()));
        }
        let mut word = String::new();
        for letter in line.chars().chain([' ']) {
            if quoted_until.is_some() {
                quoted_until = quoted_until.filter(|mark| *mark != letter);
                continue;
            }
            if letter.is_alphanumeric() {
                word.extend(letter.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                words.push((number, std::mem::take(&mut word)));
            }
            if matches!(letter, '`' | '"') {
                quoted_until = Some(letter);
            }
            if !letter.is_whitespace() && letter != '-' {
                words.push((number, BREAK.to_owned()));
            }
        }
    }
    words
}

fn problems(documents: &[Document]) -> Problems {
    let mut problems = Problems::new();
    for document in documents {
        let words = words(document);
        for (refused, better) in REFUSED {
            let phrase: Vec<&str> = refused.split(' ').collect();
            for found in words.windows(phrase.len()) {
                if found.iter().map(|(_, word)| word.as_str()).eq(phrase.iter().copied()) {
                    let (line, _) = found[0];
                    problems.push(format!("{}:{line}: not \"{refused}\" but: {better}", document.path));
                }
            }
        }
    }
    problems
}

/// The pages, those for people who change the code too, the texts of the alerts, and what helm prints. The comments of the chart's values, the CRD and the help of the
/// flags are in the generated pages.
fn pages() -> Vec<Document> {
    let is_page = |path: &str| path == "README.md" || path.starts_with("charts/") || path.starts_with("docs/");
    let mut documents = markdown::all();
    documents.retain(|document| is_page(&document.path));
    let texts = [
        "config/prometheus/alerts.yaml",
        "charts/csi-attacher-operator/templates/NOTES.txt",
    ];
    documents.extend(texts.map(|path| {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("readable");
        // These quotes are YAML's and the template's own.
        Document::new(path, &text.replace('"', ""))
    }));
    documents
}

#[test]
fn the_pages_have_plain_words() {
    let documents = pages();
    assert!(documents.len() > 40, "only {} pages were found", documents.len());
    none(&problems(&documents));
}

#[test]
fn a_bad_sentence_is_found() {
    let text = "# Whoever mends it\n\nNobody is told, so the driver is not worked\nfor. Give it to who asks. The file `anew` and the log \
                \"it is mended for\never\" are quotes.\n* An item that ends with to\n* who begins the next one.\n| good | news |\n\
                | plug-in | x |\n\n```console\n$ mend\n```\nThe definition is bad: news.\n";
    let found = problems(&[Document::new("A.md", text)]);
    assert_eq!(
        found,
        [
            "A.md:1: not \"mends\" but: fixes",
            "A.md:3: not \"told\" but: reported, logged, recorded, returned",
            "A.md:3: not \"worked for\" but: served",
            "A.md:4: not \"to who\" but: to clients that, to users who",
            "A.md:1: not \"whoever\" but: the user who, the client that, the next attacher",
            "A.md:14: not \"the definition\" but: the CRD",
            "A.md:9: not \"plug in\" but: plugin",
        ]
    );
}
