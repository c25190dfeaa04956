//! What the spans of one life of a volume look like.

use csi_mock_driver::Method;

use super::{Life, PUBLISH, UNPUBLISH, tree};
use crate::registry;
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::stage::PUBLISH_SECRET;

const PATCH_VOLUME: &str = "/api/v1/persistentvolumes/{:name}";
const PATCH_ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/{:name}";
const PATCH_STATUS: &str = "/apis/storage.k8s.io/v1/volumeattachments/{:name}/status";
const GET_SECRET: &str = "/api/v1/namespaces/{:namespace}/secrets/{:name}";

/// What the spans of the whole life of one volume look like, when the first call to attach it fails.
const LIFE: [&str; 3] = [
    "INTERNAL VolumeAttachment.attach\
     \n  CONSUMER VolumeAttachment.attach.attempt INTERNAL\
     \n    CLIENT PATCH /api/v1/persistentvolumes/{:name}\
     \n    CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n    CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}\
     \n    CLIENT csi.v1.Controller/ControllerPublishVolume INTERNAL\
     \n    CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status\
     \n  CONSUMER VolumeAttachment.attach.attempt\
     \n    CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n    CLIENT csi.v1.Controller/ControllerPublishVolume\
     \n    CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status",
    "INTERNAL VolumeAttachment.detach\
     \n  CONSUMER VolumeAttachment.detach.attempt\
     \n    CLIENT GET /api/v1/namespaces/{:namespace}/secrets/{:name}\
     \n    CLIENT csi.v1.Controller/ControllerUnpublishVolume\
     \n    CLIENT PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}",
    "CONSUMER PersistentVolume.release\
     \n  CLIENT PATCH /api/v1/persistentvolumes/{:name}",
];

/// Everything that the spans of a [`super::live`] must show.
pub fn check(life: &Life, receiver: &OtlpReceiver) {
    for headers in receiver.requests() {
        assert_eq!(headers["content-type"], "application/grpc");
    }
    registry::assert_conform(&receiver.spans());
    let spans = tree::without_comparisons(receiver.spans());
    // All other spans that there are: none of Probe, GetPluginInfo and the capabilities.
    assert_eq!(tree::render(&spans), LIFE);
    for span in &spans {
        check_resource(span);
        check_times(span, &spans);
    }
    check_lives(life, &spans);
    check_attempts(life, &spans);
    check_csi_calls(life, &spans);
    check_api_requests(life, &spans);
    check_trace_context(life, &receiver.spans());
}

fn check_resource(span: &ReceivedSpan) {
    assert_eq!(span.scope, "csi-attacher-operator");
    assert_eq!(span.resource["service.name"], "csi-attacher-operator".into());
    assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION").into());
    assert_eq!(span.resource["telemetry.sdk.language"], "rust".into());
}

/// A child lies within its parent, and everything in this year or later.
fn check_times(span: &ReceivedSpan, spans: &[ReceivedSpan]) {
    const START_OF_2026: u64 = 1_767_225_600_000_000_000;
    assert!(
        START_OF_2026 < span.start_unix_nano && span.start_unix_nano <= span.end_unix_nano,
        "{span:?}"
    );
    if let Some(parent) = tree::parent(span, spans) {
        assert!(parent.start_unix_nano <= span.start_unix_nano, "{span:?}");
        assert!(span.end_unix_nano <= parent.end_unix_nano, "{span:?}");
    }
}

/// The roots: each tells what became of it, and points to what it follows on.
fn check_lives(life: &Life, spans: &[ReceivedSpan]) {
    let roots = tree::roots(spans);
    let [attach, detach, release] = roots.as_slice() else {
        panic!("{roots:#?}")
    };
    for (span, attempts) in [(attach, 2), (detach, 1)] {
        check_names(life, span);
        // However many attempts failed, it ended well.
        assert!(!span.failed && span.status_message.is_empty(), "{span:?}");
        assert_eq!(span.text("attacher.outcome"), "succeeded");
        assert_eq!(span.attributes["attacher.attempts"], Attribute::I64(attempts));
        assert_eq!(span.attributes["attacher.epoch"], Attribute::I64(0));
        assert!(matches!(span.text("attacher.start.source"), "creation" | "observed"));
        assert!(seconds(span, "attacher.observe_lag") >= 0.0);
    }
    assert_eq!(attach.text("attacher.operation"), "attach");
    assert_eq!(attach.text("attacher.csi.node_id"), life.names.of("node-id"));
    assert_eq!(attach.text("attacher.volume.fs_type"), "ext4");
    assert_eq!(detach.text("attacher.operation"), "detach");
    let ids = |span: &ReceivedSpan| (span.trace_id.clone(), span.span_id.clone());
    assert_eq!(attach.links, [], "{attach:?}");
    assert_eq!(detach.links, [ids(attach)], "{detach:?}");
    assert_eq!(release.links, [ids(detach)]);
}

