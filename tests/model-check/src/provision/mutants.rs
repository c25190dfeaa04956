//! Wrong operators of the worlds of the provisioner. Each must be caught by a property that is about what it does wrong.

use super::invariants::{MARKED, MARKER_LEAVES, NAMED, UNDONE};
use super::worlds::one_claim;
use super::{Flaw, ProvisionSetting};

/// A wrong operator.
pub struct WrongProvisioner {
    /// What is wrong with it.
    pub what: &'static str,
    /// The world in which it is looked for.
    pub world: ProvisionSetting,
    /// The properties that it violates, each of which is as good.
    pub violates: &'static [&'static str],
}

/// All of them.
pub fn mutants() -> Vec<WrongProvisioner> {
    let wrong = |what, world: ProvisionSetting, flaw, violates| WrongProvisioner {
        what,
        world: ProvisionSetting { flaw, ..world },
        violates,
    };
    vec![
        wrong("calls before the marker is on", one_claim(0), Flaw::NoMarker, &[MARKED]),
        wrong(
            "takes the marker off while the outcome of a call is unknown",
            one_claim(1),
            Flaw::UnmarksUncertain,
            &[MARKER_LEAVES],
        ),
        wrong(
            "takes DEADLINE_EXCEEDED for a refusal",
            one_claim(1),
            Flaw::TimeoutIsFinal,
            &[MARKER_LEAVES, NAMED],
        ),
        wrong(
            "undoes a volume without a live look at its PersistentVolume",
            one_claim(1),
            Flaw::NoLookBeforeUndo,
            &[UNDONE],
        ),
    ]
}
