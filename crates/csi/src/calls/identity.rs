//! Calls of the identity service: who the driver is, and whether it is ready.

use csi_attacher_proto::v1::{self, plugin_capability as plugin};

use crate::call::{Call, ElementField};
use crate::telemetry::Span;

/// Asks whether the driver is ready. An answer that does not say counts as ready (CSI spec, "Probe").
#[derive(Clone, Copy, Debug)]
pub struct Probe;

impl Call for Probe {
    const PATH: &'static str = "/csi.v1.Identity/Probe";
    const ELEMENTS: &'static [ElementField] = &[];
    type Request = v1::ProbeRequest;
    type Response = v1::ProbeResponse;
    type Answer = bool;

    fn answer(&self, response: Self::Response, _: &mut Span) -> bool {
        response.ready.unwrap_or(true)
    }
}

/// Asks for name and version of the driver.
#[derive(Clone, Copy, Debug)]
pub struct GetPluginInfo;

/// Name and version of a driver as it sent them: neither is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// What `spec.attacher` of a VolumeAttachment names.
    pub name: String,
    /// Its form is the vendor's choice.
    pub vendor_version: String,
}

impl Call for GetPluginInfo {
    const PATH: &'static str = "/csi.v1.Identity/GetPluginInfo";
    /// The manifest.
    const ELEMENTS: &'static [ElementField] = &[ElementField::repeated(3, &[])];
    type Request = v1::GetPluginInfoRequest;
    type Response = v1::GetPluginInfoResponse;
    type Answer = PluginInfo;

    fn answer(&self, response: Self::Response, _: &mut Span) -> PluginInfo {
        PluginInfo {
            name: response.name,
            vendor_version: response.vendor_version,
        }
    }
}

/// Asks whether the driver has a controller service, and topology.
#[derive(Clone, Copy, Debug)]
pub struct GetPluginCapabilities;

/// What of the plug-in capabilities is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginCapabilities {
    /// CONTROLLER_SERVICE.
    pub controller_service: bool,
    /// VOLUME_ACCESSIBILITY_CONSTRAINTS.
    pub accessibility_constraints: bool,
}

impl Call for GetPluginCapabilities {
    const PATH: &'static str = "/csi.v1.Identity/GetPluginCapabilities";
    const ELEMENTS: &'static [ElementField] = &[ElementField::repeated(1, &[])];
    type Request = v1::GetPluginCapabilitiesRequest;
    type Response = v1::GetPluginCapabilitiesResponse;
    type Answer = PluginCapabilities;

    fn answer(&self, response: Self::Response, _: &mut Span) -> PluginCapabilities {
        use plugin::service::Type;
        let mut report = PluginCapabilities::default();
        for capability in response.capabilities {
            if let Some(plugin::Type::Service(service)) = capability.r#type {
                report.controller_service |= service.r#type() == Type::ControllerService;
                report.accessibility_constraints |= service.r#type() == Type::VolumeAccessibilityConstraints;
            }
        }
        report
    }
}
