//! Runs worlds and mutants, and prints what they came to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::core::{Core, Rules, Setting, mutants};
use crate::explorer::{Explored, Limits, explore};
use crate::lease::{self, LeaseSetting, LeaseWorld};
use crate::provision::{self, ProvisionSetting, Provisioner};

/// Lines of a counterexample that are shown.
const SHOWN: usize = 25;

/// How far mutants are looked for.
const OF_A_MUTANT: Limits = Limits {
    states: 5_000_000,
    time: Duration::MAX,
    stability: true,
};

/// The Lease worlds have no steps that are nobody's fault: what they end in is not looked at.
const fn of_a_wrong_leader() -> Limits {
    Limits {
        stability: false,
        ..OF_A_MUTANT
    }
}

/// How far worlds are explored.
pub fn limits(large: bool) -> Limits {
    Limits {
        states: if large { 150_000_000 } else { 10_000_000 },
        // How long they take is the machine's affair.
        time: Duration::MAX,
        stability: true,
    }
}

/// One line about a world.
struct Row {
    line: String,
    is_good: bool,
}

/// Explores worlds on as many threads; true when all were exhausted and nothing was found.
pub fn explored(settings: &[Setting], limits: Limits, threads: usize, print: &(dyn Fn(&str) + Sync)) -> bool {
    print(&format!(
        "{:<44} {:>7} {:>8} {:>24} {:>11} {:>12} {:>5} {:>7} {:>8}  result",
        "world", "objects", "replicas", "faults", "states", "transitions", "depth", "at rest", "time"
    ));
    let rows = in_parallel(settings.len(), threads, |number| {
        let row = world(&settings[number], limits);
        print(&row.line);
        row.is_good
    });
    rows.into_values().all(|is_good| is_good)
}

fn world(setting: &Setting, limits: Limits) -> Row {
    let mut world = Core::new(setting.clone(), Rules::default());
    let explored = explore(&mut world, limits);
    let result = match &explored.found {
        Some(found) => {
            let story = story(&mut world, &found.steps);
            format!("VIOLATED: {}\n{story}", found.property)
        }
        None if explored.exhausted => "exhausted".to_owned(),
        None => "NOT EXHAUSTED: nothing was found, and nothing is proved".to_owned(),
    };
    let Explored {
        states,
        transitions,
        depth,
        resting,
        took,
        ..
    } = explored;
    let line = format!(
        "{:<44} {:>7} {:>8} {:>24} {states:>11} {transitions:>12} {depth:>5} {resting:>7} {:>6.1} s  {result}",
        setting.name,
        setting.names().len(),
        setting.replicas,
        format!("{} of {} kinds", setting.faults, setting.kinds.len()),
        took.as_secs_f64(),
    );
    Row {
        line,
        is_good: explored.exhausted && explored.found.is_none(),
    }
}

