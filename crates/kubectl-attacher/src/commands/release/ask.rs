//! The request to the operator, and its answer.

use csi_attacher_model::api::names::{RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, finalizer_name};
use csi_attacher_model::decide::{ReleaseAnswer, ReleaseProof, ReleaseRequest};
use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;

use super::direct::json_patch;
use super::{MANAGER, whoami};
use crate::cli::{DryRun, ReleaseArguments};
use crate::commands::list::fatal;
use crate::commands::{Context, print};
use crate::error::{EXIT_OK, EXIT_REFUSED, PluginError, Result};
use crate::gather::{now, words};

/// Asks the operator by the annotation, and waits for its answer.
pub(super) async fn ask(
    context: &Context,
    arguments: &ReleaseArguments,
    record: &Attachment,
    proof: Option<ReleaseProof>,
) -> Result<u8> {
    let Some(deleted) = record.deleting else {
        return Err(PluginError::Refused("it is not being deleted".to_owned()));
    };
    let request = ReleaseRequest {
        uid: record.uid.to_string(),
        deleted,
        at: now(),
        by: whoami(&context.client).await,
        reason: arguments.reason.clone(),
        proof,
    };
    let value = serde_json::to_string(&request).map_err(|error| PluginError::Output(error.to_string()))?;
    let dry = arguments.dry_run == DryRun::Server;
    send(context, record, &value, dry).await?;
    let name = &record.name;
    if dry {
        print(&format!(
            "VolumeAttachment {name}: the operator would be asked (server dry run)\n"
        ))?;
        return Ok(EXIT_OK);
    }
    print(&format!(
        "VolumeAttachment {name}: asked the operator, waiting for its answer\n"
    ))?;
    let answer = tokio::select! {
        answer = tokio::time::timeout(arguments.timeout, answer(context, record, &request)) => answer.ok(),
        _ = tokio::signal::ctrl_c() => None,
    };
    match answer {
        Some(Ok(Answer::Released)) => {
            print(&format!(
                "VolumeAttachment {name}: released; the Event Released on it says who asked and why\n"
            ))?;
            Ok(EXIT_OK)
        }
        Some(Ok(Answer::Refused(answer))) => {
            print(&format!(
                "VolumeAttachment {name}: refused by the operator: {}: {}\n",
                answer.reason, answer.message
            ))?;
            Ok(EXIT_REFUSED)
        }
        Some(Err(error)) => {
            withdraw(&context.client, record, &value).await;
            Err(error)
        }
        None => {
            withdraw(&context.client, record, &value).await;
            let what =
                "the operator has not answered, and the request was withdrawn; go on with: kubectl attacher why va";
            Err(PluginError::Timeout {
                what: format!("{what} {name}"),
                seconds: arguments.timeout.as_secs(),
            })
        }
    }
}

/// Sets the annotation. A name comes back with another object; the UID does not.
async fn send(context: &Context, record: &Attachment, value: &str, dry: bool) -> Result<()> {
    let api: Api<VolumeAttachmentWire> = Api::all(context.client.clone());
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        dry_run: dry,
        ..PatchParams::default()
    };
    let body = json!({"metadata": {"uid": &*record.uid, "annotations": {RELEASE_ANNOTATION: value}}});
    let name = &record.name;
    let patched = api.patch_metadata(name, &parameters, &Patch::Merge(&body)).await;
    patched.map(drop).map_err(|error| PluginError::Api {
        what: format!("cannot set the annotation {RELEASE_ANNOTATION} on VolumeAttachment {name}"),
        message: words(&error),
    })
}

enum Answer {
    Released,
    Refused(ReleaseAnswer),
}

/// Follows the object until the operator has answered.
async fn answer(context: &Context, record: &Attachment, request: &ReleaseRequest) -> Result<Answer> {
    let only = watcher::Config::default().fields(&format!("metadata.name={}", record.name));
    let stream = watcher(Api::<VolumeAttachmentWire>::all(context.client.clone()), only);
    pin_mut!(stream);
    let mut present = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => present = false,
            Ok(Event::InitDone) if present => {}
            Ok(Event::InitDone | Event::Delete(_)) => return Ok(Answer::Released),
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                present = true;
                let answer = wire
                    .metadata
                    .annotations
                    .as_ref()
                    .and_then(|all| all.get(RELEASE_REFUSED_ANNOTATION));
                let answer = answer.and_then(|text| serde_json::from_str::<ReleaseAnswer>(text).ok());
                if let Some(answer) = answer.filter(|answer| answer.request == request.at.to_string()) {
                    return Ok(Answer::Refused(answer));
                }
                let now = Attachment::from(wire);
                if now.uid != record.uid || !now.finalizers.contains(&finalizer_name(&now.attacher)) {
                    return Ok(Answer::Released);
                }
            }
            Err(error) => {
                if let Some(error) = fatal(&error) {
                    return Err(error);
                }
            }
        }
    }
    Err(PluginError::Usage("the watch of the VolumeAttachment ended".to_owned()))
}

/// Takes a request back that nobody answered: what it vouches for may not hold later.
async fn withdraw(client: &Client, record: &Attachment, value: &str) {
    let path = format!("/metadata/annotations/{}", RELEASE_ANNOTATION.replace('/', "~1"));
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": &*record.uid},
        {"op": "test", "path": path, "value": value},
        {"op": "remove", "path": path},
    ]);
    let target = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", record.name);
    // An operator expires what stays: see `MAX_REQUEST_AGE` of the core.
    drop(json_patch(client, &target, &body, false).await);
}
