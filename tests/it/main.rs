//! Integration tests against a real control plane.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod controlplane;
mod crd_cases;
mod rig;
mod shutdown;
mod writes;
