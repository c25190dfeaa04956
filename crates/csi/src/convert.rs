//! Between the decision core's types and the messages of the CSI spec.

use std::collections::BTreeMap;

use super::client::CapabilityReport;
use crate::decide::{AccessMode, Capabilities, Capability, PublishRequest, VolumeAccessType};
use csi_attacher_proto::v1::{
    self, controller_service_capability as controller, plugin_capability as plugin, volume_capability,
};

pub(super) fn publish(
    plan: &PublishRequest<'_>,
    secrets: BTreeMap<String, String>,
) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: plan.place.volume_id.to_owned(),
        node_id: plan.place.node_id.to_owned(),
        volume_capability: Some(capability(&plan.capability)),
        readonly: plan.read_only,
        secrets,
        volume_context: plan
            .volume_context
            .iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn capability(capability: &Capability<'_>) -> v1::VolumeCapability {
    let access_type = match &capability.access {
        VolumeAccessType::Block => volume_capability::AccessType::Block(volume_capability::BlockVolume {}),
        VolumeAccessType::Mount { fs_type, flags } => {
            volume_capability::AccessType::Mount(volume_capability::MountVolume {
                fs_type: (*fs_type).to_owned(),
                mount_flags: flags.iter().map(ToString::to_string).collect(),
                ..Default::default()
            })
        }
    };
    v1::VolumeCapability {
        access_mode: Some(volume_capability::AccessMode {
            mode: mode(capability.mode).into(),
        }),
        access_type: Some(access_type),
    }
}

fn mode(mode: AccessMode) -> volume_capability::access_mode::Mode {
    use volume_capability::access_mode::Mode;
    match mode {
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    }
}

/// The access mode's name in the CSI spec.
pub fn mode_name(access_mode: AccessMode) -> &'static str {
    mode(access_mode).as_str_name()
}

pub(super) fn has_controller_service(answer: &v1::GetPluginCapabilitiesResponse) -> bool {
    answer.capabilities.iter().any(|capability| {
        let Some(plugin::Type::Service(service)) = &capability.r#type else {
            return false;
        };
        service.r#type() == plugin::service::Type::ControllerService
    })
}

/// Reads the controller's capabilities. Numbers that this version does not know are left out.
pub(super) fn report(answer: &v1::ControllerGetCapabilitiesResponse) -> CapabilityReport {
    use controller::rpc::Type;
    let mut report = CapabilityReport::default();
    for capability in &answer.capabilities {
        let Some(controller::Type::Rpc(rpc)) = &capability.r#type else {
            continue;
        };
        let Ok(kind) = Type::try_from(rpc.r#type) else { continue };
        set(&mut report.bits, kind);
        if kind != Type::Unknown {
            report.names.push(kind.as_str_name().to_owned());
        }
    }
    report.names.sort_unstable();
    report.names.dedup();
    report
}

fn set(bits: &mut Capabilities, kind: controller::rpc::Type) {
    use controller::rpc::Type;
    match kind {
        Type::PublishUnpublishVolume => bits.publish_unpublish = true,
        Type::PublishReadonly => bits.publish_readonly = true,
        Type::SingleNodeMultiWriter => bits.single_node_multi_writer = true,
        Type::ListVolumes => bits.list_volumes = true,
        Type::ListVolumesPublishedNodes => bits.list_volumes_published_nodes = true,
        _ => {}
    }
}
