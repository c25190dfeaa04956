//! What must hold at every write and in every state, and what must be so in a state that lasts.

use super::Core;
use super::invariants::{
    ATTACHED_IS_PROTECTED, ATTACHED_IS_PUBLISHED, ATTACHED_WITHOUT_ERROR, ATTACHES, DETACHED_AND_GONE, FOREIGN_PARTS,
    HELD_WHILE_PUBLISHED, NOTHING_LEFT, ONE_NODE, PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED, PUBLISHED_FIRST,
    RELEASED_FIRST, RIGHT_CONTEXT, STAYS_ATTACHED, VOLUME_GOES,
};
use super::objects::{Facts, Kind};
use super::state::{NONE, Phase, State};
use super::world::{Fault, User};

impl Core {
    /// The facts of the object in a slot, if there is one.
    pub(super) fn facts(&self, state: &State, slot: u8) -> Option<&Facts> {
        let object = state.objects[usize::from(slot)];
        (object != NONE).then(|| &self.universe.object(object).facts)
    }

    /// The facts of the attachments that are there.
    pub(super) fn attachments<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (u8, &'a Facts)> {
        let slots = self.setting.slots_of(Kind::Attachment);
        slots.filter_map(move |slot| Some((slot, self.facts(state, slot)?)))
    }

    /// Places where a volume is published or may become so by a call that is not answered.
    fn may_be_published(&self, state: &State) -> u16 {
        let calls = state.replicas.iter().flat_map(|replica| &replica.attempts);
        let calls = calls.filter_map(|(_, attempt)| match attempt.phase {
            Phase::Call {
                publishes: true, place, ..
            } => Some(place),
            _ => None,
        });
        let orphans = state
            .orphans
            .iter()
            .filter(|orphan| orphan.publishes)
            .map(|orphan| orphan.place);
        calls
            .chain(orphans)
            .fold(state.published, |mask, place| mask | (1 << place))
    }

    /// An object is about to change, or to go.
    pub(super) fn check_change(&mut self, state: &State, slot: u8, object: u32, gone: bool) {
        let Some(before) = self.facts(state, slot).cloned() else {
            return;
        };
        let after = self.universe.object(object).facts.clone();
        if before.foreign && !after.foreign {
            self.violated(FOREIGN_PARTS);
        }
        match self.universe.kind(slot) {
            Kind::Attachment => self.check_attachment(state, &before, &after, gone),
            Kind::Volume => {
                let released = before.ours && (!after.ours || gone);
                let named = self
                    .attachments(state)
                    .any(|(attachment, facts)| facts.ours && self.setting.needs(attachment, Kind::Volume) == slot);
                if released && named && !self.is_unprotected() {
                    self.violated(PROTECTED_WHILE_NAMED);
                }
            }
            Kind::Node => {}
        }
    }

    pub(super) fn is_unprotected(&self) -> bool {
        self.setting
            .users
            .iter()
            .any(|(user, _)| matches!(user, User::Unprotect(_)))
    }

    fn check_attachment(&mut self, state: &State, before: &Facts, after: &Facts, gone: bool) {
        if before.attached && !after.attached && !after.deleting {
            self.violated(STAYS_ATTACHED);
        }
        if before.attached && !after.attached && after.deleting && after.ours {
            self.violated(RELEASED_FIRST);
        }
        if !after.attached || gone {
            return;
        }
        if after.attach_error {
            self.violated(ATTACHED_WITHOUT_ERROR);
        }
        let place = after
            .claim
            .as_ref()
            .and_then(|(handle, id)| self.universe.place(handle, id));
        if !before.attached {
            let published = place.is_some_and(|place| state.published & (1 << place) != 0);
            // Without the calls nothing is published, and what was never claimed is marked attached all the same.
            if !published && (after.ours || !self.setting.kinds.contains(&Fault::CapabilityGoes)) {
                self.violated(PUBLISHED_FIRST);
            }
        }
        if let Some(place) = place.filter(|_| !before.attached || before.context != after.context) {
            let answered = ["key1", "key2"]
                .iter()
                .take(usize::from(state.contexts[usize::from(place)]));
            if !answered.into_iter().any(|key| after.context == [*key]) {
                self.violated(RIGHT_CONTEXT);
            }
        }
    }

