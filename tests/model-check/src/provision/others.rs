//! What kube-controller-manager, the attach role and people do.

use csi_attacher_model::decide::patch::{protect_volume, release_volume};

use super::objects::{ANOTHER, ATTACH_FINALIZER, DRIVER, Edit, Facts, Phase, attachment, claim, class, volume};
use super::state::{ATTACHMENT, CLAIM, CLASS, CSI_NODE, GONE, Id, Late, NODE, OTHER, OWN, State, VOLUMES};
use super::steps::{Calm, happen};
use super::universe::words;
use super::zones::{ZONE_OF_OTHER, node};
use super::{Found, Provisioner, Wish};

impl Provisioner {
    fn edits(&mut self, state: &State, slot: usize, edit: Edit, found: &mut Found) {
        let after = self.universe.edit(state.now(slot), edit);
        if after == state.now(slot) {
            return;
        }
        let mut next = state.clone();
        happen(&mut next, slot, after);
        self.push(found, next, Calm::Acts, None, || {
            format!("kube-controller-manager: {edit:?} of {}", words(slot))
        });
    }

    /// kube-controller-manager: binds, marks Released after a live look, takes its finalizers off.
    pub(super) fn controller(&mut self, state: &State, found: &mut Found) {
        let claim = self.universe.facts(state.now(CLAIM));
        if let Some(claim) = claim {
            let own = usize::from(claim.uid);
            let saved = self
                .universe
                .facts(state.now(own))
                .filter(|volume| volume.claim == claim.uid);
            if claim.deleting && claim.protected {
                self.edits(state, CLAIM, Edit::UnprotectClaim, found);
            }
            if let Some(saved) = saved.filter(|saved| !claim.deleting && claim.names.is_none() && !saved.deleting) {
                if saved.is_bound {
                    self.edits(state, CLAIM, Edit::Bind(own as u8), found);
                } else if !saved.released {
                    self.edits(state, own, Edit::Phase(Phase::Bound), found);
                }
            }
            if let Some(named) = claim.names.filter(|_| !claim.is_bound) {
                let named = self.universe.facts(state.now(named.into()));
                if named.is_some_and(|named| named.is_bound) {
                    self.edits(state, CLAIM, Edit::Phase(Phase::Bound), found);
                }
            }
        }
        for slot in VOLUMES {
            let Some(volume) = self.universe.facts(state.now(slot)) else {
                continue;
            };
            let is_its_own = claim.is_some_and(|claim| claim.uid == volume.claim);
            let is_elsewhere = claim.is_some_and(|claim| claim.names.is_some_and(|named| usize::from(named) != slot));
            let is_over = !is_its_own || (is_elsewhere && volume.ours && volume.reclaims);
            if volume.claim != 0 && volume.claim != FOREIGN_CLAIM && is_over && !volume.released {
                self.edits(state, slot, Edit::Phase(Phase::Released), found);
            }
            if volume.deleting && volume.protected && !volume.is_bound {
                self.edits(state, slot, Edit::UnprotectVolume, found);
            }
        }
        if state.now(ATTACHMENT) != GONE && claim.is_none_or(|claim| claim.deleting) {
            let mut next = state.clone();
            happen(&mut next, ATTACHMENT, GONE);
            self.push(found, next, Calm::Acts, None, || "the volume is detached".to_owned());
        }
    }

    /// kube-scheduler selects a node that is there for a claim that waits for that.
    pub(super) fn scheduler(&mut self, state: &State, found: &mut Found) {
        let claim = self.universe.facts(state.now(CLAIM));
        let waits = |claim: &Facts| claim.node == 0 && claim.names.is_none() && !claim.deleting;
        if !self.setting.topology.is_delayed() || !claim.as_ref().is_some_and(waits) {
            return;
        }
        if [NODE, CSI_NODE].into_iter().all(|slot| state.now(slot) != GONE) {
            self.edits(state, CLAIM, Edit::Select(1), found);
        }
        self.edits(state, CLAIM, Edit::Select(2), found);
    }

    /// The attach role puts its finalizer on a PersistentVolume that is not in deletion, and takes it off one that is. It writes from
    /// any copy that somebody may still see, and its writes arrive at any later moment.
    pub(super) fn attach_role(&mut self, state: &State, found: &mut Found) {
        if !self.setting.attaches || state.late.iter().any(|late| matches!(late, Late::Attach { .. })) {
            return;
        }
        let now = self.universe.facts(state.now(OWN));
        for copy in state.history[OWN].0.clone() {
            let (Some(facts), Some(now)) = (self.universe.facts(copy), now) else {
                continue;
            };
            // Who sees that there is nothing to do sends nothing.
            let is_needed = now.attach == now.deleting;
            if !is_needed || facts.attach != facts.deleting {
                continue;
            }
            let Some(record) = self.universe.get(copy).and_then(|object| object.volume()).cloned() else {
                continue;
            };
            let write = if facts.deleting {
                release_volume(&record, ATTACH_FINALIZER)
            } else {
                Some(protect_volume(&record, ATTACH_FINALIZER))
            };
            let Some(write) = write else { continue };
            let write = self.universe.write(write);
            let mut next = state.clone();
            next.late.push(Late::Attach { slot: OWN as u8, write });
            let text = self.universe.shown_write(write);
            self.push(found, next, Calm::Quiet, None, || {
                format!("the attach role sends {text}")
            });
        }
    }

    /// What people may still do.
    pub(super) fn people(&mut self, state: &State, found: &mut Found) {
        let wishes = self.setting.wishes;
        for (number, wish) in wishes.iter().enumerate() {
            let bit = 1 << number;
            if state.wishes & bit == 0 {
                continue;
            }
            let mut next = state.clone();
            next.wishes &= !bit;
            if self.wish(&mut next, *wish) {
                self.push(found, next, Calm::No, None, || format!("somebody: {wish:?}"));
            }
        }
    }

