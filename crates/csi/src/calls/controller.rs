//! Calls of the controller service that move a volume, and the one that tells which calls the driver has.

use std::collections::BTreeMap;

use csi_attacher_proto::v1::{
    self, controller_service_capability as controller,
    volume_capability::{self, access_mode},
};

use crate::apiserver::SecretData;
use crate::call::{Call, ElementField};
use crate::call_error::presentable;
use crate::decide::{AccessMode, Capabilities, Capability, PublishRequest, VolumeAccessType, VolumeOnNode};
use crate::objects::StringMap;
use crate::telemetry::Span;
use crate::telemetry::names::attr;

/// Limit for what a driver answers about one volume.
pub(super) const MAX_VOLUME_BYTES: usize = 4 << 20;
/// The same for its elements: a volume is created with up to 10,000 topologies, and each of these has some keys.
pub(super) const MAX_VOLUME_ELEMENTS: usize = 64 << 10;
/// Limits of the keys of a publish context on a span: how many, and the length of each.
const MAX_SPAN_KEYS: usize = 32;
const MAX_SPAN_KEY_BYTES: usize = 128;

/// Asks for the capabilities of the controller service. A driver without that service must not be asked.
#[derive(Clone, Copy, Debug)]
pub struct ControllerGetCapabilities;

/// What a driver can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapabilityReport {
    /// The capabilities that the operator uses.
    pub bits: Capabilities,
    /// Every controller capability by its name in the CSI spec, sorted.
    pub names: Vec<String>,
}

impl Call for ControllerGetCapabilities {
    const PATH: &'static str = "/csi.v1.Controller/ControllerGetCapabilities";
    const ELEMENTS: &'static [ElementField] = &[ElementField::repeated(1, &[])];
    type Request = v1::ControllerGetCapabilitiesRequest;
    type Response = v1::ControllerGetCapabilitiesResponse;
    type Answer = CapabilityReport;

    /// Numbers that this version of the specification does not have are left out.
    fn answer(&self, response: Self::Response, _: &mut Span) -> CapabilityReport {
        use controller::rpc::Type;
        let kinds = response.capabilities.into_iter().filter_map(|capability| {
            let controller::Type::Rpc(rpc) = capability.r#type?;
            Type::try_from(rpc.r#type).ok()
        });
        let known = kinds.filter(|kind| *kind != Type::Unknown);
        let mut names: Vec<String> = known.map(|kind| kind.as_str_name().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        CapabilityReport {
            bits: Capabilities::of_names(&names),
            names,
        }
    }
}

/// Attaches a volume to a node; the answer is the publish context.
#[derive(Clone, Copy, Debug)]
pub struct ControllerPublishVolume<'a> {
    /// Volume, node and how the volume is to be attached.
    pub request: &'a PublishRequest<'a>,
    /// Contents of the publish secret, if the volume names one.
    pub secrets: Option<&'a SecretData>,
}

impl Call for ControllerPublishVolume<'_> {
    const PATH: &'static str = "/csi.v1.Controller/ControllerPublishVolume";
    const MAX_ANSWER_BYTES: usize = MAX_VOLUME_BYTES;
    const ELEMENTS: &'static [ElementField] = &[ElementField::repeated(1, &[])];
    const MAX_ELEMENTS: usize = MAX_VOLUME_ELEMENTS;
    type Request = v1::ControllerPublishVolumeRequest;
    type Response = v1::ControllerPublishVolumeResponse;
    type Answer = StringMap;

    fn request(&self) -> Self::Request {
        let plan = self.request;
        v1::ControllerPublishVolumeRequest {
            volume_id: plan.place.volume_id.to_owned(),
            node_id: plan.place.node_id.to_owned(),
            volume_capability: Some(volume_capability(&plan.capability)),
            readonly: plan.read_only,
            secrets: exposed(self.secrets),
            volume_context: owned(plan.volume_context.iter()),
        }
    }

    fn secrets(&self) -> Option<&SecretData> {
        self.secrets
    }

    fn describe(&self, span: &mut Span) {
        let plan = self.request;
        describe_place(plan.place, span);
        span.set(attr::READ_ONLY, plan.read_only);
        span.set(attr::ACCESS_MODE, mode_name(plan.capability.mode));
        if let VolumeAccessType::Mount { fs_type, .. } = plan.capability.access {
            span.set(attr::VOLUME_FS_TYPE, fs_type);
        }
    }

    fn answer(&self, response: Self::Response, span: &mut Span) -> StringMap {
        let context = StringMap::from(response.publish_context);
        if span.is_recording() {
            let keys = context.iter().take(MAX_SPAN_KEYS);
            let keys = keys.map(|(key, _)| presentable(key, self.secrets, MAX_SPAN_KEY_BYTES));
            span.set(attr::PUBLISH_CONTEXT_KEYS, keys.collect::<Vec<String>>());
        }
        context
    }
}

/// Detaches a volume from a node.
#[derive(Clone, Copy, Debug)]
pub struct ControllerUnpublishVolume<'a> {
    /// Volume and node.
    pub place: VolumeOnNode<'a>,
    /// Contents of the publish secret, if the volume names one.
    pub secrets: Option<&'a SecretData>,
}

impl Call for ControllerUnpublishVolume<'_> {
    const PATH: &'static str = "/csi.v1.Controller/ControllerUnpublishVolume";
    const ELEMENTS: &'static [ElementField] = &[];
    type Request = v1::ControllerUnpublishVolumeRequest;
    type Response = v1::ControllerUnpublishVolumeResponse;
    type Answer = ();

    fn request(&self) -> Self::Request {
        v1::ControllerUnpublishVolumeRequest {
            volume_id: self.place.volume_id.to_owned(),
            node_id: self.place.node_id.to_owned(),
            secrets: exposed(self.secrets),
        }
    }

    fn secrets(&self) -> Option<&SecretData> {
        self.secrets
    }

    fn describe(&self, span: &mut Span) {
        describe_place(self.place, span);
    }

    fn answer(&self, _: Self::Response, _: &mut Span) {}
}

fn describe_place(place: VolumeOnNode<'_>, span: &mut Span) {
    span.set(attr::CSI_VOLUME_ID, place.volume_id);
    span.set(attr::CSI_NODE_ID, place.node_id);
}

pub(super) fn exposed(secrets: Option<&SecretData>) -> BTreeMap<String, String> {
    secrets.map(|secrets| secrets.expose().clone()).unwrap_or_default()
}

pub(super) fn owned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn volume_capability(capability: &Capability<'_>) -> v1::VolumeCapability {
    let mount = match &capability.access {
        VolumeAccessType::Block => None,
        VolumeAccessType::Mount { fs_type, flags } => Some((*fs_type, *flags)),
    };
    capability_of(mount, capability.mode)
}

/// A block volume has no file system to be mounted.
pub(super) fn capability_of(mount: Option<(&str, &[Box<str>])>, access: AccessMode) -> v1::VolumeCapability {
    use volume_capability::AccessType;
    let access_type = match mount {
        None => AccessType::Block(volume_capability::BlockVolume {}),
        Some((fs_type, flags)) => AccessType::Mount(volume_capability::MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    v1::VolumeCapability {
        access_mode: Some(volume_capability::AccessMode {
            mode: mode(access).into(),
        }),
        access_type: Some(access_type),
    }
}

fn mode(mode: AccessMode) -> access_mode::Mode {
    use access_mode::Mode;
    match mode {
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    }
}

/// The name of an access mode in the CSI spec.
pub fn mode_name(access_mode: AccessMode) -> &'static str {
    mode(access_mode).as_str_name()
}
