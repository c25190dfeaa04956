//! Kubernetes as the operator uses it: the connection and the few requests that are sent over it, watches, Events, and leader
//! election by Leases.
//!
//! Must not know a driver, nor what is attached: it sends what it is given and says how that ended.

pub mod apiserver;
pub mod events;
pub mod kinds;
pub mod lease;
pub mod reflect;
pub mod watch_answers;
mod window;

#[cfg(test)]
#[path = "../../../tests/testbed/src/trace_pipeline.rs"]
mod trace_pipeline;

use csi_attacher_base::{clock, error_chain, health, pem, schedule, server_certificate, tls_alert, told_errors};
use csi_attacher_model::{api, decide, objects};
use csi_attacher_telemetry as telemetry;
use csi_attacher_workqueue as queue;
