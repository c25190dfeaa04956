//! Provisioning: what is known of the PersistentVolumeClaims and StorageClasses of a cluster, and one running driver whose volumes are made.
//!
//! ```text
//!  PersistentVolumeClaim, StorageClass watches -> cache (slim records) -> the driver's queue, by the UID of the claim
//!  PersistentVolumes, their VolumeAttachments: VolumeCache -> the driver's queue, by the UID of the PersistentVolume
//!  queue -> attempt, deletion: observe -> decide (pure) -> one effect -> take in the answer -> decide again
//!  effects: apiserver::Requests (patches, POST and DELETE of the PersistentVolume), csi::CsiClient (CreateVolume, DeleteVolume)
//! ```
//!
//! PersistentVolumes and CSINodes are watched once for all roles: [`VolumeCache`] and [`CsiNodeCache`] are what another part of the process
//! knows of them. Nodes are watched from the first driver with topology on ([`NodeWatch`]).
//!
//! Must not know which drivers there are, nor of attaching.

mod attempt;
mod cache;
mod context;
mod deletion;
mod engine;
mod failures;
mod key;
mod lanes;
mod look;
mod nodes;
mod open_calls;
mod role;
mod shared_names;
mod shell;
#[cfg(test)]
#[path = "../../../tests/testbed/src/trace_pipeline.rs"]
mod trace_pipeline;

#[cfg(test)]
mod tests;
mod traces;
mod unsaved;
mod volumes;

pub use cache::Store;
pub use context::SharedContext;
pub use key::{ClaimKey, VolumeKey, WorkKey};
pub use lanes::{CREATE, DELETE, LANE_NAMES};
pub use nodes::{CsiNodeCache, DriverKeys, NodeWatch, Nodes, StartWatch};
pub use open_calls::OpenCalls;
pub use role::{ProvisionRole, RoleLinks, STALE_CAPACITY, clear_queue, not_supported, open_claims};
pub use volumes::{TakeVolume, VolumeCache};

use csi_attacher_base::clock;
use csi_attacher_csi as csi;
use csi_attacher_kube::{apiserver, events, reflect};
use csi_attacher_model::{api, decide, objects, provision};
use csi_attacher_runtime as runtime;
use csi_attacher_telemetry as telemetry;
use csi_attacher_workqueue as queue;