    /// Does it; false where it cannot be done.
    #[allow(clippy::cognitive_complexity, reason = "it is a table")]
    fn wish(&mut self, state: &mut State, wish: Wish) -> bool {
        let claim_facts = self.universe.facts(state.now(CLAIM));
        let own = self.universe.facts(state.now(OWN));
        let edit = |world: &mut Self, state: &mut State, slot: usize, edit: Edit| {
            let now = state.now(slot);
            if now == GONE {
                return false;
            }
            let after = world.universe.edit(now, edit);
            happen(state, slot, after);
            after != now
        };
        let make = |world: &mut Self, state: &mut State, slot: usize, value| {
            let id: Id = world.universe.object(slot, value);
            happen(state, slot, id);
            true
        };
        match wish {
            Wish::DeleteClaim | Wish::DeleteSecond => {
                let uid = if wish == Wish::DeleteClaim { 1 } else { 2 };
                claim_facts.is_some_and(|claim| claim.uid == uid) && edit(self, state, CLAIM, Edit::Delete)
            }
            Wish::RemakeClaim => claim_facts.is_none() && make(self, state, CLAIM, claim(2)),
            Wish::DeleteClass => {
                let is_there = state.now(CLASS) != GONE;
                happen(state, CLASS, GONE);
                is_there
            }
            Wish::RemakeClass => {
                state.now(CLASS) == GONE && make(self, state, CLASS, class(2, ANOTHER, self.setting.topology.binding()))
            }
            Wish::RestoreClass => {
                // Under another UID, so that the marker knows it by its contents.
                let is_free = self.universe.facts(state.now(CLASS)).is_none_or(|class| !class.ours);
                is_free && make(self, state, CLASS, class(3, DRIVER, self.setting.topology.binding()))
            }
            Wish::BindElsewhere => {
                let is_free = claim_facts.is_some_and(|claim| claim.names.is_none() && !claim.deleting);
                let is_bound = own.is_some_and(|volume| volume.is_bound);
                if !is_free || is_bound || state.now(OTHER) != GONE {
                    return false;
                }
                let uid = claim_facts.map_or(0, |claim| claim.uid);
                make(
                    self,
                    state,
                    OTHER,
                    volume(OTHER, 8, Some(uid), 90, "Bound", "Retain", false),
                );
                edit(self, state, CLAIM, Edit::Bind(OTHER as u8))
            }
            Wish::AnnotateClaim => edit(self, state, CLAIM, Edit::Annotate),
            Wish::Mistake => {
                claim_facts.is_some_and(|claim| claim.is_bound)
                    && own.is_some_and(|volume| volume.is_bound)
                    && edit(self, state, OWN, Edit::Phase(Phase::Released))
            }
            Wish::ToRetain => edit(self, state, OWN, Edit::Retain),
            Wish::ToDelete => edit(self, state, OWN, Edit::Reclaim),
            Wish::DeleteVolume => edit(self, state, OWN, Edit::Delete),
            // One of ours is held by its finalizer.
            Wish::DeleteOther if self.universe.facts(state.now(OTHER)).is_some_and(|other| other.marked) => {
                edit(self, state, OTHER, Edit::Delete)
            }
            Wish::DeleteOther => {
                let is_there = state.now(OTHER) != GONE;
                happen(state, OTHER, GONE);
                is_there
            }
            Wish::Attach => {
                let is_its = |claim: &Facts| claim.names == Some(OWN as u8) && claim.is_bound && !claim.deleting;
                let is_used = claim_facts.as_ref().is_some_and(is_its);
                is_used && own.is_some() && state.now(ATTACHMENT) == GONE && make(self, state, ATTACHMENT, attachment())
            }
            Wish::AttachUnsaved => {
                own.is_none() && state.now(ATTACHMENT) == GONE && make(self, state, ATTACHMENT, attachment())
            }
            Wish::DeleteNode | Wish::DeleteCsiNode => {
                let slot = if wish == Wish::DeleteNode { NODE } else { CSI_NODE };
                let is_there = state.now(slot) != GONE;
                happen(state, slot, GONE);
                is_there
            }
            // It comes back in another zone.
            Wish::RemakeNode => state.now(NODE) == GONE && make(self, state, NODE, node(NODE, 2, ANOTHER_ZONE)),
            Wish::RemakeCsiNode => state.now(CSI_NODE) == GONE && make(self, state, CSI_NODE, node(CSI_NODE, 2, 0)),
            Wish::Relabel => edit(self, state, NODE, Edit::Relabel(ANOTHER_ZONE)),
            Wish::MoveClaim => {
                let is_placed = claim_facts.is_some_and(|claim| claim.node == 1 && claim.names.is_none());
                is_placed && edit(self, state, CLAIM, Edit::Select(2))
            }
            Wish::TakeName => {
                let value = volume(OWN, 9, Some(FOREIGN_CLAIM), 91, "Bound", "Retain", false);
                own.is_none() && make(self, state, OWN, value)
            }
            Wish::RemakeVolume => {
                if own.is_none_or(|volume| volume.uid == 9) {
                    return false;
                }
                happen(state, OWN, GONE);
                make(
                    self,
                    state,
                    OWN,
                    volume(OWN, 9, Some(FOREIGN_CLAIM), 91, "Bound", "Retain", false),
                )
            }
        }
    }
}

/// The zone in which the first node may come to be; the other one is in a zone of its own.
const ANOTHER_ZONE: u8 = ZONE_OF_OTHER + 1;
/// The UID of a claim that is not in the world.
const FOREIGN_CLAIM: u8 = 4;
