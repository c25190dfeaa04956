//! The `status` of an AttacherConfig: what the operator found out about the driver and how its attachments are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::provisioning_status::ProvisioningStatus;
use super::rules;

/// What the operator reports about the driver. Only the operator writes it; changes by other clients are overwritten.
///
/// The API server sets observedGeneration to -1 in a new object, as tools that know kstatus take one without a status for
/// reconciled.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("default" = json!({"observedGeneration": -1})))]
pub struct AttacherConfigStatus {
    /// metadata.generation that this status describes. If it is lower than metadata.generation, the operator has not yet
    /// processed the last change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions for kubectl wait and GitOps tools. Ready: volumes are attached and detached. Reconciling: a change is being
    /// applied. Stalled: only a person can fix it. DriverReachable: the driver answers. Saturated: a limit of
    /// spec.concurrency delays attaches or detaches. AttachmentsHealthy: no attach or detach is stuck or keeps failing.
    /// AttachmentsConsistent: attachments agree with their volumes, nodes and the CSIDriver. With spec.provisioning also
    /// ProvisioningReady: volumes are provisioned. ProvisioningHealthy: no PersistentVolumeClaim keeps failing. DeletionHealthy:
    /// no deletion of a volume keeps failing or waits for a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend(
            "items" = rules::condition(),
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["type"],
        )
    )]
    pub conditions: Vec<Condition>,

    /// What the driver reports about itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverStatus>,

    /// Who serves this driver: the replica of the operator that leads it or, while Ready has the reason Standby, the
    /// holder of its Lease, such as the Go sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,

    /// Where a former release served this driver. The operator holds that Lease as well, and removes this when it serves the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<FormerLease>,

    /// How many volumes of this driver are attached, pending and failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<AttachmentsStatus>,

    /// The most recent comparison with ListVolumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reconcile_sync: Option<LastReconcileSync>,

    /// The most recent failure of an attach or detach; it stays after a later success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,

    /// Who provisions for this driver, and what waits; only with spec.provisioning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<ProvisioningStatus>,
}

/// A count as a status has it: one beyond `i64` is cut to its greatest value.
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The Lease under which a former release served a driver.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerLease {
    /// Its namespace.
    pub namespace: Option<String>,
}

/// What the driver reports about itself.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverStatus {
    /// Name from GetPluginInfo; spec.driverName until the driver answers.
    pub name: String,

    /// Version from GetPluginInfo; its form is the vendor's choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vendor_version: String,

    /// Attach if the driver can publish volumes; Trivial if it cannot, and volumes are marked attached without
    /// a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<DriverMode>,

    /// Controller capabilities that the driver announced, such as PUBLISH_UNPUBLISH_VOLUME, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub capabilities: Vec<String>,
}

/// How volumes of a driver become attached.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverMode {
    /// The driver publishes and unpublishes volumes.
    Attach,
    /// The driver needs no publishing; volumes are marked attached without a call.
    Trivial,
}

/// Counts of VolumeAttachments of one driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentsStatus {
    /// Attached volumes that should stay attached.
    pub attached: i64,

    /// Volumes that should be attached and are not yet.
    pub attaching: i64,

    /// Volumes that should be detached and are not yet.
    pub detaching: i64,

    /// The sum of attaching and detaching.
    pub pending: i64,

    /// Pending volumes whose last attempt failed.
    pub failing: i64,

    /// The volume that has been pending longest; absent when none is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending: Option<OldestPending>,
}

impl AttachmentsStatus {
    /// Counts with `pending` set to the sum of `attaching` and `detaching`. Counts beyond `i64` are cut to its greatest
    /// value.
    pub fn new(
        attached: usize,
        attaching: usize,
        detaching: usize,
        failing: usize,
        oldest_pending: Option<OldestPending>,
    ) -> Self {
        Self {
            attached: count(attached),
            attaching: count(attaching),
            detaching: count(detaching),
            pending: count(attaching.saturating_add(detaching)),
            failing: count(failing),
            oldest_pending,
        }
    }
}

/// A comparison of VolumeAttachments with ListVolumes.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastReconcileSync {
    /// When it ended. While comparisons find the same, this is written once in ten minutes; metrics have each of them.
    pub completion_time: Time,

    /// Volumes that the driver listed.
    #[serde(default)]
    pub volumes: i64,

    /// VolumeAttachments that contradict the listing.
    #[serde(default)]
    pub mismatches: i64,

    /// Volumes that the driver lists at nodes of this cluster and no VolumeAttachment names, in two comparisons in a row,
    /// such as those that were attached after the backup from which the API server was restored. They may be in use and
    /// are left alone. Absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_attachment: Option<WithoutAttachment>,

    /// Why it failed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Volumes that the driver lists and no VolumeAttachment names.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WithoutAttachment {
    /// How many there are, each counted once for each node; no more than 1,000 are counted.
    pub count: i64,

    /// Some of them, in the order of their handles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub examples: Vec<ListedVolume>,
}

/// A volume at a node, as the driver lists it.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedVolume {
    /// The handle of the volume, shortened.
    pub volume_handle: String,

    /// The ID under which the driver knows the node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
}

/// The volume that has been pending longest.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OldestPending {
    /// Name of the VolumeAttachment.
    pub name: String,

    /// Time since which it has been pending.
    pub pending_since_time: Time,
}

/// One failed attach or detach.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// When it failed.
    pub time: Time,

    /// Name of the VolumeAttachment.
    pub volume_attachment: String,

    /// Failed operation: attach or detach.
    pub operation: String,

    /// gRPC status code by name, such as DeadlineExceeded, or what is missing for the call, such as SecretMissing.
    pub code: String,

    /// Message of the driver, without secrets and shortened.
    #[serde(default)]
    pub message: String,

    /// Trace of the failure; absent if the attempt was not traced.
    #[serde(default, rename = "traceID", skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

impl AttacherConfigStatus {
    /// Reads a status as well as it can be read: a part that another version or a person wrote in another shape is left
    /// out, the others are kept. It never fails, because a bad status must not keep a good spec from being used.
    pub fn from_value_lenient(value: Value) -> Self {
        let Value::Object(mut fields) = value else {
            return Self::default();
        };
        let conditions = match fields.remove("conditions") {
            Some(Value::Array(items)) => items
                .into_iter()
                .filter_map(|item| serde_json::from_value(item).ok())
                .collect(),
            _ => Vec::new(),
        };
        Self {
            observed_generation: take(&mut fields, "observedGeneration"),
            conditions,
            driver: take(&mut fields, "driver"),
            holder: take(&mut fields, "holder"),
            leader_election: take(&mut fields, "leaderElection"),
            attachments: take(&mut fields, "attachments"),
            last_reconcile_sync: take(&mut fields, "lastReconcileSync"),
            last_failure: take(&mut fields, "lastFailure"),
            provisioning: take(&mut fields, "provisioning"),
        }
    }
}

fn take<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Option<T> {
    // No field that is read here is a list, and serde would take the items of one for the fields of a struct.
    fields
        .remove(name)
        .filter(|value| !value.is_array())
        .and_then(|value| serde_json::from_value(value).ok())
}
