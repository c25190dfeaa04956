//! Histories of the model checker, replayed with the production engine. It has to ask for the same things, in the same order of
//! what its surroundings do, and to leave the same objects.
//!
//! The model says what the surroundings do: who changes an object, which watch shows what, how each request and call ends. The
//! engine does the rest, in virtual time, until it rests. Then both are compared.

mod gate;
mod operator;
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use csi_attacher_model_check::replay::{DriverAnswer, Event, History, Seen};
use tokio::runtime::Builder;

use super::mutants::Mutant;
use super::process::WallClock;
use crate::driver::Rules;
use gate::{Gate, NotedRuns};
use operator::Operator;

/// Longer than the engine takes to rest. All rests of a history are together shorter than an attach is held back.
const REST: Duration = Duration::from_millis(200);
/// The same after a fault: what is taken back waits up to two seconds between its tries.
const REST_AFTER_FAULT: Duration = Duration::from_secs(5);
/// Longer than an attach is held back.
const LONG: Duration = Duration::from_secs(130);

/// Where engine and history differ.
#[derive(Debug)]
pub struct Difference {
    /// After which step.
    pub step: usize,
    /// In what.
    pub what: String,
}

/// What a replay came to.
#[derive(Debug, Default)]
pub struct Replayed {
    pub steps: usize,
    pub calls: usize,
    /// The first difference, if there is one.
    pub difference: Option<Difference>,
}

/// Replays a history, in a runtime of its own and in virtual time.
pub fn replay(history: &History, mutant: Mutant) -> Replayed {
    fastrand::seed(1);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime
        .expect("a runtime needs nothing")
        .block_on(live(history, mutant))
}

async fn live(history: &History, mutant: Mutant) -> Replayed {
    // Errors are written with their time, and the model has none.
    let (_clock, _flaws, _runs) = (WallClock::stopped(), mutant.take_effect(), NotedRuns::start());
    let gate = Gate::new(&history.world.objects);
    let mut operator = None;
    let mut replayed = Replayed::default();
    for (number, step) in history.steps.iter().enumerate() {
        let happened = happens(&gate, mutant.rules.unwrap_or_default(), &mut operator, &step.event).await;
        let (seen, odd) = gate.seen();
        replayed.steps += 1;
        replayed.calls += seen.calls.len();
        let what = match happened {
            Err(what) => what,
            Ok(()) if !odd.is_empty() => odd.join("; "),
            Ok(()) if seen == step.then => continue,
            Ok(()) => differences(&step.then, &seen),
        };
        replayed.difference = Some(Difference { step: number, what });
        break;
    }
    replayed
}

/// Lets an event happen, and the engine do what it does then.
async fn happens(gate: &Gate, rules: Rules, operator: &mut Option<Operator>, event: &Event) -> Result<(), String> {
    match event {
        Event::Starts => *operator = Some(Operator::start(gate, rules).await?),
        Event::Dies => {
            *operator = None;
            gate.leave_on_its_way();
        }
        Event::Shows(kind) => {
            let (object, gone) = gate.next_of_watch(*kind).ok_or("the watch has nothing to show")?;
            let operator = operator.as_ref().ok_or("nobody watches")?;
            operator.show(*kind, &object, gone)?;
        }
        event => gate.take_in(event.clone())?,
    }
    let fails = |answer: &DriverAnswer| matches!(answer, DriverAnswer::Fails(_));
    let is_fault = match event {
        Event::Loses { .. } => true,
        Event::Driver { answer, .. } => fails(answer),
        _ => false,
    };
    let rest = match event {
        Event::Waits => LONG,
        _ if is_fault => REST_AFTER_FAULT,
        _ => REST,
    };
    tokio::time::sleep(rest).await;
    Ok(())
}

fn differences(expected: &Seen, seen: &Seen) -> String {
    let mut text = String::new();
    for (name, one, other) in [
        (
            "waits for",
            format!("{:#?}", expected.waits),
            format!("{:#?}", seen.waits),
        ),
        ("calls", format!("{:#?}", expected.calls), format!("{:#?}", seen.calls)),
        (
            "objects",
            format!("{:#?}", expected.objects),
            format!("{:#?}", seen.objects),
        ),
    ] {
        if one != other {
            // Writing to a String cannot fail.
            write!(text, "{name}: the model says\n{one}\nand the engine\n{other}\n").ok();
        }
    }
    text
}
