//! The registry of spans and attributes: what this program may send, as `registry.yaml` declares it.
//!
//! The constants of [`super::names`] are made from it at build time, and docs/reference/TRACES.md by a test. This module must not
//! decide what is sent; tests hold received spans against it.

pub mod model;

#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;

use model::Registry;

/// The file itself.
const YAML: &str = include_str!("../registry.yaml");

/// Reads the registry. It cannot fail in a program that was built: the build reads the same text.
pub fn registry() -> Result<Registry, String> {
    Registry::parse(YAML)
}
