//! Tables of decisions: what is decided, and the worlds in which it is, each under a name that begins with its rule.

use std::collections::BTreeSet;

/// One world, and what is to be decided in it.
pub struct Row<World> {
    name: &'static str,
    world: World,
    decided: &'static str,
}

/// What is to be decided.
pub struct Decided(pub &'static str);

impl Decided {
    pub fn when<World>(self, worlds: Vec<(&'static str, World)>) -> Vec<Row<World>> {
        let rows = worlds.into_iter().map(|(name, world)| Row {
            name,
            world,
            decided: self.0,
        });
        rows.collect()
    }
}

/// Plays a table with `decide`, which says what is decided in a world.
pub fn play<World>(table: Vec<Vec<Row<World>>>, decide: impl Fn(&World) -> String) {
    let rows: Vec<_> = table.into_iter().flatten().collect();
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "a name is used twice");
    for row in rows {
        assert_eq!(decide(&row.world), row.decided, "{}", row.name);
    }
}
