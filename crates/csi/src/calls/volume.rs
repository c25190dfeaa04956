//! Calls of the controller service that make a volume and remove one.

use std::collections::BTreeMap;

use csi_attacher_proto::v1;

use super::controller::{MAX_VOLUME_BYTES, MAX_VOLUME_ELEMENTS, capability_of, exposed, owned};
use crate::apiserver::SecretData;
use crate::call::{Call, ElementField};
use crate::objects::StringMap;
use crate::telemetry::Span;
use crate::telemetry::names::attr;
use csi_attacher_model::provision::topology::Segment;
use csi_attacher_model::provision::{AnsweredVolume, ClaimAccessType, CreatePlan, DeletePlan, VolumeCapability};

/// Elements of a volume: its context and its topologies.
const IN_VOLUME: &[ElementField] = &[ElementField::repeated(3, &[]), ElementField::repeated(5, IN_TOPOLOGY)];
/// Elements of a topology: its segments.
const IN_TOPOLOGY: &[ElementField] = &[ElementField::repeated(1, &[])];

/// Makes a volume; the answer is what the driver says of it, unchecked, or none when it says nothing.
#[derive(Clone, Copy, Debug)]
pub struct CreateVolume<'a> {
    /// What the volume is made with.
    pub plan: &'a CreatePlan,
    /// Contents of the provisioner's Secret, if the class names one.
    pub secrets: Option<&'a SecretData>,
}

impl Call for CreateVolume<'_> {
    const PATH: &'static str = "/csi.v1.Controller/CreateVolume";
    const MAX_ANSWER_BYTES: usize = MAX_VOLUME_BYTES;
    const ELEMENTS: &'static [ElementField] = &[ElementField::single(1, IN_VOLUME)];
    const MAX_ELEMENTS: usize = MAX_VOLUME_ELEMENTS;
    type Request = v1::CreateVolumeRequest;
    type Response = v1::CreateVolumeResponse;
    type Answer = Option<AnsweredVolume>;

    fn request(&self) -> Self::Request {
        let plan = self.plan;
        let terms = |segments: &[Segment]| segments.iter().map(topology).collect();
        v1::CreateVolumeRequest {
            name: plan.name.to_string(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: plan.required_bytes,
                limit_bytes: 0,
            }),
            volume_capabilities: plan.capabilities.iter().map(capability).collect(),
            parameters: owned(plan.parameters.iter()),
            secrets: exposed(self.secrets),
            accessibility_requirements: plan.accessibility.as_ref().map(|required| v1::TopologyRequirement {
                requisite: terms(&required.requisite),
                preferred: terms(&required.preferred),
            }),
            ..v1::CreateVolumeRequest::default()
        }
    }

    fn secrets(&self) -> Option<&SecretData> {
        self.secrets
    }

    /// Values of parameters may be credentials of their own kind, and are not shown.
    fn describe(&self, span: &mut Span) {
        span.set(attr::PERSISTENT_VOLUME_NAME, &*self.plan.name);
        span.set(attr::VOLUME_REQUESTED_BYTES, self.plan.required_bytes);
        span.set(attr::TOPOLOGY_MODE, self.plan.topology_mode());
        if let Some(required) = &self.plan.accessibility {
            span.set(
                attr::TOPOLOGY_REQUISITE,
                i64::try_from(required.requisite.len()).unwrap_or(i64::MAX),
            );
            if let Some(first) = required.first().filter(|_| span.is_recording()) {
                span.set(attr::TOPOLOGY_FIRST, first.to_string());
            }
        }
    }

    fn answer(&self, response: Self::Response, span: &mut Span) -> Self::Answer {
        let volume = response.volume?;
        span.set(attr::CSI_VOLUME_ID, volume.volume_id.as_str());
        span.set(attr::VOLUME_CAPACITY_BYTES, volume.capacity_bytes);
        let segments = volume.accessible_topology.into_iter();
        Some(AnsweredVolume {
            handle: volume.volume_id.into(),
            capacity_bytes: volume.capacity_bytes,
            context: StringMap::from(volume.volume_context),
            topology: segments.map(segment).collect(),
        })
    }
}

/// Removes a volume.
#[derive(Clone, Copy, Debug)]
pub struct DeleteVolume<'a> {
    /// The volume.
    pub plan: &'a DeletePlan,
    /// Contents of the provisioner's Secret, if there is one.
    pub secrets: Option<&'a SecretData>,
}

impl Call for DeleteVolume<'_> {
    const PATH: &'static str = "/csi.v1.Controller/DeleteVolume";
    const ELEMENTS: &'static [ElementField] = &[];
    type Request = v1::DeleteVolumeRequest;
    type Response = v1::DeleteVolumeResponse;
    type Answer = ();

    fn request(&self) -> Self::Request {
        v1::DeleteVolumeRequest {
            volume_id: self.plan.handle.to_string(),
            secrets: exposed(self.secrets),
        }
    }

    fn secrets(&self) -> Option<&SecretData> {
        self.secrets
    }

    fn describe(&self, span: &mut Span) {
        span.set(attr::CSI_VOLUME_ID, &*self.plan.handle);
    }

    fn answer(&self, _: Self::Response, _: &mut Span) {}
}

fn segment(topology: v1::Topology) -> Segment {
    let entries = topology.segments.into_iter();
    let entries = entries.map(|(key, value)| (key.into_boxed_str(), value.into_boxed_str()));
    Segment::from(entries.collect::<BTreeMap<Box<str>, Box<str>>>())
}

fn topology(segment: &Segment) -> v1::Topology {
    v1::Topology {
        segments: owned(segment.iter()),
    }
}

fn capability(capability: &VolumeCapability) -> v1::VolumeCapability {
    let mount = match &capability.access {
        ClaimAccessType::Block => None,
        ClaimAccessType::Mount { fs_type, flags } => Some((&**fs_type, &**flags)),
    };
    capability_of(mount, capability.mode)
}
