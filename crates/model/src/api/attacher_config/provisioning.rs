//! `spec.provisioning`: the second role of the operator for a driver.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::calls::BackoffSpec;
use crate::api::duration::GoDuration;
use crate::api::rules;

/// Provisioning of the volumes of a driver, in the place of kubernetes-csi/external-provisioner.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::volume_names_stay()))]
pub struct ProvisioningSpec {
    /// Enabled: volumes are provisioned. Disabled: nothing new is begun, what is uncertain is finished, and the volumes of
    /// PersistentVolumes that are being deleted are deleted. A change applies immediately, and attaching continues.
    #[serde(default)]
    #[schemars(extend("default" = "Enabled"))]
    pub mode: ProvisioningMode,

    /// What happens to the volumes of released PersistentVolumes whose reclaim policy is Delete. Enabled: they are deleted,
    /// and then their PersistentVolumes. Hold: both stay. A change to Hold applies from the next DeleteVolume call on.
    #[serde(default)]
    #[schemars(extend("default" = "Enabled"))]
    pub deletion: VolumeDeletion,

    /// When a PersistentVolumeClaim gets the finalizer attacher.csi.dev/provisioning. Always: before the first call, so that no
    /// volume leaks even if the operator crashes. WhenUncertain: when a call timed out or broke, which saves two writes for each
    /// PersistentVolumeClaim; a volume leaks if the operator is killed in the first call and the PersistentVolumeClaim is deleted
    /// before the operator is back. Never: not at all, as with the sidecar; a volume leaks if the operator stops, or the driver
    /// is away for more than 5 seconds, while the outcome of any call is unknown and its PersistentVolumeClaim is deleted. A change applies from the next PersistentVolumeClaim on.
    #[serde(default)]
    #[schemars(extend("default" = "Always"))]
    pub leak_protection: LeakProtection,

    /// What NOT_FOUND in answer to DeleteVolume means. Retry: a failure, as the CSI specification asks for OK when there is no
    /// volume. TreatNotFoundAsDeleted: that the volume is deleted. A change applies from the next answer on.
    #[serde(default)]
    #[schemars(extend("default" = "Retry"))]
    pub orphan_policy: OrphanVolumePolicy,

    /// Deadlines of the calls. A change applies from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub timeouts: ProvisioningTimeoutsSpec,

    /// How long a failed attempt waits before the next one. A change applies from the next failure on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub backoff: BackoffSpec,

    /// Limits of the calls that run in parallel. A change applies from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub concurrency: ProvisioningConcurrencySpec,

    /// First part of the names of volumes and PersistentVolumes; a dash and the UID of the PersistentVolumeClaim follow. It
    /// cannot be changed: a PersistentVolumeClaim would have two names for its volume.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1, max = rules::VOLUME_NAME_PREFIX.max), extend(
        "default" = "pvc",
        "x-kubernetes-validations" = [rules::VOLUME_NAME_PREFIX.rule()],
    ))]
    pub volume_name_prefix: String,

    /// Number of characters of the UID in the names of volumes, without dashes, from 16 to 32. Omitted: the whole UID with
    /// dashes. It cannot be changed.
    #[serde(default, rename = "volumeNameUUIDLength", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16, max = 32))]
    pub volume_name_uuid_length: Option<i64>,

    /// File system type of volumes whose StorageClass names none, such as ext4. Empty: none is sent and the driver chooses.
    #[serde(default)]
    #[schemars(length(max = rules::FS_TYPE.max), extend("x-kubernetes-validations" = [rules::FS_TYPE.rule()]))]
    pub default_fs_type: String,

    /// Names: the driver receives the names of PersistentVolumeClaim, namespace and PersistentVolume as parameters. None: it
    /// does not.
    #[serde(default)]
    #[schemars(extend("default" = "None"))]
    pub create_metadata: CreateMetadata,

    /// Where volumes of a driver with topology must be reachable from. A change applies from the next first call for a
    /// PersistentVolumeClaim on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub topology: ProvisioningTopologySpec,

    /// ReadOnly: a volume whose only access mode is ReadOnlyMany is attached read-only. AsRequested: it is not.
    #[serde(default)]
    #[schemars(extend("default" = "AsRequested"))]
    pub read_only_many: ReadOnlyMany,

    /// Secrets that the driver may receive in CreateVolume and DeleteVolume: those that StorageClasses name for the provisioner. A
    /// PersistentVolumeClaim whose StorageClass names another Secret is not provisioned, and an Event says so. The operator's
    /// ServiceAccount needs the permission to get the Secrets as well. Omitted or empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = rules::MAX_PUBLISH_SECRETS), extend("x-kubernetes-list-type" = "atomic"))]
    pub secrets: Vec<ProvisionerSecretsSpec>,
}

