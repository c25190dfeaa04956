//! Where an attachment is found: under its volume, its node and its driver.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::counts::Counts;
use super::index::Index;
use super::sharing::{Names, OfVolume};
use crate::api::names::finalizer_name;
use crate::objects::Attachment;

/// What is known of a driver that attachments name, whether it is served or not.
#[derive(Clone)]
pub(super) struct OfDriver {
    pub counts: Counts,
    pub finalizer: Box<str>,
    /// What waits to be attached and to be detached, by the time since when.
    attaching: BTreeSet<(Option<Timestamp>, Arc<str>)>,
    detaching: BTreeSet<(Option<Timestamp>, Arc<str>)>,
}

impl OfDriver {
    fn pending(&mut self, record: &Attachment) -> Option<&mut BTreeSet<(Option<Timestamp>, Arc<str>)>> {
        match (record.deleting.is_some(), record.attached) {
            (true, _) => Some(&mut self.detaching),
            (false, false) => Some(&mut self.attaching),
            (false, true) => None,
        }
    }

    /// The name of what has waited longest for one direction.
    pub fn oldest_pending(&self, detaching: bool) -> Option<&Arc<str>> {
        let pending = if detaching { &self.detaching } else { &self.attaching };
        pending.first().map(|(_, name)| name)
    }
}

/// Since when an attachment waits.
pub(super) fn pending_since(record: &Attachment) -> Option<Timestamp> {
    record.deleting.or(record.created)
}

impl Index {
    pub(super) fn link(&mut self, record: &Attachment) {
        self.count(record);
        if let Some(volume) = record.volume_name() {
            match self.by_volume.get_mut(volume) {
                None => {
                    self.by_volume
                        .insert(volume.clone(), OfVolume::One(record.name.clone()));
                }
                Some(of_volume) => {
                    let first = match of_volume {
                        OfVolume::One(name) => self.attachments.get(name),
                        OfVolume::Several(_) => None,
                    };
                    let first = first.map(|first| (&**first, finalizer_of(&self.drivers, &first.attacher)));
                    of_volume.add(record, finalizer_of(&self.drivers, &record.attacher), first);
                }
            }
        }
        match self.by_node.get_mut(&record.node) {
            Some(names) => names.add(&record.name),
            None => {
                self.by_node
                    .insert(record.node.clone(), Names::One(record.name.clone()));
            }
        }
        self.machines.add(record);
        self.handles.add(record);
    }

    pub(super) fn unlink(&mut self, record: &Attachment) {
        if let Some(volume) = record.volume_name()
            && let Some(of_volume) = self.by_volume.get_mut(volume)
            && of_volume.remove(record, finalizer_of(&self.drivers, &record.attacher))
        {
            self.by_volume.remove(volume);
        }
        if let Some(names) = self.by_node.get_mut(&record.node)
            && names.remove(&record.name)
        {
            self.by_node.remove(&record.node);
        }
        self.machines.remove(record);
        self.handles.remove(record);
        self.uncount(record);
    }

    /// An attachment changed and stayed where it was.
    pub(super) fn update_in_place(&mut self, previous: &Attachment, current: &Attachment) {
        let tells = |record: &Attachment| {
            let note = record.volume_note.as_ref().map(|note| note.handle.clone());
            (record.attacher.clone(), record.node_id.clone(), note)
        };
        if tells(previous) != tells(current) {
            self.machines.remove(previous);
            self.machines.add(current);
            self.handles.remove(previous);
            self.handles.add(current);
        }
        if let Some(of_volume) = previous.volume_name().and_then(|volume| self.by_volume.get_mut(volume)) {
            of_volume.replace(
                previous,
                finalizer_of(&self.drivers, &previous.attacher),
                current,
                finalizer_of(&self.drivers, &current.attacher),
            );
        }
    }

    pub(super) fn finalizer_of(&self, driver: &str) -> &str {
        finalizer_of(&self.drivers, driver)
    }

    pub(super) fn count(&mut self, record: &Attachment) {
        let driver = self.drivers.entry(record.attacher.clone()).or_insert_with(|| OfDriver {
            counts: Counts::default(),
            finalizer: finalizer_name(&record.attacher).into(),
            attaching: BTreeSet::new(),
            detaching: BTreeSet::new(),
        });
        *driver.counts.of(record) += 1;
        if let Some(pending) = driver.pending(record) {
            pending.insert((pending_since(record), record.name.clone()));
        }
    }

    pub(super) fn uncount(&mut self, record: &Attachment) {
        if let Some(driver) = self.drivers.get_mut(&record.attacher) {
            let count = driver.counts.of(record);
            *count = count.saturating_sub(1);
            if let Some(pending) = driver.pending(record) {
                pending.remove(&(pending_since(record), record.name.clone()));
            }
        }
    }
}

/// The finalizer of a driver that some attachment names.
fn finalizer_of<'a>(drivers: &'a HashMap<Arc<str>, OfDriver>, driver: &str) -> &'a str {
    drivers.get(driver).map_or("", |driver| &driver.finalizer)
}
