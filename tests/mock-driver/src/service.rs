//! The gRPC services: each call goes to the backend with the settings of the moment.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::settings::ControllerCapability as Cap;
use super::shared::{MockShared, MockState, dispatch};
use csi_attacher_proto::v1;

/// Answers all services of one mock driver.
#[derive(Clone)]
pub(super) struct MockService {
    pub shared: Arc<MockShared>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::identity_server::Identity for MockService {
    async fn get_plugin_info(&self, request: Request<v1::GetPluginInfoRequest>) -> Answer<v1::GetPluginInfoResponse> {
        dispatch(&self.shared, request, |state, _| {
            Ok(v1::GetPluginInfoResponse {
                name: state.settings.driver_name.clone(),
                vendor_version: state.settings.vendor_version.clone(),
                manifest: [("kind".to_owned(), "mock".to_owned())].into(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        dispatch(&self.shared, request, |state, _| {
            let capabilities = plugin_capabilities(state);
            Ok(v1::GetPluginCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn probe(&self, request: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        dispatch(&self.shared, request, |state, _| {
            Ok(v1::ProbeResponse {
                ready: Some(state.settings.ready),
            })
        })
        .await
    }
}

fn plugin_capabilities(state: &MockState) -> Vec<v1::PluginCapability> {
    use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
    let mut capabilities = Vec::new();
    if state.settings.controller_service {
        let service = Service {
            r#type: service::Type::ControllerService.into(),
        };
        capabilities.push(v1::PluginCapability {
            r#type: Some(Type::Service(service)),
        });
        if state.settings.has(Cap::ExpandVolume) {
            let expansion = VolumeExpansion {
                r#type: volume_expansion::Type::Online.into(),
            };
            capabilities.push(v1::PluginCapability {
                r#type: Some(Type::VolumeExpansion(expansion)),
            });
        }
    }
    if !state.settings.topology_keys.is_empty() {
        let service = Service {
            r#type: service::Type::VolumeAccessibilityConstraints.into(),
        };
        capabilities.push(v1::PluginCapability {
            r#type: Some(Type::Service(service)),
        });
    }
    capabilities
}

fn create_volume(state: &mut MockState, request: &v1::CreateVolumeRequest) -> Result<v1::CreateVolumeResponse, Status> {
    let mut response = state.backend.create_volume(&state.settings, request)?;
    if let (Some(answer), Some(volume)) = (state.answer.take(), response.volume.as_mut()) {
        answer.change(volume);
    }
    Ok(response)
}

/// Of a driver with topology, one value for each key.
fn node_topology(state: &MockState) -> Option<v1::Topology> {
    let keys = &state.settings.topology_keys;
    let segments = keys.iter().map(|key| (key.clone(), "mock".to_owned())).collect();
    (!keys.is_empty()).then_some(v1::Topology { segments })
}

/// Only what csi-sanity needs of the node side. Nothing is ever published on a node, so there is nothing to take back.
#[tonic::async_trait]
impl v1::node_server::Node for MockService {
    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        dispatch(&self.shared, request, |_, message| {
            if message.volume_id.is_empty() || message.target_path.is_empty() {
                return Err(Status::invalid_argument("volume_id or target_path is missing"));
            }
            Ok(v1::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        dispatch(&self.shared, request, |_, _| {
            Ok(v1::NodeGetCapabilitiesResponse::default())
        })
        .await
    }

    async fn node_get_info(&self, request: Request<v1::NodeGetInfoRequest>) -> Answer<v1::NodeGetInfoResponse> {
        dispatch(&self.shared, request, |state, _| {
            let node_id = state.settings.node_id.clone();
            let limit = state
                .settings
                .limit_of(&node_id)
                .and_then(|limit| i64::try_from(limit).ok());
            let max_volumes_per_node = limit.unwrap_or_default();
            Ok(v1::NodeGetInfoResponse {
                node_id,
                max_volumes_per_node,
                accessible_topology: node_topology(state),
            })
        })
        .await
    }
}

/// One method of the Controller service: which capability it needs, and what the backend does.
macro_rules! controller {
    ($(async fn $name:ident($request:ty) -> $response:ty, $capability:expr, |$state:ident, $message:ident| $work:expr;)*) => {
        #[tonic::async_trait]
        impl v1::controller_server::Controller for MockService {
            $(async fn $name(&self, request: Request<$request>) -> Answer<$response> {
                dispatch(&self.shared, request, |$state, $message| {
                    let capability: Option<Cap> = $capability;
                    match capability {
                        Some(capability) => $state.settings.require(capability)?,
                        None => $state.settings.require_controller()?,
                    }
                    $work
                })
                .await
            })*
        }
    };
}

controller! {
    async fn create_volume(v1::CreateVolumeRequest) -> v1::CreateVolumeResponse, Some(Cap::CreateDeleteVolume),
        |state, message| create_volume(state, &message);
    async fn delete_volume(v1::DeleteVolumeRequest) -> v1::DeleteVolumeResponse, Some(Cap::CreateDeleteVolume),
        |state, message| state.backend.delete_volume(&message);
    async fn controller_publish_volume(v1::ControllerPublishVolumeRequest) -> v1::ControllerPublishVolumeResponse,
        Some(Cap::PublishUnpublishVolume), |state, message| state.backend.publish(&state.settings, &message);
    async fn controller_unpublish_volume(v1::ControllerUnpublishVolumeRequest) -> v1::ControllerUnpublishVolumeResponse,
        Some(Cap::PublishUnpublishVolume), |state, message| state.backend.unpublish(&state.settings, &message);
    async fn validate_volume_capabilities(v1::ValidateVolumeCapabilitiesRequest) -> v1::ValidateVolumeCapabilitiesResponse,
        None, |state, message| state.backend.validate(&state.settings, message);
    async fn list_volumes(v1::ListVolumesRequest) -> v1::ListVolumesResponse, Some(Cap::ListVolumes),
        |state, message| state.backend.list_volumes(&state.settings, &message);
    async fn get_capacity(v1::GetCapacityRequest) -> v1::GetCapacityResponse, Some(Cap::GetCapacity),
        |state, _message| Ok(v1::GetCapacityResponse {
            available_capacity: state.backend.free_bytes(&state.settings),
            ..v1::GetCapacityResponse::default()
        });
    async fn controller_get_capabilities(v1::ControllerGetCapabilitiesRequest) -> v1::ControllerGetCapabilitiesResponse,
        None, |state, _message| Ok(controller_capabilities(state));
    async fn create_snapshot(v1::CreateSnapshotRequest) -> v1::CreateSnapshotResponse, Some(Cap::CreateDeleteSnapshot),
        |state, message| state.backend.create_snapshot(&state.settings, &message);
    async fn delete_snapshot(v1::DeleteSnapshotRequest) -> v1::DeleteSnapshotResponse, Some(Cap::CreateDeleteSnapshot),
        |state, message| state.backend.delete_snapshot(&message);
    async fn list_snapshots(v1::ListSnapshotsRequest) -> v1::ListSnapshotsResponse, Some(Cap::ListSnapshots),
        |state, message| state.backend.list_snapshots(&state.settings, &message);
    async fn get_snapshot(v1::GetSnapshotRequest) -> v1::GetSnapshotResponse, Some(Cap::GetSnapshot),
        |state, message| state.backend.get_snapshot(&message);
    async fn controller_expand_volume(v1::ControllerExpandVolumeRequest) -> v1::ControllerExpandVolumeResponse,
        Some(Cap::ExpandVolume), |state, message| state.backend.expand(&state.settings, &message);
    async fn controller_get_volume(v1::ControllerGetVolumeRequest) -> v1::ControllerGetVolumeResponse, Some(Cap::GetVolume),
        |state, message| state.backend.get_volume(&state.settings, &message);
    async fn controller_modify_volume(v1::ControllerModifyVolumeRequest) -> v1::ControllerModifyVolumeResponse,
        Some(Cap::ModifyVolume), |state, message| state.backend.modify(&state.settings, &message);
}

fn controller_capabilities(state: &MockState) -> v1::ControllerGetCapabilitiesResponse {
    use v1::controller_service_capability::{Rpc, Type};
    let describe = |capability: &Cap| v1::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc {
            r#type: (*capability).into(),
        })),
    };
    let capabilities = state.settings.capabilities.iter().map(describe).collect();
    v1::ControllerGetCapabilitiesResponse { capabilities }
}
