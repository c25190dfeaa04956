//! Writes the constants of spans and attributes from their registry.

#[path = "src/telemetry/registry/constants.rs"]
mod constants;
#[allow(dead_code)]
#[path = "src/telemetry/registry/model.rs"]
mod model;

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

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
    if packs_relocations() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    Ok(())
}

/// Packed relocations make the operator half a megabyte smaller, on disk and in memory, as the loader reads all of them. glibc knows
/// them since 2.36; where the program is compiled with an older one, or for another system, they stay as they are.
fn packs_relocations() -> bool {
    let same = std::env::var("TARGET").is_ok_and(|target| std::env::var("HOST") == Ok(target));
    let Ok(output) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else {
        return false;
    };
    let version = String::from_utf8_lossy(&output.stdout);
    let version = version
        .trim()
        .strip_prefix("glibc 2.")
        .and_then(|minor| minor.parse().ok());
    same && version.is_some_and(|minor: u32| minor >= 36)
}
