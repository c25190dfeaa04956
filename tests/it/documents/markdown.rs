//! As much of Markdown as the documents use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A document and where it is, from the root of the repository.
pub struct Document {
    pub path: String,
    pub text: String,
}

/// A fenced block.
pub struct Block<'t> {
    pub language: &'t str,
    pub text: String,
    /// Number of its first line.
    pub line: usize,
}

/// Folders that hold nothing of ours, or are made.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// Every document of the repository.
pub fn all() -> Vec<Document> {
    let mut found = Vec::new();
    gather(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(found.len() > 20, "only {} documents were found", found.len());
    found
}

fn gather(root: &Path, folder: &str, found: &mut Vec<Document>) {
    for entry in fs::read_dir(root.join(folder)).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        let kind = entry.file_type().expect("it has a type");
        if kind.is_dir() && !SKIPPED.contains(&&*name) {
            gather(root, &path, found);
        // The head of the chart's README is told from there, with its links.
        } else if kind.is_file() && is_markdown(&entry.path()) && path != "tests/chart/readme.md" {
            let text = fs::read_to_string(entry.path()).expect("the document is text");
            found.push(Document { path, text });
        }
    }
}

impl Document {
    #[cfg(test)]
    pub fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The fenced blocks.
    pub fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut open: Option<(Block<'_>, usize)> = None;
        for (number, line) in self.text.lines().enumerate() {
            let (indent, trimmed) = (line.len() - line.trim_start().len(), line.trim());
            match (&mut open, trimmed.strip_prefix("```")) {
                (None, Some(language)) => {
                    let block = Block {
                        language: language.trim(),
                        text: String::new(),
                        line: number + 2,
                    };
                    open = Some((block, indent));
                }
                (Some(_), Some("")) => blocks.extend(open.take().map(|(block, _)| block)),
                (Some((block, indent)), _) => {
                    block.text.push_str(line.get(*indent..).unwrap_or_default());
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path);
        blocks
    }

    /// Lines outside of blocks, with their numbers.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let mut inside = false;
        let mut lines = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            if line.trim().starts_with("```") {
                inside = !inside;
            } else if !inside {
                lines.push((number + 1, line));
            }
        }
        lines
    }

    /// What stands in backticks, with the number of its line; also when it goes on in the next line.
    pub fn spans(&self) -> Vec<(usize, String)> {
        let mut spans = Vec::new();
        let mut open: Option<(usize, String)> = None;
        for (number, line) in self.prose() {
            // A paragraph, a row or an item ends what was not closed.
            if line.trim().is_empty() || line.starts_with('|') || line.starts_with("* ") || line.starts_with('#') {
                open = None;
            }
            for (index, piece) in line.split('`').enumerate() {
                if index > 0 {
                    match open.take() {
                        Some((begun, text)) => spans.push((begun, text.trim().to_owned())),
                        None => open = Some((number, String::new())),
                    }
                }
                if let Some((_, text)) = &mut open {
                    text.push_str(piece);
                }
            }
            if let Some((_, text)) = &mut open {
                text.push(' ');
            }
        }
        spans
    }

    /// The anchors of the headings, as GitHub makes them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut anchors = BTreeSet::new();
        for (_, line) in self.prose() {
            let heading = line.trim_start_matches('#');
            if heading.len() == line.len() || !heading.starts_with(' ') {
                continue;
            }
            let anchor = anchor(heading.trim());
            let count = seen.entry(anchor.clone()).or_default();
            anchors.insert(if *count == 0 {
                anchor
            } else {
                format!("{anchor}-{count}")
            });
            *count += 1;
        }
        anchors
    }

    /// The targets of the links, with the number of their line.
    pub fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in self.prose() {
            for rest in line.split("](").skip(1) {
                if let Some((target, _)) = rest.split_once(')') {
                    links.push((number, target.to_owned()));
                }
            }
        }
        links
    }

    /// The rows of the table below a heading: their cells.
    pub fn table(&self, heading: &str) -> Vec<Vec<String>> {
        let mut below = false;
        let mut rows = Vec::new();
        for (_, line) in self.prose() {
            if line.starts_with('#') {
                below = line.trim_start_matches('#').trim() == heading;
            } else if below && line.starts_with('|') {
                let line = line.replace("\\|", "\u{1}");
                let cells = line.trim().trim_matches('|').split('|');
                rows.push(cells.map(|cell| cell.trim().replace('\u{1}', "|")).collect());
            }
        }
        assert!(rows.len() > 2, "{} has no table below \"{heading}\"", self.path);
        // Without the head and the line below it.
        rows.split_off(2)
    }
}

/// What stands in backticks in a cell.
pub fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn anchor(heading: &str) -> String {
    // The text of a link counts, not its target.
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    let small = text.to_lowercase();
    small
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

#[test]
fn a_document_is_read() {
    let text = "# One `two`, three-four\n## One\n## One\nsee [x](a.md#b) and `a\nb`, `c`\n\n```yaml\n# no heading\na: `b`\n```\n\
                ## Table\n| a | b |\n|---|---|\n| `x` `y` | p\\|q |\n| z | |\n";
    let document = Document::new("A.md", text);
    let anchors: Vec<String> = document.anchors().into_iter().collect();
    assert_eq!(anchors, ["one", "one-1", "one-two-three-four", "table"]);
    let spans: Vec<String> = document.spans().into_iter().map(|(_, span)| span).collect();
    assert_eq!(spans, ["two", "a b", "c", "x", "y"]);
    assert_eq!(document.links(), [(4, "a.md#b".to_owned())]);
    let blocks = document.blocks();
    assert_eq!((blocks.len(), blocks[0].language, blocks[0].line), (1, "yaml", 8));
    assert_eq!(blocks[0].text, "# no heading\na: `b`\n");
    assert_eq!(document.table("Table"), [["`x` `y`", "p|q"], ["z", ""]]);
    assert_eq!(quoted("`x` and `y`"), ["x", "y"]);
}
