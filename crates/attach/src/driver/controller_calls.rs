//! What an engine asks of a driver, so that a model can stand in for one.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::apiserver::SecretData;
use crate::csi::{CallError, CsiClient, VolumePage};
use crate::decide::{PublishRequest, VolumeOnNode};
use crate::objects::StringMap;
use crate::telemetry::Span;

/// The calls of a driver that move volumes. Each begins with the first poll of its future and ends by its deadline; a call
/// whose future is dropped may still be carried out. An engine makes them behind a
/// [`Fence`](csi_attacher_runtime::fence::Fence) only.
pub trait ControllerCalls: Send + Sync {
    /// ControllerPublishVolume; answers the publish context.
    fn publish<'a>(
        &'a self,
        plan: &'a PublishRequest<'_>,
        secrets: Option<&'a SecretData>,
        deadline: Duration,
        parent: &'a Span,
    ) -> BoxFuture<'a, Result<StringMap, CallError>>;

    /// ControllerUnpublishVolume.
    fn unpublish<'a>(
        &'a self,
        place: VolumeOnNode<'a>,
        secrets: Option<&'a SecretData>,
        deadline: Duration,
        parent: &'a Span,
    ) -> BoxFuture<'a, Result<(), CallError>>;

    /// The page of ListVolumes that begins at `token`, empty for the first. What stands in for a driver need not have it.
    fn list_volumes<'a>(
        &'a self,
        _max_entries: i32,
        _token: &'a str,
        _deadline: Duration,
    ) -> BoxFuture<'a, Result<VolumePage, CallError>> {
        let error = CallError {
            code: tonic::Code::Unimplemented,
            message: "there is no ListVolumes".to_owned(),
            transport: false,
        };
        Box::pin(std::future::ready(Err(error)))
    }

    /// The same, with calls that are counted as being about volumes of an in-tree plug-in; none when nothing is counted.
    fn for_in_tree(&self) -> Option<Arc<dyn ControllerCalls>> {
        None
    }
}

impl ControllerCalls for CsiClient {
    fn publish<'a>(
        &'a self,
        plan: &'a PublishRequest<'_>,
        secrets: Option<&'a SecretData>,
        deadline: Duration,
        parent: &'a Span,
    ) -> BoxFuture<'a, Result<StringMap, CallError>> {
        Box::pin(self.publish(plan, secrets, deadline, parent))
    }

    fn unpublish<'a>(
        &'a self,
        place: VolumeOnNode<'a>,
        secrets: Option<&'a SecretData>,
        deadline: Duration,
        parent: &'a Span,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(self.unpublish(place, secrets, deadline, parent))
    }

    fn list_volumes<'a>(
        &'a self,
        max_entries: i32,
        token: &'a str,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<VolumePage, CallError>> {
        Box::pin(self.list_volumes(max_entries, token, deadline))
    }

    fn for_in_tree(&self) -> Option<Arc<dyn ControllerCalls>> {
        Some(Arc::new(self.migrated()))
    }
}
