//! Publishes whose outcome this process could not see to its end, kept until the driver is served again.
//!
//! The VolumeAttachment of a Publish can vanish while the call lasts, and then no object names the volume. `undo.rs` takes
//! it back. When the Lease is lost before that, or the engine of the driver ends, only this process knows of the call: so it
//! is kept here, beyond the engine, and the next engine for the driver checks it. Another replica does not have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::attachment_map::AttachmentMap;
use super::in_flight::InFlightGuard;
use crate::apiserver::SecretData;
use crate::objects::{Attachment, SecretReference};
use csi_attacher_model::attempt::Publish;

/// How many are kept for one driver. Each of them was a call under way when the Lease was lost, and these are limited by
/// default to fewer than that.
const MOST: usize = 1_000;

/// From how many unanswered records on those of attachments that are gone are forgotten.
const MANY: usize = 1_024;

/// What one engine of a driver leaves to the next.
#[derive(Clone)]
pub struct UnfinishedPublishes {
    /// What is kept, by driver.
    kept: Arc<Mutex<BTreeMap<Arc<str>, Vec<UnfinishedPublish>>>>,
    /// Names and UIDs of attachments that may be recorded as attached: the write was sent, and its answer did not come.
    unanswered: Arc<Mutex<AttachmentMap<Box<str>>>>,
}

impl Default for UnfinishedPublishes {
    fn default() -> Self {
        Self {
            kept: Arc::default(),
            unanswered: Arc::new(Mutex::new(AttachmentMap::new(MANY))),
        }
    }
}

/// A Publish whose outcome is not recorded.
#[derive(Clone)]
pub(in crate::driver) struct UnfinishedPublish {
    pub publish: Publish,
    pub secrets: Option<SecretData>,
}

impl UnfinishedPublishes {
    /// Keeps a Publish, unless its place is known already or too many are kept. Answers whether it is kept now.
    pub(in crate::driver) fn keep(&self, driver: &Arc<str>, unfinished: UnfinishedPublish) -> bool {
        let mut drivers = self.kept.lock();
        let kept = drivers.entry(driver.clone()).or_default();
        if kept.iter().any(|other| other.publish.place == unfinished.publish.place) {
            return true;
        }
        let fits = kept.len() < MOST;
        if fits {
            kept.push(unfinished);
        }
        fits
    }

    /// Notes that an attachment is being recorded as attached. True when it may be recorded so already. `exists` says whether
    /// an attachment is known.
    pub(in crate::driver) fn begin_record(&self, attachment: &Attachment, exists: impl Fn(&str) -> bool) -> bool {
        let mut unanswered = self.unanswered.lock();
        if let Some(uid) = unanswered.get(&attachment.name)
            && *uid == attachment.uid
        {
            return true;
        }
        *unanswered.get_or_insert(&attachment.name, Box::default, exists) = attachment.uid.clone();
        false
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
pub(in crate::driver) struct PublishGuard {
    unfinished: UnfinishedPublishes,
    driver: Arc<str>,
    left: UnfinishedPublish,
    is_finished: bool,
    /// Whether the cache did not show the VolumeAttachment: from here on an Event is written when the Publish is kept.
    pub is_missed: bool,
    /// Held as long as the Publish is watched over.
    _in_flight: InFlightGuard,
}

impl PublishGuard {
    /// Watches over a Publish of a driver whose place was taken, for whoever keeps what is unfinished.
    pub fn new(
        unfinished: &UnfinishedPublishes,
        driver: &Arc<str>,
        in_flight: InFlightGuard,
        left: UnfinishedPublish,
    ) -> Self {
        Self {
            unfinished: unfinished.clone(),
            driver: driver.clone(),
            left,
            is_finished: false,
            is_missed: false,
            _in_flight: in_flight,
        }
    }

    pub fn publish(&self) -> &Publish {
        &self.left.publish
    }

    /// The Secret of the call, with its contents.
    pub fn secret(&self) -> Option<(SecretReference, SecretData)> {
        self.left.publish.secret.clone().zip(self.left.secrets.clone())
    }

    /// The outcome is recorded, or the volume was taken back, or an Event says that it was not.
    pub fn finished(mut self) {
        self.is_finished = true;
    }
}

impl Drop for PublishGuard {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let driver = &self.driver;
        let is_kept = self.unfinished.keep(driver, self.left.clone());
        if self.is_missed || !is_kept {
            let next = if is_kept {
                "this process looks again when it serves the driver next"
            } else {
                "this process keeps no more of these"
            };
            tracing::error!(
                driver = &**driver,
                VolumeAttachment = &*self.left.publish.snapshot.attachment.name,
                volumeHandle = self.left.publish.place.borrow().volume_id,
                nodeID = self.left.publish.place.borrow().node_id,
                "the volume may be attached although its VolumeAttachment is gone; {next}; if another replica serves the driver, \
                 detach the volume by hand"
            );
        }
    }
}
