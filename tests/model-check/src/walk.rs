//! Random histories of a world. The steps are those that the explorer takes in every order; here each is drawn, so that histories can be
//! longer than what can be visited completely, and can have more faults.

use crate::explorer::{Next, STABLE, World};

/// How long a history is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// So many steps are taken in which faults and people may have a part.
    pub troubled: usize,
    /// So many steps are enough until everything is as it should be, when faults have ended and people are content.
    pub calm: usize,
}

/// A history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The numbers of its steps.
    pub steps: Vec<u16>,
    /// What was violated.
    pub violated: Option<String>,
}

/// So many steps in a row without a write or a call, in a state that may last, are taken for the end.
const QUIET: usize = 12;

/// Plays the history of a seed.
pub fn walk<W: World>(world: &mut W, first: W::State, seed: u64, length: Length) -> History {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Histories differ in how much goes wrong, and in how far others are ahead of those who watch them.
    let (trouble, eagerness) = (rng.usize(3..12), rng.usize(1..5));
    let mut history = History::default();
    let (mut state, mut found) = (first, Vec::new());
    let mut quiet = 0;
    for number in 0..length.troubled + length.calm {
        found.clear();
        world.next(&state, &mut found);
        let is_troubled = number < length.troubled;
        let may_be_over = !is_troubled && found.iter().all(|next| !next.calm || !next.acts);
        quiet = if may_be_over && world.unrest(&state).is_none() {
            quiet + 1
        } else {
            0
        };
        let wanted = match rng.usize(..trouble) {
            0 if is_troubled => Kind::Trouble,
            _ if rng.usize(..5) < eagerness => Kind::Act,
            _ => Kind::Quiet,
        };
        let Some(at) = drawn(&found, wanted, is_troubled, &mut rng) else {
            return ended(world, &state, history);
        };
        if quiet > QUIET {
            return history;
        }
        let next = found.swap_remove(at);
        history.steps.push(u16::try_from(at).unwrap_or(u16::MAX));
        if let Some(property) = next.violation {
            history.violated = Some(property.to_owned());
            return history;
        }
        state = next.state;
    }
    history.violated = Some(world.unrest(&state).map_or(STABLE, |(property, _)| property).to_owned());
    history
}

/// Nothing can happen any more.
fn ended<W: World>(world: &mut W, state: &W::State, mut history: History) -> History {
    history.violated = world.unrest(state).map(|(property, _)| property.to_owned());
    history
}

/// What a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A fault, or a wish of somebody.
    Trouble,
    /// A write or a call.
    Act,
    /// Neither.
    Quiet,
}

impl Kind {
    const fn of<S>(next: &Next<S>) -> Self {
        match (next.calm, next.acts) {
            (false, _) => Self::Trouble,
            (true, true) => Self::Act,
            (true, false) => Self::Quiet,
        }
    }
}

/// One of the steps of a kind; where there is none, of those that are nobody's fault; and of all, where there may be trouble.
fn drawn<S>(found: &[Next<S>], wanted: Kind, is_troubled: bool, rng: &mut fastrand::Rng) -> Option<usize> {
    let of = |is_wanted: &dyn Fn(Kind) -> bool| -> Vec<usize> {
        let kinds = found.iter().map(Kind::of).enumerate();
        kinds.filter(|(_, kind)| is_wanted(*kind)).map(|(at, _)| at).collect()
    };
    let choices = [
        of(&|kind| kind == wanted),
        of(&|kind| kind != Kind::Trouble),
        of(&|_| is_troubled),
    ];
    choices
        .into_iter()
        .find(|from| !from.is_empty())
        .and_then(|from| rng.choice(from))
}
