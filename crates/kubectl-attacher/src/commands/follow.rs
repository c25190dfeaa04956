//! One VolumeAttachment that a command asks something of: the annotation, and what becomes of the object.

use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;

use super::Context;
use crate::error::{PluginError, Result};
use crate::gather::words;
use crate::observed::{Gap, GapReason};

/// Who writes, in `managedFields` and Events.
pub(super) const MANAGER: &str = "kubectl-attacher";

/// Sets an annotation. A name comes back with another object; the UID does not.
pub(super) async fn annotate(
    context: &Context,
    record: &Attachment,
    annotation: &str,
    value: &str,
    dry_run: bool,
) -> Result<()> {
    let api: Api<VolumeAttachmentWire> = Api::all(context.client.clone());
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        dry_run,
        ..PatchParams::default()
    };
    let body = json!({"metadata": {"uid": &*record.uid, "annotations": {annotation: value}}});
    let name = &record.name;
    let patched = api.patch_metadata(name, &parameters, &Patch::Merge(&body)).await;
    patched.map(drop).map_err(|error| PluginError::Api {
        what: format!("cannot set the annotation {annotation} on VolumeAttachment {name}"),
        message: words(&error),
    })
}

/// Follows the object of this name until `look` has a result; it is handed none when the object is gone.
pub(super) async fn follow<T>(
    context: &Context,
    name: &str,
    mut look: impl FnMut(Option<VolumeAttachmentWire>) -> Option<T>,
) -> Result<T> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let stream = watcher(Api::<VolumeAttachmentWire>::all(context.client.clone()), only).default_backoff();
    pin_mut!(stream);
    let mut present = false;
    while let Some(event) = stream.next().await {
        let seen = match event {
            Ok(Event::Init) => {
                present = false;
                continue;
            }
            Ok(Event::InitDone) if present => continue,
            Ok(Event::InitDone | Event::Delete(_)) => None,
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                present = true;
                Some(wire)
            }
            Err(error) => match fatal(&error) {
                Some(error) => return Err(error),
                None => continue,
            },
        };
        if let Some(result) = look(seen) {
            return Ok(result);
        }
    }
    Err(PluginError::Usage("the watch of the VolumeAttachment ended".to_owned()))
}

/// An error of a watch of VolumeAttachments that asking again does not end.
pub(super) fn fatal(error: &watcher::Error) -> Option<PluginError> {
    let text = error.to_string();
    let forbidden = text.to_ascii_lowercase().contains("forbidden");
    forbidden.then_some(PluginError::Unreadable(Gap {
        verb: "list",
        group: "storage.k8s.io",
        resource: "volumeattachments",
        namespace: None,
        reason: GapReason::Forbidden,
    }))
}
