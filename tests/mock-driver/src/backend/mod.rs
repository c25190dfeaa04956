//! The storage the mock driver pretends to manage: volumes, attachments and snapshots in memory.
//!
//! Pure and synchronous. Must not know of scripts, connections or the call log: it answers as a correct driver would.

mod attach;
mod slots;
mod snapshots;
mod volume_table;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use tonic::Status;

use self::slots::NodeSlots;
use self::volume_table::VolumeTable;
use super::settings::{ControllerCapability, MockSettings};
use csi_attacher_proto::v1;
use v1::volume_capability::AccessType;
use v1::volume_capability::access_mode::Mode;

/// Size in bytes of a volume nobody asked a size for.
const DEFAULT_VOLUME_BYTES: i64 = 1 << 30;

/// How a volume is attached to one node.
#[derive(Clone)]
pub(super) struct MockAttachment {
    /// What it was published for; `None` when it was attached behind the caller's back.
    request: Option<(v1::VolumeCapability, bool)>,
    /// Number of the device on the node, the lowest that was free.
    slot: usize,
}

#[derive(Clone)]
pub(super) struct MockVolume {
    /// Empty when it was not made by CreateVolume.
    name: String,
    capacity_bytes: i64,
    context: BTreeMap<String, String>,
    source: Option<v1::VolumeContentSource>,
    mutable_parameters: BTreeMap<String, String>,
    condition: v1::VolumeCondition,
    attachments: BTreeMap<String, MockAttachment>,
    /// Where it is reachable from; empty is everywhere.
    topology: Vec<v1::Topology>,
}

impl MockVolume {
    fn new(name: &str, capacity_bytes: i64) -> Self {
        let condition = v1::VolumeCondition {
            abnormal: false,
            message: "all is well".to_owned(),
        };
        Self {
            name: name.to_owned(),
            capacity_bytes,
            context: BTreeMap::new(),
            source: None,
            mutable_parameters: BTreeMap::new(),
            condition,
            attachments: BTreeMap::new(),
            topology: Vec::new(),
        }
    }

    fn describe(&self, id: &str) -> v1::Volume {
        v1::Volume {
            volume_id: id.to_owned(),
            capacity_bytes: self.capacity_bytes,
            volume_context: self.context.clone(),
            content_source: self.source.clone(),
            accessible_topology: self.topology.clone(),
        }
    }
}

/// The storage.
#[derive(Default)]
pub(super) struct Backend {
    volumes: VolumeTable,
    /// How often a volume was made under a name.
    made: BTreeMap<String, u32>,
    /// The devices that each node has in use; a node without any is not here.
    slots: BTreeMap<String, NodeSlots>,
    snapshots: BTreeMap<String, v1::Snapshot>,
    /// Snapshot ids by the names they were asked for with.
    snapshot_names: BTreeMap<String, String>,
    next_id: u64,
}

impl Backend {
    fn new_id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}-{:012x}", self.next_id)
    }

    fn volume(&mut self, settings: &MockSettings, id: &str) -> Result<&mut MockVolume, Status> {
        if settings.accept_any_volume {
            self.ensure_volume(id, DEFAULT_VOLUME_BYTES);
        }
        self.volumes
            .get_mut(id)
            .ok_or_else(|| Status::not_found(format!("volume {id:?} does not exist")))
    }

    /// Makes a volume of that id unless there is one.
    pub fn ensure_volume(&mut self, id: &str, capacity_bytes: i64) {
        if self.volumes.get(id).is_none() {
            self.volumes.insert(id.to_owned(), MockVolume::new("", capacity_bytes));
        }
    }

    /// Removes a volume, attached or not; false when there is none.
    pub fn remove_volume(&mut self, id: &str) -> bool {
        let Some(volume) = self.volumes.remove(id) else {
            return false;
        };
        self.free_slots(volume.attachments);
        true
    }

    /// Sets the health of a volume; false when there is no such volume.
    pub fn set_condition(&mut self, id: &str, abnormal: bool, message: String) -> bool {
        self.volumes
            .get_mut(id)
            .map(|volume| volume.condition = v1::VolumeCondition { abnormal, message })
            .is_some()
    }

    /// Which volume is attached to which node.
    pub fn published(&self) -> BTreeSet<(String, String)> {
        let nodes_of = |(id, volume): (&String, &MockVolume)| -> Vec<(String, String)> {
            volume
                .attachments
                .keys()
                .map(|node| (id.clone(), node.clone()))
                .collect()
        };
        self.volumes.iter().flat_map(nodes_of).collect()
    }

    /// All volumes with their size in bytes and nodes, as JSON.
    pub fn dump(&self) -> serde_json::Value {
        let describe = |volume: &MockVolume| {
            serde_json::json!({
                "capacityBytes": volume.capacity_bytes,
                "publishedNodeIds": volume.attachments.keys().collect::<Vec<_>>(),
            })
        };
        self.volumes
            .iter()
            .map(|(id, volume)| (id.clone(), describe(volume)))
            .collect()
    }
}

