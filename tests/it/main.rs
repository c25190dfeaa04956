//! Integration tests against a real control plane.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and its figures are printed; clippy knows only functions marked as tests"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod canary;
mod chart;
mod conformance_command;
mod controller_manager;
mod controlplane;
mod crd_cases;
mod demo;
mod drop_in;
mod events;
mod hanging_collector;
mod insight;
mod lease;
mod readme;
mod reconcile_sync;
mod replicas;
mod rig;
mod shutdown;
mod takeover;
mod tracing;
mod writes;
