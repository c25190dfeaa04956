//! Attaches after the driver was asked: traces, Secrets, errors.

use serde_json::json;

use super::builders::{
    DRIVER, attachment, both, claimed, config, csi_node, error, event, secret, volume_with_secret, with,
};
use super::rows::{play, row};
use crate::explain::{Case, chain};
use crate::observed::Lookup;

/// What somebody else wrote there is no trace.
#[test]
fn the_trace_is_named() {
    let id = "0af7651916cd43dd8448eb211c80319c";
    for (noted, expected) in [
        (format!("00-{id}-b7ad6b7169203331-01"), Some(id)),
        ("00-x-y-z".to_owned(), None),
    ] {
        let edit = both(
            claimed(),
            &json!({"metadata": {"annotations": {"attacher.csi.dev/traceparent": noted}}}),
        );
        let scene = with(|scene| scene.attachment = Lookup::Found(attachment(edit)));
        assert_eq!(chain(&scene).trace_id.as_deref(), expected, "{noted}");
    }
}

/// As the API server takes it: a day is the longest.
#[test]
fn a_deadline_is_raised_as_far_as_it_may_be() {
    let late = error("attachError", "rpc error: code = DeadlineExceeded desc = late");
    for (deadline, expected) in [("60s", Some("120s")), ("13h", Some("86400s")), ("24h", None)] {
        let scene = with(|scene| {
            scene.attachment = Lookup::Found(attachment(both(claimed(), &late)));
            scene.driver.config = config(&[], &json!({"timeouts": {"publish": deadline}}));
        });
        let found = chain(&scene);
        assert_eq!(found.diagnosis.case, Case::AttachUncertain, "{deadline}");
        let mut commands = found
            .diagnosis
            .advice
            .iter()
            .filter_map(|advice| advice.command.as_deref());
        let raised = commands.find_map(|command| command.split_once("\"publish\":\"")?.1.split_once('"'));
        assert_eq!(raised.map(|(value, _)| value), expected, "{deadline}");
    }
}

#[test]
fn secrets() {
    let failed = |text: &str| Lookup::Found(attachment(both(claimed(), &error("attachError", text))));
    let missing = "failed to load secret \"storage/key\": secrets \"key\" not found";
    let forbidden = "failed to load secret \"storage/key\": secrets \"key\" is forbidden: User cannot get resource";
    play(vec![
        row(
            "missing",
            with(|scene| {
                scene.volume = volume_with_secret("storage");
                scene.secret = secret(Lookup::Missing);
                scene.attachment = failed(missing);
            }),
            Case::SecretMissing,
            &["Secret storage/key", "does not exist"],
        ),
        row(
            "missing, and the caller may not look",
            with(|scene| {
                scene.volume = volume_with_secret("storage");
                scene.secret = secret(Lookup::Unknown);
                scene.attachment = failed(missing);
            }),
            Case::SecretMissing,
            &["does not exist"],
        ),
        row(
            "forbidden",
            with(|scene| {
                scene.volume = volume_with_secret("storage");
                scene.secret = secret(Lookup::Found(()));
                scene.attachment = failed(forbidden);
            }),
            Case::SecretForbidden,
            &["has no permission to read Secret storage/key"],
        ),
        row(
            "there again: the error is an old one",
            with(|scene| {
                scene.volume = volume_with_secret("storage");
                scene.secret = secret(Lookup::Found(()));
                scene.attachment = failed(missing);
            }),
            Case::AttachFailing,
            &["failed to load secret"],
        ),
        row(
            "not listed",
            with(|scene| scene.volume = volume_with_secret("elsewhere")),
            Case::SecretNotAllowed,
            &["spec.publishSecrets", "kubectl edit atc ssd"],
        ),
    ]);
}

#[test]
fn answers_of_the_driver() {
    let failed = |text: &str| Lookup::Found(attachment(both(claimed(), &error("attachError", text))));
    let busy = "rpc error: code = Internal desc = the volume is busy";
    play(vec![
        row(
            "refused, with backoff",
            with(|scene| {
                scene.attachment = failed(busy);
                scene.events = Lookup::Found(vec![event(
                    "volume h1: attempt 7 to attach it to node node1 failed; retrying in 32.0 s: busy",
                    10,
                )]);
            }),
            Case::AttachFailing,
            &[
                "the volume is busy",
                "\"number\":7",
                "\"next\":\"2026-01-01T12:00:22Z\"",
                "kubectl attacher retry csi-1",
            ],
        ),
        row(
            "not asked: the error has no code of gRPC",
            with(|scene| scene.attachment = failed("the Lease could not be renewed")),
            Case::AttachFailing,
            &[
                "the attach to node node1 fails, and the error is not an answer of driver ssd.csi.test",
                "follow the message; the attacher retries",
                "kubectl attacher retry csi-1",
            ],
        ),
        row(
            "refused, and the Event has expired",
            with(|scene| scene.attachment = failed(busy)),
            Case::AttachFailing,
            &["busy"],
        ),
        row(
            "limit, by its code",
            with(|scene| {
                let mut edit = both(claimed(), &error("attachError", "full"));
                edit["status"]["attachError"]["errorCode"] = 8.into();
                scene.attachment = Lookup::Found(attachment(edit));
                scene.csi_node = csi_node(&[(DRIVER, "id1")], Some(25));
                scene.on_node = Some(25);
            }),
            Case::AttachLimit,
            &["(25 VolumeAttachments, its limit is 25)", "kubectl get csinode node1"],
        ),
        row(
            "limit, by its text",
            with(|scene| scene.attachment = failed("rpc error: code = ResourceExhausted desc = full")),
            Case::AttachLimit,
            &["takes no more volumes"],
        ),
        row(
            "uncertain",
            with(|scene| scene.attachment = failed("rpc error: code = DeadlineExceeded desc = late")),
            Case::AttachUncertain,
            // Twice the minute that holds where the AttacherConfig says nothing.
            &["the volume may be attached", "{\"timeouts\":{\"publish\":\"120s\"}}"],
        ),
        row(
            "uncertain, in place of the sidecar",
            with(|scene| {
                scene.attachment = failed("rpc error: code = DeadlineExceeded desc = late");
                scene.driver.config = Lookup::Missing;
            }),
            Case::AttachUncertain,
            &["--timeout of the operator"],
        ),
        row(
            "healthy",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &json!({"status": {"attached": true}}))))
            }),
            Case::Attached,
            &["is attached to node node1", "FailedMount"],
        ),
        row(
            "left over",
            with(|scene| {
                scene.attachment = Lookup::Found(attachment(both(claimed(), &json!({"status": {"attached": true}}))));
                scene.driver.attach_required = Lookup::Found(false);
            }),
            Case::LeftOver,
            &[
                "\"next\":\"kube-controller-manager requests the detach once no pod on the node uses the volume",
                "delete the VolumeAttachment by hand only if it stays after that",
            ],
        ),
    ]);
}
