//! Publishes whose outcome this process could not see to its end, kept until the driver is served again.
//!
//! The VolumeAttachment of a Publish can vanish while the call lasts, and then no object names the volume. [`crate::driver::attempt::undo`] takes
//! it back. When the Lease is lost before that, or the engine of the driver ends, only this process knows of the call: so it
//! is kept here, beyond the engine, and the next engine for the driver looks again. Another replica cannot know.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::engine::DriverContext;
use super::in_flight::InFlightGuard;
use crate::apiserver::SecretData;
use crate::cache::Snapshot;
use crate::decide::VolumeOnNode;
use crate::objects::Attachment;

/// How many are kept for one driver. Each of them was a call under way when the Lease was lost, and these are limited by
/// default to fewer than that.
const MOST: usize = 1_000;

/// From how many unanswered records on those of attachments that are gone are forgotten.
const MANY: usize = 1_024;

/// What one engine of a driver leaves to the next.
#[derive(Clone, Default)]
pub struct UnfinishedPublishes {
    /// What is kept, by driver.
    kept: Arc<Mutex<BTreeMap<Arc<str>, Vec<UnfinishedPublish>>>>,
    /// Names and UIDs of attachments that may be recorded as attached: the write was sent, and its answer did not come.
    unanswered: Arc<Mutex<BTreeMap<Arc<str>, Box<str>>>>,
}

/// A Publish whose outcome is not recorded.
#[derive(Clone)]
pub(in crate::driver) struct UnfinishedPublish {
    pub snapshot: Snapshot,
    volume_id: Box<str>,
    node_id: Box<str>,
    pub secrets: Option<SecretData>,
}

impl UnfinishedPublish {
    /// Where the volume may be.
    pub fn place(&self) -> VolumeOnNode<'_> {
        VolumeOnNode {
            volume_id: &self.volume_id,
            node_id: &self.node_id,
        }
    }
}

impl UnfinishedPublishes {
    /// Keeps a Publish, unless its place is known already or too many are kept. Answers whether it is kept now.
    fn keep(&self, driver: &Arc<str>, unfinished: UnfinishedPublish) -> bool {
        let mut drivers = self.kept.lock();
        let kept = drivers.entry(driver.clone()).or_default();
        if kept.iter().any(|other| other.place() == unfinished.place()) {
            return true;
        }
        let fits = kept.len() < MOST;
        if fits {
            kept.push(unfinished);
        }
        fits
    }

    /// Notes that an attachment is being recorded as attached. True when it may be recorded so already. `exists` tells whether
    /// an attachment is known.
    pub(in crate::driver) fn begin_record(&self, attachment: &Attachment, exists: impl Fn(&str) -> bool) -> bool {
        let mut unanswered = self.unanswered.lock();
        if unanswered.len() >= MANY && unanswered.len().is_power_of_two() {
            unanswered.retain(|name, _| exists(name));
        }
        let former = unanswered.insert(attachment.name.clone(), attachment.uid.clone());
        former.is_some_and(|uid| uid == attachment.uid)
    }

    /// It is known whether the attachment is recorded as attached.
    pub(in crate::driver) fn end_record(&self, attachment: &Attachment) {
        self.unanswered.lock().remove(&attachment.name);
    }

    /// Whether the attachment may be recorded as attached, although no answer said so.
    pub(in crate::driver) fn may_be_recorded(&self, attachment: &Attachment) -> bool {
        self.unanswered.lock().get(&attachment.name) == Some(&attachment.uid)
    }

    /// Takes out what is kept for a driver.
    pub(in crate::driver) fn take(&self, driver: &str) -> Vec<UnfinishedPublish> {
        self.kept.lock().remove(driver).unwrap_or_default()
    }
}

/// Watches over one Publish: dropped before [`PublishGuard::finished`], the Publish is kept for the next engine of the driver.
pub(in crate::driver) struct PublishGuard<'w> {
    work: &'w DriverContext,
    publish: UnfinishedPublish,
    is_finished: bool,
    /// Whether the VolumeAttachment was looked for and not found.
    is_missed: bool,
    /// Held as long as the Publish is watched over.
    _flight: InFlightGuard,
}

impl<'w> PublishGuard<'w> {
    /// Watches over the Publish of a volume at a place, whose flight was taken.
    pub fn new(
        work: &'w DriverContext,
        flight: InFlightGuard,
        snapshot: &Snapshot,
        place: VolumeOnNode<'_>,
        secrets: Option<SecretData>,
    ) -> Self {
        let publish = UnfinishedPublish {
            snapshot: snapshot.clone(),
            volume_id: place.volume_id.into(),
            node_id: place.node_id.into(),
            secrets,
        };
        Self::of(work, flight, publish)
    }

    /// Watches over one that was kept.
    pub fn of(work: &'w DriverContext, flight: InFlightGuard, publish: UnfinishedPublish) -> Self {
        Self {
            work,
            publish,
            is_finished: false,
            is_missed: false,
            _flight: flight,
        }
    }

    /// The driver's work.
    pub fn work(&self) -> &'w DriverContext {
        self.work
    }

    /// The Publish.
    pub fn publish(&self) -> &UnfinishedPublish {
        &self.publish
    }

    /// Notes that the cache does not show the VolumeAttachment: from here on people are told when the Publish is kept.
    pub fn missed(&mut self) {
        self.is_missed = true;
    }

    /// The outcome is recorded, or the volume was taken back, or people were told that it was not.
    pub fn finished(mut self) {
        self.is_finished = true;
    }
}

impl Drop for PublishGuard<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let driver = &self.work.facts.name;
        let is_kept = self.work.context.unfinished.keep(driver, self.publish.clone());
        if self.is_missed || !is_kept {
            let next = if is_kept {
                "this process looks again when it serves the driver next"
            } else {
                "this process keeps no more of these"
            };
            tracing::error!(
                driver = &**driver,
                VolumeAttachment = &*self.publish.snapshot.attachment.name,
                volumeHandle = &*self.publish.volume_id,
                nodeID = &*self.publish.node_id,
                "the volume may be attached although its VolumeAttachment is gone; {next}; if another replica serves the driver, \
                 detach the volume by hand"
            );
        }
    }
}
