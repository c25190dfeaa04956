//! A CSI driver without storage, for tests and demonstrations.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    csi_mock_driver::cli::main().await
}