fn default_prefix() -> String {
    "pvc".to_owned()
}

/// Whether volumes are provisioned.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum ProvisioningMode {
    /// Volumes are provisioned.
    #[default]
    Enabled,
    /// No new volume is provisioned.
    Disabled,
}

/// What happens to the volumes of released PersistentVolumes.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum VolumeDeletion {
    /// The volumes are deleted.
    #[default]
    Enabled,
    /// The volumes stay.
    Hold,
}

/// What NOT_FOUND in answer to DeleteVolume means.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum OrphanVolumePolicy {
    /// A failure: the call is made again.
    #[default]
    Retry,
    /// A success: the volume is deleted.
    TreatNotFoundAsDeleted,
}

/// When the marker goes on a PersistentVolumeClaim.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum LeakProtection {
    /// The marker goes on before the first call.
    #[default]
    Always,
    /// The marker goes on when the outcome of a call is unknown.
    WhenUncertain,
    /// The marker never goes on.
    Never,
}

/// What the driver is told of the objects beside the parameters of the class.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum CreateMetadata {
    /// The driver is told of no object.
    #[default]
    None,
    /// The driver is told the names of the objects.
    Names,
}

/// Where volumes must be reachable from.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningTopologySpec {
    /// For volumeBindingMode WaitForFirstConsumer. Preferred: the topology of the selected node is asked for first, and the
    /// driver may choose another one of the StorageClass or the cluster. Strict: it is the only one that is asked for.
    #[schemars(extend("default" = "Preferred"))]
    pub delayed_binding: DelayedBindingTopology,

    /// For volumeBindingMode Immediate and a StorageClass without allowedTopologies. Aggregate: the driver receives the
    /// topologies of all nodes, and volumes are spread over them. None: it receives none and chooses alone.
    #[schemars(extend("default" = "Aggregate"))]
    pub immediate_binding: ImmediateBindingTopology,
}

/// What is asked for where a node is selected.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum DelayedBindingTopology {
    /// The topology of the selected node first.
    #[default]
    Preferred,
    /// The topology of the selected node alone.
    Strict,
}

/// What is asked for where no node is selected.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum ImmediateBindingTopology {
    /// The topologies of all nodes.
    #[default]
    Aggregate,
    /// No topology.
    None,
}

/// How a volume with ReadOnlyMany alone is attached.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum ReadOnlyMany {
    /// The volume is attached as any other volume.
    #[default]
    AsRequested,
    /// The volume is attached read-only.
    ReadOnly,
}

/// Deadlines of the calls to a driver, each from 1ms to 24h.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningTimeoutsSpec {
    /// Deadline of one CreateVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub create: GoDuration,

    /// Deadline of one DeleteVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub delete: GoDuration,
}

impl Default for ProvisioningTimeoutsSpec {
    fn default() -> Self {
        Self {
            create: GoDuration::from_secs(60),
            delete: GoDuration::from_secs(60),
        }
    }
}

/// Limits of the calls to a driver; 0 means no limit of that kind.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningConcurrencySpec {
    /// Maximum number of CreateVolume calls in flight, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub create: i64,

    /// Maximum number of DeleteVolume calls in flight, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub delete: i64,

    /// Maximum number of CreateVolume calls in flight for one StorageClass, from 1 to 10000; 0 means no limit. So a slow pool
    /// behind one StorageClass leaves calls to the others.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub per_class: i64,

    /// Maximum number of attempts that are started in one second and make a call, from 1 to 10000; 0 means no limit. A
    /// call follows the writes before it, so more of them may come at once after a pause of the API server.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub calls_per_second: i64,
}

impl Default for ProvisioningConcurrencySpec {
    fn default() -> Self {
        Self {
            create: 100,
            delete: 100,
            per_class: 0,
            calls_per_second: 0,
        }
    }
}

/// Secrets of one namespace that a driver may receive.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(inline, extend("x-kubernetes-validations" = [rules::names_of_own()]))]
pub struct ProvisionerSecretsSpec {
    /// Namespace of the Secrets; "*" is the namespace of each PersistentVolumeClaim itself, and needs names.
    #[schemars(length(min = 1, max = rules::NAMESPACE_OR_OWN.max), extend("x-kubernetes-validations" = [rules::NAMESPACE_OR_OWN.rule()]))]
    pub namespace: String,

    /// Names of the Secrets. Omitted: all Secrets of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = rules::MAX_PUBLISH_SECRETS), extend(
        "items" = rules::SECRET_NAME.item(),
        "x-kubernetes-list-type" = "set",
    ))]
    pub names: Option<Vec<String>>,
}
