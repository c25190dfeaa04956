//! What objects say, as the checks read them.

use serde_json::Value;
use std::collections::BTreeMap;

use super::backend::Pair;
use super::cluster::{Kind, finalizers, text};
use super::scenario::{DRIVERS, Disk};
use super::world::{Owner, State, finalizer};
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::AccessMode;

/// The index of the driver that an attachment is for.
pub fn driver_of(attachment: &Value) -> Option<usize> {
    let attacher = text(attachment, "/spec/attacher");
    DRIVERS.iter().position(|driver| *driver == attacher)
}

/// Whether an object carries the finalizer of a driver.
pub fn is_held_by(object: &Value, driver: usize) -> bool {
    let ours = finalizer(driver);
    finalizers(object).any(|finalizer| finalizer == ours)
}

/// Whether an attachment carries the finalizer of its driver, or a PersistentVolume that of any.
pub fn is_held(object: &Value) -> bool {
    match driver_of(object) {
        Some(driver) => is_held_by(object, driver),
        None => (0..DRIVERS.len()).any(|driver| is_held_by(object, driver)),
    }
}

/// What an attachment is claimed for: nothing unless finalizer, node ID and volume are noted on it.
pub fn claim_of(object: &Value) -> Option<(Pair, Owner)> {
    let driver = driver_of(object)?;
    if !is_held_by(object, driver) {
        return None;
    }
    let annotations = &object["metadata"]["annotations"];
    let note: Value = serde_json::from_str(annotations[VOLUME_ANNOTATION].as_str()?).ok()?;
    let node = annotations[NODE_ID_ANNOTATION].as_str().filter(|id| !id.is_empty())?;
    let pair = Pair {
        driver,
        volume: note["handle"].as_str()?.to_owned(),
        node: node.to_owned(),
    };
    Some((pair, owner(object)))
}

/// Whether a place is noted on a claimed attachment as one where the volume may be from before.
pub fn is_former(object: &Value, pair: &Pair) -> bool {
    let annotation = object["metadata"]["annotations"][VOLUME_ANNOTATION].as_str();
    let note: Option<Value> = annotation.and_then(|text| serde_json::from_str(text).ok());
    let former = note.as_ref().and_then(|note| note["former"].as_array());
    let mut places = former.into_iter().flatten();
    claim_of(object).is_some_and(|(claimed, _)| claimed.driver == pair.driver)
        && places.any(|place| place["handle"] == pair.volume.as_str() && place["nodeID"] == pair.node.as_str())
}

pub fn owner(object: &Value) -> Owner {
    Owner {
        uid: text(object, "/metadata/uid").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
        volume: volume_of(object).to_owned(),
    }
}

/// The PersistentVolume that an attachment names.
pub fn volume_of(attachment: &Value) -> &str {
    text(attachment, "/spec/source/persistentVolumeName")
}

/// The disk that an attachment is about.
pub fn disk_of<'s>(state: &'s State, attachment: &Value) -> Option<&'s Disk> {
    // Two in-line volumes may have one handle.
    let inline = "/spec/source/inlineVolumeSpec/csi/volumeAttributes/attribute";
    let (name, attribute) = (volume_of(attachment), text(attachment, inline));
    let mut disks = state.scenario.disks.iter();
    disks.find(|disk| {
        if disk.inline {
            context_of(disk).values().any(|own| own == attribute)
        } else {
            disk.name == name
        }
    })
}

/// The driver and handle of the disk that an attachment is about.
pub fn disk_handle<'s>(state: &'s State, attachment: &Value) -> Option<(usize, &'s String)> {
    disk_of(state, attachment).map(|disk| (disk.driver, &disk.handle))
}

/// Whether a PersistentVolume carries the finalizer of a driver, as far as that can be had.
pub fn is_protected(state: &State, driver: usize, volume: &str) -> bool {
    volume.is_empty()
        || state.forced_volumes.contains(volume)
        || state
            .cluster
            .get(Kind::Volume, volume)
            .is_some_and(|object| is_held_by(object, driver))
}

/// The node ID under which a driver is registered on a node now.
pub fn node_id<'a>(state: &'a State, driver: usize, node: &str) -> Option<&'a str> {
    let object = state.cluster.get(Kind::Node, node)?;
    let mut drivers = object["spec"]["drivers"].as_array()?.iter();
    let entry = drivers.find(|entry| entry["name"] == DRIVERS[driver])?;
    entry["nodeID"].as_str()
}

/// The volume attributes of a disk.
pub fn context_of(disk: &Disk) -> BTreeMap<String, String> {
    BTreeMap::from([("attribute".to_owned(), format!("of {}", disk.name))])
}

/// How a disk is accessed.
pub fn mode_of(disk: &Disk) -> AccessMode {
    if disk.single_writer {
        AccessMode::SingleNodeWriter
    } else {
        AccessMode::MultiNodeMultiWriter
    }
}