fn check_names(life: &Life, span: &ReceivedSpan) {
    let names = &life.names;
    assert_eq!(span.text("container.csi.plugin.name"), names.driver());
    assert_eq!(span.text("container.csi.volume.id"), names.of("handle"));
    assert_eq!(span.text("k8s.volumeattachment.name"), names.of("va"));
    assert_eq!(span.text("k8s.volumeattachment.uid"), life.attachment_uid);
    assert_eq!(span.text("k8s.node.name"), names.of("node"));
    assert_eq!(span.text("k8s.persistentvolume.name"), names.of("pv"));
    assert_eq!(span.text("k8s.persistentvolumeclaim.name"), names.of("claim"));
    assert_eq!(span.text("k8s.namespace.name"), "default");
    assert_eq!(span.text("k8s.storageclass.name"), "gold");
}

fn check_attempts(life: &Life, spans: &[ReceivedSpan]) {
    let names = &life.names;
    let attempts = tree::in_order(spans).into_iter();
    let attempts: Vec<_> = attempts
        .filter(|span| format!("{:?}", span.kind) == "Consumer")
        .collect();
    let [first, second, detach, release] = attempts.as_slice() else {
        panic!("{attempts:#?}")
    };
    // Each attempt points to the one before.
    let before = (first.trace_id.clone(), first.span_id.clone());
    assert_eq!(
        [&first.links, &second.links, &detach.links],
        [&vec![], &vec![before], &vec![]]
    );
    for span in [first, second, detach] {
        check_names(life, span);
        assert_eq!(span.text("attacher.queue.name"), "csi-attacher-va");
        assert!((0.0..30.0).contains(&seconds(span, "attacher.queue.wait")));
    }
    let facts = |span: &ReceivedSpan| {
        let number = |key: &str| span.attributes[key].clone();
        let [attempt, retries] = ["attacher.attempt", "attacher.queue.retries"].map(number);
        (
            span.text("attacher.operation").to_owned(),
            span.text("attacher.trigger").to_owned(),
            attempt,
            retries,
        )
    };
    let expected = |operation: &str, trigger: &str, attempt, retries| {
        (
            operation.to_owned(),
            trigger.to_owned(),
            Attribute::I64(attempt),
            Attribute::I64(retries),
        )
    };
    assert_eq!(facts(first), expected("attach", "add", 1, 0));
    assert_eq!(facts(second), expected("attach", "retry", 2, 1));
    assert_eq!(facts(detach), expected("detach", "delete", 1, 0));

    let finalizers = [first, second, detach].map(|span| span.text("attacher.finalizer.action"));
    assert_eq!(finalizers, ["added", "present", "removed"]);

    assert_eq!(first.text("error.type"), "INTERNAL");
    assert!(
        first.status_message.contains("the array restarts"),
        "{}",
        first.status_message
    );
    // The backoff of the AttacherConfig, which has no jitter.
    assert!((seconds(first, "attacher.retry.delay") - 0.1).abs() < 1e-9);
    for span in [second, detach, release] {
        // The status is unset, and nothing is left of the failure before.
        assert!(!span.failed && span.status_message.is_empty(), "{span:?}");
        assert!(!span.attributes.contains_key("error.type"), "{span:?}");
        assert!(!span.attributes.contains_key("attacher.retry.delay"), "{span:?}");
    }
    assert_eq!(release.text("container.csi.plugin.name"), names.driver());
    assert_eq!(release.text("k8s.persistentvolume.name"), names.of("pv"));
    assert_eq!(release.text("attacher.finalizer.action"), "removed");
    assert_eq!(release.text("attacher.queue.name"), "csi-attacher-pv");
}

