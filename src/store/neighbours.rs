//! Attachments that bear on each other: of one volume on several nodes, or of one volume handle on one node.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use super::index::Index;
use crate::decide::{DriverFacts, Neighbours, Place};
use crate::objects::{Attachment, CsiSource, Source, VolumeSpec};

/// How many PersistentVolumes and in-line volumes have a handle, by its hash: a few bytes for each volume. It may be too
/// high, as when two handles have one hash: that only costs a look that finds nothing.
#[derive(Default)]
pub(super) struct Handles(HashMap<u64, u32>);

impl Handles {
    fn hash(driver: &str, handle: &str) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((driver, handle))
    }

    fn count(&self, driver: &str, handle: &str) -> u32 {
        self.0.get(&Self::hash(driver, handle)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, volume: &VolumeSpec) {
        if let Some(source) = volume.csi() {
            *self.0.entry(Self::hash(&source.driver, &source.handle)).or_default() += 1;
        }
    }

    /// Counts the volume of an attachment whose PersistentVolume is gone by force.
    pub fn add_noted(&mut self, attachment: &Attachment) {
        if let Some(note) = &attachment.volume_note {
            *self
                .0
                .entry(Self::hash(&attachment.attacher, &note.handle))
                .or_default() += 1;
        }
    }

    /// Counts the volume of an attachment that describes it itself.
    pub fn add_inline(&mut self, attachment: &Attachment) {
        if let Source::Inline(spec) = &attachment.source {
            self.add(spec);
        }
    }

    /// Undoes [`Handles::add_inline`].
    pub fn remove_inline(&mut self, attachment: &Attachment) {
        if let Source::Inline(spec) = &attachment.source {
            self.remove(spec);
        }
    }

    pub fn remove(&mut self, volume: &VolumeSpec) {
        let Some(source) = volume.csi() else { return };
        let hash = Self::hash(&source.driver, &source.handle);
        if let Some(count) = self.0.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&hash);
            }
        }
    }
}

impl Index {
    /// The other attachments that bear on this one.
    pub fn neighbours(&self, attachment: &Attachment) -> Neighbours {
        let others = |names: Option<&Vec<Arc<str>>>| -> Vec<Arc<Attachment>> {
            let names = names.into_iter().flatten().filter(|name| **name != attachment.name);
            let records = names.filter_map(|name| self.attachments.get(name));
            records
                .filter(|other| other.attacher == attachment.attacher)
                .cloned()
                .collect()
        };
        let volume = attachment.volume_name();
        let mut elsewhere = others(volume.and_then(|volume| self.by_volume.get(volume)));
        let mut here = Vec::new();
        if attachment.deleting.is_some() && (!elsewhere.is_empty() || self.shares_handle(attachment)) {
            here = others(self.by_node.get(&attachment.node));
            here.retain(|other| self.same_volume(attachment, other));
        }
        elsewhere.retain(|other| other.node != attachment.node);
        if attachment.deleting.is_some() {
            // A machine that was registered anew under another name keeps its ID.
            let same_machine =
                |other: &&Arc<Attachment>| other.node_id.is_some() && other.node_id == attachment.node_id;
            here.extend(elsewhere.iter().filter(same_machine).cloned());
        }
        Neighbours { elsewhere, here }
    }

    /// Whether another attachment on the same node or of the same volume is claimed for a place, so that the volume is not
    /// to be taken from there.
    pub fn is_claimed(&self, attachment: &Attachment, driver: &DriverFacts, place: Place<'_>) -> bool {
        let of_volume = attachment.volume_name().and_then(|volume| self.by_volume.get(volume));
        let names = self
            .by_node
            .get(&attachment.node)
            .into_iter()
            .chain(of_volume)
            .flatten();
        let mut records = names.filter_map(|name| self.attachments.get(name));
        records.any(|other| {
            let at_place = other.node_id.as_deref() == Some(place.node_id)
                && other
                    .volume_note
                    .as_ref()
                    .is_some_and(|note| &*note.handle == place.volume_id);
            at_place
                && other.uid != attachment.uid
                && other.deleting.is_none()
                && other.finalizers.contains(&driver.finalizer)
        })
    }

    /// Whether more than one volume has the handle of this attachment's. Almost none do, and then the attachments of the
    /// node need not be gone through.
    fn shares_handle(&self, attachment: &Attachment) -> bool {
        let itself = u32::from(self.source_of(attachment).is_some());
        let handle = self.handle_of(attachment);
        handle.is_some_and(|handle| self.handles.count(&attachment.attacher, handle) > itself)
    }

    /// The handle of an attachment's volume: that of its PersistentVolume or, when that was removed by force, what was noted.
    fn handle_of<'a>(&'a self, attachment: &'a Attachment) -> Option<&'a str> {
        let described = self.source_of(attachment).map(|source| &*source.handle);
        described.or_else(|| attachment.volume_note.as_ref().map(|note| &*note.handle))
    }

    fn source_of<'a>(&'a self, attachment: &'a Attachment) -> Option<&'a CsiSource> {
        let spec = match &attachment.source {
            Source::Inline(spec) => Some(&**spec),
            Source::PersistentVolume(name) => self.volumes.get(name).map(|volume| &volume.spec),
            Source::Both(_) | Source::Neither => None,
        };
        spec.and_then(VolumeSpec::csi)
    }

    fn same_volume(&self, one: &Attachment, other: &Attachment) -> bool {
        match (self.handle_of(one), self.handle_of(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one.volume_name().is_some() && one.volume_name() == other.volume_name(),
        }
    }

    /// The attachments that may be waiting for this one to go: other nodes' of its volume, and those on its node that may
    /// not be detached while it wants the volume there.
    pub fn waiting_for(&self, attachment: &Attachment) -> Vec<Arc<str>> {
        let shared = self.shares_handle(attachment);
        let names = |names: Option<&Vec<Arc<str>>>| names.cloned().unwrap_or_default();
        let mut waiting = names(attachment.volume_name().and_then(|volume| self.by_volume.get(volume)));
        if shared {
            let here = names(self.by_node.get(&attachment.node)).into_iter();
            waiting.extend(here.filter(|name| {
                let other = self.attachments.get(name);
                other.is_some_and(|other| other.deleting.is_some() && self.same_volume(attachment, other))
            }));
        }
        waiting.retain(|name| *name != attachment.name);
        waiting
    }
}
