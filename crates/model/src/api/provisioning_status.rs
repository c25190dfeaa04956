//! `status.provisioning` of an AttacherConfig: who provisions for the driver, and what waits.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How provisioning for one driver is.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningStatus {
    /// Who provisions for this driver: the replica of the operator that holds its Lease of provisioning or, while
    /// ProvisioningReady has the reason Standby, the holder of that Lease, such as the Go sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,

    /// The Lease of provisioning; absent without leader election.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ProvisioningLease>,

    /// PersistentVolumeClaims that wait for a volume of this driver; absent while no replica provisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claims: Option<PendingClaims>,

    /// PersistentVolumes whose volume is to be deleted; absent while no replica provisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volumes: Option<PendingVolumes>,

    /// The most recent failure to create or delete a volume; it stays after a later success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<ProvisioningFailure>,
}

/// A Lease.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvisioningLease {
    /// Its name.
    pub name: String,

    /// Its namespace.
    pub namespace: String,
}

/// PersistentVolumeClaims that wait for a volume of one driver.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PendingClaims {
    /// Those for which a volume is to be created.
    pub pending: i64,

    /// Those of which it is unknown whether a call has created a volume.
    pub uncertain: i64,

    /// Those whose last attempt failed, or that wait for something that is missing.
    pub failing: i64,

    /// The one that has been pending longest; absent when none is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending: Option<OldestClaim>,
}

/// The PersistentVolumeClaim that has been pending longest.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OldestClaim {
    /// Namespace of the PersistentVolumeClaim.
    pub namespace: String,

    /// Name of the PersistentVolumeClaim.
    pub name: String,

    /// Time since which it has been pending.
    pub pending_since_time: Time,
}

/// PersistentVolumes of one driver whose volume is to be deleted.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PendingVolumes {
    /// Those whose volume is to be deleted and that deletion: Hold does not keep.
    pub deleting: i64,

    /// Those whose last attempt failed.
    pub failing: i64,

    /// Those whose volume is kept, as spec.provisioning.deletion is Hold.
    pub held: i64,

    /// The one of deleting that has been pending longest; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending: Option<OldestVolume>,
}

/// The PersistentVolume whose deletion has been pending longest.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OldestVolume {
    /// Name of the PersistentVolume.
    pub name: String,

    /// Time since which its deletion has been pending, as far as the replica that provisions has seen.
    pub pending_since_time: Time,
}

/// One volume that could not be created or deleted.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningFailure {
    /// When it failed.
    pub time: Time,

    /// Failed operation: Provision or Delete.
    pub operation: String,

    /// The PersistentVolumeClaim for which the volume was to be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<FailedClaim>,

    /// Name of the PersistentVolume whose volume was to be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume: Option<String>,

    /// gRPC status code by name, such as ResourceExhausted, or what is missing for the call, such as SecretMissing.
    pub code: String,

    /// Message of the driver, without secrets and shortened.
    #[serde(default)]
    pub message: String,

    /// Trace of the failure; absent if the attempt was not traced.
    #[serde(default, rename = "traceID", skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// A PersistentVolumeClaim for which no volume could be created.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedClaim {
    /// Its namespace.
    pub namespace: String,

    /// Its name.
    pub name: String,
}
