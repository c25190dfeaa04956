//! `retry`: the annotation that ends a backoff, and what the next attempt comes to.

use csi_attacher_model::api::names::RETRY_NOW_ANNOTATION;
use csi_attacher_model::objects::{Attachment, Operation, VolumeAttachmentWire};

use super::follow::{annotate, follow};
use super::why::in_cluster;
use super::{Context, print};
use crate::cli::RetryArguments;
use crate::error::{EXIT_BLOCKED, EXIT_OK, PluginError, Result};
use crate::explain::{Service, service};
use crate::gather::{ResourceName, now};

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
    annotate(context, &before, RETRY_NOW_ANNOTATION, &now().to_string(), false).await?;
    if arguments.timeout.is_zero() {
        print(&format!("VolumeAttachment {name}: retry requested\n"))?;
        return Ok(EXIT_OK);
    }
    let look = |seen: Option<VolumeAttachmentWire>| match seen {
        None => Some(gone()),
        Some(wire) => result(&before, &Attachment::from(wire)),
    };
    let result = tokio::time::timeout(arguments.timeout, follow(context, &name, look)).await;
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
