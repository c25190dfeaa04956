//! What an attempt for one claim sees, and one for one PersistentVolume.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::api::validated::Provisioning;
use crate::clock;
use crate::context::DriverContext;
use crate::key::{ClaimKey, VolumeKey, WorkKey};
use crate::objects::{Claim, ClaimReference, StorageClass, StorageClassWire, Volume};
use crate::provision::attempt::{ClaimView, ListMoment, RoleView};
use crate::provision::deletion::VolumeView;
use crate::provision::topology::{KnownNode, TopologyFacts};
use crate::provision::{OwningClaim, ProvisionPolicy, ProvisionerFacts, RolePhase, Seen};
use crate::reflect::Sink as _;

/// What an attempt for one object sees: the cache, the Lease, and the settings as they were when they were taken in last.
pub(crate) struct Look<'c, K> {
    pub work: &'c DriverContext,
    pub key: &'c K,
    pub provisioning: Provisioning,
    pub policy: ProvisionPolicy,
    /// Of the trace that the attempt is a part of.
    pub traceparent: Option<String>,
}

impl<K> Look<'_, K> {
    /// Takes in the settings as they are now. Those of a section that was removed count on, but nothing says any more that volumes may be
    /// deleted.
    pub fn take_settings(&mut self) {
        match self.work.provisioning() {
            Some(settings) => (self.provisioning, self.policy) = settings,
            None => self.policy.hold_deletions = true,
        }
    }
}

impl<K> RoleView for Look<'_, K> {
    fn driver(&self) -> &ProvisionerFacts {
        &self.work.driver
    }

    fn policy(&self) -> &ProvisionPolicy {
        &self.policy
    }

    fn role(&self) -> RolePhase {
        self.work.role()
    }

    fn is_away(&self) -> bool {
        self.work.away.load(Ordering::Relaxed)
    }

    fn may_start(&self) -> bool {
        self.work.client().may_start()
    }

    fn class(&self, name: &str) -> Seen<Arc<StorageClass>> {
        self.work.context.store.class(name)
    }

    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        let volumes = &self.work.context.volumes;
        volumes.handle_owner(&self.work.facts.name, handle, except)
    }

    fn attached_to(&self, name: &str, handle: &str) -> Seen<Arc<str>> {
        let volumes = &self.work.context.volumes;
        volumes.attached_to(name, &self.work.facts.name, handle)
    }
}

impl ClaimView for Look<'_, ClaimKey> {
    fn now(&self) -> jiff::Timestamp {
        clock::now()
    }

    fn stuck_after(&self) -> Duration {
        self.work.context.stuck_after
    }

    fn epoch(&self) -> u64 {
        self.work.epoch.load(Ordering::Relaxed)
    }

    fn longest_backoff(&self) -> Duration {
        self.provisioning.backoff.max
    }

    fn claim(&self) -> Seen<Arc<Claim>> {
        self.work.context.store.claim(self.key)
    }

    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        self.work.context.volumes.volume(name)
    }

    /// The volume of another claim that the driver answered with the same ID is somebody's before a PersistentVolume names it.
    fn handle_owner_or_creator(&self, handle: &str) -> Seen<Arc<str>> {
        match self.handle_owner(handle, "") {
            Seen::Gone => {
                let created = self.work.unsaved.of_handle(handle, Some(self.key));
                created.map_or(Seen::Gone, Seen::Here)
            }
            known => known,
        }
    }

    fn topology(&self) -> Arc<TopologyFacts> {
        self.work.nodes.facts()
    }

    fn node(&self, name: &str) -> KnownNode {
        self.work.nodes.known(name)
    }

    fn moment(&self) -> ListMoment {
        let (nodes, csi_nodes) = self.work.nodes.moment();
        ListMoment {
            classes: self.work.context.store.lists().now(),
            nodes,
            csi_nodes,
        }
    }

    fn knows_classes(&self, since: Option<ListMoment>) -> bool {
        let (lists, since) = (self.work.context.store.lists(), since.map(|since| since.classes));
        lists.is_known_since::<StorageClassWire>(since)
    }

    fn knows_nodes(&self, since: Option<ListMoment>) -> bool {
        let since = since.map(|since| (since.nodes, since.csi_nodes));
        self.work.nodes.are_known_since(since)
    }

    fn traceparent(&self) -> Option<String> {
        self.traceparent.clone()
    }
}

impl VolumeView for Look<'_, VolumeKey> {
    fn volume(&self) -> Seen<Arc<Volume>> {
        match self.work.context.volumes.volume(&self.key.name) {
            Seen::Here(volume) if *volume.uid != *self.key.uid => Seen::Gone,
            known => known,
        }
    }

    fn claim(&self, claim: &ClaimReference, volume: &Volume) -> OwningClaim {
        self.work.context.store.owning(claim, volume)
    }

    fn may_make_volume(&self, claim: &ClaimReference) -> bool {
        let key = WorkKey::Claim(ClaimKey::named_by(claim));
        let queue = &self.work.queue;
        let may = queue.remember(&key, |memory| memory.claim.known.holds_volume());
        may == Some(true)
    }

    fn bound_claims(&self, volume: &Volume) -> Seen<Vec<ClaimReference>> {
        self.work.context.store.bound_claims(volume)
    }

    fn sharers(&self, handle: &str, except: &str) -> Vec<Arc<Volume>> {
        let mut sharers = self.work.context.volumes.sharers(&self.work.facts.name, handle);
        sharers.retain(|volume| *volume.name != *except);
        sharers
    }

    fn created_for_a_claim(&self, handle: &str) -> Option<Arc<str>> {
        self.work.unsaved.of_handle(handle, None)
    }

    fn lacks_read(&self, volume: &Volume) -> bool {
        self.work.context.volumes.lacks_read(volume)
    }
}
