//! Writes the constants of spans and attributes from their registry.

#[path = "src/telemetry/registry/constants.rs"]
mod constants;
#[allow(dead_code)]
#[path = "src/telemetry/registry/model.rs"]
mod model;

use std::error::Error;
use std::path::PathBuf;

const REGISTRY: &str = "src/telemetry/registry.yaml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={REGISTRY}");
    for part in ["constants", "model"] {
        println!("cargo::rerun-if-changed=src/telemetry/registry/{part}.rs");
    }
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);

    let registry = model::Registry::parse(&std::fs::read_to_string(REGISTRY)?)
        .map_err(|problem| format!("{REGISTRY}: {problem}"))?;
    std::fs::write(out_dir.join("telemetry.names.rs"), constants::source(&registry)?)?;
    Ok(())
}
