//! The Container Storage Interface as the operator uses it: connections and calls. Its messages are those of `csi_attacher_proto`.
//!
//! Must not hold policy: what to call when is decided elsewhere.

mod answers;
mod call;
mod call_error;
mod calls;
mod client;
mod codec;
mod connection;
mod diagnose;
mod dial;
mod grpc_status;
mod tls;

pub use answers::Answers;
pub use call::{Call, ElementField};
pub use call_error::CallError;
pub use calls::controller::{
    CapabilityReport, ControllerGetCapabilities, ControllerPublishVolume, ControllerUnpublishVolume, mode_name,
};
pub use calls::identity::{GetPluginCapabilities, GetPluginInfo, PluginCapabilities, PluginInfo, Probe};
pub use calls::list::{ListVolumes, VolumePage, VolumeWithNodes};
pub use calls::volume::{CreateVolume, DeleteVolume};
pub use client::{CsiClient, UnnamedCalls};
pub use connection::DriverConnection;
pub use dial::{DialError, DialFault};
pub use tls::{ClientCertificates, TlsConnectError, TlsSecretError, TlsTarget};

#[cfg(test)]
#[path = "../../../tests/testbed/src/trace_pipeline.rs"]
mod trace_pipeline;

use csi_attacher_base::{error_chain, pem, server_certificate, tls_alert};
use csi_attacher_kube::apiserver;
use csi_attacher_model::{api, decide, objects};
use csi_attacher_telemetry as telemetry;

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod list_tests;
#[cfg(test)]
mod metric_tests;
#[cfg(test)]
mod sidecar_tests;
#[cfg(test)]
mod span_tests;
#[cfg(test)]
mod tls_tests;
#[cfg(test)]
mod unsent_tests;
