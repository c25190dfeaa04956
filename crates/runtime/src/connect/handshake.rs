//! Finding out who answers: Probe until ready, GetPluginInfo, capabilities. Nothing is called before that, and after
//! each reconnect it is done again, because a driver may come back as another version.

use std::time::Duration;
use tonic::Code;

use crate::api::condition::ConditionReason;
use crate::api::validated::{DriverConfig, is_driver_name};
use crate::csi::{
    CallError, CapabilityReport, ControllerGetCapabilities, CsiClient, GetPluginCapabilities, GetPluginInfo,
    PluginInfo, Probe,
};
use crate::decide::{cut, plain};
use crate::state::{DriverPhase, Plugin};
use crate::telemetry::trace::Span;

/// Time between two tries, as in the Go sidecar. It is short and does not grow: a dial of a missing socket costs
/// nothing, and a driver that comes back is to be taken up at once.
pub const RETRY: Duration = Duration::from_secs(1);

/// Time between two looks at a driver's CSIDriver, on which it depends whether its volumes are released without a call.
pub const CSI_DRIVER_PAUSE: Duration = RETRY.saturating_mul(10);

/// Longest version of a driver that is kept, in bytes.
const MAX_VERSION_BYTES: usize = 128;
/// How much of an invalid name is shown, in bytes.
const MAX_SHOWN_NAME_BYTES: usize = 80;

/// What a driver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Name, which is a valid one, and version, cut to 128 bytes.
    pub plugin: PluginInfo,
    /// Those of the controller service; none when the driver has no such service.
    pub capabilities: CapabilityReport,
}

impl Handshake {
    /// How the driver is served: the label `mode` of the metrics.
    pub const fn mode(&self) -> &'static str {
        if self.capabilities.bits.publish_unpublish {
            "Attach"
        } else {
            "Trivial"
        }
    }

    /// The same for the state of the driver.
    pub fn described(&self) -> Plugin {
        Plugin {
            name: self.plugin.name.clone(),
            vendor_version: self.plugin.vendor_version.clone(),
            publishes: self.capabilities.bits.publish_unpublish,
            capabilities: self.capabilities.names.clone(),
        }
    }
}

/// Why there is no driver to work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeError {
    /// Whether only a person can resolve it. Anything else is tried again by itself.
    pub is_stalled: bool,
    /// Reason for the condition DriverReachable or Stalled.
    pub reason: ConditionReason,
    /// What is wrong, and when it is tried again or how to fix it.
    pub message: String,
}

impl HandshakeError {
    /// A problem that only a person can resolve.
    pub fn stalled(reason: ConditionReason, message: String) -> Self {
        Self {
            is_stalled: true,
            reason,
            message,
        }
    }

    /// A problem that may pass by itself: the driver is asked again after [`RETRY`].
    fn unreachable(reason: ConditionReason, message: &str) -> Self {
        Self {
            is_stalled: false,
            reason,
            message: format!("{message}; retrying every {} s", RETRY.as_secs()),
        }
    }

    /// How long until the driver is asked again, unless something happens before.
    pub fn pause(&self) -> Duration {
        match self.reason {
            _ if !self.is_stalled => RETRY,
            // The API server was asked, and did not say.
            ConditionReason::Syncing => RETRY,
            ConditionReason::CapabilityLost => CSI_DRIVER_PAUSE,
            // A driver of the wrong name is asked again when it restarts, or after a while.
            _ => RETRY * 30,
        }
    }

    /// The phase of a driver that has it.
    pub fn phase(&self) -> DriverPhase {
        let (reason, message) = (self.reason, self.message.clone());
        if self.is_stalled {
            DriverPhase::Stalled { reason, message }
        } else {
            DriverPhase::Unreachable { reason, message }
        }
    }
}

