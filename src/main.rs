//! The operator binary.

use std::process::ExitCode;

/// See Cargo.toml, which says why and where.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    csi_attacher_operator::start::main()
}
