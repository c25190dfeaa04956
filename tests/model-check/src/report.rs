//! Explores worlds, looks for wrong operators, and prints what they came to.

use std::fmt::Write as _;

use crate::core::{self as volumes, Core, Setting};
use crate::explorer::{Counterexample, Limits, Told, Wrong, explore, story};
use crate::lease::{self, LeaseSetting, LeaseWorld};
use crate::parallel::{all_good, cores};
use crate::provision::{self, ProvisionSetting, Provisioner};

/// Lines of a counterexample that are shown.
const SHOWN: usize = 25;
/// So many states of a world are visited in which a wrong operator is looked for.
const STATES_OF_A_WRONG_ONE: usize = 5_000_000;

/// Where lines go.
pub type Print<'a> = &'a (dyn Fn(&str) + Sync);

/// Explores the worlds of CI or the large ones, those with these words in their names; true when all were exhausted and nothing was found.
pub fn worlds(large: bool, only: Option<&str>, print: Print<'_>) -> bool {
    print(&format!(
        "{:<44} {:>7} {:>8} {:>24} {:>11} {:>12} {:>5} {:>7} {:>8}  result",
        "world", "objects", "replicas", "faults", "states", "transitions", "depth", "at rest", "time"
    ));
    let of_volumes = if large {
        volumes::worlds::large()
    } else {
        volumes::worlds::small()
    };
    let are_good = [
        explored(of_volumes, large, only, print),
        explored(lease::settings(large), large, only, print),
        explored(provision::worlds(large), large, only, print),
    ];
    are_good.into_iter().all(|is_good| is_good)
}

/// Looks for each wrong operator; true when all are caught by a property that is about what they do wrong.
pub fn wrong_operators(print: Print<'_>) -> bool {
    print(&format!(
        "{:<68} {:>8} {:>6}  caught by",
        "wrong operator", "states", "steps"
    ));
    let are_good = [
        caught(&volumes::mutants(), print),
        caught(&lease::mutants(), print),
        caught(&provision::mutants(), print),
    ];
    are_good.into_iter().all(|is_good| is_good)
}

/// What the table says of a world before it is explored.
struct Row {
    name: &'static str,
    objects: usize,
    replicas: String,
    faults: u8,
    kinds: usize,
}

/// A world that the tables list.
trait Listed: Sync {
    type World: Told;
    /// Whether what each state leads to is looked at.
    const STABILITY: bool = true;

    fn world(&self) -> Self::World;

    /// The same world with the operator as it is, which is to violate nothing there either; none where that is not explored.
    fn right_world(&self) -> Option<Self::World>;

    fn row(&self) -> Row;
}

impl Listed for Setting {
    type World = Core;

    fn world(&self) -> Core {
        Core::new(self.clone())
    }

    fn right_world(&self) -> Option<Core> {
        None
    }

    fn row(&self) -> Row {
        Row {
            name: self.name,
            objects: self.names().len(),
            replicas: self.replicas.to_string(),
            faults: self.faults,
            kinds: self.kinds.len(),
        }
    }
}

impl Listed for LeaseSetting {
    type World = LeaseWorld;
    /// They have no steps that are nobody's fault.
    const STABILITY: bool = false;

    fn world(&self) -> LeaseWorld {
        LeaseWorld::new(*self)
    }

    fn right_world(&self) -> Option<LeaseWorld> {
        Some(LeaseWorld::new(Self { flaw: None, ..*self }))
    }

    fn row(&self) -> Row {
        Row {
            name: self.name,
            objects: 1 + usize::from(self.sidecar),
            replicas: self.replicas.to_string(),
            faults: self.faults,
            kinds: self.kinds.len() + usize::from(self.deletes > 0),
        }
    }
}

impl Listed for ProvisionSetting {
    type World = Provisioner;

    fn world(&self) -> Provisioner {
        Provisioner::new(*self)
    }

    fn right_world(&self) -> Option<Provisioner> {
        Some(Provisioner::new(self.right()))
    }

    fn row(&self) -> Row {
        let (faults, kinds) = self.faults();
        Row {
            name: self.name,
            objects: self.objects(),
            replicas: "any".to_owned(),
            faults,
            kinds,
        }
    }
}

fn explored<K: Listed>(mut worlds: Vec<K>, large: bool, only: Option<&str>, print: Print<'_>) -> bool {
    worlds.retain(|setting| only.is_none_or(|only| setting.row().name.contains(only)));
    let limits = Limits {
        states: if large { 150_000_000 } else { 10_000_000 },
        stability: K::STABILITY,
    };
    let threads = if large { 1 } else { cores() };
    all_good(&worlds, threads, |setting| {
        let mut world = setting.world();
        let explored = explore(&mut world, limits);
        let result = match &explored.found {
            Some(found) => told(&mut world, "VIOLATED", found),
            None if !explored.exhausted => "NOT EXHAUSTED: nothing was found, and nothing is proved".to_owned(),
            None if K::STABILITY => "exhausted".to_owned(),
            None => "exhausted, histories of any length".to_owned(),
        };
        let resting = if K::STABILITY {
            explored.resting.to_string()
        } else {
            "-".to_owned()
        };
        let row = setting.row();
        print(&format!(
            "{:<44} {:>7} {:>8} {:>24} {:>11} {:>12} {:>5} {resting:>7} {:>6.1} s  {result}",
            row.name,
            row.objects,
            row.replicas,
            format!("{} of {} kinds", row.faults, row.kinds),
            explored.states,
            explored.transitions,
            explored.depth,
            explored.took.as_secs_f64(),
        ));
        explored.exhausted && explored.found.is_none()
    })
}

fn caught<K: Listed>(all: &[Wrong<K>], print: Print<'_>) -> bool {
    let limits = Limits {
        states: STATES_OF_A_WRONG_ONE,
        stability: K::STABILITY,
    };
    all_good(all, cores(), |wrong| {
        let mut world = wrong.world.world();
        let explored = explore(&mut world, limits);
        let found = explored.found.as_ref();
        let is_caught = found.is_some_and(|found| wrong.violates.contains(&&*found.property));
        // It says nothing when the operator as it is does so as well.
        let right = wrong.world.right_world().map(|mut world| explore(&mut world, limits));
        let is_right = right.is_none_or(|right| right.exhausted && right.found.is_none());
        let by = match found {
            _ if !is_right => "THE RIGHT OPERATOR VIOLATES IT TOO, OR IT IS NOT KNOWN".to_owned(),
            Some(found) if is_caught => found.property.clone(),
            Some(found) => told(&mut world, "NOT BY ITS OWN PROPERTY", found),
            None if explored.exhausted => "NOT CAUGHT".to_owned(),
            None => "NOT CAUGHT, AND NOT EXHAUSTED".to_owned(),
        };
        let steps = found.map_or(0, |found| found.steps.len());
        print(&format!("{:<68} {:>8} {steps:>6}  {by}", wrong.what, explored.states));
        is_caught && is_right
    })
}

/// What was found, with the counterexample as people read it.
fn told(world: &mut impl Told, what: &str, found: &Counterexample) -> String {
    let first = world.first();
    let lines = story(world, first, &found.steps);
    format!("{what}: {}\n{}", found.property, numbered(&lines, SHOWN))
}

pub(crate) fn numbered(lines: &[String], shown: usize) -> String {
    let mut text = String::new();
    let cut = lines.len().saturating_sub(shown);
    for (number, line) in lines.iter().enumerate().skip(cut) {
        // Writing to a String cannot fail.
        writeln!(text, "    {:>2}. {line}", number + 1).ok();
    }
    text
}
