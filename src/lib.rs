//! CSI attacher operator.

pub mod admin;
pub mod telemetry;
