//! What the cache knows about one attachment at one moment, and what the rules make of it.

use std::sync::Arc;

use super::observed::{Credentials, DriverFacts, Neighbours, NodeEntry, Observed, Patience, Policy};
use super::patch::Target;
use crate::objects::{Attachment, CsiNode, ResourceVersion, Volume};

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
    pub fn uid(&self, target: &Target) -> &str {
        match target {
            Target::Attachment(_) | Target::AttachmentStatus(_) => &self.attachment.uid,
            Target::Volume(_) => self.volume.as_ref().map_or("", |volume| &volume.uid),
        }
    }

    /// Version of the copy that a request to `target` is made from.
    pub fn version(&self, target: &Target) -> Option<ResourceVersion> {
        match target {
            Target::Attachment(_) | Target::AttachmentStatus(_) => Some(self.attachment.resource_version),
            Target::Volume(_) => self.volume.as_ref().map(|volume| volume.resource_version),
        }
    }

    /// What the CSINode says of a driver.
    pub fn node_entry(&self, driver: &str) -> NodeEntry<'_> {
        match &self.node {
            None => NodeEntry::Missing,
            Some(node) => node
                .node_id(driver)
                .map_or(NodeEntry::WithoutDriver, NodeEntry::Registered),
        }
    }
}

/// The facts and settings that turn a snapshot into something to decide on.
pub fn observe<'a>(
    snapshot: &'a Snapshot,
    driver: &'a DriverFacts,
    policy: &'a Policy,
    credentials: Credentials,
) -> Observed<'a> {
    Observed {
        attachment: &snapshot.attachment,
        volume: snapshot.volume.as_deref(),
        node: snapshot.node_entry(&driver.name),
        neighbours: &snapshot.neighbours,
        forced: false,
        patience: Patience::Left,
        credentials,
        driver,
        policy,
    }
}
