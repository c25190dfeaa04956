//! Random paths of the model, and counterexamples.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use csi_attacher_model_check::core::{self, Eager, Rules, Setting, worlds};
use csi_attacher_model_check::replay::History;
use csi_attacher_model_check::report::event_list;
use parking_lot::Mutex;

use super::super::mutants::{self, Mutant};
use super::super::number;
use super::{Replayed, replay};

/// Steps of a path at most. Its rests are together shorter than an attach is held back.
const MOST: usize = 200;
/// Paths of a wrong operator.
const OF_A_MUTANT: u64 = 40;

/// What many paths came to.
#[derive(Default)]
struct Summary {
    paths: usize,
    steps: usize,
    calls: usize,
    /// Steps that no path takes, as it matters in which order a process looks at two keys.
    ambiguous: usize,
    differences: BTreeMap<u64, String>,
}

/// Replays the paths of these seeds; each seed has one of the worlds.
fn replayed(start: u64, count: u64, worlds: &[Setting], rules: Rules, mutant: Mutant) -> Summary {
    let (next, summary) = (AtomicU64::new(start), Mutex::new(Summary::default()));
    let play = || {
        let mut played: Vec<Eager> = worlds.iter().map(|world| Eager::new(world.clone(), rules)).collect();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= start + count {
                break;
            }
            let world = usize::try_from(seed % worlds.len() as u64).unwrap_or(0);
            let history = played[world].path(seed, MOST);
            let replayed = replay(&history, mutant);
            let mut summary = summary.lock();
            summary.paths += 1;
            summary.steps += replayed.steps;
            summary.calls += replayed.calls;
            if replayed.difference.is_some() {
                summary.differences.insert(seed, story(&history, &replayed));
            }
        }
        summary.lock().ambiguous += played.iter().map(|world| world.ambiguous).sum::<usize>();
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(play);
        }
    });
    summary.into_inner()
}

/// What led to a difference, as people read it.
fn story(history: &History, replayed: &Replayed) -> String {
    let Some(difference) = &replayed.difference else {
        return String::new();
    };
    let mut cut = history.clone();
    cut.steps.truncate(difference.step + 1);
    format!("{}{}", cut.story(), difference.what)
}

/// A wrong operator of the simulation, by what is wrong with it.
fn wrong(what: &str) -> Option<Mutant> {
    let mut all = mutants::all().into_iter();
    all.find(|wrong| wrong.what == what).map(|wrong| wrong.mutant)
}

fn agree(start: u64) {
    let began = Instant::now();
    let (rules, mutant) = (Rules::default(), Mutant::default());
    let summary = replayed(start, number("REPLAY_PATHS", 1_000), &worlds::replayed(), rules, mutant);
    println!(
        "{} paths from seed {start} on, {} steps, {} calls in {:.1} s; {} steps left out, as the order of attempts matters; {} differ: {:?}",
        summary.paths,
        summary.steps,
        summary.calls,
        began.elapsed().as_secs_f64(),
        summary.ambiguous,
        summary.differences.len(),
        summary.differences.keys().take(20).collect::<Vec<_>>(),
    );
    if let Some((seed, story)) = summary.differences.iter().min_by_key(|(_, story)| story.len()) {
        panic!("seed {seed}: {story}");
    }
}

#[test]
fn the_engine_takes_the_paths_of_the_model() {
    agree(number("SIMULATION_SEED", 1));
}

/// CI derives a seed from the commit, so that each change is tried with paths that nobody has seen.
#[test]
#[ignore = "needs SIMULATION_FRESH, a seed; without, it replays none"]
fn the_engine_takes_fresh_paths_of_the_model() {
    match number("SIMULATION_FRESH", 0) {
        0 => println!("no fresh paths: SIMULATION_FRESH names no seed"),
        seed => agree(seed),
    }
}

/// The wrong operators that the model checker and the simulation have both.
fn wrong_on_both_sides() -> Vec<(core::Wrong, Mutant)> {
    let all = core::mutants().into_iter();
    // What a Publish asks for beside its place is not compared.
    let compared = all.filter(|wrong| !wrong.rules.leaves_out() && !wrong.what.starts_with("sends another request"));
    let both: Vec<_> = compared
        .filter_map(|model| wrong(model.what).map(|engine| (model, engine)))
        .collect();
    assert!(both.len() > 15, "only {} wrong operators are those of both", both.len());
    both
}

/// It is the rules that they share: with the same wrong ones, model and engine go wrong in the same way.
#[test]
fn a_wrong_engine_takes_the_paths_of_a_model_that_is_wrong_in_the_same_way() {
    // The model makes one write of a failure, which is what the right rules come to.
    let of_several_writes = [
        "drops the finalizer when Unpublish fails",
        "takes NOT_FOUND for detached",
    ];
    let all = wrong_on_both_sides().into_iter();
    for (model, engine) in all.filter(|(model, _)| !of_several_writes.contains(&model.what)) {
        let both = replayed(1, OF_A_MUTANT, &[model.world], model.rules, engine);
        assert!(both.differences.is_empty(), "{}: {:#?}", model.what, both.differences);
    }
}

/// The proof of the proof: the engine goes the way of a counterexample to its end when it has the same defect as the model, and leaves
/// it when it has not.
#[test]
#[ignore = "explores worlds, which takes minutes without optimisation; make simulation runs it"]
fn counterexamples_are_replayed() {
    for (model, _) in wrong_on_both_sides() {
        let what = model.what;
        let mut history = event_list(&model.world, model.rules, 1_000_000).expect("it is found");
        history.world.wrong = Some(what.to_owned());
        let history = History::of_text(&history.to_text().unwrap()).unwrap();
        assert!(history.world.violates.is_some());
        let replayed = replay(&history, mutant_of(&history));
        assert!(replayed.difference.is_none(), "{what}: {}", story(&history, &replayed));
        assert_eq!(replayed.steps, history.steps.len());
        let right = replay(&history, Mutant::default());
        assert!(right.difference.is_some(), "{what}");
    }
}

/// The operator that a history is about.
fn mutant_of(history: &History) -> Mutant {
    let what = history.world.wrong.as_deref();
    what.map_or_else(Mutant::default, |what| wrong(what).expect("there is such a mutant"))
}

/// For `make replay`: files that the model checker has written.
#[test]
#[ignore = "needs REPLAY, a file or a folder of event lists"]
fn event_lists_are_replayed() {
    let Ok(path) = std::env::var("REPLAY") else { return };
    let files: Vec<_> = match std::fs::read_dir(&path) {
        Ok(folder) => folder.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => vec![path.into()],
    };
    let mut differ = 0;
    for file in files {
        let history = History::of_text(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let replayed = replay(&history, mutant_of(&history));
        if replayed.difference.is_some() {
            differ += 1;
            println!("{}: {}", file.display(), story(&history, &replayed));
        }
    }
    assert_eq!(differ, 0, "histories that the engine does not take");
}