    /// What must hold in every state.
    pub(super) fn check_state(&mut self, state: &State) {
        let possible = self.may_be_published(state);
        for place in (0..16_u8).filter(|place| possible & (1 << place) != 0) {
            let here = self.universe.here(place);
            let held = self.attachments(state).any(|(_, facts)| facts.holds(&here));
            let mut volumes = self.setting.slots_of(Kind::Volume);
            let protected = volumes.any(|slot| {
                let facts = self.facts(state, slot);
                facts.is_some_and(|facts| facts.ours && facts.handle.as_deref() == Some(&*here.0))
            });
            if !held {
                self.violated(HELD_WHILE_PUBLISHED);
            }
            if !protected && !self.is_unprotected() {
                self.violated(PROTECTED_WHILE_PUBLISHED);
            }
        }
        if self.setting.one_at_a_time && self.is_at_two_nodes(state.published) {
            self.violated(ONE_NODE);
        }
    }

    fn is_at_two_nodes(&self, published: u16) -> bool {
        let places = (0..16_u8).filter(|place| published & (1 << place) != 0);
        // The second ID of a node is that of the same machine.
        let nodes = places.map(|place| {
            (
                self.universe.at(place).volume_id,
                self.universe.at(place).node_id.trim_end_matches('b'),
            )
        });
        let mut nodes: Vec<(&str, &str)> = nodes.collect();
        nodes.dedup();
        nodes.windows(2).any(|pair| pair[0].0 == pair[1].0)
    }

    /// Why a state is not one that may last, when nothing goes wrong any more.
    pub(super) fn unsettled(&self, state: &State) -> Option<(&'static str, String)> {
        for (slot, facts) in self.attachments(state) {
            let name = self.universe.name(slot);
            let volume = self.facts(state, self.setting.needs(slot, Kind::Volume));
            if facts.deleting {
                // It waits until nobody uses the same volume at the same place.
                let used = self
                    .attachments(state)
                    .any(|(_, other)| !other.deleting && other.attached && other.claim == facts.claim);
                if facts.ours && !used {
                    return Some((DETACHED_AND_GONE, format!("{name} is deleted and not let go")));
                }
                continue;
            }
            let place = facts
                .claim
                .as_ref()
                .and_then(|(handle, id)| self.universe.place(handle, id));
            if facts.attached {
                if place.is_some_and(|place| state.published & (1 << place) == 0) && facts.ours {
                    return Some((
                        ATTACHED_IS_PUBLISHED,
                        format!("{name} is recorded as attached and not published"),
                    ));
                }
                if facts.ours && volume.is_some_and(|volume| !volume.ours && !volume.deleting) {
                    return Some((ATTACHED_IS_PROTECTED, format!("the volume of {name} is not protected")));
                }
                if facts.attach_error {
                    return Some((ATTACHED_WITHOUT_ERROR, format!("{name} is attached and shows an error")));
                }
                continue;
            }
            if volume.is_some_and(|volume| !volume.deleting) && self.setting.is_ours(slot) {
                return Some((ATTACHES, format!("{name} can be attached and is not")));
            }
        }
        for slot in self.setting.slots_of(Kind::Volume) {
            let named = self
                .attachments(state)
                .any(|(attachment, _)| self.setting.needs(attachment, Kind::Volume) == slot);
            if self
                .facts(state, slot)
                .is_some_and(|facts| facts.deleting && facts.ours)
                && !named
            {
                let name = self.universe.name(slot);
                return Some((
                    VOLUME_GOES,
                    format!("{name} is deleted, named by nobody and not released"),
                ));
            }
        }
        (0..16_u8)
            .filter(|place| state.published & (1 << place) != 0)
            .find_map(|place| {
                let here = self.universe.here(place);
                let claimed = self.attachments(state).any(|(_, facts)| facts.holds(&here));
                (!claimed).then(|| {
                    (
                        NOTHING_LEFT,
                        format!("{} is published at {} for nobody", here.0, here.1),
                    )
                })
            })
    }
}
