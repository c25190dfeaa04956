//! Zones: the Nodes that are in them, and what a driver with topology is asked and answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_attacher_model::objects::StringMap;
use csi_attacher_model::provision::topology::Segment;
use csi_attacher_model::provision::{CreatePlan, Seen};
use serde_json::{Value, json};

use super::objects::{name_of, number_in, uid_text};

/// The zone of the node that is always there.
pub const ZONE_OF_OTHER: u8 = 2;

/// A Node or a CSINode. Of a CSINode nothing is read but that it is there.
pub fn node(slot: usize, uid: u8, zone: u8) -> Value {
    json!({"metadata": {"name": name_of(slot), "uid": uid_text(uid), "labels": {(ZONE): zone_name(zone)}}})
}

/// The label of Nodes that is the topology key of the driver.
pub const ZONE: &str = "zone";

/// The value of [`ZONE`] for a number.
pub fn zone_name(zone: u8) -> String {
    format!("z{zone}")
}

/// The topology of a zone; none for 0.
pub fn segment_of(zone: u8) -> Option<Segment> {
    (zone > 0).then(|| Segment::from([(ZONE, &*zone_name(zone))]))
}

/// The zone of the first preferred topology of a call; 0 where there is none.
pub fn zone_of(plan: &CreatePlan) -> u8 {
    let first = plan.accessibility.as_ref().and_then(|required| required.first());
    first.and_then(|first| first.get(ZONE)).map_or(0, number_in)
}

/// The labels of a Node in this zone.
pub fn labels_of(zone: u8) -> StringMap {
    BTreeMap::from([(ZONE.to_owned(), zone_name(zone))]).into()
}

/// The topology keys of the driver on each node.
pub fn keys() -> Arc<[Box<str>]> {
    Arc::from([Box::from(ZONE)])
}

/// What is known of something that a list does not have.
pub fn absent<T>(is_complete: bool) -> Seen<T> {
    if is_complete { Seen::Gone } else { Seen::Unknown }
}
