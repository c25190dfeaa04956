//! From a change to the queues of the drivers that care.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::index::Change;
use super::{AttacherKey, Cause, Rest, Store};
use crate::objects::Attachment;

/// How many attachments a watch looks at between two yields. The watches are shared by all drivers: a volume or a node with
/// thousands of attachments must not hold up the events of the others.
const PIECE: usize = 64;

/// Attachments with the reason to look at them.
pub(super) type Backlog = VecDeque<(Arc<str>, Cause)>;

impl Store {
    pub(super) fn react(&self, change: Change) {
        #[cfg(test)]
        if self.inner.deaf.lock().is_some_and(|ignores| ignores(&change)) {
            return;
        }
        if !matches!(change, Change::None) {
            self.inner.generation.fetch_add(1, Ordering::Relaxed);
        }
        match change {
            Change::None => {}
            Change::Attachment {
                name,
                replaced,
                cause,
                waiting,
            } => {
                if let Some(replaced) = &replaced {
                    self.tell_gone(replaced);
                    self.forget_if_gone(replaced);
                }
                self.look_at_attachment(&name, cause);
                self.look_at_attachments(&waiting, Cause::Update);
                if let Some(volume) = replaced.as_ref().and_then(|record| record.volume_name()) {
                    self.look_at_volume(volume, Cause::Update);
                }
            }
            Change::AttachmentGone { record, waiting } => {
                self.tell_gone(&record);
                self.look_at_attachment(&record.name, Cause::Update);
                self.forget_if_gone(&record);
                self.look_at_attachments(&waiting, Cause::Update);
                if let Some(volume) = record.volume_name() {
                    self.look_at_volume(volume, Cause::Update);
                }
            }
            Change::Volume {
                name,
                attachments,
                cause,
            } => {
                self.look_at_volume(&name, cause);
                self.look_at_attachments(&attachments, Cause::Volume);
            }
            Change::Node { attachments } => self.look_at_attachments(&attachments, Cause::Update),
        }
    }

    /// Hands an attachment to its driver's queue, if it may need work.
    ///
    /// The index stays locked for reading until the queue knows: otherwise a slower thread with an older view could
    /// tell the queue to forget a key after a faster one added it. Locks are taken in the order index, routes, queue.
    pub(super) fn look_at_attachment(&self, name: &str, cause: Cause) {
        let index = self.inner.index.read();
        let Some(snapshot) = index.snapshot(name) else { return };
        if let Some(route) = self.inner.routes.read().get(&snapshot.attachment.attacher) {
            route.attachment(&snapshot, cause);
        }
    }

    fn look_at_attachments(&self, names: &[Arc<str>], cause: Cause) {
        for name in names {
            self.look_at_attachment(name, cause);
        }
    }

    fn tell_gone(&self, record: &Attachment) {
        if let Some(route) = self.inner.routes.read().get(&record.attacher) {
            (route.settled)(record, Rest::Gone);
        }
    }

    fn forget_if_gone(&self, record: &Attachment) {
        let index = self.inner.index.read();
        if index
            .attachments
            .get(&record.name)
            .is_some_and(|known| known.attacher == record.attacher)
        {
            return;
        }
        if let Some(route) = self.inner.routes.read().get(&record.attacher) {
            route.queue.forget(&AttacherKey::Attachment(record.name.clone()));
        }
    }

    /// Hands a PersistentVolume to each driver that may have to release it. Almost every volume is neither being deleted
    /// nor of an in-tree plug-in, and no driver is asked about it.
    pub(super) fn look_at_volume(&self, name: &str, cause: Cause) {
        let index = self.inner.index.read();
        let Some((volume, attachments)) = index.volume(name) else {
            return;
        };
        if !volume.deleting && volume.in_tree.is_none() {
            return;
        }
        for route in self.inner.routes.read().iter() {
            route.volume(&volume, attachments, cause);
        }
    }

    /// As [`Store::react`], for the watches: what goes beyond one piece is left to [`Store::work_off_backlog`].
    pub(super) fn react_in_pieces(&self, mut change: Change) {
        let (names, cause) = match &mut change {
            Change::Volume { attachments, .. } => (attachments, Cause::Volume),
            Change::Node { attachments } => (attachments, Cause::Update),
            Change::Attachment { waiting, .. } | Change::AttachmentGone { waiting, .. } => (waiting, Cause::Update),
            Change::None => return,
        };
        let later = names.split_off(names.len().min(PIECE));
        self.inner
            .backlog
            .lock()
            .extend(later.into_iter().map(|name| (name, cause)));
        self.react(change);
    }

    /// Looks at what is left of earlier changes, with yields between. Cut off, it is gone on with at the next call.
    pub(super) async fn work_off_backlog(&self) {
        loop {
            let piece: Backlog = {
                let mut backlog = self.inner.backlog.lock();
                let size = backlog.len().min(PIECE);
                backlog.drain(..size).collect()
            };
            if piece.is_empty() {
                return;
            }
            for (name, cause) in &piece {
                self.look_at_attachment(name, *cause);
            }
            tokio::task::yield_now().await;
        }
    }
}
