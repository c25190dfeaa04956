//! The calls of the CSI specification that the operator makes, each in one place.

mod controller;
mod identity;
mod list;

pub use controller::{
    CapabilityReport, ControllerGetCapabilities, ControllerPublishVolume, ControllerUnpublishVolume, mode_name,
};
pub use identity::{GetPluginCapabilities, GetPluginInfo, PluginInfo, Probe};
pub use list::{ListVolumes, VolumePage, VolumeWithNodes};
