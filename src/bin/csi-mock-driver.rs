//! A CSI driver without storage, for tests and demonstrations.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    csi_attacher_operator::mock::cli::main().await
}
