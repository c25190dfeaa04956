//! Integration tests against a real control plane.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and its figures are printed; clippy knows only functions marked as tests"
)]

use csi_attacher_testbed as support;

mod admission;
mod bad_input;
#[allow(
    clippy::similar_names,
    clippy::assigning_clones,
    clippy::format_collect,
    reason = "forms of one text"
)]
mod canary;
mod capability;
mod chaos;
mod chart;
mod collectors;
mod connection;
mod controller_manager;
mod controlplane;
mod crd_cases;
mod deletion;
mod demo;
mod documents;
mod drop_in;
mod error_texts;
mod events;
mod failover;
mod hanging_collector;
mod helm;
mod hostile;
mod hostile_api;
mod insight;
mod jaeger;
mod kubectl_attacher;
mod kubectl_docs;
mod limits;
mod live_settings;
mod prometheus;
mod prometheus_rules;
mod provision;
mod provision_topology;
mod rbac;
mod readme;
mod reconcile_sync;
mod registry;
mod reload;
mod replicas;
mod rig;
mod takeover;
mod tls;
mod tracing;
#[allow(clippy::too_many_lines, reason = "one history, told in its order")]
mod truth;
mod unprivileged;
mod workflows;
mod writes;
