//! What an attempt for one PersistentVolume sees.

use std::sync::Arc;

use crate::api::validated::Provisioning;
use crate::context::DriverContext;
use crate::key::VolumeKey;
use crate::objects::{ClaimReference, StorageClass, Volume};
use crate::provision::deletion::VolumeView;
use crate::provision::{OwningClaim, ProvisionPolicy, ProvisionerFacts, RolePhase, Seen};

/// The cache, the Lease, the settings as they were when the attempt began; but whether deletions are held, as it is now.
pub(crate) struct VolumeLook<'c> {
    pub work: &'c DriverContext,
    pub key: &'c VolumeKey,
    pub provisioning: Provisioning,
    pub policy: ProvisionPolicy,
}

impl VolumeView for VolumeLook<'_> {
    fn driver(&self) -> &ProvisionerFacts {
        &self.work.driver
    }

    fn policy(&self) -> &ProvisionPolicy {
        &self.policy
    }

    fn role(&self) -> RolePhase {
        self.work.role()
    }

    fn may_start(&self) -> bool {
        self.work.client().may_start()
    }

    fn volume(&self) -> Seen<Arc<Volume>> {
        match self.work.context.volumes.volume(&self.key.name) {
            Seen::Here(volume) if *volume.uid != *self.key.uid => Seen::Gone,
            known => known,
        }
    }

    /// Nothing is known of a claim for which a volume may be made at this moment: what is made must not be what is deleted.
    fn claim(&self, claim: &ClaimReference) -> OwningClaim {
        if self.work.may_make_volume(claim) {
            return OwningClaim::Unknown;
        }
        self.work.context.store.owning(claim)
    }

    fn class(&self, name: &str) -> Seen<Arc<StorageClass>> {
        self.work.context.store.class(name)
    }

    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>> {
        self.work
            .context
            .volumes
            .handle_owner(&self.work.facts.name, handle, except)
    }

    fn attached_to(&self) -> Seen<Arc<str>> {
        match self.volume() {
            Seen::Here(volume) => self.work.context.volumes.attached_to(&volume),
            _ => Seen::Unknown,
        }
    }

    fn is_held(&self) -> bool {
        self.work.holds_deletions()
    }
}
