//! What a request asks for, in one shape for all methods: the script matches on it and the call log prints it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tonic::Code;

use csi_attacher_proto::v1;
use v1::volume_capability::AccessType;

/// The calls the mock driver answers, named as in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
#[allow(missing_docs)] // Each variant is the name of the call.
pub enum Method {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    GetCapacity,
    ControllerGetCapabilities,
    CreateSnapshot,
    DeleteSnapshot,
    ListSnapshots,
    GetSnapshot,
    ControllerExpandVolume,
    ControllerGetVolume,
    ControllerModifyVolume,
    NodeUnpublishVolume,
    NodeGetCapabilities,
    NodeGetInfo,
}

/// How a volume is to be used, as the call log prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapabilityFacts {
    /// Access mode by its name in the specification, such as `SINGLE_NODE_WRITER`.
    pub access_mode: &'static str,
    /// `block`, `mount`, or `none` when the request set neither.
    pub access_type: &'static str,
    /// File system asked for; empty when the choice is the driver's, absent for block volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    /// Number of mount flags; they may be sensitive, so they are only counted.
    pub mount_flags: usize,
}

impl From<&v1::VolumeCapability> for CapabilityFacts {
    fn from(capability: &v1::VolumeCapability) -> Self {
        let (access_type, fs_type, mount_flags) = match &capability.access_type {
            Some(AccessType::Block(_)) => ("block", None, 0),
            Some(AccessType::Mount(mount)) => ("mount", Some(mount.fs_type.clone()), mount.mount_flags.len()),
            None => ("none", None, 0),
        };
        let access_mode = capability.access_mode.unwrap_or_default().mode().as_str_name();
        Self {
            access_mode,
            access_type,
            fs_type,
            mount_flags,
        }
    }
}

/// The parts of a request that rules match and records show. Has no `Debug`: it holds secret values.
#[derive(Clone, Default)]
pub(super) struct MockFacts {
    pub volume: Option<String>,
    pub node: Option<String>,
    pub capability: Option<v1::VolumeCapability>,
    pub readonly: Option<bool>,
    pub volume_context: BTreeMap<String, String>,
    pub max_entries: Option<i32>,
    pub starting_token: Option<String>,
    pub secrets: BTreeMap<String, String>,
    /// Of CreateVolume.
    pub creation: Option<Box<v1::CreateVolumeRequest>>,
}

/// Where the caller tells the name of the PersistentVolumeClaim, if it is set up to.
const CLAIM: &str = "csi.storage.k8s.io/pvc/name";

impl MockFacts {
    /// The PersistentVolumeClaim that a volume is made for, if the caller tells.
    pub fn claim(&self) -> Option<&String> {
        self.creation.as_ref()?.parameters.get(CLAIM)
    }
}

/// A request the mock driver answers.
pub(super) trait Describe {
    /// The call it belongs to.
    const METHOD: Method;

    /// What it asks for.
    fn facts(&self) -> MockFacts;
}

/// Implements [`Describe`]: request type, method, and which fact comes from which field.
macro_rules! describe {
    ($($request:ident, $method:ident $(, $fact:ident = $field:ident)*;)*) => {$(
        impl Describe for v1::$request {
            const METHOD: Method = Method::$method;

            #[allow(clippy::needless_update)]
            fn facts(&self) -> MockFacts {
                MockFacts { $($fact: self.$field.clone().into(),)* ..MockFacts::default() }
            }
        }
    )*};
}

describe! {
    GetPluginInfoRequest, GetPluginInfo;
    GetPluginCapabilitiesRequest, GetPluginCapabilities;
    ProbeRequest, Probe;
    DeleteVolumeRequest, DeleteVolume, volume = volume_id, secrets = secrets;
    ControllerPublishVolumeRequest, ControllerPublishVolume, volume = volume_id, node = node_id,
        capability = volume_capability, readonly = readonly, volume_context = volume_context, secrets = secrets;
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolume, volume = volume_id, node = node_id, secrets = secrets;
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilities, volume = volume_id, volume_context = volume_context,
        secrets = secrets;
    ListVolumesRequest, ListVolumes, max_entries = max_entries, starting_token = starting_token;
    GetCapacityRequest, GetCapacity;
    ControllerGetCapabilitiesRequest, ControllerGetCapabilities;
    CreateSnapshotRequest, CreateSnapshot, volume = source_volume_id, secrets = secrets;
    DeleteSnapshotRequest, DeleteSnapshot, secrets = secrets;
    ListSnapshotsRequest, ListSnapshots, volume = source_volume_id, max_entries = max_entries,
        starting_token = starting_token, secrets = secrets;
    GetSnapshotRequest, GetSnapshot, secrets = secrets;
    ControllerExpandVolumeRequest, ControllerExpandVolume, volume = volume_id, capability = volume_capability,
        secrets = secrets;
    ControllerGetVolumeRequest, ControllerGetVolume, volume = volume_id;
    ControllerModifyVolumeRequest, ControllerModifyVolume, volume = volume_id, secrets = secrets;
    NodeUnpublishVolumeRequest, NodeUnpublishVolume, volume = volume_id;
    NodeGetCapabilitiesRequest, NodeGetCapabilities;
    NodeGetInfoRequest, NodeGetInfo;
}

