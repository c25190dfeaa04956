//! The three tables and the ways between them: which attachments name a volume, which are on a node.

use std::collections::HashMap;
use std::sync::Arc;

use crate::reflect::{ObjectTable, Origin, TableChange, TableRules};

use super::EnqueueCause;
use super::counts::Counts;
use super::links::{OfDriver, pending_since};
use super::machines::{Handles, Machines};
use super::sharing::{Names, OfVolume};
use crate::decide::patch::WriteTarget;
use crate::decide::{self, DriverFacts, Snapshot};
use crate::objects::{Attachment, AttachmentSource, CsiNode, ResourceVersion, Volume};

/// Who has to look again.
#[derive(Debug)]
pub enum CacheChange {
    /// Nobody.
    None,
    /// An attachment was made or changed.
    Attachment {
        /// Its name.
        name: Arc<str>,
        /// The object that had the name before, when it was another one: its end fell into a gap of the watch.
        replaced: Option<Arc<Attachment>>,
        /// What brought the change.
        cause: EnqueueCause,
        /// Other attachments that may have waited for this change.
        waiting: Vec<Arc<str>>,
    },
    /// An attachment is gone.
    AttachmentGone {
        /// As it was known last.
        record: Arc<Attachment>,
        /// Other attachments that may have waited for this.
        waiting: Vec<Arc<str>>,
    },
    /// A PersistentVolume was made or changed, or is gone.
    Volume {
        /// Its name.
        name: Arc<str>,
        /// The attachments that name it.
        attachments: Vec<Arc<str>>,
        /// What brought the change.
        cause: EnqueueCause,
    },
    /// A CSINode was made or changed, or is gone.
    Node {
        /// The attachments that it concerns.
        attachments: Vec<Arc<str>>,
    },
}

/// Names of the work of a driver.
pub struct PendingKeys {
    pub attachments: Vec<Arc<str>>,
    pub volumes: Vec<Arc<str>>,
}

#[derive(Clone, Default)]
pub struct Index {
    pub attachments: ObjectTable<Attachment>,
    pub volumes: ObjectTable<Volume>,
    pub nodes: ObjectTable<CsiNode>,
    pub(super) by_volume: HashMap<Arc<str>, OfVolume>,
    pub(super) by_node: HashMap<Arc<str>, Names>,
    pub(super) machines: Machines,
    pub(super) handles: Handles,
    pub(super) drivers: HashMap<Arc<str>, OfDriver>,
}

impl Index {
    /// One whose tables take copies in by these rules.
    pub fn with_rules(rules: TableRules) -> Self {
        Self {
            attachments: ObjectTable::with_rules(rules),
            volumes: ObjectTable::with_rules(rules),
            nodes: ObjectTable::with_rules(rules),
            ..Self::default()
        }
    }

    pub fn snapshot(&self, name: &str) -> Option<Snapshot> {
        let attachment = self.attachments.get(name)?.clone();
        let volume = attachment
            .volume_name()
            .and_then(|volume| self.volumes.get(volume))
            .cloned();
        let node = self.nodes.get(&attachment.node).cloned();
        let neighbours = self.neighbours(&attachment);
        Some(Snapshot {
            attachment,
            volume,
            node,
            neighbours,
        })
    }

