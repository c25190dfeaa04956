//! Integration tests against a real control plane.

#[path = "../support/mod.rs"]
mod support;

mod canary;
mod controlplane;
mod hanging_collector;
mod tracing;
