//! A Kubernetes operator that attaches and detaches CSI volumes: one pod for many drivers, each configured by an
//! [`api::AttacherConfig`]. docs/contribute/ARCHITECTURE.md shows how it works.
//!
//! The order of what matters: never lose or corrupt a volume, then never get stuck, then be fast, then be small.
//! The rules that keep the first of these are in [`decide`].

mod admin;
mod app;
mod cli;
mod findings;
mod open_files;
mod sidecar_flags;
pub mod start;
mod supervisor;

#[cfg(test)]
mod sources_tests;

use csi_attacher_attach::{cache, driver};
use csi_attacher_base::{clock, error_chain, health, told_errors};
use csi_attacher_kube::{apiserver, events, lease, reflect, watch_answers};
use csi_attacher_model::{api, decide, objects};
use csi_attacher_runtime as runtime;
use csi_attacher_telemetry as telemetry;
use csi_attacher_workqueue as queue;
