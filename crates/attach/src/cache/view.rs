//! The cache as those see it who look at everything now and then, without keeping those waiting who work.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;

use super::index::Index;
use super::store::Store;
use crate::decide::{self, DriverFacts, NodeEntry};
use crate::objects::{Attachment, AttachmentSource, Volume};

/// What shows that volumes of a driver were published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// How many attachments are claimed.
    pub attachments: usize,
    /// The first of them by name.
    pub attachment: Option<Arc<str>>,
    /// The first PersistentVolume by name that carries the finalizer and is not being deleted.
    pub volume: Option<Arc<str>>,
}

impl Marks {
    /// Whether nothing shows it.
    pub fn is_empty(&self) -> bool {
        self.attachments == 0 && self.volume.is_none()
    }
}

/// An attachment with what is around it.
#[derive(Clone, Copy)]
pub struct AttachmentView<'a> {
    index: &'a Index,
    /// The attachment.
    pub attachment: &'a Arc<Attachment>,
}

impl<'a> AttachmentView<'a> {
    /// The PersistentVolume that it names, if there is one.
    pub fn volume(&self) -> Option<&'a Arc<Volume>> {
        let name = self.attachment.volume_name()?;
        self.index.volumes.get(name)
    }

    /// What the node's CSINode says of its driver.
    pub fn node(&self) -> NodeEntry<'a> {
        match self.index.nodes.get(&self.attachment.node) {
            None => NodeEntry::Missing,
            Some(node) => NodeEntry::of(node, &self.attachment.attacher),
        }
    }

    /// Another node to which its volume is attached by the same PersistentVolume, and not being detached from.
    pub fn attached_at(&self) -> Option<&'a str> {
        self.index.in_use_elsewhere(self.attachment).map(|other| &*other.node)
    }

    /// Whether it describes its volume itself.
    pub fn is_inline(&self) -> bool {
        matches!(self.attachment.source, AttachmentSource::Inline(_))
    }
}

impl Store {
    /// The IDs under which a driver knows the nodes of the cluster.
    pub fn node_ids(&self, driver: &str) -> HashSet<Box<str>> {
        let index = self.inner.index.read();
        index
            .nodes
            .values()
            .filter_map(|node| node.node_id(driver).map(Box::from))
            .collect()
    }

    /// Changes with every change of what is cached.
    pub fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Relaxed)
    }

    /// Names of all attachments, in no order.
    pub fn attachment_names(&self) -> Vec<Arc<str>> {
        let index = self.inner.index.read();
        index.attachments.values().map(|record| record.name.clone()).collect()
    }

    /// Shows these attachments, as far as they are still there. The cache is locked meanwhile: they should be few.
    pub fn for_each_attachment(&self, names: &[Arc<str>], mut look: impl FnMut(AttachmentView<'_>)) {
        let index = self.inner.index.read();
        for name in names {
            if let Some(attachment) = index.attachments.get(name) {
                look(AttachmentView {
                    index: &index,
                    attachment,
                });
            }
        }
    }

    /// The PersistentVolumes that are being deleted and that no attachment names.
    pub fn unreferenced_deleting_volumes(&self) -> Vec<Arc<Volume>> {
        let index = self.inner.index.read();
        let deleting = index.volumes.values().filter(|volume| volume.deleting);
        deleting
            .filter(|volume| !index.by_volume.contains_key(&volume.name))
            .cloned()
            .collect()
    }

    /// What shows that a driver was published to: how many of its attachments are claimed ([`decide::is_claimed`]), one of them, and
    /// a PersistentVolume that carries its finalizer and is not being deleted.
    pub fn marks(&self, driver: &DriverFacts) -> Marks {
        let index = self.inner.index.read();
        let mine = index.attachments.values().filter(|one| one.attacher == driver.name);
        let claimed = mine.filter(|attachment| decide::is_claimed(attachment, driver));
        let names = claimed.map(|attachment| &attachment.name);
        let (attachments, attachment) = names.fold((0, None), |(count, least), name| {
            (count + 1, Some(least.map_or(name, |least: &Arc<str>| least.min(name))))
        });
        let protected = index.volumes.values().filter(|volume| !volume.deleting);
        let protected = protected.filter(|volume| volume.finalizers.contains(&driver.finalizer));
        Marks {
            attachments,
            attachment: attachment.cloned(),
            volume: protected.map(|volume| &volume.name).min().cloned(),
        }
    }

    /// The PersistentVolumes that carry a finalizer: those that are being deleted, and the others.
    pub fn protected(&self, finalizer: &str) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let index = self.inner.index.read();
        let protected = index
            .volumes
            .values()
            .filter(|volume| volume.finalizers.contains(finalizer));
        let (deleting, live): (Vec<_>, Vec<_>) = protected.partition(|volume| volume.deleting);
        let names = |volumes: Vec<&Arc<Volume>>| {
            let mut names: Vec<_> = volumes.into_iter().map(|volume| volume.name.clone()).collect();
            names.sort_unstable();
            names
        };
        (names(deleting), names(live))
    }

    /// Whether the attachment of this name and UID is neither attached for good nor gone.
    pub fn is_pending(&self, name: &str, uid: &str) -> bool {
        let index = self.inner.index.read();
        let known = index.attachments.get(name).filter(|record| *record.uid == *uid);
        known.is_some_and(|record| !record.attached || record.deleting.is_some())
    }

    /// The drivers that are worked for.
    pub fn drivers(&self) -> HashMap<Arc<str>, Arc<DriverFacts>> {
        let routes = self.inner.routes.read();
        routes
            .iter()
            .map(|route| (route.facts.name.clone(), route.facts.clone()))
            .collect()
    }

    /// Changes whenever a driver begins to be worked for.
    pub fn subscribe_added(&self) -> watch::Receiver<()> {
        self.inner.arrivals.subscribe()
    }
}
