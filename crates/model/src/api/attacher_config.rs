//! The AttacherConfig resource: the schema of its `spec`. The doc comments of the fields are what `kubectl explain` shows.
//!
//! The types accept unknown fields, so that an operator can read objects written for a newer version. A field appears
//! here only when the operator acts on it.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::rules;
use super::status::AttacherConfigStatus;

mod calls;
mod leader_election;
mod provisioning;
mod reconcile_sync;
mod secrets;
mod tracing;

pub use calls::{BackoffSpec, ConcurrencySpec, KubernetesApiSpec, TimeoutsSpec};
pub use leader_election::LeaderElectionSpec;
pub use provisioning::{
    CreateMetadata, DelayedBindingTopology, ImmediateBindingTopology, LeakProtection, OrphanVolumePolicy,
    ProvisionerSecretsSpec, ProvisioningConcurrencySpec, ProvisioningMode, ProvisioningSpec, ProvisioningTimeoutsSpec,
    ProvisioningTopologySpec, ReadOnlyMany, VolumeDeletion,
};
pub use reconcile_sync::{ReconcileSyncMode, ReconcileSyncSpec};
pub use secrets::{PublishSecretsSpec, TlsSecretReference, TlsSpec};
pub use tracing::{AnnotationMode, RedactSpec, RedactionMode, TracingSpec};

/// Tells the operator to attach and detach the volumes of one CSI driver.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "attacher.csi.dev",
    version = "v1alpha1",
    kind = "AttacherConfig",
    plural = "attacherconfigs",
    shortname = "atc",
    category = "csi",
    status = "AttacherConfigStatus",
    derive = "PartialEq",
    doc = "AttacherConfig tells the operator to attach and detach the volumes of one CSI driver.",
    printcolumn(
        name = "Driver",
        type_ = "string",
        json_path = ".status.driver.name",
        description = "Name that the driver reports in GetPluginInfo"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "True when all is as the spec asks for; REASON says whether this operator serves the driver"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is ready or not, such as Running, Standby or InvalidSpec"
    ),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".status.driver.mode",
        description = "Attach: the driver publishes volumes; Trivial: volumes are marked attached without a call"
    ),
    printcolumn(
        name = "Attached",
        type_ = "integer",
        json_path = ".status.attachments.attached",
        description = "Attached volumes"
    ),
    printcolumn(
        name = "Pending",
        type_ = "integer",
        json_path = ".status.attachments.pending",
        description = "Volumes being attached or detached"
    ),
    printcolumn(
        name = "Failing",
        type_ = "integer",
        json_path = ".status.attachments.failing",
        description = "Pending volumes whose last attempt failed"
    ),
    printcolumn(
        name = "Provisioning",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ProvisioningReady\")].status",
        description = "True when volumes are provisioned; empty without spec.provisioning"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Holder",
        type_ = "string",
        json_path = ".status.holder",
        priority = 1,
        description = "Replica of the operator that leads this driver"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".spec.endpoint",
        priority = 1,
        description = "Address of the driver"
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.driver.vendorVersion",
        priority = 1,
        description = "Version that the driver reports in GetPluginInfo"
    ),
    printcolumn(
        name = "Pending PVCs",
        type_ = "integer",
        json_path = ".status.provisioning.persistentVolumeClaims.pending",
        priority = 1,
        description = "PersistentVolumeClaims that wait for a volume of this driver"
    ),
    printcolumn(
        name = "Deleting",
        type_ = "integer",
        json_path = ".status.provisioning.persistentVolumes.deleting",
        priority = 1,
        description = "PersistentVolumes whose volume is to be deleted"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::of_spec()))]
#[allow(
    clippy::duplicated_attributes,
    reason = "several printer columns have the same type and priority"
)]
pub struct AttacherConfigSpec {
    /// Name of the CSI driver, such as ebs.csi.aws.com. If it is set, the driver must report this name in
    /// GetPluginInfo; otherwise no volume is attached and the condition Stalled says DriverNameMismatch. If it is
    /// omitted, the operator uses the name that the driver reports, unless driverName of another AttacherConfig has that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = rules::DRIVER_NAME.max), extend("x-kubernetes-validations" = [rules::DRIVER_NAME.rule()]))]
    pub driver_name: Option<String>,

    /// Address of the driver's controller plugin: unix:///absolute/path/to/csi.sock (the path has at most 107
    /// bytes), https://HOST:PORT with the certificates of tls, or http://HOST:PORT where HOST is `127.0.0.1`, `[::1]` or
    /// `localhost`.
    #[schemars(length(max = rules::MAX_ENDPOINT), extend("x-kubernetes-validations" = rules::endpoint()))]
    pub endpoint: String,

