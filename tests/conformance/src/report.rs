//! The results: a table for people, JSON and JUnit for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::role::Role;
use crate::scenario::Level;
use crate::suite::{Row, Verdict};

/// What one attacher came to.
pub struct Column {
    pub role: Role,
    pub mode: String,
    /// Its rows, in the order of the scenarios.
    pub rows: Vec<Row>,
    pub took: Duration,
}

impl Column {
    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(&row.verdict)).count()
    }

    pub fn failed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Failed(_)))
    }

    /// How many scenarios are not supported, apart from those with these ids.
    pub fn not_supported_but(&self, left_out: &[&str]) -> usize {
        let counts =
            |row: &&Row| matches!(row.verdict, Verdict::NotSupported(_)) && !left_out.contains(&row.id.as_str());
        self.rows.iter().filter(counts).count()
    }
}

impl Verdict {
    /// As it stands in the table and in JSON.
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::NotSupported(_) => "not supported",
            Self::KnownFailure(_) => "known failure",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed(why) | Self::NotSupported(why) | Self::KnownFailure(why) => Some(why),
        }
    }
}

pub fn table(columns: &[Column]) -> String {
    by_role(columns)
        .map(|(_, columns)| table_of(&columns))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The columns of each role that has some.
fn by_role(columns: &[Column]) -> impl Iterator<Item = (Role, Vec<&Column>)> {
    let of = |role| {
        (
            role,
            columns.iter().filter(|column| column.role == role).collect::<Vec<_>>(),
        )
    };
    Role::ALL.into_iter().map(of).filter(|(_, columns)| !columns.is_empty())
}

/// All scenarios by group with a column for each attacher, reasons below the line they belong to, and the sums.
fn table_of(columns: &[&Column]) -> String {
    let Some(first) = columns.first() else {
        return String::new();
    };
    let width = |row: &Row| row.id.chars().count() + row.title.chars().count() + 2;
    let wide = first.rows.iter().map(width).max().unwrap_or_default() + 4;
    let mut text = String::new();
    let mut line = |label: &str, cells: Vec<String>| {
        let cells: String = cells
            .iter()
            .fold(String::new(), |line, cell| format!("{line}  {cell:<19}"));
        // Writing into a String cannot fail.
        writeln!(text, "{}", format!("{label:<wide$}{cells}").trim_end()).ok();
    };
    line("", columns.iter().map(|column| column.mode.clone()).collect());
    for row in &first.rows {
        let found: Vec<_> = columns
            .iter()
            .filter_map(|column| find(column, row).map(|found| (*column, found)))
            .collect();
        let cell = |(_, found): &(&Column, &Row)| {
            let word = match &found.verdict {
                Verdict::Failed(_) => "FAILED",
                other => other.word(),
            };
            format!("{word:<13}{:>5.1}s", found.took.as_secs_f32())
        };
        line(&format!("{}: {}", row.id, row.title), found.iter().map(cell).collect());
        for (column, found) in found {
            if let Some(why) = found.verdict.reason() {
                line(&format!("    {}: {why}", column.mode), Vec::new());
            }
        }
    }
    text.push('\n');
    text.push_str(&sums(columns));
    text
}

fn find<'c>(column: &'c Column, row: &Row) -> Option<&'c Row> {
    column.rows.iter().find(|other| other.id == row.id)
}

/// A Markdown table: for each attacher and level how many scenarios passed of those that were played, then what failed and
/// what is not supported.
fn sums(columns: &[&Column]) -> String {
    let levels = Level::ALL.map(Level::name).join(" | ");
    let who = columns.first().map_or("", |column| column.role.who());
    let mut text = format!("| {who} | {levels} | seconds |\n|---|---|---|---|---|---|\n");
    for column in columns {
        let cells = Level::ALL.map(|level| {
            let of_level = || column.rows.iter().filter(move |row| row.level == level);
            let passed = of_level().filter(|row| row.verdict == Verdict::Passed).count();
            format!("{passed} of {}", of_level().count())
        });
        let cells = cells.join(" | ");
        writeln!(text, "| {} | {cells} | {:.0} |", column.mode, column.took.as_secs_f32()).ok();
    }
    for column in columns {
        for label in ["failed", "not supported", "known failure"] {
            let of_label = column.rows.iter().filter(|row| row.verdict.word() == label);
            let ids: Vec<String> = of_label.map(Row::named).collect();
            if !ids.is_empty() {
                writeln!(text, "\n{}, {label}: {}", column.mode, ids.join(", ")).ok();
            }
        }
    }
    text
}

impl Row {
    /// Its id, and of a known failure also the reference.
    fn named(&self) -> String {
        match &self.verdict {
            Verdict::KnownFailure(why) => {
                format!("{} ({})", self.id, why.split_once(':').map_or("", |(known, _)| known))
            }
            _ => self.id.clone(),
        }
    }
}

/// The document with the results of each role replaced; none if it lacks the marks that they stand between.
pub fn in_document(document: &str, columns: &[Column]) -> Option<String> {
    const END: &str = "<!-- End of the results. -->";
    let mut document = document.to_owned();
    for (role, columns) in by_role(columns) {
        let begin = role.mark();
        let (before, rest) = document.split_once(begin)?;
        let (_, after) = rest.split_once(END)?;
        document = format!("{before}{begin}\n{}\n{END}{after}", sums(&columns));
    }
    Some(document)
}

