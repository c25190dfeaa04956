//! Rows of a table, and how they are played.

use std::collections::BTreeSet;

use super::world::{DecideModel, Requeue};

/// One line of a table.
pub struct Row {
    pub name: &'static str,
    pub world: DecideModel,
    /// What happens, separated by bars.
    pub log: &'static str,
    /// One letter for each attempt: F(orget), R(etry) or W(ait).
    pub requeue: &'static str,
}

/// What happens in some worlds, whichever they are.
pub struct Course {
    log: &'static str,
    requeue: &'static str,
}

impl Course {
    pub fn when(self, worlds: Vec<(&'static str, DecideModel)>) -> Vec<Row> {
        let rows = worlds.into_iter();
        rows.map(|(name, world)| row(name, world, self.log, self.requeue))
            .collect()
    }
}

pub fn ends(requeue: &'static str, log: &'static str) -> Course {
    Course { log, requeue }
}

pub fn done(log: &'static str) -> Course {
    ends("F", log)
}

pub fn retried(log: &'static str) -> Course {
    ends("R", log)
}

/// Retried, and done then.
pub fn mended(log: &'static str) -> Course {
    ends("RF", log)
}

pub fn held(log: &'static str) -> Course {
    ends("W", log)
}

pub fn row(name: &'static str, world: DecideModel, log: &'static str, requeue: &'static str) -> Row {
    Row {
        name,
        world,
        log,
        requeue,
    }
}

/// Plays each row; returns how many there were.
pub fn play(table: Vec<Vec<Row>>) -> usize {
    play_with(table, DecideModel::attempt)
}

/// Plays each row with `attempt`.
pub fn play_with(table: Vec<Vec<Row>>, attempt: impl Fn(&mut DecideModel) -> Requeue) -> usize {
    let rows: Vec<_> = table.into_iter().flatten().collect();
    let count = rows.len();
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), count, "a name is used twice");
    for mut row in rows {
        let requeue: String = (0..row.requeue.len())
            .map(|_| match attempt(&mut row.world) {
                Requeue::Forget => 'F',
                Requeue::Retry => 'R',
                Requeue::Wait => 'W',
            })
            .collect();
        assert_eq!(row.world.log.join(" | "), row.log, "{}", row.name);
        assert_eq!(requeue, row.requeue, "{}", row.name);
    }
    count
}

/// Says how many rows a table of the sidecar's own tests has here, for `tests/sidecar-tables`, which knows how many there
/// should be.
#[allow(clippy::print_stdout, reason = "read by a script")]
pub fn tally(section: &str, table: &str, rows: usize) {
    println!("\nsidecar table|{section}|{table}|{rows}");
}