    /// Certificates for an https endpoint; required for https, and rejected for any other endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,

    /// Set it to true to stop attaching and detaching the volumes of this driver: running calls are finished,
    /// no new calls start, the driver's Lease is released, and the condition Ready has the reason Suspended.
    #[serde(default)]
    pub suspend: bool,

    /// Deadlines of the calls to the driver. A change applies from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub timeouts: TimeoutsSpec,

    /// How long a failed attach or detach waits before the next attempt. A change applies from the next failure on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub backoff: BackoffSpec,

    /// Limits of the calls that run in parallel. A change applies from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub concurrency: ConcurrencySpec,

    /// Periodic comparison of VolumeAttachments with ListVolumes; repairs changes made outside Kubernetes. A change applies
    /// from the next comparison on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub reconcile_sync: ReconcileSyncSpec,

    /// File system type that is sent to the driver for a volume whose PersistentVolume has none, such as ext4. Empty: none
    /// is sent and the driver chooses.
    #[serde(default)]
    #[schemars(length(max = rules::FS_TYPE.max), extend("x-kubernetes-validations" = [rules::FS_TYPE.rule()]))]
    pub default_fs_type: String,

    /// Meaning of NOT_FOUND from ControllerUnpublishVolume. Retry: an error like any other, because the CSI specification
    /// requires OK for a volume that is safely detached. TreatNotFoundAsDetached: the volume or the node is permanently
    /// gone, and the attachment is released; each time an event records it. Use it only for a driver that is known to
    /// answer so.
    #[serde(default)]
    #[schemars(extend("default" = "Retry"))]
    pub orphan_policy: OrphanPolicy,

    /// Secrets that the driver may receive: those that volumes name in spec.csi.controllerPublishSecretRef. Entries of one
    /// namespace are combined. A volume that names another Secret is not attached, and the condition AttachmentsHealthy says
    /// SecretNotAllowed. A detach may also use the Secret that the attach used. The operator's ServiceAccount needs the
    /// permission to get the Secrets as well: keep an entry, for which the chart grants it, until the last volume that was
    /// attached with the Secret is detached. Omitted or empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = rules::MAX_PUBLISH_SECRETS), extend("x-kubernetes-list-type" = "atomic"))]
    pub publish_secrets: Vec<PublishSecretsSpec>,

    /// Limit of the requests to the API server for this driver. By default there is none: the API server shares its
    /// capacity fairly (API Priority and Fairness). A change applies from the next request on.
    #[serde(default, rename = "kubernetesAPI")]
    #[schemars(extend("default" = json!({})))]
    pub kubernetes_api: KubernetesApiSpec,

    /// Election of the replica that serves this driver. On a change the driver's running calls are finished and its Lease
    /// is released before the new settings are used.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub leader_election: LeaderElectionSpec,

    /// What happens if this object is deleted while volumes of the driver are attached. Orphan: the object is deleted
    /// immediately; volumes stay attached, and their finalizers stay for the next attacher of the driver. WaitForDetach:
    /// the object stays, continues to detach and attaches no further volumes, until no VolumeAttachment of the driver has
    /// the operator's finalizer, and no PersistentVolume that is being deleted has it. It does not wait for volumes that
    /// another AttacherConfig for the driver detaches, or will as soon as its driver answers, if it has spec.driverName.
    #[serde(default)]
    #[schemars(extend("default" = "Orphan"))]
    pub deletion_policy: DeletionPolicy,

    /// Traces of this driver's attachments. A change applies from the next attempt on, a lower share from the next attach or detach on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub tracing: TracingSpec,

    /// Provisioning of the driver's volumes, in the place of the sidecar external-provisioner; needs driverName. Omitted: no
    /// volume is provisioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<ProvisioningSpec>,
}

/// What happens to an AttacherConfig that is deleted while volumes of its driver are attached.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum DeletionPolicy {
    /// The object is deleted immediately.
    #[default]
    Orphan,
    /// The object is deleted when the last volume is detached.
    WaitForDetach,
}

/// Meaning of NOT_FOUND from ControllerUnpublishVolume.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum OrphanPolicy {
    /// An error like any other.
    #[default]
    Retry,
    /// The volume or the node is permanently gone, hence detached.
    TreatNotFoundAsDetached,
}

impl AttacherConfigSpec {
    /// A spec with this endpoint and every other field at its default.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            ..Self::default()
        }
    }
}
