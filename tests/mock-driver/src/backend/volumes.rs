//! Making, changing, listing and removing volumes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tonic::Status;

use super::{Backend, DEFAULT_VOLUME_BYTES, MockVolume, check_capabilities, page, required};
use crate::settings::{ControllerCapability, MockSettings};
use csi_attacher_proto::v1;
use v1::volume_content_source::Type as Source;

/// The longest name that is a part of an ID: an ID has at most 128 bytes (CSI spec, "Size Limits").
const LONGEST_IN_ID: usize = 100;

/// The mutable parameters the mock driver understands.
const MUTABLE_PARAMETERS: [&str; 3] = ["iops", "throughput", "tier"];

/// The size to provision; a range without a lower bound gets the default, within its upper bound.
fn wanted_bytes(range: Option<v1::CapacityRange>) -> Result<i64, Status> {
    let v1::CapacityRange {
        required_bytes,
        limit_bytes,
    } = range.unwrap_or_default();
    if required_bytes < 0 || limit_bytes < 0 {
        return Err(Status::invalid_argument("capacity_range is negative"));
    }
    if limit_bytes > 0 && required_bytes > limit_bytes {
        return Err(Status::invalid_argument("capacity_range requires more than its limit"));
    }
    Ok(match (required_bytes, limit_bytes) {
        (0, 0) => DEFAULT_VOLUME_BYTES,
        (0, limit) => DEFAULT_VOLUME_BYTES.min(limit),
        (required, _) => required,
    })
}

fn in_range(bytes: i64, range: Option<v1::CapacityRange>) -> bool {
    range.is_none_or(|range| bytes >= range.required_bytes && (range.limit_bytes == 0 || bytes <= range.limit_bytes))
}

/// Where a new volume is reachable from: the topology that is preferred most.
fn topology_for(settings: &MockSettings, required: Option<&v1::TopologyRequirement>) -> Vec<v1::Topology> {
    if let Some(answered) = &settings.answered_topology {
        let topology = |segments: &BTreeMap<String, String>| v1::Topology {
            segments: segments.clone(),
        };
        return answered.iter().map(topology).collect();
    }
    let terms = required.filter(|_| !settings.topology_keys.is_empty());
    let first = terms.and_then(|terms| terms.preferred.first().or_else(|| terms.requisite.first()));
    first.cloned().into_iter().collect()
}

/// Whether a volume is reachable from one of the topologies that are asked for.
fn is_reachable(settings: &MockSettings, volume: &MockVolume, required: Option<&v1::TopologyRequirement>) -> bool {
    let requisite = required.map_or(&[][..], |required| &required.requisite);
    settings.answered_topology.is_some()
        || requisite.is_empty()
        || volume.topology.is_empty()
        || requisite.iter().any(|term| volume.topology.contains(term))
}

fn check_mutable<'a>(settings: &MockSettings, mut keys: impl Iterator<Item = &'a String>) -> Result<(), Status> {
    let understands = |key: &str| settings.has(ControllerCapability::ModifyVolume) && MUTABLE_PARAMETERS.contains(&key);
    match keys.find(|key| !understands(key)) {
        Some(key) => Err(Status::invalid_argument(format!(
            "mutable parameter {key:?} is not supported"
        ))),
        None => Ok(()),
    }
}

impl Backend {
    /// CreateVolume. [CreateVolume Errors]
    pub fn create_volume(
        &mut self,
        settings: &MockSettings,
        request: &v1::CreateVolumeRequest,
    ) -> Result<v1::CreateVolumeResponse, Status> {
        let name = required(&request.name, "name")?;
        check_capabilities(settings, &request.volume_capabilities)?;
        check_mutable(settings, request.mutable_parameters.keys())?;
        let bytes = wanted_bytes(request.capacity_range)?;
        if let Some((id, volume)) = self.volumes.iter().find(|(_, volume)| volume.name == name) {
            if !in_range(volume.capacity_bytes, request.capacity_range)
                || volume.source != request.volume_content_source
                || !is_reachable(settings, volume, request.accessibility_requirements.as_ref())
            {
                return Err(Status::already_exists(format!(
                    "volume {name:?} exists with another size, source or topology"
                )));
            }
            return Ok(v1::CreateVolumeResponse {
                volume: Some(volume.describe(id)),
            });
        }
        let at_least = self.source_bytes(settings, request.volume_content_source.as_ref())?;
        let bytes = bytes.max(at_least);
        if !in_range(bytes, request.capacity_range) || bytes > self.free_bytes(settings) {
            return Err(Status::out_of_range(format!("cannot provision {bytes} bytes")));
        }
        let mut volume = MockVolume::new(name, bytes);
        volume.source.clone_from(&request.volume_content_source);
        volume.mutable_parameters.clone_from(&request.mutable_parameters);
        volume.context = [("mock/name".to_owned(), name.to_owned())].into();
        volume.topology = topology_for(settings, request.accessibility_requirements.as_ref());
        let id = self.volume_id(name);
        let described = volume.describe(&id);
        self.volumes.insert(id, volume);
        Ok(v1::CreateVolumeResponse {
            volume: Some(described),
        })
    }