/// A counterexample as people read it.
pub fn story(world: &mut Core, steps: &[u16]) -> String {
    numbered(&world.story(steps), SHOWN)
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

/// Looks for each wrong operator; true when all are caught by a property that is about what they do wrong.
pub fn wrong_operators(threads: usize, print: &(dyn Fn(&str) + Sync)) -> bool {
    let all = mutants();
    print(&format!(
        "{:<68} {:>8} {:>6}  caught by",
        "wrong operator", "states", "steps"
    ));
    let caught = in_parallel(all.len(), threads, |number| {
        let wrong = &all[number];
        let mut world = Core::new(wrong.world.clone(), wrong.rules);
        let explored = explore(&mut world, OF_A_MUTANT);
        let found = explored.found.as_ref();
        let is_caught = found.is_some_and(|found| wrong.violates.contains(&&*found.property));
        let by = match found {
            Some(found) if is_caught => found.property.clone(),
            Some(found) => format!(
                "NOT BY ITS OWN PROPERTY: {}\n{}",
                found.property,
                story(&mut world, &found.steps)
            ),
            None => "NOT CAUGHT".to_owned(),
        };
        let steps = found.map_or(0, |found| found.steps.len());
        print(&format!("{:<68} {:>8} {steps:>6}  {by}", wrong.what, explored.states));
        is_caught
    });
    caught.into_values().all(|is_caught| is_caught)
}

/// Explores the worlds of the Lease; true when all were exhausted and nothing was found.
pub fn leases(settings: &[LeaseSetting], limits: Limits, threads: usize, print: &(dyn Fn(&str) + Sync)) -> bool {
    let limits = Limits {
        stability: false,
        ..limits
    };
    let rows = in_parallel(settings.len(), threads, |number| {
        let setting = settings[number];
        let mut world = LeaseWorld::new(setting);
        let explored = explore(&mut world, limits);
        let result = match &explored.found {
            Some(found) => format!(
                "VIOLATED: {}\n{}",
                found.property,
                numbered(&world.story(&found.steps), SHOWN)
            ),
            None if explored.exhausted => "exhausted, histories of any length".to_owned(),
            None => "NOT EXHAUSTED: nothing was found, and nothing is proved".to_owned(),
        };
        let Explored {
            states,
            transitions,
            depth,
            took,
            ..
        } = explored;
        let (faults, kinds) = setting.faults();
        print(&format!(
            "{:<44} {:>7} {:>8} {:>24} {states:>11} {transitions:>12} {depth:>5} {:>7} {:>6.1} s  {result}",
            setting.name,
            1 + u8::from(setting.sidecar),
            setting.replicas,
            format!("{faults} of {kinds} kinds"),
            "-",
            took.as_secs_f64(),
        ));
        explored.exhausted && explored.found.is_none()
    });
    rows.into_values().all(|is_good| is_good)
}

/// Looks for each operator that leads wrongly.
pub fn wrong_leaders(threads: usize, print: &(dyn Fn(&str) + Sync)) -> bool {
    let all = lease::mutants();
    let caught = in_parallel(all.len(), threads, |number| {
        let wrong = &all[number];
        let mut world = LeaseWorld::new(wrong.world);
        let explored = explore(&mut world, of_a_wrong_leader());
        let found = explored.found.as_ref();
        let is_caught = found.is_some_and(|found| found.property == wrong.violates);
        let by = match found {
            Some(found) if is_caught => found.property.clone(),
            Some(found) => format!(
                "NOT BY ITS OWN PROPERTY: {}\n{}",
                found.property,
                numbered(&world.story(&found.steps), SHOWN)
            ),
            None if explored.exhausted => "NOT CAUGHT".to_owned(),
            None => "NOT CAUGHT, AND NOT EXHAUSTED".to_owned(),
        };
        let steps = found.map_or(0, |found| found.steps.len());
        // It says nothing when the operator as it is does so as well.
        let right = LeaseSetting {
            flaw: lease::LeaseFlaw::None,
            ..wrong.world
        };
        let right = explore(&mut LeaseWorld::new(right), of_a_wrong_leader());
        let by = match (&right.found, right.exhausted) {
            (Some(_), _) => "THE RIGHT OPERATOR VIOLATES IT TOO".to_owned(),
            (None, true) => by,
            (None, false) => format!("{by} (the right operator: NOT EXHAUSTED, nothing found)"),
        };
        print(&format!("{:<68} {:>8} {steps:>6}  {by}", wrong.what, explored.states));
        is_caught && right.found.is_none() && right.exhausted
    });
    caught.into_values().all(|is_caught| is_caught)
}

/// Explores the worlds of the provisioner; true when all were exhausted and nothing was found.
pub fn provisioners(
    settings: &[ProvisionSetting],
    limits: Limits,
    threads: usize,
    print: &(dyn Fn(&str) + Sync),
) -> bool {
    let rows = in_parallel(settings.len(), threads, |number| {
        let setting = settings[number];
        let mut world = Provisioner::new(setting);
        let explored = explore(&mut world, limits);
        let result = match &explored.found {
            Some(found) => format!(
                "VIOLATED: {}\n{}",
                found.property,
                numbered(&world.story(&found.steps), SHOWN)
            ),
            None if explored.exhausted => "exhausted".to_owned(),
            None => "NOT EXHAUSTED: nothing was found, and nothing is proved".to_owned(),
        };
        let (faults, kinds) = setting.faults();
        print(&format!(
            "{:<44} {:>7} {:>8} {:>24} {:>11} {:>12} {:>5} {:>7} {:>6.1} s  {result}",
            setting.name,
            setting.objects(),
            "any",
            format!("{faults} of {kinds} kinds"),
            explored.states,
            explored.transitions,
            explored.depth,
            explored.resting,
            explored.took.as_secs_f64(),
        ));
        explored.exhausted && explored.found.is_none()
    });
    rows.into_values().all(|is_good| is_good)
}

/// Looks for each provisioner that does something wrong.
pub fn wrong_provisioners(threads: usize, print: &(dyn Fn(&str) + Sync)) -> bool {
    let all = provision::mutants();
    let caught = in_parallel(all.len(), threads, |number| {
        let wrong = &all[number];
        let mut world = Provisioner::new(wrong.world);
        let explored = explore(&mut world, OF_A_MUTANT);
        let found = explored.found.as_ref();
        let is_caught = found.is_some_and(|found| wrong.violates.contains(&&*found.property));
        let by = match found {
            Some(found) if is_caught => found.property.clone(),
            Some(found) => format!(
                "NOT BY ITS OWN PROPERTY: {}\n{}",
                found.property,
                numbered(&world.story(&found.steps), SHOWN)
            ),
            None if explored.exhausted => "NOT CAUGHT".to_owned(),
            None => "NOT CAUGHT, AND NOT EXHAUSTED".to_owned(),
        };
        // It says nothing when the operator as it is does so as well.
        let right = explore(&mut Provisioner::new(wrong.world.right()), OF_A_MUTANT);
        let is_right = right.exhausted && right.found.is_none();
        let by = if is_right {
            by
        } else {
            "THE RIGHT OPERATOR VIOLATES IT TOO, OR IT IS NOT KNOWN".to_owned()
        };
        let steps = found.map_or(0, |found| found.steps.len());
        print(&format!("{:<68} {:>8} {steps:>6}  {by}", wrong.what, explored.states));
        is_caught && is_right
    });
    caught.into_values().all(|is_caught| is_caught)
}

/// Does something for each number below `count`, on as many threads.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    act: impl Fn(usize) -> T + Sync,
) -> BTreeMap<usize, T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = act(number);
                    if let Ok(mut done) = done.lock() {
                        done.insert(number, result);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default()
}
