//! What a scenario waits for and looks at: objects through the API server, calls at the driver. Nothing of the attacher
//! itself is looked at.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use csi_mock_driver::{CallRecord, CallResult as CallOutcome, Method};

use crate::scenario::{Outcome, Stop, demand};
use crate::support::Error;
use crate::support::fixtures::Object;
use crate::support::wait::wait_for;
use crate::test::Test;

/// How long anything may take. It is long because many scenarios share two processor cores.
pub const LIMIT: Duration = Duration::from_secs(30);
/// What waits for nothing is done by then, on a busy machine as well. Who does not do it at all costs the suite so long.
pub const SOON: Duration = Duration::from_secs(10);
/// The annotation with what the driver calls the node.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

pub fn attach_error_of(attachment: &VolumeAttachment) -> Option<&VolumeError> {
    attachment.status.as_ref()?.attach_error.as_ref()
}

pub fn detach_error_of(attachment: &VolumeAttachment) -> Option<&VolumeError> {
    attachment.status.as_ref()?.detach_error.as_ref()
}

pub fn text(error: &VolumeError) -> String {
    error.message.clone().unwrap_or_default()
}

/// Whoever reads an error is to learn something of it.
fn said(error: &VolumeError) -> Outcome {
    demand(!text(error).trim().is_empty(), || "an error without a text".to_owned())
}

pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

/// A wait that was in vain, with the parts of the object that attachers write.
fn in_short(error: Error) -> Stop {
    let Error::TimedOut { what, limit, last } = error else {
        return Stop::from(error);
    };
    let Ok(object) = serde_json::from_str::<Value>(&last) else {
        return Stop::Failed(format!("{what}: not within {limit:?}; last seen: {last}"));
    };
    let part = |path: &str| object.pointer(path).cloned().unwrap_or_default();
    let seen = json!({
        "finalizers": part("/metadata/finalizers"),
        "deletionTimestamp": part("/metadata/deletionTimestamp"),
        "annotations": part("/metadata/annotations"),
        "status": part("/status"),
    });
    Stop::Failed(format!("{what}: not within {limit:?}; last seen: {seen}"))
}

