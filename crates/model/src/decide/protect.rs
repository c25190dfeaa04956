//! When a PersistentVolume may go.

use super::driver_facts::DriverFacts;
use super::patch::{self, Write};
use super::published_volume::{is_in_use, replaced, was_made_later};
use crate::objects::{Attachment, Volume};

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

/// What takes our finalizer from a PersistentVolume that `attachments` VolumeAttachments of any driver name, or why it is left alone.
pub fn volume(volume: &Volume, attachments: usize, driver: &DriverFacts) -> Result<Write, KeepReason> {
    if !volume.deleting && !volume.is_in_tree_without(&driver.name) {
        return Err(KeepReason::Live);
    }
    let write = patch::release_volume(volume, &driver.finalizer).ok_or(KeepReason::NotProtected)?;
    if attachments > 0 {
        return Err(KeepReason::Attached);
    }
    Ok(write)
}

/// The PersistentVolume of what is attached, if it lacks the finalizer that keeps it from vanishing meanwhile: the API server
/// went back to an older state, or somebody took the finalizer off. One that is being deleted takes no finalizer any more, and
/// one that was made later under the same name, or has another handle than was noted, is another volume.
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
    let is_served = volume.spec.csi().is_some_and(|source| source.driver == driver.name);
    let is_another = match &attachment.volume_note {
        Some(_) => replaced(attachment, volume).is_some(),
        None => was_made_later(volume, attachment),
    };
    (is_served && !is_another).then_some(volume)
}
