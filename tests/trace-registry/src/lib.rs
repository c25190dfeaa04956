//! The registry of spans and attributes: what the operator may send, as `registry.yaml` declares it.
//!
//! The constants of `telemetry::names` and docs/reference/TRACES.md are written from it by the tests here. Other tests hold
//! received spans against it.

pub mod model;

#[cfg(test)]
mod constants;
#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;

use model::Registry;

/// The file itself.
const YAML: &str = include_str!("../registry.yaml");

/// Reads the registry; the error tells what is wrong in it.
pub fn registry() -> Result<Registry, String> {
    Registry::parse(YAML)
}
