//! How the operator is linked.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if packs_relocations() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
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
