//! The table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::suite::{Row, Verdict};

/// What one mode came to.
pub struct Column {
    /// Name of the mode.
    pub mode: String,
    /// Its rows, in the order of the scenarios.
    pub rows: Vec<Row>,
    /// How long it took.
    pub took: Duration,
}

impl Column {
    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(&row.verdict)).count()
    }

    /// How many scenarios failed.
    pub fn failed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Failed(_)))
    }

    /// How many scenarios are not supported, apart from these.
    pub fn not_supported_but(&self, left_out: &[&str]) -> usize {
        let counts = |row: &&Row| {
            let known = left_out.iter().any(|name| row.name.starts_with(name));
            matches!(row.verdict, Verdict::NotSupported(_)) && !known
        };
        self.rows.iter().filter(counts).count()
    }

    /// How many scenarios are not supported.
    pub fn not_supported(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::NotSupported(_)))
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed(_) => "FAILED",
        Verdict::NotSupported(_) => "not supported",
    }
}

fn why(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Passed => None,
        Verdict::Failed(why) | Verdict::NotSupported(why) => Some(why),
    }
}

/// All scenarios by group with a column for each mode, reasons below the line they belong to, and the sums.
pub fn table(columns: &[Column]) -> String {
    let Some(first) = columns.first() else {
        return String::new();
    };
    let wide = first
        .rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or_default()
        + 2;
    let mut text = String::new();
    // Writing into a String cannot fail.
    let mut heading = |cells: Vec<String>, label: &str| {
        write!(text, "{label:<wide$}").ok();
        for cell in cells {
            write!(text, "  {cell:<19}").ok();
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    heading(columns.iter().map(|column| column.mode.clone()).collect(), "");
    let mut groups: Vec<&str> = Vec::new();
    for row in &first.rows {
        if !groups.contains(&row.group) {
            groups.push(row.group);
        }
    }
    for group in groups {
        let in_group = |row: &&Row| row.group == group;
        heading(
            vec![],
            &format!("{group} ({})", first.rows.iter().filter(in_group).count()),
        );
        for row in first.rows.iter().filter(in_group) {
            let others = columns
                .iter()
                .filter_map(|column| find(column, row).map(|found| (column, found)));
            let others: Vec<_> = others.collect();
            let cell = |(_, found): &(&Column, &Row)| {
                format!("{:<13}{:>5.1}s", word(&found.verdict), found.took.as_secs_f32())
            };
            heading(others.iter().map(cell).collect(), &format!("  {}", row.name));
            for (column, found) in others {
                if let Some(why) = why(&found.verdict) {
                    heading(vec![], &format!("      {}: {why}", column.mode));
                }
            }
        }
    }
    for column in columns {
        heading(vec![], &sums(column));
    }
    text
}

fn find<'c>(column: &'c Column, row: &Row) -> Option<&'c Row> {
    column
        .rows
        .iter()
        .find(|other| other.group == row.group && other.name == row.name)
}

fn sums(column: &Column) -> String {
    format!(
        "{}: {} scenarios: {} passed, {} failed, {} not supported, in {:.0} s",
        column.mode,
        column.rows.len(),
        column.count(|verdict| *verdict == Verdict::Passed),
        column.failed(),
        column.not_supported(),
        column.took.as_secs_f32(),
    )
}
