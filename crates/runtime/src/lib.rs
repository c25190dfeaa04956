//! The life of one driver, whatever a role does for it: connect, find out who answers, compete for its Lease, work until the connection
//! is lost, start over.
//!
//! A driver never ends the process and never touches another driver. What it is at is shown as a [`DriverState`]. What is done for
//! it is a [`Role`], which this crate does not know.

mod cause;
pub mod connect;
mod engine;
pub mod fence;
pub mod leadership;
mod pending;
pub mod queue_metrics;
pub mod report;
pub mod reservation;
mod role;
pub mod runner;
pub mod secret_waits;
pub mod state;
pub mod task;

#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod runner_tests;
#[cfg(test)]
mod task_tests;

pub use cause::EnqueueCause;
pub use engine::{Engine, LEASE_LOST_REST, Work, Workplace, backoff};
pub use role::{Refusal, Role, Start};
pub use state::{
    DriverPhase, DriverState, DriverStateSender, FailureRecord, Plugin, ReconcileSyncResult, WithheldSecrets,
};
pub use task::DriverTask;

use csi_attacher_base::{clock, schedule};
use csi_attacher_csi as csi;
use csi_attacher_kube::{apiserver, lease, reflect};
use csi_attacher_model::{api, decide, objects};
use csi_attacher_telemetry as telemetry;
use csi_attacher_workqueue as queue;
