//! When a PersistentVolume may go.

use super::driver_facts::DriverFacts;
use super::patch::{self, Write};
use super::published_volume::{is_in_use, was_made_later};
use crate::objects::{Attachment, Volume};

/// The next step for a PersistentVolume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeAction {
    /// Leave it.
    Keep(KeepReason),
    /// Take our finalizer from it.
    Release(Write),
}

/// Why a PersistentVolume is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// It is not being deleted, and nothing says that it is not to be served by this driver.
    Live,
    /// It does not carry our finalizer.
    NotProtected,
    /// A VolumeAttachment of some driver, deleting or not, still names it; that one's end asks again.
    Attached,
}

/// Whether a driver may have to release a volume, as the object alone says: it is being deleted, or migration of its
/// in-tree plug-in was taken back, and another attacher, or none, is to serve it.
pub fn may_release(volume: &Volume, driver: &DriverFacts) -> bool {
    let unwanted = volume.deleting || volume.is_in_tree_without(&driver.name);
    unwanted && volume.finalizers.contains(&driver.finalizer)
}

/// Decides about a PersistentVolume that `attachments` VolumeAttachments of any driver name.
pub fn volume(volume: &Volume, attachments: usize, driver: &DriverFacts) -> VolumeAction {
    if !volume.deleting && !volume.is_in_tree_without(&driver.name) {
        return VolumeAction::Keep(KeepReason::Live);
    }
    let write = if volume.deleting {
        patch::release_volume(volume, &driver.finalizer)
    } else {
        patch::release_live_volume(volume, &driver.finalizer)
    };
    let Some(write) = write else {
        return VolumeAction::Keep(KeepReason::NotProtected);
    };
    if attachments > 0 {
        return VolumeAction::Keep(KeepReason::Attached);
    }
    VolumeAction::Release(write)
}

/// The PersistentVolume of what is attached, if it lacks the finalizer that keeps it from vanishing meanwhile: the API server
/// went back to an older state, or somebody took the finalizer off. One that is being deleted takes no finalizer any more, and
/// one with another handle was made later under the same name.
pub(super) fn unprotected<'a>(
    attachment: &Attachment,
    volume: Option<&'a Volume>,
    driver: &DriverFacts,
) -> Option<&'a Volume> {
    let attached = is_in_use(attachment);
    if !attached || !attachment.finalizers.contains(&driver.finalizer) {
        return None;
    }
    let volume = volume.filter(|volume| !volume.deleting && !volume.finalizers.contains(&driver.finalizer))?;
    let source = volume.spec.csi().filter(|source| source.driver == driver.name)?;
    let note = attachment.volume_note.as_ref();
    let same = match note {
        Some(note) => note.handle == source.handle,
        None => !was_made_later(volume, attachment),
    };
    same.then_some(volume)
}