fn check_csi_calls(life: &Life, spans: &[ReceivedSpan]) {
    let calls: Vec<_> = tree::in_order(spans)
        .into_iter()
        .filter(|span| span.name.starts_with("csi."))
        .collect();
    let codes: Vec<_> = calls.iter().map(|span| span.text("rpc.response.status_code")).collect();
    assert_eq!(codes, ["INTERNAL", "OK", "OK"]);
    for span in &calls {
        assert_eq!(span.text("rpc.system.name"), "grpc");
        assert_eq!(span.text("rpc.method"), span.name);
        assert_eq!(span.text("server.address"), life.socket);
        assert_eq!(span.text("network.peer.address"), life.socket);
        assert!(
            !span.attributes.contains_key("server.port"),
            "a unix socket has no port"
        );
        assert_eq!(span.text("container.csi.plugin.name"), life.names.driver());
        assert_eq!(span.text("container.csi.volume.id"), life.names.of("handle"));
        assert_eq!(span.text("attacher.csi.node_id"), life.names.of("node-id"));
        assert_eq!(span.attributes["attacher.secrets.count"], Attribute::I64(2));
    }
    let [failed, published, unpublished] = calls.as_slice() else {
        panic!("{calls:#?}")
    };
    assert_eq!(failed.text("error.type"), "INTERNAL");
    // The code is not repeated.
    assert_eq!(failed.status_message, "the array restarts");
    for span in [published, unpublished] {
        assert!(!span.failed && !span.attributes.contains_key("error.type"), "{span:?}");
    }
    let keys = ["devicePath".to_owned(), "readonly".to_owned()];
    assert_eq!(
        published.attributes["attacher.publish_context.keys"],
        Attribute::StrArray(keys.to_vec())
    );
    let sent = life.calls_of(PUBLISH)[0].capability.as_ref();
    let mode = sent.map(|capability| capability.access_mode).unwrap();
    for span in [failed, published] {
        assert_eq!(span.attributes["attacher.read_only"], Attribute::Bool(false));
        assert_eq!(span.text("attacher.access_mode"), mode);
        assert_eq!(span.text("attacher.volume.fs_type"), "ext4");
    }
}

fn check_api_requests(life: &Life, spans: &[ReceivedSpan]) {
    let (namespace, secret) = PUBLISH_SECRET;
    let attachment = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", life.names.of("va"));
    let (host, port) = &life.api_server;
    for span in spans.iter().filter(|span| span.name.contains(" /")) {
        let template = span.text("url.template");
        let method = span.text("http.request.method");
        assert_eq!(span.name, format!("{method} {template}"));
        let (path, verb, resource) = match template {
            PATCH_VOLUME => (
                format!("/api/v1/persistentvolumes/{}", life.names.of("pv")),
                "patch",
                "persistentvolumes",
            ),
            PATCH_ATTACHMENT => (attachment.clone(), "patch", "volumeattachments"),
            PATCH_STATUS => (format!("{attachment}/status"), "patch", "volumeattachments/status"),
            GET_SECRET => (
                format!("/api/v1/namespaces/{namespace}/secrets/{secret}"),
                "get",
                "secrets",
            ),
            other => panic!("unexpected template {other}"),
        };
        assert_eq!(span.text("url.full"), format!("https://{host}:{port}{path}"));
        assert_eq!(span.text("attacher.k8s.verb"), verb);
        assert_eq!(span.text("attacher.k8s.resource"), resource);
        assert_eq!(span.text("server.address"), host);
        assert_eq!(span.attributes["server.port"], Attribute::I64(*port));
        assert_eq!(span.attributes["http.response.status_code"], Attribute::I64(200));
        assert!(!span.failed && !span.attributes.contains_key("error.type"), "{span:?}");
    }
}

/// The driver got, with each call, the context of the CLIENT span of that very call.
fn check_trace_context(life: &Life, spans: &[ReceivedSpan]) {
    for method in [PUBLISH, UNPUBLISH] {
        let wanted: Vec<_> = tree::in_order(spans)
            .into_iter()
            .filter(|span| span.name.ends_with(&format!("/{method:?}")))
            .map(|span| Some(format!("00-{}-{}-01", span.trace_id, span.span_id)))
            .collect();
        let received: Vec<_> = life
            .calls_of(method)
            .iter()
            .map(|call| call.traceparent.clone())
            .collect();
        assert!(!wanted.is_empty());
        assert_eq!(received, wanted);
    }
    // The handshake is in no trace.
    for method in [Method::Probe, Method::GetPluginInfo, Method::ControllerGetCapabilities] {
        let calls = life.calls_of(method);
        assert!(
            !calls.is_empty() && calls.iter().all(|call| call.traceparent.is_none()),
            "{calls:#?}"
        );
    }
}

fn seconds(span: &ReceivedSpan, key: &str) -> f64 {
    match span.attributes.get(key) {
        Some(Attribute::F64(seconds)) => *seconds,
        other => panic!("attribute {key} of {} is {other:?}", span.name),
    }
}
