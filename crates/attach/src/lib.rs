//! Attaching and detaching: what is known of the VolumeAttachments, PersistentVolumes and CSINodes of a cluster, and one running driver
//! that works them off.
//!
//! ```text
//!  VolumeAttachment, PersistentVolume, CSINode watches -> cache (slim records) -> the driver's queue
//!  queue -> driver::attempt: observe -> decide (pure) -> execute one effect -> take in the answer -> decide again
//!  effects: apiserver::Requests (patches), csi::CsiClient (ControllerPublishVolume, ControllerUnpublishVolume)
//! ```
//!
//! Must not know which drivers there are, nor how they were configured: that is told to each task.

pub mod cache;
pub mod driver;
mod memory;
mod progress;
mod traces;

pub use memory::KeyMemory;
pub use progress::UnfinishedAttempts;

#[cfg(test)]
#[path = "../../../tests/testbed/src/trace_pipeline.rs"]
mod trace_pipeline;

use csi_attacher_base::{clock, schedule};
use csi_attacher_csi as csi;
use csi_attacher_kube::{apiserver, events, reflect};
use csi_attacher_model::{api, decide, findings, objects};
use csi_attacher_telemetry as telemetry;
use csi_attacher_workqueue as queue;