/// The text, or INVALID_ARGUMENT when it is missing.
fn required<'a>(value: &'a str, field: &str) -> Result<&'a str, Status> {
    if value.is_empty() {
        Err(Status::invalid_argument(format!("{field} is missing")))
    } else {
        Ok(value)
    }
}

/// Refuses a capability that is incomplete, or needs a controller capability that is off.
fn check_capability(settings: &MockSettings, capability: Option<&v1::VolumeCapability>) -> Result<Mode, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    if capability.access_type.is_none() {
        return Err(Status::invalid_argument("volume_capability.access_type is missing"));
    }
    let mode = capability.access_mode.unwrap_or_default().mode();
    match mode {
        Mode::Unknown => Err(Status::invalid_argument("volume_capability.access_mode is missing")),
        Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter
            if !settings.has(ControllerCapability::SingleNodeMultiWriter) =>
        {
            Err(Status::invalid_argument(format!(
                "access mode {} is not supported",
                mode.as_str_name()
            )))
        }
        mode => Ok(mode),
    }
}

fn check_capabilities(settings: &MockSettings, capabilities: &[v1::VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is missing"));
    }
    capabilities
        .iter()
        .try_for_each(|capability| check_capability(settings, Some(capability)).map(drop))
}

/// Whether two capabilities mean the same attachment; mount flags matter on the node only.
fn same_use(one: &v1::VolumeCapability, other: &v1::VolumeCapability) -> bool {
    let access_type = match (&one.access_type, &other.access_type) {
        (Some(AccessType::Block(_)), Some(AccessType::Block(_))) => true,
        (Some(AccessType::Mount(one)), Some(AccessType::Mount(other))) => one.fs_type == other.fs_type,
        _ => false,
    };
    access_type && one.access_mode == other.access_mode
}

/// One page of a sorted list: its entries, and the token of the page after it, empty when there is none.
type Page<'a, T> = (Vec<(&'a String, T)>, String);

/// One page of a sorted list: what comes after the token, and where the next page starts.
///
/// A token names the last id of the page before, so it stays good when that entry is removed. Any other token is answered with ABORTED.
fn page<'a, T>(
    entries: impl Iterator<Item = (&'a String, T)>,
    max_entries: i32,
    starting_token: &str,
    page_limit: Option<usize>,
) -> Result<Page<'a, T>, Status> {
    const PREFIX: &str = "after:";
    let asked = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    let after = match starting_token {
        "" => None,
        token => Some(
            token
                .strip_prefix(PREFIX)
                .ok_or_else(|| Status::aborted("starting_token is not valid"))?,
        ),
    };
    let limits = [Some(asked).filter(|asked| *asked > 0), page_limit];
    let limit = limits.into_iter().flatten().min().unwrap_or(usize::MAX);
    let mut rest = entries.filter(|(id, _)| after.is_none_or(|after| id.as_str() > after));
    let found: Vec<_> = rest.by_ref().take(limit).collect();
    let next_token = match (rest.next(), found.last()) {
        (Some(_), Some((last, _))) => format!("{PREFIX}{last}"),
        _ => String::new(),
    };
    Ok((found, next_token))
}
