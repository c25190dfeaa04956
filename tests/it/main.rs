//! Integration tests against a real control plane.

#[path = "../support/mod.rs"]
mod support;

mod chart;
mod controlplane;
mod demo;
mod readme;
