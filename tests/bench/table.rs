//! The one row that all scenes give, and the table that is printed of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::attacher::{Kind, Others, value_of};

/// What a row is about; a document takes the rows of some topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    Rate,
    Latency,
    Requests,
    Cpu,
    Memory,
    Start,
    Leases,
    Size,
}

/// Which side of the target passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = "=")]
    Exactly,
}

/// What a target is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    Measured,
    Ratio,
}

/// A number that somebody promised.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub of: Of,
    pub direction: Direction,
    pub number: f64,
}

/// Whether a row reaches its target. A benchmark prints this and never judges with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Pass,
    Miss,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub topic: Topic,
    pub measured: f64,
    pub unit: String,
    /// The same of something else in the same run, and what that is.
    pub reference: Option<f64>,
    pub against: Option<String>,
    /// Measured divided by reference, or the median of the ratios of rounds.
    pub ratio: Option<f64>,
    pub target: Option<Target>,
    pub verdict: Option<Verdict>,
    /// The same of the Go sidecar.
    pub sidecar: Option<f64>,
    /// The same of the attacher of `ATTACHER_CMD`.
    pub other: Option<f64>,
    pub note: Option<String>,
    /// Whether the README shows it.
    pub headline: bool,
}

impl Row {
    pub fn new(topic: Topic, name: impl Into<String>, measured: f64, unit: &str) -> Self {
        Self {
            name: name.into(),
            topic,
            measured,
            unit: unit.to_owned(),
            reference: None,
            against: None,
            ratio: None,
            target: None,
            verdict: None,
            sidecar: None,
            other: None,
            note: None,
            headline: false,
        }
    }

    /// A row that the README shows.
    #[must_use]
    pub fn headline(mut self) -> Self {
        self.headline = true;
        self
    }

    /// With what it is compared.
    #[must_use]
    pub fn against(mut self, what: &str, reference: f64) -> Self {
        self.reference = Some(reference);
        self.against = Some(what.to_owned());
        self.ratio = (reference > 0.0).then(|| self.measured / reference);
        self
    }

    /// The median of the ratios of rounds, each to its own neighbours, in place of the ratio of the medians.
    #[must_use]
    pub fn with_ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(ratio);
        self
    }

    #[must_use]
    pub fn target(mut self, of: Of, direction: Direction, number: f64) -> Self {
        let value = match of {
            Of::Measured => Some(self.measured),
            Of::Ratio => self.ratio,
        };
        let passed = value.is_some_and(|value| match direction {
            Direction::AtMost => value <= number,
            Direction::AtLeast => value >= number,
            // Counts for each volume are quotients of whole numbers.
            Direction::Exactly => (value - number).abs() < 0.0005,
        });
        self.target = Some(Target { of, direction, number });
        self.verdict = Some(if passed { Verdict::Pass } else { Verdict::Miss });
        self
    }

    #[must_use]
    pub fn at_most(self, number: f64) -> Self {
        self.target(Of::Measured, Direction::AtMost, number)
    }

    #[must_use]
    pub fn exactly(self, number: f64) -> Self {
        self.target(Of::Measured, Direction::Exactly, number)
    }

    #[must_use]
    pub fn ratio_at_most(self, number: f64) -> Self {
        self.target(Of::Ratio, Direction::AtMost, number)
    }

    #[must_use]
    pub fn ratio_at_least(self, number: f64) -> Self {
        self.target(Of::Ratio, Direction::AtLeast, number)
    }

    #[must_use]
    pub fn sidecar(mut self, value: Option<f64>) -> Self {
        self.sidecar = value;
        self
    }

    #[must_use]
    pub fn other(mut self, value: Option<f64>) -> Self {
        self.other = value;
        self
    }

    /// Both columns of others.
    #[must_use]
    pub fn beside<T>(self, others: &Others<T>, value: impl Fn(&T) -> f64 + Copy) -> Self {
        self.sidecar(value_of(others, Kind::Sidecar, value))
            .other(value_of(others, Kind::Command, value))
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The cells in the order of [`HEAD`].
    pub fn cells(&self) -> Vec<String> {
        let with_unit = |value: Option<f64>| value.map(|value| quantity(value, &self.unit)).unwrap_or_default();
        let reference = match (&self.against, self.reference) {
            (Some(what), Some(value)) => format!("{} ({what})", quantity(value, &self.unit)),
            _ => String::new(),
        };
        let verdict = match self.verdict {
            Some(Verdict::Pass) => "pass",
            Some(Verdict::Miss) => "miss",
            None => "",
        };
        vec![
            self.name.clone(),
            quantity(self.measured, &self.unit),
            reference,
            self.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            self.target_text(),
            verdict.to_owned(),
            with_unit(self.sidecar),
            with_unit(self.other),
            self.note.clone().unwrap_or_default(),
        ]
    }

    fn target_text(&self) -> String {
        let Some(target) = self.target else {
            return String::new();
        };
        let sign = match target.direction {
            Direction::AtMost => "<=",
            Direction::AtLeast => ">=",
            Direction::Exactly => "=",
        };
        let number = match target.of {
            Of::Measured => quantity(target.number, &self.unit),
            Of::Ratio => format!("{} x", trimmed(target.number)),
        };
        format!("{sign} {number}")
    }
}

/// The columns.
pub const HEAD: [&str; 9] = [
    "what",
    "measured",
    "reference",
    "ratio",
    "target",
    "result",
    "Go sidecar",
    "ATTACHER_CMD",
    "note",
];

/// Three digits that matter, and none behind the point of what is counted.
fn quantity(value: f64, unit: &str) -> String {
    let number = trimmed(value);
    if unit.is_empty() {
        number
    } else {
        format!("{number} {unit}")
    }
}

fn trimmed(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Which columns have something in one of the rows at least.
pub fn used(rows: &[Vec<String>]) -> Vec<usize> {
    (0..HEAD.len())
        .filter(|column| rows.iter().any(|cells| !cells[*column].is_empty()))
        .collect()
}

/// Rows as text for a terminal.
pub struct Table<'r>(pub &'r [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<String>> = self.0.iter().map(Row::cells).collect();
        let columns = used(&rows);
        let head = HEAD.map(str::to_owned).to_vec();
        let width = |column: usize| {
            let cells = rows.iter().chain([&head]).map(|cells| cells[column].chars().count());
            cells.max().unwrap_or_default()
        };
        for cells in [&head].into_iter().chain(&rows) {
            let padded = columns
                .iter()
                .map(|column| format!("{:<1$}", cells[*column], width(*column)));
            writeln!(formatter, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
