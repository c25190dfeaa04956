//! `retry`: the annotation that ends a backoff, and what the next attempt comes to.

use csi_attacher_model::api::names::RETRY_NOW_ANNOTATION;
use csi_attacher_model::objects::{Attachment, Operation, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;

use super::list::fatal;
use super::why::in_cluster;
use super::{Context, print};
use crate::cli::RetryArguments;
use crate::error::{EXIT_BLOCKED, EXIT_OK, PluginError, Result};
use crate::explain::{Service, service};
use crate::gather::{ResourceName, now, words};

/// Who writes the annotation, in `managedFields`.
const MANAGER: &str = "kubectl-attacher";

/// Retries and reports.
pub(super) async fn run(context: &Context, arguments: &RetryArguments) -> Result<u8> {
    let sources = context.sources();
    let resource = ResourceName::new("storage.k8s.io", "volumeattachments");
    let wire = in_cluster::<VolumeAttachmentWire>(&sources, resource, &arguments.name, "VolumeAttachment").await?;
    let before = Attachment::from(wire);
    let name = before.name.to_string();
    if is_settled(&before) {
        print(&format!(
            "VolumeAttachment {name}: nothing to retry, the volume is attached to node {}\n",
            before.node
        ))?;
        return Ok(EXIT_OK);
    }
    let driver = sources.driver(&before.attacher).await;
    match service(&driver, sources.now) {
        Service::Operator { .. } | Service::Unknown => {}
        Service::Sidecar(holder) => {
            return Err(PluginError::Refused(format!(
                "a sidecar ({holder}) serves driver {}, and it does not read the annotation",
                driver.name
            )));
        }
        other => {
            let summary = other.diagnosis(&driver).map_or_else(String::new, |found| found.summary);
            print(&format!(
                "VolumeAttachment {name}: a retry cannot succeed now: {summary}\n"
            ))?;
            return Ok(EXIT_BLOCKED);
        }
    }
    let api = sources.reader.cluster::<VolumeAttachmentWire>();
    let value = now().to_string();
    // A name comes back with another object; the UID does not.
    let body = json!({"metadata": {"uid": &*before.uid, "annotations": {RETRY_NOW_ANNOTATION: value}}});
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = api.patch_metadata(&name, &parameters, &Patch::Merge(&body)).await;
    patched.map_err(|error| PluginError::Api {
        what: format!("cannot set the annotation {RETRY_NOW_ANNOTATION} on VolumeAttachment {name}"),
        message: words(&error),
    })?;
    if arguments.timeout.is_zero() {
        print(&format!("VolumeAttachment {name}: retry requested\n"))?;
        return Ok(EXIT_OK);
    }
    let result = tokio::time::timeout(arguments.timeout, follow(context, &before)).await;
    match result {
        Ok(result) => {
            let (text, code) = result?;
            print(&format!("VolumeAttachment {name}: {text}\n"))?;
            Ok(code)
        }
        Err(_) => Err(PluginError::Timeout {
            what: format!("no new result of VolumeAttachment {name}; go on with: kubectl attacher why va {name}"),
            seconds: arguments.timeout.as_secs(),
        }),
    }
}

fn is_settled(attachment: &Attachment) -> bool {
    attachment.attached && attachment.deleting.is_none()
}

/// Follows one object until an attempt has ended.
async fn follow(context: &Context, before: &Attachment) -> Result<(String, u8)> {
    let sources = context.sources();
    let only = watcher::Config::default().fields(&format!("metadata.name={}", before.name));
    let stream = watcher(sources.reader.cluster::<VolumeAttachmentWire>(), only);
    pin_mut!(stream);
    let mut present = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => present = false,
            Ok(Event::InitDone) if !present => return Ok(gone()),
            Ok(Event::InitDone) => {}
            Ok(Event::Delete(_)) => return Ok(gone()),
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                present = true;
                if let Some(result) = result(before, &Attachment::from(wire)) {
                    return Ok(result);
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

fn gone() -> (String, u8) {
    ("detached, and gone".to_owned(), EXIT_OK)
}

/// What an attempt came to, as far as the object shows it.
fn result(before: &Attachment, now: &Attachment) -> Option<(String, u8)> {
    if now.uid != before.uid {
        return Some(gone());
    }
    if is_settled(now) {
        return Some((format!("attached to node {}", now.node), EXIT_OK));
    }
    let error = |attachment: &Attachment| match Operation::of(now) {
        Operation::Attach => attachment.attach_error.clone(),
        Operation::Detach => attachment.detach_error.clone(),
    };
    let (old, new) = (error(before), error(now));
    let new = new.filter(|new| old.as_ref() != Some(new))?;
    let text = format!(
        "the attempt failed: {}; go on with: kubectl attacher why va {}",
        new.message, now.name
    );
    Some((text, EXIT_BLOCKED))
}