    pub fn volume(&self, name: &str) -> Option<(Arc<Volume>, usize)> {
        let volume = self.volumes.get(name)?.clone();
        Some((volume, self.by_volume.get(name).map_or(0, OfVolume::len)))
    }

    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        match target {
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                self.attachments.get(name).map(|record| record.resource_version)
            }
            WriteTarget::Volume(name) => self.volumes.get(name).map(|record| record.resource_version),
        }
    }

    pub fn counts(&self, attacher: &str) -> Counts {
        self.drivers
            .get(attacher)
            .map(|driver| driver.counts)
            .unwrap_or_default()
    }

    pub fn oldest_pending(&self, attacher: &str) -> Option<Arc<Attachment>> {
        let pair = [
            self.oldest_pending_of(attacher, false),
            self.oldest_pending_of(attacher, true),
        ];
        pair.into_iter().flatten().min_by_key(|record| pending_since(record))
    }

    pub fn claimed(&self, attacher: &str, finalizer: &str) -> usize {
        let mine = self.attachments.values().filter(|record| &*record.attacher == attacher);
        mine.filter(|record| record.finalizers.contains(finalizer)).count()
    }

    /// In no order.
    pub fn attachments_of(&self, attacher: &str) -> Vec<Arc<str>> {
        let mine = self.attachments.values().filter(|record| &*record.attacher == attacher);
        mine.map(|record| record.name.clone()).collect()
    }

    pub fn oldest_pending_of(&self, attacher: &str, detaching: bool) -> Option<Arc<Attachment>> {
        let oldest = self.drivers.get(attacher)?.oldest_pending(detaching)?;
        self.attachments.get(oldest).cloned()
    }

    /// Everything of a driver that may need work: a driver that starts must find what piled up before. In the order of
    /// names, so that two starts over the same objects do the same.
    pub fn work_of(&self, driver: &DriverFacts) -> PendingKeys {
        let mine = self
            .attachments
            .values()
            .filter(|record| record.attacher == driver.name);
        let mut work = PendingKeys {
            attachments: mine
                .filter(|record| {
                    let volume = record.volume_name().and_then(|name| self.volumes.get(name));
                    decide::needs_work(record, volume.map(|volume| &**volume), driver)
                })
                .map(|record| record.name.clone())
                .collect(),
            volumes: self
                .volumes
                .values()
                .filter(|record| decide::may_release(record, driver))
                .map(|record| record.name.clone())
                .collect(),
        };
        work.attachments.sort_unstable();
        work.volumes.sort_unstable();
        work
    }

    pub fn take_attachment(&mut self, mut record: Attachment, origin: Origin) -> CacheChange {
        self.share_names(&mut record);
        let Some(TableChange { previous, current }) = self.attachments.take_copy(record, origin) else {
            return CacheChange::None;
        };
        let before = previous.as_deref().map(|previous| self.part(previous));
        match &previous {
            // Almost every change leaves an attachment where it was found: its spec cannot change.
            Some(previous) if same_place(previous, &current) => {
                self.uncount(previous);
                self.count(&current);
                self.update_in_place(previous, &current);
            }
            Some(previous) => {
                self.unlink(previous);
                self.link(&current);
            }
            None => self.link(&current),
        }
        let waiting = self.waiting_for_change(before, Some(&*current));
        let former = previous.as_deref().filter(|previous| previous.uid == current.uid);
        CacheChange::Attachment {
            waiting,
            cause: EnqueueCause::of_change(
                former.map(|former| former.deleting.is_some()),
                current.deleting.is_some(),
            ),
            name: current.name.clone(),
            replaced: previous.filter(|previous| previous.uid != current.uid),
        }
    }

    /// An answer to a request of ours; see `Store::apply_attachment_response`.
    pub fn answered_attachment(&mut self, record: Attachment) -> CacheChange {
        if self.attachments.get(&record.name).is_none() {
            return CacheChange::None;
        }
        let gone = record.is_gone().then(|| (record.name.clone(), record.uid.clone()));
        let change = self.take_attachment(record, Origin::Answer);
        let Some((name, uid)) = gone else { return change };
        match (change, self.bury_attachment(&name, &uid)) {
            // Its last version has given up already what they waited for.
            (CacheChange::Attachment { waiting: freed, .. }, CacheChange::AttachmentGone { record, mut waiting }) => {
                waiting.extend(freed);
                waiting.sort_unstable();
                waiting.dedup();
                CacheChange::AttachmentGone { record, waiting }
            }
            (_, gone) => gone,
        }
    }

    pub fn take_volume(&mut self, record: Volume, origin: Origin) -> CacheChange {
        let Some(TableChange { previous, current }) = self.volumes.take_copy(record, origin) else {
            return CacheChange::None;
        };
        let former = previous.as_deref().filter(|previous| previous.uid == current.uid);
        let cause = EnqueueCause::of_change(former.map(|former| former.deleting), current.deleting);
        if let Some(previous) = previous {
            self.handles.remove_volume(&previous);
        }
        self.handles.add_volume(&current);
        self.volume_changed(&current.name, cause)
    }

    /// An answer to a request of ours; see `Store::apply_volume_response`.
    pub fn answered_volume(&mut self, record: Volume) -> CacheChange {
        if self.volumes.get(&record.name).is_none() {
            return CacheChange::None;
        }
        let gone = record.is_gone().then(|| (record.name.clone(), record.uid.clone()));
        let change = self.take_volume(record, Origin::Answer);
        match gone {
            Some((name, uid)) => self.bury_volume(&name, &uid),
            None => change,
        }
    }

    pub fn take_node(&mut self, record: CsiNode, origin: Origin) -> CacheChange {
        let Some(TableChange { previous, current }) = self.nodes.take_copy(record, origin) else {
            return CacheChange::None;
        };
        let freed = previous.map_or_else(Vec::new, |previous| {
            self.machines.remove_node(&previous);
            self.freed_by_node(&previous, Some(&*current))
        });
        self.machines.add_node(&current);
        self.node_changed(&current.name, freed)
    }

    /// The watch reports that an attachment is gone.
    pub fn remove_attachment(&mut self, name: &str, uid: &str) -> CacheChange {
        let taken = self.attachments.remove(name, uid);
        self.attachment_gone(taken)
    }

    /// An answer to our own write says that an attachment is gone.
    pub fn bury_attachment(&mut self, name: &str, uid: &str) -> CacheChange {
        let taken = self.attachments.mark_deleted(name, uid);
        self.attachment_gone(taken)
    }

    pub fn attachment_gone(&mut self, taken: Option<Arc<Attachment>>) -> CacheChange {
        let Some(record) = taken else { return CacheChange::None };
        let before = self.part(&record);
        self.unlink(&record);
        let waiting = self.waiting_for_change(Some(before), None);
        CacheChange::AttachmentGone { record, waiting }
    }

    pub fn volume_changed(&self, name: &Arc<str>, cause: EnqueueCause) -> CacheChange {
        CacheChange::Volume {
            cause,
            name: name.clone(),
            attachments: self
                .by_volume
                .get(name)
                .into_iter()
                .flat_map(OfVolume::names)
                .cloned()
                .collect(),
        }
    }

    fn node_changed(&self, name: &str, freed: Vec<Arc<str>>) -> CacheChange {
        let mut attachments: Vec<Arc<str>> = self.on_node(name).cloned().collect();
        attachments.extend(freed);
        CacheChange::Node { attachments }
    }

    /// Names of the attachments of a node, in their order.
    pub(super) fn on_node(&self, name: &str) -> impl Iterator<Item = &Arc<str>> {
        self.by_node.get(name).into_iter().flat_map(Names::iter)
    }

    /// Thousands of attachments name the same few drivers and nodes: one copy of each name serves all.
    fn share_names(&self, record: &mut Attachment) {
        if let Some(known) = self.attachments.get(&record.name) {
            record.name = known.name.clone();
        }
        if let Some((shared, _)) = self.drivers.get_key_value(&record.attacher) {
            record.attacher = shared.clone();
        }
        if let Some((shared, _)) = self.by_node.get_key_value(&record.node) {
            record.node = shared.clone();
        }
        if let AttachmentSource::PersistentVolume(name) = &mut record.source
            && let Some(volume) = self.volumes.get(name)
        {
            *name = volume.name.clone();
        }
    }

    fn volume_gone(&mut self, taken: Option<Arc<Volume>>) -> CacheChange {
        let Some(record) = taken else { return CacheChange::None };
        self.handles.remove_volume(&record);
        self.volume_changed(&record.name, EnqueueCause::Update)
    }

    pub fn remove_volume(&mut self, name: &str, uid: &str) -> CacheChange {
        let taken = self.volumes.remove(name, uid);
        self.volume_gone(taken)
    }

    pub fn bury_volume(&mut self, name: &str, uid: &str) -> CacheChange {
        let taken = self.volumes.mark_deleted(name, uid);
        self.volume_gone(taken)
    }

    pub fn remove_node(&mut self, name: &str, uid: &str) -> CacheChange {
        let Some(record) = self.nodes.remove(name, uid) else {
            return CacheChange::None;
        };
        self.machines.remove_node(&record);
        let freed = self.freed_by_node(&record, None);
        self.node_changed(&record.name, freed)
    }
}

/// Whether two copies of an attachment are found in the same places of the index.
fn same_place(one: &Attachment, other: &Attachment) -> bool {
    one.node == other.node && one.source == other.source
}
