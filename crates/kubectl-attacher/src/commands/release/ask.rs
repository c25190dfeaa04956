//! The request to the operator, and its answer.

use csi_attacher_base::clock;
use csi_attacher_model::api::names::{RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, finalizer_name};
use csi_attacher_model::decide::{ReleaseAnswer, ReleaseProof, ReleaseRequest, is_detaching, quoted};
use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use std::time::Duration;

use super::direct::json_patch;
use super::whoami;
use crate::cli::{DryRun, ReleaseArguments};
use crate::commands::follow::{annotate, follow};
use crate::commands::{Context, print_of};
use crate::error::{EXIT_OK, EXIT_REFUSED, PluginError, Result};

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
    let by = whoami(&context.client).await;
    let request = request(record, deleted, &by, &arguments.reason, proof);
    let value = serde_json::to_string(&request).map_err(|error| PluginError::Output(error.to_string()))?;
    let dry = arguments.dry_run == DryRun::Server;
    annotate(context, record, RELEASE_ANNOTATION, &value, dry).await?;
    let name = &record.name;
    if dry {
        print_of(name, "the operator would be asked (server dry run)")?;
        return Ok(EXIT_OK);
    }
    print_of(name, "asked the operator, waiting for its answer")?;
    let answer = follow(context, name, |seen| answer_on(seen, record, &request));
    let answer = tokio::select! {
        answer = tokio::time::timeout(arguments.timeout, answer) => {
            answer.unwrap_or_else(|_| Err(unanswered(name, Some(arguments.timeout))))
        }
        Ok(()) = tokio::signal::ctrl_c() => Err(unanswered(name, None)),
    };
    match answer {
        Ok(Answer::Released) => {
            print_of(name, "released; the Event Released on it says who asked and why")?;
            Ok(EXIT_OK)
        }
        Ok(Answer::Refused(answer)) => {
            let text = format!("refused by the operator: {}: {}", answer.reason, answer.message);
            print_of(name, &text)?;
            Ok(EXIT_REFUSED)
        }
        Err(error) => {
            withdraw(&context.client, record, &value).await;
            Err(error)
        }
    }
}

/// That nobody has answered, within the time or before somebody interrupted the wait.
fn unanswered(name: &str, time: Option<Duration>) -> PluginError {
    let what = "the operator has not answered, and the request was withdrawn; go on with: kubectl attacher why va";
    let what = format!("{what} {name}");
    match time {
        Some(time) => PluginError::Timeout {
            what,
            seconds: time.as_secs(),
        },
        None => PluginError::Interrupted(what),
    }
}

/// The request, with as much of the words as is repeated: to the operator an annotation that is too long is none, and it would not answer.
fn request(
    record: &Attachment,
    deleted: Timestamp,
    by: &str,
    reason: &str,
    proof: Option<ReleaseProof>,
) -> ReleaseRequest {
    ReleaseRequest {
        uid: record.uid.to_string(),
        deleted,
        at: clock::now(),
        by: quoted(by),
        reason: quoted(reason),
        proof,
    }
}

enum Answer {
    Released,
    Refused(ReleaseAnswer),
}

/// What the object says of the request; none while it says nothing.
fn answer_on(seen: Option<VolumeAttachmentWire>, record: &Attachment, request: &ReleaseRequest) -> Option<Answer> {
    let Some(wire) = seen else {
        return Some(Answer::Released);
    };
    let annotations = wire.metadata.annotations.as_ref();
    let answer = annotations.and_then(|all| all.get(RELEASE_REFUSED_ANNOTATION));
    let answer = ReleaseAnswer::read(answer.map(String::as_str));
    if let Some(answer) = answer.filter(|answer| answer.request == request.at.to_string()) {
        return Some(Answer::Refused(answer));
    }
    let now = Attachment::from(wire);
    // The operator judges what has lost its finalizer meanwhile, too.
    let is_held = now.uid == record.uid && is_detaching(&now, &finalizer_name(&now.attacher));
    (!is_held).then_some(Answer::Released)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{EXIT_INTERRUPTED, EXIT_TIMEOUT};
    use crate::explain::tests::builders::{attachment, both, detaching, wire};

    /// A shell that is interrupted goes by the exit code, and ends its loop.
    #[test]
    fn who_interrupts_the_wait_is_not_told_that_the_time_is_over() {
        for (time, code, begins) in [
            (
                Some(Duration::from_secs(30)),
                EXIT_TIMEOUT,
                "not within 30 s: the operator",
            ),
            (None, EXIT_INTERRUPTED, "interrupted: the operator"),
        ] {
            let error = unanswered("va1", time);
            assert_eq!(error.exit_code(), code);
            let told = error.to_string();
            assert!(told.starts_with(begins) && told.ends_with("why va va1"), "{told}");
        }
    }

    #[test]
    fn the_operator_reads_a_request_with_words_of_any_length() {
        let record = attachment(detaching(60));
        let long = "\"\\\u{1b}\u{e9}".repeat(5_000);
        let asked = request(&record, record.deleting.unwrap(), &long, &long, None);
        let annotations = json!({ (RELEASE_ANNOTATION): serde_json::to_string(&asked).unwrap() });
        let seen = attachment(both(detaching(60), &json!({"metadata": {"annotations": annotations}})));
        let note = seen.release.as_deref().unwrap();
        assert_eq!(serde_json::from_str::<ReleaseRequest>(&note.request).unwrap(), asked);
        assert!(asked.reason.starts_with("\"\\ \u{e9}"), "{}", asked.reason);
    }

    /// The owner of another finalizer replaced the list, and nobody has judged.
    #[test]
    fn what_has_lost_the_finalizer_meanwhile_is_not_released() {
        let record = attachment(detaching(60));
        let request = request(&record, record.deleting.unwrap(), "", "", None);
        let with = |metadata: serde_json::Value| both(detaching(60), &json!({ "metadata": metadata }));
        let rows = [
            ("waiting", with(json!({})), false),
            ("taken off", with(json!({"finalizers": ["a/b"]})), false),
            (
                "let go beside another one",
                with(json!({"finalizers": ["a/b"], "annotations": null})),
                true,
            ),
            ("made again", with(json!({"uid": "another"})), true),
        ];
        for (name, seen, released) in rows {
            let answer = answer_on(Some(wire(seen)), &record, &request);
            assert_eq!(matches!(answer, Some(Answer::Released)), released, "{name}");
        }
    }
}
