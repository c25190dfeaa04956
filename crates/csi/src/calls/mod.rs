//! The calls of the CSI specification that the operator makes, each in one place.

mod controller;
mod identity;
mod list;
mod volume;

pub use controller::{
    CapabilityReport, ControllerGetCapabilities, ControllerPublishVolume, ControllerUnpublishVolume, mode_name,
};
pub use identity::{GetPluginCapabilities, GetPluginInfo, PluginCapabilities, PluginInfo, Probe};
pub use list::{ListVolumes, VolumePage, VolumeWithNodes};
pub use volume::{CreateVolume, DeleteVolume};