impl Describe for v1::CreateVolumeRequest {
    const METHOD: Method = Method::CreateVolume;

    fn facts(&self) -> MockFacts {
        MockFacts {
            volume: Some(self.name.clone()),
            secrets: self.secrets.clone(),
            creation: Some(Box::new(Self {
                secrets: BTreeMap::new(),
                ..self.clone()
            })),
            ..MockFacts::default()
        }
    }
}

/// What a volume is to be made with, as the call log prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreationFacts {
    /// Fewest bytes.
    pub required_bytes: i64,
    /// Most bytes; 0 is no limit.
    pub limit_bytes: i64,
    /// How the volume is to be used.
    pub capabilities: Vec<CapabilityFacts>,
    /// Parameters of the class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Mutable parameters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    /// `snapshot ID` or `volume ID` of the source, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where the volume must be reachable from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requisite: Vec<BTreeMap<String, String>>,
    /// Where it should be, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<BTreeMap<String, String>>,
}

impl CreationFacts {
    /// The name of the PersistentVolumeClaim that the volume is made for, if the caller tells.
    pub fn claim(&self) -> Option<&str> {
        self.parameters.get(CLAIM).map(String::as_str)
    }
}

impl From<&v1::CreateVolumeRequest> for CreationFacts {
    fn from(request: &v1::CreateVolumeRequest) -> Self {
        use v1::volume_content_source::Type;
        let range = request.capacity_range.unwrap_or_default();
        let source = request.volume_content_source.as_ref();
        let source = source.and_then(|source| match source.r#type.as_ref()? {
            Type::Snapshot(from) => Some(format!("snapshot {}", from.snapshot_id)),
            Type::Volume(from) => Some(format!("volume {}", from.volume_id)),
        });
        let terms = |terms: &[v1::Topology]| terms.iter().map(|term| term.segments.clone()).collect();
        let required = request.accessibility_requirements.clone().unwrap_or_default();
        Self {
            required_bytes: range.required_bytes,
            limit_bytes: range.limit_bytes,
            capabilities: request.volume_capabilities.iter().map(CapabilityFacts::from).collect(),
            parameters: request.parameters.clone(),
            mutable_parameters: request.mutable_parameters.clone(),
            source,
            requisite: terms(&required.requisite),
            preferred: terms(&required.preferred),
        }
    }
}

/// All status codes with their names in the gRPC specification, in the order of their numbers.
const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

/// The name of a status code as scripts and call logs write it.
pub fn code_name(code: Code) -> &'static str {
    CODES
        .iter()
        .find(|(known, _)| *known == code)
        .map_or("UNKNOWN", |(_, name)| name)
}

/// The status code with that name; `None` when there is none.
pub fn code_from_name(name: &str) -> Option<Code> {
    CODES.iter().find(|(_, known)| *known == name).map(|(code, _)| *code)
}

/// The caller's deadline in milliseconds, as the `grpc-timeout` header says.
pub fn deadline_ms(metadata: &tonic::metadata::MetadataMap) -> Option<u64> {
    grpc_timeout_ms(metadata.get("grpc-timeout")?.to_str().ok()?)
}

/// Milliseconds in a `grpc-timeout` header: up to eight digits and a unit. `None` when it is malformed.
fn grpc_timeout_ms(header: &str) -> Option<u64> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(amount * 3_600_000),
        "M" => Some(amount * 60_000),
        "S" => Some(amount * 1000),
        "m" => Some(amount),
        "u" => Some(amount / 1000),
        "n" => Some(amount / 1_000_000),
        _ => None,
    }
}
