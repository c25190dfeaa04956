//! What a state must be like that may last.

use super::invariants::{NAMED, NOTHING_LEFT, UNWANTED, WANTED};
use super::state::{ATTACHMENT, CLAIM, CLASS, GONE, OWN, State, VOLUMES};
use super::{Provisioner, Wish, universe};

impl Provisioner {
    /// Why a state may not last, and which property says so.
    pub(super) fn unrest_of(&self, state: &State) -> Option<(&'static str, String)> {
        if let Some(unrest) = self.claim_unrest(state) {
            return Some(unrest);
        }
        for slot in VOLUMES {
            if let Some(unrest) = self.volume_unrest(state, slot) {
                return Some(unrest);
            }
        }
        let is_kept =
            self.setting.wishes.contains(&Wish::ToRetain) || self.setting.wishes.contains(&Wish::RemakeVolume);
        let class = self.universe.facts(state.now(CLASS));
        let claim = self.universe.facts(state.now(CLAIM));
        let held = |of: u8| {
            let is_served = class.is_some_and(|class| class.ours && class.uid != 2);
            let is_taken = self
                .universe
                .facts(state.now(of.into()))
                .is_some_and(|volume| volume.claim != of);
            (!is_served || is_taken) && claim.is_some_and(|claim| claim.marked && claim.uid == of)
        };
        let is_told = |handle: u8| state.told & (1 << handle) != 0;
        let is_lost = |of: u8, handle: u8| !self.is_named(state, handle) && !held(of) && !is_kept && !is_told(handle);
        let lost = state.driver.iter().find(|held| is_lost(held.of, held.handle));
        lost.map(|held| (NAMED, format!("no PersistentVolume names volume h{}", held.handle)))
    }

    /// Why a PersistentVolume may not stay as it is.
    fn volume_unrest(&self, state: &State, slot: usize) -> Option<(&'static str, String)> {
        let volume = self.universe.facts(state.now(slot))?;
        let name = universe::words(slot);
        let left = |why: &str| Some((NOTHING_LEFT, format!("{name} {why}")));
        if !volume.reclaims {
            return if volume.marked {
                left("has the finalizer, and its policy is Retain")
            } else {
                None
            };
        }
        if volume.is_bound && !volume.deleting && !volume.marked {
            return left("is bound, and has no finalizer");
        }
        let is_shared = VOLUMES.into_iter().filter(|other| *other != slot).any(|other| {
            let other = self.universe.facts(state.now(other));
            // Those that are all to be deleted do not wait for each other.
            other.is_some_and(|other| other.handle == volume.handle && !(volume.marked && other.goes()))
        });
        let has_claim = self
            .universe
            .facts(state.now(CLAIM))
            .is_some_and(|claim| claim.uid == volume.claim);
        let is_attached = slot == OWN && state.now(ATTACHMENT) != GONE;
        if volume.released && has_claim {
            // It waits for the claim, whichever PersistentVolume that is bound to.
            return None;
        }
        if volume.released && !is_shared && !is_attached {
            return left("is Released, and is still there");
        }
        (volume.ours && !state.has(volume.handle)).then(|| (NAMED, format!("{name} has no volume")))
    }

    fn claim_unrest(&self, state: &State) -> Option<(&'static str, String)> {
        let claim = self.universe.facts(state.now(CLAIM))?;
        let class = self.universe.facts(state.now(CLASS));
        let is_served = class.is_some_and(|class| class.ours && class.uid != 2);
        if !is_served || !claim.ours {
            // Nobody can provision it; it is told, and held only by a call whose outcome is not known.
            return None;
        }
        if claim.deleting {
            return Some((UNWANTED, "the claim is being deleted, and is still there".to_owned()));
        }
        let own = usize::from(claim.uid);
        let saved = self.universe.facts(state.now(own));
        let is_taken = saved.is_some_and(|volume| volume.claim != claim.uid);
        if saved.is_some_and(|volume| volume.deleting && !volume.released && claim.names.is_none()) {
            // Deleted before the claim was bound to it: a person has to decide, and is told.
            return None;
        }
        if claim.marked && !is_taken {
            return Some((NOTHING_LEFT, "the claim carries the marker".to_owned()));
        }
        let is_going = saved.is_some_and(|volume| volume.released || volume.deleting);
        if claim.names.is_none_or(|slot| usize::from(slot) == own) && !is_taken && !is_going {
            let is_bound = claim.is_bound && saved.is_some_and(|volume| volume.is_bound);
            if !is_bound && (!claim.is_bound || saved.is_some()) {
                return Some((WANTED, "the claim is not bound".to_owned()));
            }
        }
        None
    }
}
