//! Publishes whose outcome this process could not see to its end, kept until the driver is served again (invariant 20 of ARCHITECTURE).
//!
//! The VolumeAttachment of a Publish can vanish while the call lasts, and then only this process knows of the volume. When the engine of
//! the driver ends before it was taken back, the next engine checks it, in the same term of the Lease: in another one, another replica may
//! have attached the volume there again. What is of a former term is left alone, and an error says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::in_flight::InFlightGuard;
use crate::apiserver::SecretData;
use crate::cache::Store;
use crate::decide::DriverFacts;
use crate::driver::context::DriverContext;
use crate::objects::{Attachment, SecretReference};
use csi_attacher_kube::lease::Term;
use csi_attacher_model::attempt::Publish;

/// How many are kept for one driver. Each of them was a call under way when its engine ended, and these are limited by
/// default to fewer than that.
const MAX_UNFINISHED: usize = 1_000;

/// From how many unanswered records on those of attachments that are gone are forgotten.
const MIN_RECORDS_TO_PRUNE: usize = 1_024;

/// What one engine of a driver leaves to the next.
#[derive(Clone, Default)]
pub struct UnfinishedPublishes {
    /// What is kept, by driver.
    kept: Arc<Mutex<BTreeMap<Arc<str>, Vec<UnfinishedPublish>>>>,
    unanswered: Arc<Mutex<UnansweredRecords>>,
}

/// A Publish whose outcome is not recorded.
#[derive(Clone)]
pub(in crate::driver) struct UnfinishedPublish {
    pub publish: Publish,
    pub secrets: Option<SecretData>,
    /// The term of the Lease in which the call was made; none where there is no election.
    pub term: Option<Term>,
}

impl UnfinishedPublishes {
    /// Keeps a Publish, unless its place is known already or too many are kept. Answers whether it is kept now.
    pub(in crate::driver) fn keep(&self, driver: &Arc<str>, unfinished: UnfinishedPublish) -> bool {
        let mut drivers = self.kept.lock();
        let kept = drivers.entry(driver.clone()).or_default();
        if kept.iter().any(|other| other.publish.place == unfinished.publish.place) {
            return true;
        }
        let fits = kept.len() < MAX_UNFINISHED;
        if fits {
            kept.push(unfinished);
        }
        fits
    }

    /// Notes that an attachment is being recorded as attached. `exists` says whether an attachment is known.
    pub(in crate::driver) fn begin_record(&self, attachment: &Attachment, exists: impl Fn(&str) -> bool) {
        self.unanswered
            .lock()
            .insert(&attachment.name, attachment.uid.clone(), exists);
    }

    /// It is known whether the attachment is recorded as attached.
    pub(in crate::driver) fn end_record(&self, attachment: &Attachment) {
        self.unanswered.lock().uids.remove(&attachment.name);
    }

    /// Whether the attachment may be recorded as attached, although no answer said so.
    pub(in crate::driver) fn may_be_recorded(&self, attachment: &Attachment) -> bool {
        self.unanswered.lock().uids.get(&attachment.name) == Some(&attachment.uid)
    }

    /// Takes out what is kept for a driver and was called in this term; what is of another one ends here.
    pub(in crate::driver) fn take(&self, driver: &str, term: Option<&Term>) -> Vec<UnfinishedPublish> {
        let mut kept = self.kept.lock().remove(driver).unwrap_or_default();
        kept.retain(|left| left.term.as_ref() == term);
        kept
    }
}

/// Watches over one Publish: dropped before [`PublishGuard::finished`], the Publish is kept for the next engine of the driver.
pub(in crate::driver) struct PublishGuard {
    unfinished: UnfinishedPublishes,
    store: Store,
    facts: Arc<DriverFacts>,
    left: UnfinishedPublish,
    is_finished: bool,
    /// Held as long as the Publish is watched over.
    _in_flight: InFlightGuard,
}

