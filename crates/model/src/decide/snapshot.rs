//! What the cache knows about one attachment at one moment, and what the rules make of it.

use std::sync::Arc;

use super::driver_facts::DriverFacts;
use super::observed::{DetachWait, Neighbours, NodeEntry, Observed, Policy, SecretState};
use super::patch::WriteTarget;
use super::published_volume::{replaced, wanted_handle};
use crate::objects::{Attachment, CsiNode, Operation, ResourceVersion, Volume};

/// What is known about one attachment at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The attachment.
    pub attachment: Arc<Attachment>,
    /// The PersistentVolume that it names, if there is one.
    pub volume: Option<Arc<Volume>>,
    /// The CSINode of its node, if there is one.
    pub node: Option<Arc<CsiNode>>,
    /// Other attachments of the same driver and volume.
    pub neighbours: Neighbours,
}

impl Snapshot {
    /// UID of the copy that a request to `target` is made from; empty when there is none.
    pub fn uid(&self, target: &WriteTarget) -> &str {
        match target {
            WriteTarget::Attachment(_) | WriteTarget::AttachmentStatus(_) => &self.attachment.uid,
            WriteTarget::Volume(_) => self.volume.as_ref().map_or("", |volume| &volume.uid),
        }
    }

    /// Version of the copy that a request to `target` is made from.
    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        match target {
            WriteTarget::Attachment(_) | WriteTarget::AttachmentStatus(_) => Some(self.attachment.resource_version),
            WriteTarget::Volume(_) => self.volume.as_ref().map(|volume| volume.resource_version),
        }
    }

    /// The PersistentVolume, unless it was made again under the name, with another handle: that is not what is attached.
    pub fn own_volume(&self) -> Option<&Arc<Volume>> {
        let volume = self.volume.as_ref();
        volume.filter(|volume| replaced(&self.attachment, volume).is_none())
    }

    /// Whether the copy that a write to `target` is made from carries a finalizer, which such a write may cost: one of the status never
    /// does, as the API server keeps the metadata, and may follow the one that took it off.
    pub fn is_held(&self, target: &WriteTarget, finalizer: &str) -> bool {
        let finalizers = match target {
            WriteTarget::Attachment(_) => Some(&self.attachment.finalizers),
            WriteTarget::AttachmentStatus(_) => None,
            WriteTarget::Volume(_) => self.volume.as_ref().map(|volume| &volume.finalizers),
        };
        finalizers.is_some_and(|finalizers| finalizers.contains(finalizer))
    }

    /// What the attachment asks for.
    pub fn operation(&self) -> Operation {
        Operation::of(&self.attachment)
    }

    /// The handle of the volume that a call would be about: the one that the attachment stands for or, while it is to be attached,
    /// that of its PersistentVolume.
    pub fn volume_handle(&self) -> Option<&str> {
        wanted_handle(&self.attachment, self.volume.as_deref())
    }

    /// The ID under which a driver knows the node: the one that was claimed or, before that, the one that is registered.
    pub fn node_id(&self, driver: &str) -> Option<&str> {
        let registered = self.node.as_ref().and_then(|node| node.node_id(driver));
        self.attachment.node_id.as_deref().or(registered)
    }

    /// What the CSINode says of a driver.
    pub fn node_entry(&self, driver: &str) -> NodeEntry<'_> {
        NodeEntry::of(self.node.as_deref(), driver)
    }
}

/// The facts and settings that turn a snapshot into something to decide on.
pub fn observe<'a>(
    snapshot: &'a Snapshot,
    driver: &'a DriverFacts,
    policy: &'a Policy,
    credentials: SecretState,
) -> Observed<'a> {
    Observed {
        attachment: &snapshot.attachment,
        volume: snapshot.volume.as_deref(),
        node: snapshot.node_entry(&driver.name),
        neighbours: &snapshot.neighbours,
        forced: false,
        detach_wait: DetachWait::Allowed,
        credentials,
        release_answered: false,
        driver,
        policy,
    }
}
