//! The Event that records a release by this program. It is written first: what cannot be recorded is not done.

use k8s_openapi::api::core::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::commands::follow::MANAGER;
use crate::error::{PluginError, Result};
use crate::explain::ObjectName;
use crate::gather::{now, words};

/// The API server's limit on the text of an Event, in bytes.
const MAX_NOTE: usize = 1024;

/// Writes an Event of reason `Released` about an object without a namespace.
pub(super) async fn record(client: &Client, object: &ObjectName, uid: &str, note: &str, dry: bool) -> Result<()> {
    let api_version = match object.kind {
        "VolumeAttachment" => "storage.k8s.io/v1",
        _ => "v1",
    };
    let at = now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let note = csi_attacher_model::decide::plain(csi_attacher_model::decide::cut(note, MAX_NOTE)).into_owned();
    let event = json!({
        "metadata": {"generateName": "kubectl-attacher-", "namespace": "default"},
        "involvedObject": {"apiVersion": api_version, "kind": object.kind, "name": object.name, "uid": uid},
        "reason": "Released", "type": "Warning", "message": note, "count": 1,
        "firstTimestamp": at, "lastTimestamp": at,
        "source": {"component": MANAGER}, "reportingComponent": MANAGER, "reportingInstance": MANAGER,
    });
    let event: Event = serde_json::from_value(event).map_err(|error| PluginError::Output(error.to_string()))?;
    let parameters = PostParams {
        dry_run: dry,
        field_manager: Some(MANAGER.to_owned()),
    };
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    match events.create(&parameters, &event).await {
        Ok(_) => Ok(()),
        Err(error) => Err(PluginError::Refused(format!(
            "the release cannot be recorded as an Event in namespace default, so nothing is done: {}; missing RBAC rule: {{apiGroups: \
             [\"\"], resources: [\"events\"], verbs: [\"create\"]}}",
            words(&error)
        ))),
    }
}
