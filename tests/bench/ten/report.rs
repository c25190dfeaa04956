//! The columns side by side.

use std::collections::BTreeSet;
use std::fmt;

use super::{Column, DRIVERS, Setup};

/// All columns.
pub struct Report {
    /// Volumes of each driver.
    pub volumes: usize,
    /// The columns.
    pub columns: Vec<Column>,
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{:.1} MiB", kibibytes as f64 / 1024.0)
}

impl Report {
    fn row(&self, formatter: &mut fmt::Formatter<'_>, what: &str, value: impl Fn(&Column) -> String) -> fmt::Result {
        write!(formatter, "{what:<30}")?;
        for column in &self.columns {
            write!(formatter, " {:>16}", value(column))?;
        }
        writeln!(formatter)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
        writeln!(
            formatter,
            "{DRIVERS} drivers with {} volumes each, {cores} cores for all",
            self.volumes
        )?;
        self.row(formatter, "", |column| {
            let name = match column.setup {
                Setup::One => "one operator",
                Setup::Ten => "ten operators",
                Setup::Sidecars => "ten Go sidecars",
            };
            name.to_owned()
        })?;
        self.row(formatter, "processes", |column| column.processes.to_string())?;
        self.row(formatter, "RSS idle, all together", |column| mebibytes(column.idle.now))?;
        self.row(formatter, "RSS, all attached", |column| mebibytes(column.loaded.now))?;
        self.row(formatter, "RSS peak", |column| mebibytes(column.loaded.peak))?;
        self.row(formatter, "CPU until idle", |column| {
            format!("{:.2} s", column.idle_cpu.as_secs_f64())
        })?;
        self.row(formatter, "CPU for all volumes", |column| {
            format!("{:.2} s", column.cpu.saturating_sub(column.idle_cpu).as_secs_f64())
        })?;
        self.row(formatter, "watches open", |column| column.usage.watches.to_string())?;
        let verbs: BTreeSet<&String> = self
            .columns
            .iter()
            .flat_map(|column| column.usage.requests.keys())
            .collect();
        for verb in verbs {
            let count = |column: &Column| column.usage.requests.get(verb).copied().unwrap_or_default();
            if self.columns.iter().any(|column| count(column) > 0) {
                self.row(formatter, &format!("requests: {verb}"), |column| {
                    count(column).to_string()
                })?;
            }
        }
        self.row(formatter, "attach all", |column| {
            format!("{:.1} s", column.attach.as_secs_f64())
        })?;
        self.row(formatter, "detach all", |column| {
            format!("{:.1} s", column.detach.as_secs_f64())
        })
    }
}