    /// Made from the name, so that two processes that play one driver agree, as they do about storage that they share. A volume that is
    /// made again under the name of one that was deleted is another one.
    fn volume_id(&mut self, name: &str) -> String {
        let count = self.made.entry(name.to_owned()).or_default();
        *count += 1;
        if name.len() <= LONGEST_IN_ID {
            return format!("{name}-{count}");
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        format!("vol-{:016x}-{count}", hasher.finish())
    }

    /// The volumes that were made, by ID, with the names that they were made under.
    pub fn made(&self) -> BTreeMap<String, String> {
        let made = self.volumes.iter().filter(|(_, volume)| !volume.name.is_empty());
        made.map(|(id, volume)| (id.clone(), volume.name.clone())).collect()
    }

    /// Whether a volume was made under that name, and is there.
    pub fn has_made(&self, name: &str) -> bool {
        self.volumes.iter().any(|(_, volume)| volume.name == name)
    }

    /// How many bytes a volume from that source needs at least.
    fn source_bytes(&self, settings: &MockSettings, source: Option<&v1::VolumeContentSource>) -> Result<i64, Status> {
        match source.and_then(|source| source.r#type.as_ref()) {
            None => Ok(0),
            Some(Source::Snapshot(from)) => {
                settings.require(ControllerCapability::CreateDeleteSnapshot)?;
                let found = self
                    .snapshots
                    .get(&from.snapshot_id)
                    .map(|snapshot| snapshot.size_bytes);
                found.ok_or_else(|| Status::not_found(format!("snapshot {:?} does not exist", from.snapshot_id)))
            }
            Some(Source::Volume(from)) => {
                settings.require(ControllerCapability::CloneVolume)?;
                let found = self.volumes.get(&from.volume_id).map(|volume| volume.capacity_bytes);
                found.ok_or_else(|| Status::not_found(format!("volume {:?} does not exist", from.volume_id)))
            }
        }
    }

    /// Bytes that are left.
    pub fn free_bytes(&self, settings: &MockSettings) -> i64 {
        let used = self
            .volumes
            .iter()
            .fold(0_i64, |sum, (_, volume)| sum.saturating_add(volume.capacity_bytes));
        settings.capacity_bytes.saturating_sub(used).max(0)
    }

    /// DeleteVolume: refuses a volume that is attached. [DeleteVolume Errors]
    pub fn delete_volume(&mut self, request: &v1::DeleteVolumeRequest) -> Result<v1::DeleteVolumeResponse, Status> {
        let id = required(&request.volume_id, "volume_id")?;
        if let Some(node) = self.volumes.get(id).and_then(|volume| volume.attachments.keys().next()) {
            return Err(Status::failed_precondition(format!(
                "volume {id:?} is in use on node {node:?}"
            )));
        }
        self.volumes.remove(id);
        Ok(v1::DeleteVolumeResponse {})
    }

    /// ValidateVolumeCapabilities. [ValidateVolumeCapabilities Errors]
    pub fn validate(
        &mut self,
        settings: &MockSettings,
        request: v1::ValidateVolumeCapabilitiesRequest,
    ) -> Result<v1::ValidateVolumeCapabilitiesResponse, Status> {
        let id = required(&request.volume_id, "volume_id")?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is missing"));
        }
        self.volume(settings, id)?;
        if let Err(status) = check_capabilities(settings, &request.volume_capabilities) {
            let message = status.message().to_owned();
            return Ok(v1::ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message,
            });
        }
        let confirmed = v1::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(v1::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    /// ListVolumes. [ListVolumes Errors]
    pub fn list_volumes(
        &self,
        settings: &MockSettings,
        request: &v1::ListVolumesRequest,
    ) -> Result<v1::ListVolumesResponse, Status> {
        use v1::list_volumes_response::{Entry, VolumeStatus};
        let (max_entries, token) = (request.max_entries, request.starting_token.as_str());
        let (found, next_token) = page(self.volumes.iter(), max_entries, token, settings.list_page_limit)?;
        let entry = |(id, volume): (&String, &MockVolume)| {
            let mut described = volume.describe(id);
            if settings.list_padding_bytes > 0 {
                described
                    .volume_context
                    .insert("padding".to_owned(), "x".repeat(settings.list_padding_bytes));
            }
            let (published_node_ids, volume_condition) = status_of(settings, volume);
            Entry {
                volume: Some(described),
                status: Some(VolumeStatus {
                    published_node_ids,
                    volume_condition,
                }),
            }
        };
        Ok(v1::ListVolumesResponse {
            entries: found.into_iter().map(entry).collect(),
            next_token,
        })
    }

    /// ControllerGetVolume. [ControllerGetVolume Errors]
    pub fn get_volume(
        &mut self,
        settings: &MockSettings,
        request: &v1::ControllerGetVolumeRequest,
    ) -> Result<v1::ControllerGetVolumeResponse, Status> {
        use v1::controller_get_volume_response::VolumeStatus;
        let id = required(&request.volume_id, "volume_id")?;
        let volume = self.volume(settings, id)?;
        let (published_node_ids, volume_condition) = status_of(settings, volume);
        let status = Some(VolumeStatus {
            published_node_ids,
            volume_condition,
        });
        Ok(v1::ControllerGetVolumeResponse {
            volume: Some(volume.describe(id)),
            status,
        })
    }

    /// ControllerExpandVolume: a volume never shrinks. [ControllerExpandVolume Errors]
    pub fn expand(
        &mut self,
        settings: &MockSettings,
        request: &v1::ControllerExpandVolumeRequest,
    ) -> Result<v1::ControllerExpandVolumeResponse, Status> {
        let id = required(&request.volume_id, "volume_id")?;
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("capacity_range is missing"));
        }
        let wanted = wanted_bytes(request.capacity_range)?;
        let free = self.free_bytes(settings);
        let volume = self.volume(settings, id)?;
        let bytes = volume.capacity_bytes.max(wanted);
        if !in_range(bytes, request.capacity_range) || bytes.saturating_sub(volume.capacity_bytes) > free {
            return Err(Status::out_of_range(format!("cannot give volume {id:?} {bytes} bytes")));
        }
        volume.capacity_bytes = bytes;
        // There is no file system in memory that would have to follow.
        Ok(v1::ControllerExpandVolumeResponse {
            capacity_bytes: bytes,
            node_expansion_required: false,
        })
    }

    /// ControllerModifyVolume. [ControllerModifyVolume Errors]
    pub fn modify(
        &mut self,
        settings: &MockSettings,
        request: &v1::ControllerModifyVolumeRequest,
    ) -> Result<v1::ControllerModifyVolumeResponse, Status> {
        let id = required(&request.volume_id, "volume_id")?;
        let volume = self.volume(settings, id)?;
        if request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("mutable_parameters is missing"));
        }
        check_mutable(settings, request.mutable_parameters.keys())?;
        volume.mutable_parameters.extend(request.mutable_parameters.clone());
        Ok(v1::ControllerModifyVolumeResponse {})
    }
}

/// What may be told about a volume: its nodes and its health, each when the capability for it is on.
fn status_of(settings: &MockSettings, volume: &MockVolume) -> (Vec<String>, Option<v1::VolumeCondition>) {
    let tells_nodes = settings.has(ControllerCapability::ListVolumesPublishedNodes);
    let nodes = if tells_nodes {
        volume.attachments.keys().cloned().collect()
    } else {
        Vec::new()
    };
    let condition = settings
        .has(ControllerCapability::VolumeCondition)
        .then(|| volume.condition.clone());
    (nodes, condition)
}