impl PublishGuard {
    /// Watches over a Publish of a driver whose place was taken.
    pub fn new(work: &DriverContext, in_flight: InFlightGuard, left: UnfinishedPublish) -> Self {
        Self {
            unfinished: work.context.unfinished.clone(),
            store: work.context.store.clone(),
            facts: work.facts.clone(),
            left,
            is_finished: false,
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

    /// Whether the cache shows the VolumeAttachment, by which any replica knows of the Publish.
    fn is_known_to_all(&self) -> bool {
        let known = self.store.attachment(&self.left.publish.snapshot.attachment.name);
        known.is_some_and(|known| self.left.publish.is_claimed_by(&known.attachment, &self.facts))
    }
}

impl Drop for PublishGuard {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let driver = &self.facts.name;
        let is_led = self.left.term.as_ref().is_none_or(Term::may_start);
        let next = if !is_led {
            "the Lease is lost, and no other replica knows of it"
        } else if self.unfinished.keep(driver, self.left.clone()) {
            "the next engine for the driver looks again, if the Lease is not lost before that"
        } else {
            "this process keeps no more of these"
        };
        if !self.is_known_to_all() {
            tracing::error!(
                driver = &**driver,
                VolumeAttachment = &*self.left.publish.snapshot.attachment.name,
                volumeHandle = self.left.publish.place.borrow().volume_id,
                nodeID = self.left.publish.place.borrow().node_id,
                "the volume may be attached although its VolumeAttachment is gone; {next}; if no pod of that node uses the \
                 volume, detach it by hand"
            );
        }
    }
}

/// The VolumeAttachments that may be recorded as attached: the write was sent, and its answer did not come.
///
/// An attachment may end without a notification to those that keep something about it. Entries of attachments that are gone are
/// removed when the map has doubled since the last time: so each entry costs two look-ups in the cache, however many there are.
#[derive(Default)]
struct UnansweredRecords {
    /// UIDs by name.
    uids: HashMap<Arc<str>, Box<str>>,
    /// How many stayed when entries of attachments that are gone were removed last.
    stayed: usize,
}

impl UnansweredRecords {
    /// Notes an attachment. `exists` says whether one is known.
    fn insert(&mut self, name: &Arc<str>, uid: Box<str>, exists: impl Fn(&str) -> bool) {
        if self.uids.len() >= MIN_RECORDS_TO_PRUNE.max(self.stayed * 2) && !self.uids.contains_key(name) {
            self.uids.retain(|name, _| exists(name));
            self.stayed = self.uids.len();
        }
        self.uids.insert(name.clone(), uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// All start to wait, and again at each retry, while all exist.
    #[test]
    fn an_entry_costs_two_looks_however_many_there_are() {
        for many in [8_000_u32, 32_000, 131_072] {
            let look_ups = Cell::new(0);
            let mut map = UnansweredRecords::default();
            for _retry in 0..3 {
                for number in 0..many {
                    let name: Arc<str> = number.to_string().into();
                    map.insert(&name, "uid".into(), |_| {
                        look_ups.set(look_ups.get() + 1);
                        true
                    });
                }
            }
            assert!(look_ups.get() <= 2 * many, "{many}: {} look-ups", look_ups.get());
        }
    }

    #[test]
    fn what_is_gone_is_not_kept() {
        let mut map = UnansweredRecords::default();
        for number in 0..16_000 {
            let name: Arc<str> = number.to_string().into();
            map.insert(&name, "uid".into(), |known| known == "0");
        }
        assert!(map.uids.len() <= MIN_RECORDS_TO_PRUNE + 1, "{}", map.uids.len());
        assert_eq!(map.uids.get("0").map(|uid| &**uid), Some("uid"));
        // Once there were many; when they are gone, there are few again.
        let mut map = UnansweredRecords::default();
        for number in 0..10_000 {
            let name: Arc<str> = number.to_string().into();
            map.insert(&name, "uid".into(), |known| known.len() == 5 || number < 5_000);
        }
        assert!(map.uids.len() <= 8_192, "{}", map.uids.len());
    }
}
