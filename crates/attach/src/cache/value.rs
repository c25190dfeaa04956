//! What one replica knows, as a value: the tables of [`super::Store`] and who has to look again, without locks, queues and watches.
//!
//! The model checker (`tests/model-check`) explores what becomes of it; the store itself works on the same index.

use std::collections::HashSet;
use std::sync::Arc;

use crate::reflect::{Origin, TableContent};

use super::AttacherKey;
use super::index::{CacheChange, Index};
use super::react::Look;
use crate::decide::patch::WriteTarget;
use crate::decide::{DriverFacts, Snapshot, VolumeOnNode};
use crate::objects::{Attachment, CsiNode, ResourceVersion, Volume};

/// The cache of one replica at one moment.
#[derive(Clone, Default)]
pub struct CacheValue(Index);

/// What tells two caches apart: with one content they take in everything alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheContent([TableContent; 3]);

impl CacheValue {
    /// Takes in complete lists of all kinds; answers who has to look again, as all that follow.
    pub fn list(
        &mut self,
        attachments: Vec<Attachment>,
        volumes: Vec<Volume>,
        nodes: Vec<CsiNode>,
    ) -> Vec<AttacherKey> {
        let mut looks = Vec::new();
        self.0.volumes.start_list();
        let seen: HashSet<Arc<str>> = volumes.iter().map(|record| record.name.clone()).collect();
        for record in volumes {
            looks.extend(keys(&self.0.take_volume(record, Origin::List)));
        }
        looks.extend(self.0.finish_volume_list(&seen).iter().flat_map(keys));
        self.0.nodes.start_list();
        let seen: HashSet<Arc<str>> = nodes.iter().map(|record| record.name.clone()).collect();
        for record in nodes {
            looks.extend(keys(&self.0.take_node(record, Origin::List)));
        }
        looks.extend(self.0.finish_node_list(&seen).iter().flat_map(keys));
        self.0.attachments.start_list();
        let seen: HashSet<Arc<str>> = attachments.iter().map(|record| record.name.clone()).collect();
        for record in attachments {
            looks.extend(keys(&self.0.take_attachment(record, Origin::List)));
        }
        looks.extend(self.0.finish_attachment_list(&seen).iter().flat_map(keys));
        looks
    }

    /// The watch shows an attachment.
    pub fn attachment_told(&mut self, record: Attachment) -> Vec<AttacherKey> {
        keys(&self.0.take_attachment(record, Origin::News))
    }

    /// The watch shows a PersistentVolume.
    pub fn volume_told(&mut self, record: Volume) -> Vec<AttacherKey> {
        keys(&self.0.take_volume(record, Origin::News))
    }

    /// The watch shows a CSINode.
    pub fn node_told(&mut self, record: CsiNode) -> Vec<AttacherKey> {
        keys(&self.0.take_node(record, Origin::News))
    }

    /// The watch tells the end of an attachment.
    pub fn attachment_ended(&mut self, name: &str, uid: &str) -> Vec<AttacherKey> {
        keys(&self.0.remove_attachment(name, uid))
    }

    /// The watch tells the end of a PersistentVolume.
    pub fn volume_ended(&mut self, name: &str, uid: &str) -> Vec<AttacherKey> {
        keys(&self.0.remove_volume(name, uid))
    }

    /// The watch tells the end of a CSINode.
    pub fn node_ended(&mut self, name: &str, uid: &str) -> Vec<AttacherKey> {
        keys(&self.0.remove_node(name, uid))
    }

    /// An answer to a request of ours shows an attachment.
    pub fn attachment_answered(&mut self, record: Attachment) -> Vec<AttacherKey> {
        keys(&self.0.answered_attachment(record))
    }

    /// An answer to a request of ours shows a PersistentVolume.
    pub fn volume_answered(&mut self, record: Volume) -> Vec<AttacherKey> {
        keys(&self.0.answered_volume(record))
    }

    /// An answer to a request of ours says that the object is not there.
    pub fn not_found(&mut self, target: &WriteTarget, uid: &str) -> Vec<AttacherKey> {
        keys(&match target {
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => self.0.bury_attachment(name, uid),
            WriteTarget::Volume(name) => self.0.bury_volume(name, uid),
        })
    }

    /// Everything of a driver that may need work.
    pub fn work_of(&self, driver: &DriverFacts) -> Vec<AttacherKey> {
        let work = self.0.work_of(driver);
        let attachments = work.attachments.into_iter().map(AttacherKey::Attachment);
        attachments
            .chain(work.volumes.into_iter().map(AttacherKey::Volume))
            .collect()
    }

    /// See [`super::Store::attachment`].
    pub fn attachment(&self, name: &str) -> Option<Snapshot> {
        self.0.snapshot(name)
    }

    /// See [`super::Store::volume`].
    pub fn volume(&self, name: &str) -> Option<(Arc<Volume>, usize)> {
        self.0.volume(name)
    }

    /// See [`super::Store::is_claimed`].
    pub fn is_claimed(&self, driver: &DriverFacts, snapshot: &Snapshot, place: VolumeOnNode<'_>) -> bool {
        self.0.is_claimed(&snapshot.attachment, driver, place)
    }

    /// See [`super::Store::version`].
    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        self.0.version(target)
    }

    /// What tells it apart from others.
    pub fn content(&self) -> CacheContent {
        let index = &self.0;
        CacheContent([
            index.attachments.content(),
            index.volumes.content(),
            index.nodes.content(),
        ])
    }
}

fn keys(change: &CacheChange) -> Vec<AttacherKey> {
    let mut keys = Vec::new();
    change.each_look(|look| {
        keys.push(match look {
            Look::Attachment(name, _) => AttacherKey::Attachment(name.clone()),
            Look::Volume(name, _) => AttacherKey::Volume(name.clone()),
        });
    });
    keys
}
