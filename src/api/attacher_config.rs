//! The AttacherConfig resource: the schema of its `spec`. The doc comments of the fields are what `kubectl explain` shows.
//!
//! The types accept unknown fields, so that an operator can read objects written for a newer version. A field appears
//! here only when the operator acts on it.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::duration::GoDuration;
use super::rules;
use super::status::AttacherConfigStatus;

/// Tells the operator to attach and detach the volumes of one CSI driver.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
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
        description = "Name that the driver answers to GetPluginInfo"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether volumes are being attached and detached"
    ),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".status.driver.mode",
        description = "Attach: the driver publishes volumes; Trivial: it needs no publishing"
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
        description = "Where the driver listens"
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.driver.vendorVersion",
        priority = 1,
        description = "Version that the driver answers to GetPluginInfo"
    )
)]
#[serde(rename_all = "camelCase")]
#[allow(
    clippy::duplicated_attributes,
    reason = "several printer columns have the same type and priority"
)]
pub struct AttacherConfigSpec {
    /// Name of the CSI driver, such as ebs.csi.aws.com. When it is set, the driver must answer this name to
    /// GetPluginInfo; otherwise nothing is attached and the condition Stalled says DriverNameMismatch. When it is left
    /// out, the name that the driver answers is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = rules::MAX_DRIVER_NAME), extend("x-kubernetes-validations" = [rules::driver_name()]))]
    pub driver_name: Option<String>,

    /// Where the driver's controller plugin listens: unix:///absolute/path/to/csi.sock (the path has at most 107
    /// bytes), or http://HOST:PORT where HOST is `127.0.0.1`, `[::1]` or `localhost`.
    #[schemars(length(max = rules::MAX_ENDPOINT), extend("x-kubernetes-validations" = rules::endpoint()))]
    pub endpoint: String,

    /// Set it to true to stop attaching and detaching the volumes of this driver: what is running is finished,
    /// nothing more is started, and the condition Ready says Suspended.
    #[serde(default)]
    pub suspend: bool,

    /// How long one call to the driver may take. A change is used from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub timeouts: TimeoutsSpec,

    /// How long a failed attach or detach waits before the next attempt. A change is used from the next failure on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub backoff: BackoffSpec,

    /// How many calls may run at the same time. A change is used from the next call on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub concurrency: ConcurrencySpec,

    /// The comparison of what is attached with what the driver lists, which puts right what was changed behind the
    /// operator's back. A change is used from the next comparison on.
    #[serde(default)]
    #[schemars(extend("default" = json!({})))]
    pub reconcile_sync: ReconcileSyncSpec,

    /// File system type sent to the driver for a volume whose PersistentVolume names none, such as ext4. Empty: none is
    /// sent and the driver chooses.
    #[serde(default)]
    #[schemars(length(max = rules::MAX_FS_TYPE), extend("x-kubernetes-validations" = [rules::fs_type()]))]
    pub default_fs_type: String,

    /// What it means when the driver answers NOT_FOUND to ControllerUnpublishVolume. Retry: an error like any other,
    /// because the CSI specification wants OK for a volume that is safely detached. TreatNotFoundAsDetached: the volume
    /// or the node is gone for good, and the attachment is let go; each time an event says so. Use it only for a driver
    /// that is known to answer so.
    #[serde(default)]
    #[schemars(extend("default" = "Retry"))]
    pub orphan_policy: OrphanPolicy,
}

/// What NOT_FOUND from ControllerUnpublishVolume means.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum OrphanPolicy {
    /// An error like any other.
    #[default]
    Retry,
    /// The volume or the node is gone for good, hence detached.
    TreatNotFoundAsDetached,
}

impl AttacherConfigSpec {
    /// A spec with this endpoint and every other field at its default.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            driver_name: None,
            endpoint: endpoint.into(),
            suspend: false,
            timeouts: TimeoutsSpec::default(),
            backoff: BackoffSpec::default(),
            concurrency: ConcurrencySpec::default(),
            reconcile_sync: ReconcileSyncSpec::default(),
            default_fs_type: String::new(),
            orphan_policy: OrphanPolicy::default(),
        }
    }
}

