//! The calls of an engine, all of which pass the fence.

use std::sync::Arc;
use std::time::Duration;

pub(super) use csi_attacher_runtime::fence::{CallFailure, Fence, LeaseLost};

use super::controller_calls::ControllerCalls;
use crate::apiserver::SecretData;
use crate::csi::VolumePage;
use crate::decide::{PublishRequest, VolumeOnNode};
use crate::lease::Term;
use crate::objects::StringMap;
use crate::telemetry::Span;

/// What calls a driver, for as long as its Lease is held. Clones share the connection.
#[derive(Clone)]
pub(super) struct FencedClient {
    calls: Arc<dyn ControllerCalls>,
    fence: Fence,
}

impl FencedClient {
    /// Calls that pass this fence.
    pub fn behind(calls: Arc<dyn ControllerCalls>, fence: Fence) -> Self {
        Self { calls, fence }
    }

    /// The term in which calls are made; none when there is no election.
    pub fn term(&self) -> Option<&Term> {
        self.fence.term()
    }

    /// Whether a call would be sent now.
    pub fn may_start(&self) -> bool {
        self.fence.may_start()
    }

    /// ControllerPublishVolume; answers the publish context.
    pub async fn publish(
        &self,
        plan: &PublishRequest<'_>,
        secrets: Option<&SecretData>,
        deadline: Duration,
        parent: &Span,
    ) -> Result<StringMap, CallFailure> {
        self.fence
            .call(self.calls.publish(plan, secrets, deadline, parent))
            .await
    }

    /// ControllerUnpublishVolume.
    pub async fn unpublish(
        &self,
        place: VolumeOnNode<'_>,
        secrets: Option<&SecretData>,
        deadline: Duration,
        parent: &Span,
    ) -> Result<(), CallFailure> {
        self.fence
            .call(self.calls.unpublish(place, secrets, deadline, parent))
            .await
    }

    /// One page of ListVolumes.
    pub async fn list_volumes(
        &self,
        max_entries: i32,
        token: &str,
        deadline: Duration,
    ) -> Result<VolumePage, CallFailure> {
        self.fence
            .call(self.calls.list_volumes(max_entries, token, deadline))
            .await
    }

    /// The same, with calls that are counted as being about volumes of an in-tree plug-in; none when nothing is counted.
    pub fn for_in_tree(&self) -> Option<Self> {
        let calls = self.calls.for_in_tree()?;
        let fence = self.fence.clone();
        Some(Self { calls, fence })
    }
}