impl Test {
    pub async fn attachment_is(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&VolumeAttachment) -> bool,
    ) -> Outcome<VolumeAttachment> {
        self.object_is(&self.attachment, what, limit, wanted).await
    }

    pub async fn volume_is(&self, what: &str, wanted: impl Fn(&PersistentVolume) -> bool) -> Outcome<PersistentVolume> {
        self.object_is(&self.volume, what, LIMIT, wanted).await
    }

    async fn object_is<K>(&self, name: &str, what: &str, limit: Duration, wanted: impl Fn(&K) -> bool) -> Outcome<K>
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let found = wait_for(self.api::<K>(), name, what, limit, |object| object.is_some_and(&wanted));
        let found = found.await.map_err(in_short)?;
        found.ok_or_else(|| Stop::Failed(format!("{name} is gone")))
    }

    /// Waits until the VolumeAttachment says that the volume is attached. An old attachError may be left on it, as the Go
    /// sidecar clears only what its copy of the object shows; one scenario of the group "errors" asks for more.
    pub async fn attached(&self) -> Outcome<VolumeAttachment> {
        self.attachment_is("attached", LIMIT, is_attached).await
    }

    pub async fn attached_and_claimed(&self) -> Outcome<VolumeAttachment> {
        let attachment = self.attached().await?;
        self.claimed(&attachment)?;
        Ok(attachment)
    }

    /// Waits until the VolumeAttachment has an attachError, with whatever text, but for none.
    pub async fn some_attach_error(&self) -> Outcome<VolumeError> {
        let error = self.attach_error("").await?;
        said(&error)?;
        Ok(error)
    }

    /// Waits until the VolumeAttachment has a detachError, with whatever text, but for none.
    pub async fn some_detach_error(&self) -> Outcome<VolumeAttachment> {
        let attachment = self.detach_error("").await?;
        said(&detach_error_of(&attachment).cloned().unwrap_or_default())?;
        Ok(attachment)
    }

    pub async fn attach_error(&self, part: &str) -> Outcome<VolumeError> {
        let has = |error: Option<&VolumeError>| error.is_some_and(|error| text(error).contains(part));
        let what = format!("attachError with {part:?}");
        let attachment = self.attachment_is(&what, LIMIT, |it| has(attach_error_of(it))).await?;
        demand(!is_attached(&attachment), || {
            "attached in spite of its attachError".to_owned()
        })?;
        Ok(attach_error_of(&attachment).cloned().unwrap_or_default())
    }

    pub async fn detach_error(&self, part: &str) -> Outcome<VolumeAttachment> {
        let has = |error: Option<&VolumeError>| error.is_some_and(|error| text(error).contains(part));
        let what = format!("detachError with {part:?}");
        self.attachment_is(&what, LIMIT, |it| has(detach_error_of(it))).await
    }

    pub async fn attachment_gone(&self) -> Outcome {
        self.attachment_gone_within(LIMIT).await
    }

    pub async fn attachment_gone_within(&self, limit: Duration) -> Outcome {
        let api = self.api::<VolumeAttachment>();
        wait_for(api, &self.attachment, "gone", limit, |object| object.is_none()).await?;
        Ok(())
    }

    /// Waits for the end of the detach.
    pub async fn detached(&self) -> Outcome {
        self.attachment_gone().await?;
        self.not_published()
    }

    /// Asks for the detach and waits for its end.
    pub async fn detach(&self) -> Outcome {
        self.delete_attachment().await?;
        self.detached().await
    }

    pub async fn volume_gone(&self) -> Outcome {
        let api = self.api::<PersistentVolume>();
        wait_for(api, &self.volume, "gone", LIMIT, |object| object.is_none()).await?;
        Ok(())
    }

    pub async fn get_attachment(&self) -> Outcome<VolumeAttachment> {
        Ok(self.api::<VolumeAttachment>().get(&self.attachment).await?)
    }

    pub async fn get_volume(&self) -> Outcome<PersistentVolume> {
        Ok(self.api::<PersistentVolume>().get(&self.volume).await?)
    }

    /// The calls for the volume and the node so far.
    pub fn calls(&self, method: Method) -> Vec<CallRecord> {
        let ours =
            |call: &CallRecord| call.volume.as_ref() == Some(&self.handle) && call.node.as_ref() == Some(&self.node_id);
        self.env.driver.calls_of(method).into_iter().filter(ours).collect()
    }

    pub fn publishes(&self) -> Vec<CallRecord> {
        self.calls(Method::ControllerPublishVolume)
    }

    pub fn unpublishes(&self) -> Vec<CallRecord> {
        self.calls(Method::ControllerUnpublishVolume)
    }

    /// Waits for a call of this method for the volume and the node that satisfies a condition.
    pub async fn call(
        &self,
        method: Method,
        what: &str,
        wanted: impl Fn(&CallRecord) -> bool + Send + 'static,
    ) -> Outcome<CallRecord> {
        let (handle, node) = (self.handle.clone(), self.node_id.clone());
        let found = self.env.driver.wait_for_call(move |call| {
            call.method == method
                && call.volume.as_ref() == Some(&handle)
                && call.node.as_ref() == Some(&node)
                && wanted(call)
        });
        tokio::time::timeout(LIMIT, found)
            .await
            .map_err(|_| Stop::Failed(format!("no {method:?} {what} within {LIMIT:?}")))
    }

    /// Waits for a ControllerPublishVolume, running or over.
    pub async fn publish_begins(&self) -> Outcome<CallRecord> {
        self.call(Method::ControllerPublishVolume, "began", |_| true).await
    }

    /// Waits for a ControllerUnpublishVolume, running or over.
    pub async fn unpublish_begins(&self) -> Outcome<CallRecord> {
        self.call(Method::ControllerUnpublishVolume, "began", |_| true).await
    }

    /// Makes sure that a call that was seen still runs, so that what was looked at meanwhile was so before its answer.
    pub fn still_runs(&self, call: &CallRecord) -> Outcome {
        let runs = |other: &CallRecord| other.id == call.id && other.outcome == CallOutcome::Running;
        demand(self.env.driver.calls_of(call.method).iter().any(runs), || {
            format!(
                "{:?} ended before the scenario could look; give the call more time",
                call.method
            )
        })
    }

    /// Lets a call go on that a rule holds until it is released, after [`Self::still_runs`].
    pub fn release(&self, call: &CallRecord) -> Outcome {
        self.still_runs(call)?;
        self.env.driver.release(call.id);
        Ok(())
    }

    /// The one way in which the volume was published; a call may be repeated, but only with the same content.
    pub async fn published_as(&self) -> Outcome<CallRecord> {
        self.publish_begins().await?;
        let calls = self.publishes();
        let Some(first) = calls.first().cloned() else {
            return Err(Stop::Failed("no ControllerPublishVolume".to_owned()));
        };
        for other in &calls {
            let equal = other.capability == first.capability
                && other.readonly == first.readonly
                && other.volume_context == first.volume_context
                && other.secret_keys == first.secret_keys;
            demand(equal, || {
                "a repeated ControllerPublishVolume has other content".to_owned()
            })?;
        }
        Ok(first)
    }

    pub fn no_calls(&self) -> Outcome {
        let count = self.publishes().len() + self.unpublishes().len();
        demand(count == 0, || {
            format!("{count} calls for a volume that none may be made for")
        })
    }

    pub fn is_published(&self) -> bool {
        let pair = (self.handle.clone(), self.node_id.clone());
        self.env.driver.published().contains(&pair)
    }

    pub fn published(&self) -> Outcome {
        demand(self.is_published(), || {
            "the driver does not have the volume attached".to_owned()
        })
    }

    pub fn not_published(&self) -> Outcome {
        demand(!self.is_published(), || {
            "the driver still has the volume attached".to_owned()
        })
    }

    /// The VolumeAttachment must carry the attacher's finalizer and the node's id.
    pub fn claimed(&self, attachment: &VolumeAttachment) -> Outcome {
        self.has_finalizer(attachment)?;
        let id = attachment.annotations().get(NODE_ID);
        demand(id == Some(&self.node_id), || {
            format!("annotation {NODE_ID} is {id:?}, want {:?}", self.node_id)
        })
    }

    /// An object must carry the attacher's finalizer, once.
    pub fn has_finalizer(&self, object: &impl kube::Resource) -> Outcome {
        let count = self.count_finalizers(object);
        demand(count == 1, || {
            format!(
                "{} has the finalizer {} {count} times",
                object.name_any(),
                self.env.finalizer
            )
        })
    }

    pub fn count_finalizers(&self, object: &impl kube::Resource) -> usize {
        let all = object.finalizers().iter();
        all.filter(|entry| **entry == self.env.finalizer).count()
    }

    /// Waits until the attacher has seen all that was there before: it has attached a volume made now.
    pub async fn barrier(&self, suffix: &str) -> Outcome {
        self.other(suffix).given_attached().await.map(drop)
    }
}