/// Deadlines of the calls to a driver, each from 1ms to 24h.
// The defaults of durations are given a second time as text, because Go's form of 60s would read 1m0s. A test compares.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeoutsSpec {
    /// Deadline of one ControllerPublishVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub publish: GoDuration,

    /// Deadline of one ControllerUnpublishVolume call, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub unpublish: GoDuration,

    /// Deadline of one ListVolumes call, that is of one page, from 1ms to 24h, such as 60s.
    #[schemars(extend("default" = "60s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub list_volumes: GoDuration,

    /// Deadline of one Probe call, from 1ms to 24h, such as 15s.
    #[schemars(extend("default" = "15s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub probe: GoDuration,

    /// Deadline of each of the calls that ask what the driver is and can do (GetPluginInfo, GetPluginCapabilities,
    /// ControllerGetCapabilities), from 1ms to 24h, such as 10s.
    #[schemars(extend("default" = "10s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub identity: GoDuration,
}

impl Default for TimeoutsSpec {
    fn default() -> Self {
        Self {
            publish: GoDuration::from_secs(60),
            unpublish: GoDuration::from_secs(60),
            list_volumes: GoDuration::from_secs(60),
            probe: GoDuration::from_secs(15),
            identity: GoDuration::from_secs(10),
        }
    }
}

/// Waiting time after failures: `initial`, then `factor` times longer after each further failure, up to `max`.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [rules::backoff_order()]))]
pub struct BackoffSpec {
    /// Wait after the first failure, from 1ms to 24h; not longer than max.
    #[schemars(extend("default" = "1s", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub initial: GoDuration,

    /// Longest wait, from 1ms to 24h.
    #[schemars(extend("default" = "1m", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub max: GoDuration,

    /// How many times longer each wait is than the one before, from 1 (always the same) to 10.
    #[schemars(range(min = 1, max = 10), extend("default" = 2))]
    pub factor: f64,

    /// Each wait is made longer by a random share of up to this many percent, from 0 to 100, so that many failures do
    /// not come back at the same moment.
    #[schemars(range(min = 0, max = 100))]
    pub jitter_percent: i64,
}

impl Default for BackoffSpec {
    fn default() -> Self {
        Self {
            initial: GoDuration::from_secs(1),
            max: GoDuration::from_secs(60),
            factor: 2.0,
            jitter_percent: 10,
        }
    }
}

/// The comparison of what is attached with what the driver lists (ListVolumes). A volume that a VolumeAttachment says is
/// attached, but the driver says is not, is attached again once two comparisons in a row found it so. Volumes without a
/// VolumeAttachment are never touched.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcileSyncSpec {
    /// Auto: compare when the driver has the capabilities LIST_VOLUMES and LIST_VOLUMES_PUBLISHED_NODES. Disabled: never.
    #[schemars(extend("default" = "Auto"))]
    pub mode: ReconcileSyncMode,

    /// Time from the end of one comparison to the beginning of the next, from 1ms to 24h, such as 1m. Up to a tenth is
    /// added at random.
    #[schemars(extend("default" = "1m", "x-kubernetes-validations" = [rules::duration_range()]))]
    pub interval: GoDuration,

    /// Most volumes in one answer of the driver, from 1 to 1000000; 0 lets the driver choose. All answers are read to
    /// the end either way; set it when one answer would exceed 32 MiB.
    #[schemars(range(min = 0, max = rules::MAX_ENTRIES))]
    pub max_entries: i64,
}

/// When the comparison is made.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum ReconcileSyncMode {
    /// When the driver can list where its volumes are.
    #[default]
    Auto,
    /// Never.
    Disabled,
}

impl Default for ReconcileSyncSpec {
    fn default() -> Self {
        Self {
            mode: ReconcileSyncMode::Auto,
            interval: GoDuration::from_secs(60),
            max_entries: 0,
        }
    }
}

/// Limits of the calls to a driver; 0 means no limit of that kind.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConcurrencySpec {
    /// Most ControllerPublishVolume calls in flight, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub attach: i64,

    /// Most ControllerUnpublishVolume calls in flight, from 1 to 10000; 0 means no limit. Attaching and detaching have
    /// lanes of their own, so a burst of one never holds up the other.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub detach: i64,

    /// Most calls in flight for one node, attaching and detaching together, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub per_node: i64,

    /// Most calls started in one second, attaching and detaching together, from 1 to 10000; 0 means no limit.
    #[schemars(range(min = 0, max = rules::MAX_CALLS))]
    pub calls_per_second: i64,
}

impl Default for ConcurrencySpec {
    fn default() -> Self {
        Self {
            attach: 100,
            detach: 100,
            per_node: 0,
            calls_per_second: 0,
        }
    }
}
