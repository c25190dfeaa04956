//! The worlds of random histories: both roles, kube-controller-manager, kube-scheduler and people at a claim and its PersistentVolume,
//! with more faults than can be visited completely.

use super::packed::Packed;
use super::worlds::{ALL, ALL_BUT_NODES};
use super::{Beginning, Flaw, ProvisionSetting, Provisioner, Topology, Wish};
use crate::explorer::{World, story};
use crate::walk::{History, Length, walk};

/// Histories of one world that are played one after the other, and in the same order each time.
pub const BLOCK: u64 = 1000;

const LENGTH: Length = Length {
    troubled: 90,
    calm: 1500,
};

/// What people do where no volume is kept.
const PEOPLE: &[Wish] = &[
    Wish::DeleteClaim,
    Wish::RemakeClaim,
    Wish::DeleteSecond,
    Wish::Attach,
    Wish::AnnotateClaim,
    Wish::DeleteVolume,
    Wish::DeleteNode,
    Wish::RemakeNode,
    Wish::DeleteCsiNode,
    Wish::RemakeCsiNode,
    Wish::Relabel,
    Wish::MoveClaim,
];

/// What they do where policies change.
const KEEPERS: &[Wish] = &[
    Wish::DeleteClaim,
    Wish::Attach,
    Wish::DeleteVolume,
    Wish::ToRetain,
    Wish::ToDelete,
    Wish::DeleteNode,
    Wish::RemakeNode,
    Wish::Relabel,
];

/// The world of a block of histories.
pub fn world_of_block(block: u64) -> ProvisionSetting {
    const TOPOLOGIES: [Topology; 4] = [Topology::Delayed, Topology::None, Topology::Strict, Topology::Immediate];
    let topology = TOPOLOGIES[(block % 4) as usize];
    let (beginning, wishes) = match block / 4 % 4 {
        0 | 1 => (Beginning::Waiting, PEOPLE),
        2 => (Beginning::Waiting, KEEPERS),
        _ => (Beginning::Bound, PEOPLE),
    };
    ProvisionSetting {
        name: "both roles",
        beginning,
        faults: 4,
        kinds: ALL,
        wishes,
        relisted: 0,
        unlisted: if block / 4 % 2 == 1 { ALL_BUT_NODES } else { 0 },
        attaches: true,
        topology,
        flaw: Flaw::None,
    }
}

impl Provisioner {
    /// Plays the history of a seed in this world.
    pub fn history(&mut self, seed: u64) -> History {
        let first = self.drawn(seed);
        walk(self, first, seed, LENGTH)
    }

    /// The first state of a history: so many faults, and who wishes for what, are drawn.
    fn drawn(&mut self, seed: u64) -> Packed {
        let mut rng = fastrand::Rng::with_seed(!seed);
        let first = self.first();
        let mut state = self.universe.parts.unpack(&first);
        state.faults = rng.u8(..=state.faults);
        // Most have a part in most histories.
        state.wishes &= rng.u16(..) | rng.u16(..);
        self.universe.parts.pack(state)
    }

    /// A history as people read it, one line for each step.
    pub fn told(&mut self, seed: u64, history: &History) -> Vec<String> {
        let first = self.drawn(seed);
        story(self, first, &history.steps)
    }
}