/// Asks a driver. These calls are in no trace: they belong to no attachment, and a driver that is away is asked each second.
pub async fn run_handshake(client: &CsiClient, config: &DriverConfig) -> Result<Handshake, HandshakeError> {
    let untraced = Span::disabled();
    match client.call(&Probe, config.timeouts.probe, &untraced).await {
        Ok(true) => {}
        Ok(false) => {
            return Err(HandshakeError::unreachable(
                ConditionReason::DriverNotReady,
                "Probe answered that the driver is not ready",
            ));
        }
        Err(error) => return Err(failed(client, "Probe", &error)),
    }
    let deadline = config.timeouts.identity;
    let plugin = client
        .call(&GetPluginInfo, deadline, &untraced)
        .await
        .map_err(|error| failed(client, "GetPluginInfo", &error))?;
    check_name(&plugin.name, config)?;
    let plugin = PluginInfo {
        vendor_version: cut(&plain(&plugin.vendor_version), MAX_VERSION_BYTES).to_owned(),
        ..plugin
    };
    let plugin_capabilities = client.call(&GetPluginCapabilities, deadline, &untraced).await;
    let plugin_capabilities = plugin_capabilities.map_err(|error| failed(client, "GetPluginCapabilities", &error))?;
    let mut capabilities = if plugin_capabilities.controller_service {
        let report = client.call(&ControllerGetCapabilities, deadline, &untraced).await;
        report.map_err(|error| failed(client, "ControllerGetCapabilities", &without_controller(error)))?
    } else {
        CapabilityReport::default()
    };
    capabilities.bits.accessibility_constraints = plugin_capabilities.accessibility_constraints;
    Ok(Handshake { plugin, capabilities })
}

/// The same with the usual cause, where a driver announces CONTROLLER_SERVICE and has none: a node plugin may share its Identity service with the
/// controller plugin.
fn without_controller(error: CallError) -> CallError {
    if error.code != Code::Unimplemented {
        return error;
    }
    let message = format!(
        "{}: the driver announces CONTROLLER_SERVICE and has none there; if spec.endpoint is its node plugin, name the controller \
         plugin",
        error.message
    );
    CallError { message, ..error }
}

/// A name goes into labels of metrics, into the name of a Lease and into the status: nothing but a name may.
fn check_name(name: &str, config: &DriverConfig) -> Result<(), HandshakeError> {
    if name.is_empty() {
        return Err(HandshakeError::unreachable(
            ConditionReason::DriverInvalid,
            "GetPluginInfo answered an empty name",
        ));
    }
    if !is_driver_name(name) {
        let begins = cut(name, MAX_SHOWN_NAME_BYTES);
        return Err(HandshakeError::stalled(
            ConditionReason::DriverInvalid,
            format!(
                "the driver at {} answered GetPluginInfo with {} bytes that are no driver name, beginning with {begins:?}; the \
                 CSI specification asks for at most 63 letters, digits, '-' or '.', beginning and ending with a letter or \
                 digit: fix the driver, or let spec.endpoint name another one",
                config.endpoint,
                name.len(),
            ),
        ));
    }
    match &config.driver_name {
        Some(wanted) if wanted != name => Err(HandshakeError::stalled(
            ConditionReason::DriverNameMismatch,
            format!(
                "the driver at {} calls itself {name:?}, but spec.driverName is {wanted:?}; fix spec.endpoint or \
                 spec.driverName",
                config.endpoint
            ),
        )),
        _ => Ok(()),
    }
}

fn failed(client: &CsiClient, call: &str, error: &CallError) -> HandshakeError {
    let address = client.connection().address();
    let (reason, message) = match client.connection().dial_error() {
        Some(dial) if error.transport => (dial.reason(), dial.to_string()),
        None if error.transport => {
            let what = "the listener does not speak gRPC, or closed the connection";
            (ConditionReason::NoGrpc, format!("{address}: {what}: {}", error.message))
        }
        _ => {
            let reason = match error.code {
                Code::DeadlineExceeded => ConditionReason::Timeout,
                _ => ConditionReason::CallFailed,
            };
            (reason, format!("{address}: {call} failed: {error}"))
        }
    };
    HandshakeError::unreachable(reason, &message)
}
