//! The handle under which a driver lists a volume, when the translated one says less.

use std::borrow::Cow;
use thiserror::Error;

use super::gce::{UNSPECIFIED, handle, region};
use super::plugin::{InTreePlugin, TranslationError};

/// Why a handle cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum RepairError {
    /// The driver took over no in-tree plug-in.
    #[error("could not find In-Tree driver name for CSI plugin {0}")]
    Driver(Box<str>),
    /// The handle is not `projects/<p>/zones|regions/<z>/disks/<d>`.
    #[error("volume handle has wrong number of elements; got {0}, wanted 6 or more")]
    Handle(usize),
    /// The handle speaks neither of zones nor of regions.
    #[error("expected volume handle to have zones or regions regionality value, got: {0}")]
    Regionality(Box<str>),
    /// The node ID is not `projects/<p>/zones/<z>/instances/<i>`.
    #[error("node handle has wrong number of elements; got {0}, wanted 6 or more")]
    Node(usize),
    /// The node's zone is in no region.
    #[error("failed to get region from zone {zone}: {error}")]
    Region { zone: Box<str>, error: TranslationError },
}

/// Completes a translated handle by what the node ID says, to compare it with the handles that ListVolumes answers.
///
/// A GCE handle without a project takes project and, when unspecified, zone or region from the node it is attached to;
/// the handles of all other migrated drivers are complete. A driver that took over no in-tree plug-in is an error. It is
/// not to be used for calls: the driver completes handles itself, and would take the completed one for another volume.
pub fn repair_volume_handle<'a>(
    driver: &str,
    volume_handle: &'a str,
    node_id: &str,
) -> Result<Cow<'a, str>, RepairError> {
    match InTreePlugin::of_word(driver) {
        None => Err(RepairError::Driver(driver.into())),
        Some(InTreePlugin::GcePersistentDisk) => repair_disk(volume_handle, node_id),
        Some(_) => Ok(Cow::Borrowed(volume_handle)),
    }
}

fn repair_disk<'a>(volume_handle: &'a str, node_id: &str) -> Result<Cow<'a, str>, RepairError> {
    let parts: Vec<&str> = volume_handle.split('/').collect();
    let [_, project, regionality, place, _, disk, ..] = parts[..] else {
        return Err(RepairError::Handle(parts.len()));
    };
    if project != UNSPECIFIED {
        return Ok(Cow::Borrowed(volume_handle));
    }
    let node: Vec<&str> = node_id.split('/').collect();
    let [_, node_project, _, node_zone, _, _, ..] = node[..] else {
        return Err(RepairError::Node(node.len()));
    };
    let place = match regionality {
        "zones" | "regions" if place != UNSPECIFIED => place.to_owned(),
        "zones" => node_zone.to_owned(),
        "regions" => region(&[node_zone]).map_err(|error| RepairError::Region {
            zone: node_zone.into(),
            error,
        })?,
        other => return Err(RepairError::Regionality(other.into())),
    };
    Ok(Cow::Owned(handle(node_project, regionality, &place, disk)))
}
