//! From a change to the queues of the drivers that care.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cause::EnqueueCause;
use super::index::CacheChange;
use super::routing::{AttacherKey, NoAttemptReason};
use super::store::{Backlog, Store};
use crate::objects::Attachment;

/// How many attachments a watch looks at between two yields. The watches are shared by all drivers: a volume or a node with
/// thousands of attachments must not hold up the events of the others.
const PIECE: usize = 64;

/// One key to look at again.
pub(super) enum Look<'a> {
    Attachment(&'a Arc<str>, EnqueueCause),
    Volume(&'a Arc<str>, EnqueueCause),
}

impl CacheChange {
    /// The attachment that is not there any more.
    pub(super) fn gone(&self) -> Option<&Arc<Attachment>> {
        match self {
            Self::Attachment { replaced, .. } => replaced.as_ref(),
            Self::AttachmentGone { record, .. } => Some(record),
            Self::None | Self::Volume { .. } | Self::Node { .. } => None,
        }
    }

    /// Names what is to be looked at again, in this order.
    pub(super) fn each_look<'a>(&'a self, mut look: impl FnMut(Look<'a>)) {
        let update = EnqueueCause::Update;
        let (attachments, cause) = match self {
            Self::None => return,
            Self::Attachment {
                name, cause, waiting, ..
            } => {
                look(Look::Attachment(name, *cause));
                (waiting, update)
            }
            Self::AttachmentGone { record, waiting } => {
                look(Look::Attachment(&record.name, update));
                (waiting, update)
            }
            Self::Volume {
                name,
                attachments,
                cause,
            } => {
                look(Look::Volume(name, *cause));
                (attachments, EnqueueCause::Volume)
            }
            Self::Node { attachments } => (attachments, update),
        };
        for name in attachments {
            look(Look::Attachment(name, cause));
        }
        if let Some(volume) = self.gone().and_then(|record| record.volume_name()) {
            look(Look::Volume(volume, update));
        }
    }
}

impl Store {
    pub(super) fn dispatch_change(&self, change: &CacheChange) {
        if !(self.inner.rules.tells)(change) {
            return;
        }
        if !matches!(change, CacheChange::None) {
            self.inner.generation.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(gone) = change.gone() {
            self.notify_gone(gone);
            self.forget_if_gone(gone);
        }
        change.each_look(|look| match look {
            Look::Attachment(name, cause) => self.enqueue_attachment(name, cause),
            Look::Volume(name, cause) => self.enqueue_volume(name, cause),
        });
    }

    /// Hands an attachment to its driver's queue, if it may need work.
    ///
    /// The index stays locked for reading until the queue knows: otherwise a slower thread with an older view could
    /// tell the queue to forget a key after a faster one added it. Locks are taken in the order index, routes, queue.
    pub(super) fn enqueue_attachment(&self, name: &str, cause: EnqueueCause) {
        let index = self.inner.index.read();
        let Some(snapshot) = index.snapshot(name) else { return };
        if let Some(route) = self.inner.routes.read().get(&snapshot.attachment.attacher) {
            route.attachment(&snapshot, cause);
        }
    }

    fn notify_gone(&self, record: &Attachment) {
        if let Some(route) = self.inner.routes.read().get(&record.attacher) {
            (route.settled)(record, NoAttemptReason::Gone);
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
    pub(super) fn enqueue_volume(&self, name: &str, cause: EnqueueCause) {
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
    pub(super) fn react_in_pieces(&self, mut change: CacheChange) {
        let (names, cause) = match &mut change {
            CacheChange::Volume { attachments, .. } => (attachments, EnqueueCause::Volume),
            CacheChange::Node { attachments } => (attachments, EnqueueCause::Update),
            CacheChange::Attachment { waiting, .. } | CacheChange::AttachmentGone { waiting, .. } => {
                (waiting, EnqueueCause::Update)
            }
            CacheChange::None => return,
        };
        let later = names.split_off(names.len().min(PIECE));
        self.inner
            .backlog
            .lock()
            .extend(later.into_iter().map(|name| (name, cause)));
        self.dispatch_change(&change);
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
                self.enqueue_attachment(name, *cause);
            }
            tokio::task::yield_now().await;
        }
    }
}
