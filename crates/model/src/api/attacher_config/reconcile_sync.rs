//! When the attachments are compared with what the driver lists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::duration::GoDuration;
use crate::api::rules;

/// Periodic comparison of VolumeAttachments with the volumes that the driver lists (ListVolumes). If two comparisons in a
/// row find that a VolumeAttachment is attached and its volume is not, the volume is attached again. Volumes without a
/// VolumeAttachment are never touched.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcileSyncSpec {
    /// Auto: compare if the driver has the capabilities LIST_VOLUMES and LIST_VOLUMES_PUBLISHED_NODES. Disabled: never.
    #[schemars(extend("default" = "Auto"))]
    pub mode: ReconcileSyncMode,

    /// Time from the end of one comparison to the beginning of the next, from 1ms to 24h, such as 1m; less than 100ms counts
    /// as 100ms. Up to a tenth is added at random.
    #[schemars(extend("default" = "1m", "x-kubernetes-validations" = [rules::DURATION.rule()]))]
    pub interval: GoDuration,

    /// Maximum number of volumes in one page of ListVolumes, from 1 to 1000000; 0 lets the driver choose. All pages are read
    /// in any case; set it if one page would exceed 32 MiB.
    #[schemars(range(min = 0, max = rules::MAX_ENTRIES))]
    pub max_entries: i64,
}

/// When the comparison is made.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(inline)]
pub enum ReconcileSyncMode {
    /// If the driver can list where its volumes are attached.
    #[default]
    Auto,
    /// The comparison is never made.
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
