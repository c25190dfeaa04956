//! `retry`: the annotation that ends a backoff, and what the next attempt comes to.

use csi_attacher_base::clock;
use csi_attacher_model::api::names::RETRY_NOW_ANNOTATION;
use csi_attacher_model::objects::{Attachment, Operation, VolumeAttachmentWire};

use super::follow::{annotate, follow};
use super::why::in_cluster;
use super::{Context, print_of};
use crate::cli::RetryArguments;
use crate::error::{EXIT_BLOCKED, EXIT_OK, PluginError, Result};
use crate::explain::{Case, Service, held_by_others, service};
use crate::observed::is_settled;

pub(super) async fn run(context: &Context, arguments: &RetryArguments) -> Result<u8> {
    let sources = context.sources();
    let wire = in_cluster::<VolumeAttachmentWire>(&sources, &arguments.name).await?;
    let before = Attachment::from(wire);
    let name = &*before.name;
    if let Some((text, code)) = over(&before) {
        print_of(name, &format!("nothing to retry: {text}"))?;
        return Ok(code);
    }
    let driver = sources.driver(&before.attacher).await;
    match service(&driver, sources.now) {
        Service::Operator { .. } | Service::Unknown => {}
        Service::Sidecar(holder) => {
            let driver = &driver.name;
            let text = format!(
                "not retried: a sidecar ({holder}) serves driver {driver}, and it does not read the annotation"
            );
            print_of(name, &text)?;
            return Ok(EXIT_BLOCKED);
        }
        other => {
            let summary = other.diagnosis(&driver).map_or_else(String::new, |found| found.summary);
            print_of(name, &format!("a retry cannot succeed now: {summary}"))?;
            return Ok(EXIT_BLOCKED);
        }
    }
    let now = clock::now().to_string();
    annotate(context, &before, RETRY_NOW_ANNOTATION, &now, false).await?;
    if arguments.timeout.is_zero() {
        print_of(name, "retry requested")?;
        return Ok(EXIT_OK);
    }
    let look = |seen: Option<VolumeAttachmentWire>| match seen {
        None => Some(gone()),
        Some(wire) => result(&before, &Attachment::from(wire)),
    };
    let result = tokio::time::timeout(arguments.timeout, follow(context, name, look)).await;
    match result {
        Ok(result) => {
            let (text, code) = result?;
            print_of(name, &text)?;
            Ok(code)
        }
        Err(_) => Err(PluginError::Timeout {
            what: format!("no new result of VolumeAttachment {name}; go on with: kubectl attacher why va {name}"),
            seconds: arguments.timeout.as_secs(),
        }),
    }
}

fn gone() -> (String, u8) {
    ("detached, and gone".to_owned(), EXIT_OK)
}

/// What there is to say of an attachment that needs no attempt, or that none helps: the volume is where it should be, or another finalizer
/// than that of its driver keeps the object.
fn over(attachment: &Attachment) -> Option<(String, u8)> {
    if is_settled(attachment) {
        return Some((format!("the volume is attached to node {}", attachment.node), EXIT_OK));
    }
    let held = held_by_others(attachment)?;
    let is_stuck = held.case == Case::OrphanFinalizer;
    Some((held.summary, if is_stuck { EXIT_BLOCKED } else { EXIT_OK }))
}

/// What an attempt came to, as far as the object shows it.
fn result(before: &Attachment, now: &Attachment) -> Option<(String, u8)> {
    if now.uid != before.uid {
        return Some(gone());
    }
    if let Some(over) = over(now) {
        return Some(over);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{ApiServerFixture, attachment, list};
    use serde_json::{Value, json};
    use std::time::Duration;

    /// One that is being deleted, with this finalizer.
    fn kept_by(finalizer: &str) -> Value {
        let mut kept = attachment("csi-1");
        kept["metadata"]["deletionTimestamp"] = clock::now().to_string().into();
        kept["metadata"]["finalizers"] = json!([finalizer]);
        kept
    }

    /// Nothing would come of an attempt, before it is asked for or when it has ended.
    #[tokio::test]
    async fn what_another_finalizer_keeps_is_not_waited_for() {
        let rows = [
            ("example.com/hold", EXIT_OK, "finalizer example.com/hold keeps"),
            ("external-attacher/old", EXIT_BLOCKED, "is not that of its driver"),
        ];
        for (finalizer, expected, says) in rows {
            let kept = kept_by(finalizer);
            let shown = kept.clone();
            let server = ApiServerFixture::start(move |path, _| match path {
                "/apis/storage.k8s.io/v1/volumeattachments/csi-1" => Ok(shown.clone()),
                _ => Err(404),
            });
            let (context, name) = (server.context(), "csi-1".to_owned());
            let timeout = Duration::from_secs(20);
            let code = Box::pin(run(&context, &RetryArguments { name, timeout })).await;
            assert_eq!(code.unwrap(), expected, "{finalizer}");
            assert_eq!(server.requests().len(), 1, "nothing else is read, and nothing written");
            let before = read(kept_by("external-attacher/ssd-csi-test"));
            assert!(result(&before, &before).is_none(), "it is detached still");
            let (text, code) = result(&before, &read(kept)).unwrap();
            assert_eq!(code, expected, "{text}");
            assert!(text.contains(says), "{text}");
        }
    }

    fn read(object: Value) -> Attachment {
        Attachment::from(serde_json::from_value::<VolumeAttachmentWire>(object).unwrap())
    }

    #[tokio::test]
    async fn nothing_is_written_for_a_sidecar() {
        let spec =
            json!({"holderIdentity": "sidecar-0", "leaseDurationSeconds": 600, "renewTime": clock::now().to_string()});
        let lease =
            json!({"metadata": {"name": "external-attacher-leader-ssd-csi-test", "namespace": "shop"}, "spec": spec});
        let server = ApiServerFixture::start(move |path, _| match path {
            "/apis/storage.k8s.io/v1/volumeattachments/csi-1" => Ok(attachment("csi-1")),
            "/apis/coordination.k8s.io/v1/leases" => Ok(list(std::slice::from_ref(&lease))),
            _ => Err(404),
        });
        let (context, name) = (server.context(), "csi-1".to_owned());
        let timeout = Duration::ZERO;
        let code = Box::pin(run(&context, &RetryArguments { name, timeout })).await;
        assert_eq!(code.unwrap(), EXIT_BLOCKED);
        let requests = server.requests();
        assert!(
            !requests.iter().any(|request| request.starts_with("PATCH")),
            "{requests:?}"
        );
    }
}
