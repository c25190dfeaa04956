//! Mismatches from pass to pass: which of them are repaired now, and which last in spite of repairs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{DesiredState, Expectation};
use crate::decide::message::shown_handle;

/// So many repairs that the driver answered with OK, and that changed nothing in its list, are made in passes that follow each other.
/// After that the mismatch is taken for one that lasts: the driver may list the volume by another handle. Its pauses grow.
pub const REPAIRS_IN_A_ROW: u32 = 3;

/// The mismatches so far.
#[derive(Clone, Debug, Default)]
pub struct Mismatches(HashMap<Arc<str>, Mismatch>);

/// An attachment that a pass contradicted.
#[derive(Clone, Debug)]
struct Mismatch {
    expected: Expectation,
    /// Whether the last pass contradicted it as well. One that said nothing of it is no reason to forget its repairs.
    is_of_last_pass: bool,
    /// Whether a repair was asked for, and its answer does not count yet.
    is_in_repair: bool,
    /// Whether a repair was asked for since the last pass that said nothing of it.
    was_due: bool,
    /// Repairs that were carried out and after which it was contradicted again.
    in_vain: u32,
    /// Passes until the next repair.
    rest: u32,
}

/// What a pass asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// To be repaired now.
    pub due: Vec<Expectation>,
    /// With which the driver agrees after a repair was asked for.
    pub repaired: Vec<Expectation>,
    /// Those that are taken for lasting from this pass on.
    pub found_lasting: Vec<Expectation>,
    /// All that last, if any do.
    pub lasting: Option<LastingMismatches>,
}

/// Mismatches that repairs did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingMismatches {
    /// How many.
    pub count: usize,
    /// The first of them by name.
    pub example: Expectation,
}

/// What the driver answers and what it lists, of an attachment whose repairs change nothing.
pub fn contradiction(expected: &Expectation) -> String {
    let (handle, node_id) = (shown_handle(&expected.handle), shown_handle(&expected.node_id));
    match expected.wanted {
        DesiredState::Published => format!(
            "volume {handle}: the driver answers OK when it is attached to the node with ID {node_id}, and does not list it there; it \
             may list the volume under another handle or node ID"
        ),
        DesiredState::Unpublished => format!(
            "volume {handle}: the driver answers OK when it is detached from the node with ID {node_id}, and lists it there still; its \
             list may be wrong"
        ),
    }
}

impl Mismatch {
    fn new(expected: Expectation) -> Self {
        Self {
            expected,
            is_of_last_pass: true,
            is_in_repair: false,
            was_due: false,
            in_vain: 0,
            rest: 0,
        }
    }

    fn lasts(&self) -> bool {
        self.in_vain >= REPAIRS_IN_A_ROW
    }

    /// A repair was carried out and changed nothing. Each further one doubles the pause before the next.
    fn repaired_in_vain(&mut self, longest_rest: u32) {
        self.is_in_repair = false;
        self.in_vain = self.in_vain.saturating_add(1);
        if let Some(further) = self.in_vain.checked_sub(REPAIRS_IN_A_ROW) {
            self.rest = 2_u32.saturating_pow(further).min(longest_rest);
        }
    }
}

impl Mismatches {
    /// Whether the last repair of this attachment changed nothing, as those before.
    pub fn lasts(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(Mismatch::lasts)
    }

    /// Forgets the attachments of which this is not true.
    pub fn retain(&mut self, is_wanted: impl Fn(&Expectation) -> bool) {
        self.0.retain(|_, mismatch| is_wanted(&mismatch.expected));
    }

    /// Takes in a pass that was made to its end. What the pass before contradicted as well is repaired; `is_repaired` says whether
    /// the driver answered the repair that was asked for last with OK. At most `longest_rest` passes go by without a repair.
    pub fn pass(
        &mut self,
        contradicted: Vec<Expectation>,
        agreed: &[Expectation],
        is_repaired: impl Fn(&Expectation) -> bool,
        longest_rest: u32,
    ) -> Repairs {
        let mut repairs = Repairs::default();
        for expected in agreed {
            let known = self.0.remove(&expected.name).filter(|known| known.was_due);
            let is_same =
                |known: Mismatch| known.expected.uid == expected.uid && known.expected.wanted == expected.wanted;
            if known.is_some_and(is_same) {
                repairs.repaired.push(expected.clone());
            }
        }
        let names: HashSet<&str> = contradicted.iter().map(|expected| &*expected.name).collect();
        for (name, mismatch) in &mut self.0 {
            let is_contradicted = names.contains(&**name);
            mismatch.is_of_last_pass &= is_contradicted;
            // Nobody waits for the answer to its repair any more.
            mismatch.is_in_repair &= is_contradicted;
            mismatch.was_due &= is_contradicted;
        }
        for expected in contradicted {
            let known = self.0.get_mut(&expected.name);
            let Some(mismatch) = known.filter(|known| known.expected == expected) else {
                self.0.insert(expected.name.clone(), Mismatch::new(expected));
                continue;
            };
            if !std::mem::replace(&mut mismatch.is_of_last_pass, true) {
                continue;
            }
            if mismatch.is_in_repair && is_repaired(&expected) {
                let lasted = mismatch.lasts();
                mismatch.repaired_in_vain(longest_rest);
                if mismatch.lasts() && !lasted {
                    repairs.found_lasting.push(expected.clone());
                }
            }
            if mismatch.rest > 0 {
                mismatch.rest -= 1;
            } else {
                (mismatch.is_in_repair, mismatch.was_due) = (true, true);
                repairs.due.push(expected);
            }
        }
        let lasting = self.0.values().filter(|mismatch| mismatch.lasts());
        let lasting = lasting.map(|mismatch| &mismatch.expected);
        let count = lasting.clone().count();
        let example = lasting.min_by(|one, other| one.name.cmp(&other.name));
        repairs.lasting = example.cloned().map(|example| LastingMismatches { count, example });
        repairs
    }
}