pub fn json(columns: &[Column]) -> Value {
    let scenario = |row: &Row| {
        json!({
            "id": row.id,
            "level": row.level.name(),
            "title": row.title,
            "result": row.verdict.word(),
            "reason": row.verdict.reason(),
            "seconds": seconds(row.took),
        })
    };
    let attacher = |column: &Column| {
        json!({
            "name": column.mode,
            "role": column.role.name(),
            "seconds": seconds(column.took),
            "passed": column.count(|verdict| *verdict == Verdict::Passed),
            "failed": column.failed(),
            "notSupported": column.count(|verdict| matches!(verdict, Verdict::NotSupported(_))),
            "knownFailures": column.count(|verdict| matches!(verdict, Verdict::KnownFailure(_))),
            "scenarios": column.rows.iter().map(scenario).collect::<Vec<_>>(),
        })
    };
    json!({
        "suite": "csi-attacher-conformance",
        "version": env!("CARGO_PKG_VERSION"),
        "attachers": columns.iter().map(attacher).collect::<Vec<_>>(),
    })
}

fn seconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1000.0).round() / 1000.0
}

/// All results as JUnit reads them: a suite for each attacher, a class for each group. What is not supported
/// is skipped, and so is a failure that is known.
pub fn junit(columns: &[Column]) -> String {
    let mut text =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"csi-attacher-conformance\">\n");
    for column in columns {
        let skipped = column.count(|verdict| matches!(verdict, Verdict::NotSupported(_) | Verdict::KnownFailure(_)));
        writeln!(
            text,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{skipped}\" time=\"{:.3}\">",
            escaped(&format!("{} {}", column.role.who(), column.mode)),
            column.rows.len(),
            column.failed(),
            column.took.as_secs_f64(),
        )
        .ok();
        for row in &column.rows {
            write!(
                text,
                "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                escaped(row.group),
                escaped(&format!("{}: {}", row.id, row.title)),
                row.took.as_secs_f64(),
            )
            .ok();
            let tag = match row.verdict {
                Verdict::Passed => {
                    text.push_str("/>\n");
                    continue;
                }
                Verdict::Failed(_) => "failure",
                Verdict::NotSupported(_) | Verdict::KnownFailure(_) => "skipped",
            };
            let why = escaped(row.verdict.reason().unwrap_or_default());
            writeln!(text, "><{tag} message=\"{why}\"/></testcase>").ok();
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

/// A text in an attribute of XML. Control characters cannot be written in XML 1.0.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ if character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column() -> Column {
        let row = |id: &str, level, verdict| Row {
            group: "attach",
            id: id.to_owned(),
            title: "a \"title\"".to_owned(),
            level,
            verdict,
            took: Duration::from_millis(1500),
        };
        Column {
            role: Role::Attach,
            mode: "one".to_owned(),
            rows: vec![
                row("attach/a", Level::Safety, Verdict::Passed),
                row("attach/b", Level::Core, Verdict::Failed("x < y\u{1}".to_owned())),
                row("attach/c", Level::Extension, Verdict::NotSupported("no".to_owned())),
                row(
                    "attach/d",
                    Level::Core,
                    Verdict::KnownFailure("EP#1: it leaks".to_owned()),
                ),
            ],
            took: Duration::from_secs(3),
        }
    }

    #[test]
    fn each_verdict_counts_once_in_each_form() {
        let columns = [column()];
        assert_eq!(columns[0].failed(), 1);
        assert_eq!(columns[0].not_supported_but(&[]), 1);
        assert_eq!(columns[0].not_supported_but(&["attach/c"]), 0);
        let json = json(&columns);
        assert_eq!(json["attachers"][0]["failed"], 1);
        assert_eq!(json["attachers"][0]["scenarios"][2]["result"], "not supported");
        assert_eq!(json["attachers"][0]["scenarios"][0]["reason"], Value::Null);
        let junit = junit(&columns);
        assert!(junit.contains("tests=\"4\" failures=\"1\" skipped=\"2\""), "{junit}");
        assert!(junit.contains("<failure message=\"x &lt; y\u{fffd}\"/>"), "{junit}");
        assert!(junit.contains("a &quot;title&quot;"), "{junit}");
        let sums = sums(&[&columns[0]]);
        let is_told = sums.contains("| one | 1 of 1 | 0 of 2 | 0 of 0 | 0 of 1 | 3 |");
        assert!(is_told, "{sums}");
        assert!(sums.contains("one, failed: attach/b\n"), "{sums}");
        assert!(sums.contains("one, known failure: attach/d (EP#1)\n"), "{sums}");
        let document = include_str!("../../../docs/contribute/CONFORMANCE.md");
        let written = in_document(document, &columns).expect("it has the marks");
        assert!(written.contains(&sums) && written.starts_with(document.lines().next().expect("it has a title")));
        assert_eq!(in_document(&written, &columns).as_ref(), Some(&written));
        assert_eq!(in_document("no marks", &columns), None);
    }
}
