//! When a PersistentVolume may go.

use super::observed::DriverFacts;
use super::patch::{self, Write};
use crate::objects::Volume;

/// The next step for a PersistentVolume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeAction {
    /// Leave it.
    Keep(VolumeKept),
    /// Take our finalizer from it.
    Release(Write),
}

/// Why a PersistentVolume is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKept {
    /// It is not being deleted.
    Live,
    /// It does not carry our finalizer.
    NotProtected,
    /// A VolumeAttachment of some driver, deleting or not, still names it; that one's end asks again.
    Attached,
}

/// Decides about a PersistentVolume that `attachments` VolumeAttachments of any driver name.
pub fn volume(volume: &Volume, attachments: usize, driver: &DriverFacts) -> VolumeAction {
    if !volume.deleting {
        return VolumeAction::Keep(VolumeKept::Live);
    }
    let Some(write) = patch::release_volume(volume, &driver.finalizer) else {
        return VolumeAction::Keep(VolumeKept::NotProtected);
    };
    if attachments > 0 {
        return VolumeAction::Keep(VolumeKept::Attached);
    }
    VolumeAction::Release(write)
}
