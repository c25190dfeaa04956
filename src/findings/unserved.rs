//! Objects that wait for an attacher that nobody runs here: their driver has no AttacherConfig.
//!
//! A sidecar may serve such a driver, and then its objects wait no longer than others. So only those count that have
//! waited too long.

use jiff::Timestamp;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tracing::{info, warn};

use super::ConfiguredDriver;
use crate::api::names::{FINALIZER_PREFIX, finalizer_name};
use crate::decide::is_settled;
use crate::objects::{Attachment, Volume};
use crate::telemetry::Metrics;
use csi_attacher_model::findings::{FindingHistory, FindingKind, FindingState, age};

/// How many names a log line holds.
const MAX_NAMES: usize = 5;

/// What is kept from scan to scan.
#[derive(Debug, Default)]
pub(super) struct UnservedTracker {
    /// PersistentVolumes do not say since when they are being deleted.
    ledger: FindingHistory,
    /// The names that were logged last.
    logged: BTreeSet<String>,
}

/// A scan in progress.
pub(super) struct UnservedScan<'u> {
    unserved: &'u mut UnservedTracker,
    drivers: HashSet<&'u str>,
    finalizers: HashSet<String>,
    stuck_after: Duration,
    now: Timestamp,
    /// Drivers, or finalizers where no more is known of them.
    names: BTreeSet<String>,
    attachments: usize,
    volumes: usize,
    waiting: bool,
}

impl UnservedTracker {
    pub fn begin<'u>(
        &'u mut self,
        configs: &'u [ConfiguredDriver],
        stuck_after: Duration,
        now: Timestamp,
    ) -> UnservedScan<'u> {
        self.ledger.begin();
        UnservedScan {
            unserved: self,
            drivers: configs.iter().map(|config| &*config.driver).collect(),
            finalizers: configs.iter().map(|config| finalizer_name(&config.driver)).collect(),
            stuck_after,
            now,
            names: BTreeSet::new(),
            attachments: 0,
            volumes: 0,
            waiting: false,
        }
    }
}

impl UnservedScan<'_> {
    /// Observes an attachment whose driver this replica does not lead.
    pub fn attachment(&mut self, attachment: &Attachment) {
        if self.drivers.contains(&*attachment.attacher) {
            return;
        }
        // The common case, a sidecar's attachment that is settled, costs no allocation.
        if attachment.attached && attachment.deleting.is_none() {
            return;
        }
        if is_settled(attachment, &finalizer_name(&attachment.attacher)) {
            return;
        }
        self.waiting = true;
        let since = attachment.pending_since();
        if since.is_some_and(|since| age(since, self.now) > self.stuck_after) {
            self.attachments += 1;
            self.name(&attachment.attacher);
        }
    }

    /// Observes a PersistentVolume that is being deleted and that no attachment names.
    pub fn volume(&mut self, volume: &Volume) {
        let ours = |entry: &&str| entry.starts_with(FINALIZER_PREFIX) && !self.finalizers.contains(*entry);
        let Some(held) = volume.finalizers.iter().find(ours) else {
            return;
        };
        self.waiting = true;
        let ledger = &mut self.unserved.ledger;
        let state = ledger.observe(FindingKind::LeftOver, &volume.uid, self.now, self.stuck_after);
        if state != FindingState::Pending {
            self.volumes += 1;
            self.name(held);
        }
    }

    fn name(&mut self, name: &str) {
        if self.names.len() < MAX_NAMES {
            self.names.insert(name.to_owned());
        }
    }

    /// Reports what was found; true when a later scan of the same objects would find the same.
    pub fn end(self, metrics: &Metrics) -> bool {
        metrics.unserved("volumeattachments", self.attachments);
        metrics.unserved("persistentvolumes", self.volumes);
        self.unserved.ledger.end();
        if self.unserved.logged != self.names {
            let drivers = self.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            if self.names.is_empty() {
                info!("no object waits any more for a driver without AttacherConfig");
            } else {
                warn!(
                    drivers,
                    volumeattachments = self.attachments,
                    persistentvolumes = self.volumes,
                    "objects have been waiting for an attacher, and their drivers have no AttacherConfig; make one, or \
                     start the sidecar that serves them"
                );
            }
            self.unserved.logged = self.names;
        }
        !self.waiting
    }
}
