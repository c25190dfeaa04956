//! The worlds of the provisioner.

use serde_json::Value;

use super::objects::{ANOTHER, DRIVER, Edit, Phase, claim, class, edited, marked_by_another, volume};
use super::state::{CLAIM, CLASS, OTHER, OWN, SLOTS};
use super::{Beginning, Fault, Flaw, ProvisionSetting, Wish};

const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::LeaseLost,
    Fault::Unanswered,
    Fault::Refused,
    Fault::TimedOut,
];

/// The objects that are there when a world begins.
pub fn objects(beginning: Beginning) -> [Option<Value>; SLOTS] {
    let mut objects: [Option<Value>; SLOTS] = Default::default();
    objects[CLASS] = Some(class(1, DRIVER));
    let own = |phase| volume(OWN, 10, Some(1), 1, phase, "Delete", true);
    match beginning {
        Beginning::Waiting => objects[CLAIM] = Some(claim(1)),
        Beginning::MarkedByAnother => {
            objects[CLAIM] = Some(marked_by_another(1));
            objects[CLASS] = Some(class(1, ANOTHER));
        }
        Beginning::Bound => {
            let bound = edited(&claim(1), Edit::Bind(OWN as u8));
            objects[CLAIM] = Some(edited(&bound, Edit::Phase(Phase::Bound)));
            objects[OWN] = Some(own("Bound"));
        }
        Beginning::Released => objects[OWN] = Some(own("Released")),
        Beginning::Shared => {
            objects[OWN] = Some(own("Released"));
            objects[OTHER] = Some(volume(OTHER, 8, Some(1), 1, "Released", "Delete", false));
        }
    }
    objects
}

/// A claim waits; class policy Delete.
pub const fn one_claim(faults: u8) -> ProvisionSetting {
    ProvisionSetting {
        name: "one claim",
        beginning: Beginning::Waiting,
        faults,
        kinds: ALL,
        wishes: &[Wish::DeleteClaim],
        unlisted: 0,
        attaches: false,
        flaw: Flaw::None,
    }
}

/// The worlds: those of CI, or the large ones.
pub fn worlds(large: bool) -> Vec<ProvisionSetting> {
    if large {
        return vec![one_claim(2)];
    }
    vec![one_claim(1)]
}
