//! Writes the results into the documents, between their marks: `<!-- bench:begin topics -->` and `<!-- bench:end -->`. Without
//! topics all rows are written; `headline` in their place stands for the few rows that the README shows, beside the Go sidecar.

use std::fs;

use super::results::{Results, SceneResult};
use super::support::{Error, Result, of_repository};
use super::table::{HEAD, Row, Topic, used};

const DOCUMENTS: [&str; 3] = ["README.md", "docs/operate/PERFORMANCE.md", "docs/operate/SIZING.md"];
const HEADLINE: &str = "headline";
/// The columns of the rows that the README shows.
const HEADLINE_COLUMNS: [&str; 7] = [
    "what",
    "measured",
    "reference",
    "ratio",
    "target",
    "result",
    "Go sidecar",
];
const BEGIN: &str = "<!-- bench:begin";
const END: &str = "<!-- bench:end -->";

/// Writes all documents.
pub fn write() -> Result<()> {
    let results = Results::read()?;
    if !results.release {
        return Err(Error::Other(
            "these results are of a debug build, which no document should have".to_owned(),
        ));
    }
    for document in DOCUMENTS {
        let path = of_repository(document);
        let failed = |error: std::io::Error| Error::Other(format!("{document}: {error}"));
        let text = fs::read_to_string(&path).map_err(failed)?;
        let written = filled(&text, &results).map_err(|error| Error::Other(format!("{document}: {error}")))?;
        fs::write(&path, written).map_err(failed)?;
        println!("wrote {document}");
    }
    Ok(())
}

/// The text with its blocks written again.
fn filled(text: &str, results: &Results) -> Result<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(at);
        let unclosed = || Error::Other(format!("{BEGIN} without {END}"));
        let (mark, block) = block.split_once("-->").ok_or_else(unclosed)?;
        let (_, after) = block.split_once(END).ok_or_else(unclosed)?;
        let block = block_of(results, mark.trim_start_matches(BEGIN).trim())?;
        out.push_str(before);
        out.push_str(mark);
        out.push_str("-->\n");
        out.push_str(&block);
        out.push_str(END);
        rest = after;
    }
    Ok(out + rest)
}

fn topics(words: &str) -> Result<Vec<Topic>> {
    let words = words.split_whitespace();
    words
        .map(|word| Ok(serde_json::from_value(serde_json::Value::from(word))?))
        .collect()
}

fn block_of(results: &Results, words: &str) -> Result<String> {
    let is_headline = words == HEADLINE;
    let topics = if is_headline { Vec::new() } else { topics(words)? };
    let asked = |row: &&Row| {
        if is_headline {
            row.headline
        } else {
            topics.is_empty() || topics.contains(&row.topic)
        }
    };
    let rows: Vec<Vec<String>> = results.rows().filter(asked).map(Row::cells).collect();
    let mut columns = used(&rows);
    columns.retain(|column| !is_headline || HEADLINE_COLUMNS.contains(&HEAD[*column]));
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let only = |cells: &[String]| {
        columns
            .iter()
            .map(|column| cells[*column].replace('|', "\\|"))
            .collect()
    };
    let mut text = format!("\n{}\n\n", origin(results));
    text.push_str(&line(only(&HEAD.map(str::to_owned))));
    text.push_str(&line(columns.iter().map(|_| "---".to_owned()).collect()));
    for cells in &rows {
        text.push_str(&line(only(cells)));
    }
    text.push('\n');
    Ok(text)
}

/// Where and when, as a figure is of no use without that.
fn origin(results: &Results) -> String {
    let days = || {
        results
            .scenes
            .iter()
            .filter_map(|scene: &SceneResult| scene.ended.get(..10))
    };
    let (first, last) = (days().min().unwrap_or_default(), days().max().unwrap_or_default());
    let days = if first == last {
        first.to_owned()
    } else {
        format!("{first} to {last}")
    };
    let of_several = |(revision, scenes): (&str, Vec<&str>)| format!("{revision} ({})", scenes.join(", "));
    let revisions: Vec<String> = match results.revisions() {
        one if one.len() == 1 => one.into_keys().map(str::to_owned).collect(),
        several => several.into_iter().map(of_several).collect(),
    };
    format!(
        "Measured {days}, revision {}: {}.",
        revisions.join(" and "),
        results.machine
    )
}
