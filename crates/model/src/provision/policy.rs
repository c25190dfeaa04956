//! The settings by which is decided about claims and volumes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::refusal::ProvisionRefusal;
use crate::api::validated::PublishSecrets;
pub use crate::api::{LeakProtection, OrphanVolumePolicy};
use crate::objects::SecretReference;

/// Which Secrets a driver may be given for its volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvisionerSecrets {
    /// Those of these namespaces.
    pub listed: PublishSecrets,
    /// Names of Secrets that are allowed in the namespace of the claim itself (`namespace: "*"`).
    pub in_claim_namespace: Arc<BTreeSet<Box<str>>>,
}

impl ProvisionerSecrets {
    /// Whether the driver may be given a Secret for a claim of this namespace.
    pub fn allows(&self, secret: &SecretReference, claim_namespace: &str) -> bool {
        let own = *secret.namespace == *claim_namespace && self.in_claim_namespace.contains(&secret.name);
        own || self.listed.allows(&secret.namespace, &secret.name)
    }
}

/// Settings of `spec.provisioning` that decide what is called and written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one setting with two values")]
pub struct ProvisionPolicy {
    /// Name of the AttacherConfig, for messages.
    pub config: Arc<str>,
    /// What the names of volumes begin with.
    pub volume_name_prefix: Arc<str>,
    /// So many characters of the UID without dashes; `None` is the whole UID.
    pub volume_name_uuid_length: Option<usize>,
    /// File system type for volumes whose class names none; empty leaves it to the driver.
    pub default_fs_type: Arc<str>,
    /// Whether names of claim and volume are sent as parameters.
    pub create_metadata: bool,
    /// Whether the volume of a claim with a selected node must be reachable from exactly there (`topology.delayedBinding: Strict`).
    pub strict_topology: bool,
    /// Whether the topology of all nodes is sent for immediate binding (`topology.immediateBinding: Aggregate`).
    pub aggregate_topology: bool,
    /// Whether a volume with ReadOnlyMany alone is published read-only.
    pub read_only_many: bool,
    /// When the marker goes on.
    pub leak_protection: LeakProtection,
    /// Whether volumes of Released PersistentVolumes are kept for now (`deletion: Hold`).
    pub hold_deletions: bool,
    /// Whether only OK means deleted.
    pub orphans: OrphanVolumePolicy,
    /// The Secrets that the driver may be given.
    pub secrets: ProvisionerSecrets,
    /// `storage.kubernetes.io/csiProvisionerIdentity` of the volumes that this process makes.
    pub identity: Arc<str>,
}

impl ProvisionPolicy {
    /// That a driver may be given a Secret for a claim of this namespace.
    pub(super) fn check_secret(
        &self,
        secret: &SecretReference,
        claim_namespace: &str,
        driver: &Arc<str>,
    ) -> Result<(), ProvisionRefusal> {
        if self.secrets.allows(secret, claim_namespace) {
            return Ok(());
        }
        Err(ProvisionRefusal::SecretNotAllowed {
            secret: secret.clone(),
            config: self.config.clone(),
            driver: driver.clone(),
        })
    }
}
