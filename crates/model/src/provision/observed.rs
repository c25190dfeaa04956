//! What the decisions about a PersistentVolumeClaim and a PersistentVolume are made from.

use jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::creation::{Creation, Deletion};
use super::refusal::ProvisionRefusal;
use super::topology::{SelectedNode, TopologyFacts};
use crate::decide::PublishSecrets;
use crate::objects::{Claim, SecretReference, StorageClass, Volume, VolumeLifecycle};

/// What is known of an object that a decision looks up.
///
/// That an object is gone may lead to a call or a write; that nothing is known of it never does more than wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// It is there.
    Here(T),
    /// It is not there: a list that is complete does not have it, or a live 404 names it.
    Gone,
    /// The lists are not complete yet, or a live read failed.
    Unknown,
}

impl<T> Seen<T> {
    /// The object, if it is there.
    pub fn here(self) -> Option<T> {
        match self {
            Self::Here(object) => Some(object),
            Self::Gone | Self::Unknown => None,
        }
    }
}

/// The driver capabilities that change what a provisioner does (CSI spec, "GetPluginCapabilities" and "ControllerGetCapabilities").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvisionerCapabilities {
    /// CREATE_DELETE_VOLUME, and the plug-in capability CONTROLLER_SERVICE: without them nothing is provisioned.
    pub create_delete_volume: bool,
    /// Plug-in capability VOLUME_ACCESSIBILITY_CONSTRAINTS: the driver has topology.
    pub accessibility_constraints: bool,
    /// SINGLE_NODE_MULTI_WRITER: finer single-node access modes.
    pub single_node_multi_writer: bool,
}

/// What is known of a running driver that provisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionerFacts {
    /// Name from GetPluginInfo.
    pub name: Arc<str>,
    /// Name of the in-tree plug-in that the driver took over, where its objects are served as well.
    pub in_tree: Option<Arc<str>>,
    /// What it can do.
    pub capabilities: ProvisionerCapabilities,
}

/// When the marker goes on a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeakProtection {
    /// Before the first call.
    #[default]
    Always,
    /// After the first call whose outcome is not known; a live read of the claim comes before the first call.
    WhenUncertain,
    /// Never, as with the sidecar.
    Never,
}

/// What NOT_FOUND in answer to DeleteVolume means (CSI spec: a volume that is not there is answered with OK).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrphanVolumePolicy {
    /// A failure, which is retried.
    #[default]
    Retry,
    /// That the volume is deleted.
    TreatNotFoundAsDeleted,
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Whether the Secret of the next call is at hand; its contents never enter a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisionerSecretState {
    /// Not read in this attempt.
    NotLoaded,
    /// Read in this attempt.
    Loaded,
    /// A live 404 names it.
    Missing,
    /// The API server refuses to let it be read, or did not answer.
    Unreadable,
}

/// What the role of a driver is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolePhase {
    /// It serves.
    Serving,
    /// It is switched off (`mode: Disabled`), or its AttacherConfig is being deleted: what is uncertain is finished, and nothing is begun.
    Disabled,
    /// The role or its process ends: no call is begun, and markers go that nobody needs; the next leader continues.
    Stopping,
}

/// Which waits of a claim are over. The clock is outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The class has been missing, or that of another provisioner, for 10 seconds: it is told.
    pub for_class: bool,
    /// Its PersistentVolume has been saved for 30 seconds: the marker goes, bound or not.
    pub for_binding: bool,
    /// The marker is older than `--stuck-after`: a person may ask to let the claim go.
    pub stuck: bool,
}

/// Everything that a decision about one PersistentVolumeClaim reads.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one read or write that this process made it"
)]
pub struct ObservedClaim<'a> {
    /// The claim, or the last copy of one that is gone.
    pub claim: &'a Claim,
    /// Whether the claim is gone: its marker was removed by force, or it never had one.
    pub gone: bool,
    /// Whether the claim was read live in this attempt.
    pub claim_is_live: bool,
    /// Whether this process wrote the marker that the claim carries.
    pub marker_is_own: bool,
    /// The class that the claim names.
    pub class: Seen<&'a StorageClass>,
    /// The PersistentVolume that has the volume's name. Whose it is, is decided here.
    pub saved: Seen<&'a Volume>,
    /// Whether that was read live since the volume was created.
    pub saved_is_live: bool,
    /// Of a volume that was created: another PersistentVolume of the driver with its handle.
    pub handle_owner: Seen<&'a str>,
    /// The selected node.
    pub node: SelectedNode<'a>,
    /// The nodes on which the driver is registered.
    pub topology: &'a TopologyFacts,
    /// The Secret that was read last.
    pub secret: ProvisionerSecretState,
    /// Which one that is: a class or an annotation may name another one since.
    pub secret_of: Option<&'a SecretReference>,
    /// What is known of the volume.
    pub creation: &'a Creation,
    /// Whether the driver said that a call with these inputs cannot succeed, so that it is not made again for a while.
    pub infeasible: bool,
    /// The driver.
    pub driver: &'a ProvisionerFacts,
    /// Settings.
    pub policy: &'a ProvisionPolicy,
    /// What the role is about to do.
    pub role: RolePhase,
    /// Which waits are over.
    pub waited: Waited,
    /// The time, by which requests of people are judged.
    pub now: Timestamp,
}

/// What is known of the claim that a PersistentVolume was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwningClaim {
    /// The cache, which is complete, has no claim of that UID.
    NotCached,
    /// The cache has it, and it was not read live yet.
    Cached,
    /// A live read found it with that UID.
    Live,
    /// A live 404 names it, or a live read found another UID under the name.
    LiveGone,
    /// The list of claims is not complete, or the live read failed.
    Unknown,
}

/// Everything that a decision about one PersistentVolume reads.
#[derive(Clone, Copy, Debug)]
pub struct ObservedVolume<'a> {
    /// The PersistentVolume.
    pub volume: &'a Volume,
    /// What only a provisioner reads of it.
    pub lifecycle: &'a VolumeLifecycle,
    /// Another PersistentVolume of the driver with the same handle.
    pub sharer: Seen<&'a str>,
    /// A VolumeAttachment of any driver that names it, attached or not: its node.
    pub attached_to: Seen<&'a str>,
    /// The claim of `spec.claimRef.uid`.
    pub claim: OwningClaim,
    /// Whether a live read since it became Released shows what is here: UID, phase, policy, claimRef and handle.
    pub is_live: bool,
    /// What is known of the deletion of its volume.
    pub deletion: Deletion,
    /// The class that it names, for the Secret of volumes that others made.
    pub class: Seen<&'a StorageClass>,
    /// The Secret of the call.
    pub secret: ProvisionerSecretState,
    /// Whether the attach role lets the PersistentVolume go: its finalizer goes in the same write then.
    pub attach_finalizer: Option<&'a str>,
    /// The driver.
    pub driver: &'a ProvisionerFacts,
    /// Settings.
    pub policy: &'a ProvisionPolicy,
}
