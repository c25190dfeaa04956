//! T1: everything that the registry declares is really sent, and nothing else.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use serde_json::{Value, json};
use tonic::Code;

use super::{Names, live, traced};
use crate::provision::grant;
use crate::provision_topology::grant_nodes;
use crate::registry::{assert_conform, unseen};
use crate::rig::{LIMIT, merge_status};
use crate::support::operator::{IDENTITY, apply_config, release_provisioner_lease, wait_condition};
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::stage::{PUBLISH_SECRET, Stage, stop};
use crate::support::{Result, Volume};

/// What is not provoked here: part of the span's name, the attribute or event, and why.
const NOT_HERE: &[(&str, &str, &str)] = &[
    (
        "csi.v1",
        "server.port",
        "a unix socket has none; tests of the CSI client see it",
    ),
    (
        "csi.v1",
        "network.peer.port",
        "a unix socket has none; tests of the CSI client see it",
    ),
    ("Unpublish", "error.type", "as any other call"),
    (
        "",
        "attacher.migrated",
        "needs an in-tree volume; tests with the attach/detach controller have some",
    ),
    (
        "",
        "attacher.volume.inline",
        "needs an in-line volume, which the API server refuses for CSI",
    ),
    (
        "{http",
        "http.request.resend_count",
        "needs an API server that fails; tests of requests see it",
    ),
    (
        "release",
        "error.type",
        "needs an API server that refuses to remove a finalizer",
    ),
    ("release", "attacher.retry.delay", "the same"),
    (
        "VolumeAttachment.detach",
        "error.type",
        "a detach that failed looks like an attach that did",
    ),
    ("VolumeAttachment.detach", "attacher.retry.delay", "the same"),
    (
        "PersistentVolumeClaim.provision",
        "error.type",
        "the life of a claim fails when a person lets it go",
    ),
    (
        "PersistentVolume.delete",
        "error.type",
        "the life of a deletion fails when the policy changes; its attempts are seen with it",
    ),
];

fn is_excused(missing: &str) -> bool {
    let (span, what) = missing.rsplit_once(' ').unwrap_or((missing, ""));
    NOT_HERE
        .iter()
        .any(|(part, excused, _)| span.contains(part) && what == *excused)
}

fn named<'s>(spans: &'s [ReceivedSpan], name: &'s str) -> impl Iterator<Item = &'s ReceivedSpan> {
    spans.iter().filter(move |span| span.name == name)
}

/// The class of the claim: with a Secret, and volumes in one of two zones.
fn class(names: &Names) -> Value {
    let (namespace, secret) = PUBLISH_SECRET;
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": names.prefix },
        "provisioner": names.driver(),
        "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "zone", "values": ["a", "b"] }] }],
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": secret,
            "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
        },
    })
}

/// A claim whose volume is created at the second try, with a Secret and for a node.
async fn provisioned(stage: &Stage, names: &Names, receiver: &OtlpReceiver) -> Result<()> {
    grant(stage.cluster).await?;
    grant_nodes(stage.cluster).await?;
    release_provisioner_lease(&stage.client, IDENTITY, &names.driver()).await?;
    let mut operator = stage.operator(traced(receiver)).await?;
    let driver = names.start_driver(stage).await?;
    driver
        .handle
        .settings(|settings| settings.topology_keys = vec!["zone".to_owned()]);
    let (namespace, secret) = PUBLISH_SECRET;
    let settings = json!({
        "endpoint": format!("unix://{}", driver.socket),
        "driverName": names.driver(),
        "reconcileSync": { "mode": "Disabled" },
        "provisioning": {
            "backoff": { "initial": "100ms", "max": "1s", "jitterPercent": 0 },
            "secrets": [{ "namespace": namespace, "names": [secret] }],
        },
    });
    apply_config(&stage.client, names.prefix, settings).await?;
    wait_condition(
        &stage.client,
        names.prefix,
        "ProvisioningReady",
        "True",
        Some("Running"),
    )
    .await?;
    let failure = Rule::on(Method::CreateVolume).times(1);
    driver.handle.script(failure.fail(Code::Internal, "the array restarts"));
    stage.cluster.apply_yaml(&class(names).to_string()).await?;
    stage.cluster.apply_yaml(&claim(names).to_string()).await?;
    receiver
        .wait_until(LIMIT, |spans| {
            named(spans, "PersistentVolumeClaim.provision").next().is_some()
        })
        .await;
    let failure = Rule::on(Method::DeleteVolume).times(1);
    driver.handle.script(failure.fail(Code::Internal, "the array restarts"));
    deleted(stage, names, receiver).await?;
    stop(&mut operator).await
}

/// A claim as kube-controller-manager and kube-scheduler leave it.
fn claim(names: &Names) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "default", "name": names.of("claim"),
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": names.driver(),
                "volume.kubernetes.io/selected-node": names.of("node"),
            },
        },
        "spec": {
            "storageClassName": names.prefix, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

/// The volume of a PersistentVolume whose claim is gone, with a Secret for the call.
async fn deleted(stage: &Stage, names: &Names, receiver: &OtlpReceiver) -> Result<()> {
    let (namespace, secret) = PUBLISH_SECRET;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": names.of("released"),
            "annotations": {
                "pv.kubernetes.io/provisioned-by": names.driver(),
                "attacher.csi.dev/traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "volume.kubernetes.io/provisioner-deletion-secret-name": secret,
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": namespace,
            },
        },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": names.prefix,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "namespace": "default", "name": names.of("gone"), "uid": "gone" },
            "csi": { "driver": names.driver(), "volumeHandle": names.of("released") },
        },
    });
    stage.cluster.apply_yaml(&volume.to_string()).await?;
    let volumes = Api::<PersistentVolume>::all(stage.client.clone());
    let phase = json!({ "status": { "phase": "Released" } });
    merge_status(&volumes, &names.of("released"), &phase).await?;
    receiver
        .wait_until(LIMIT, |spans| named(spans, "PersistentVolume.delete").next().is_some())
        .await;
    Ok(())
}

/// Comparisons that find something and that fail, attaches that fail for want of a Secret, settings that cannot be used.
async fn trouble(stage: &Stage, names: &Names, receiver: &OtlpReceiver) -> Result<()> {
    let mut operator = stage.operator(traced(receiver)).await?;
    let driver = names.start_driver(stage).await?;
    stage.wait_working(names.prefix).await?;
    names.attach(stage, "here").await?;
    let fail = Rule::on(Method::ListVolumes).times(1);
    driver.handle.script(fail.fail(Code::Unavailable, "the array restarts"));
    let settings = json!({
        "endpoint": format!("unix://{}", driver.socket),
        "backoff": { "initial": "100ms", "max": "1s", "jitterPercent": 0 },
        "reconcileSync": { "interval": "200ms", "maxEntries": 1 },
        "kubernetesAPI": { "qps": 2, "burst": 1 },
        "publishSecrets": [{ "namespace": PUBLISH_SECRET.0 }],
    });
    apply_config(&stage.client, names.prefix, settings).await?;
    let sync = "VolumeAttachment.reconcile_sync";
    receiver
        .wait_until(LIMIT, |spans| named(spans, sync).any(|span| span.failed))
        .await;
    driver.handle.drift_detach(&names.of("here"), &names.of("node-id"));
    receiver
        .wait_until(LIMIT, |spans| {
            let forced = Attribute::Str("force_sync".to_owned());
            named(spans, "VolumeAttachment.attach.attempt").any(|span| span.attributes["attacher.trigger"] == forced)
        })
        .await;

    let (namespace, _) = PUBLISH_SECRET;
    let waits =
        Volume::new(&names.of("waits"), &names.driver(), &names.of("waits")).publish_secret(namespace, "nowhere");
    stage.fixtures.persistent_volume(&waits).await?;
    let (name, node) = (names.of("waits"), names.of("node"));
    stage
        .fixtures
        .volume_attachment(&name, &names.driver(), &name, &node)
        .await?;
    // The sample lets the operator read one Secret, and this is another.
    let missing = Attribute::Str("secret_forbidden".to_owned());
    receiver
        .wait_until(LIMIT, |spans| {
            named(spans, "VolumeAttachment.attach.attempt")
                .any(|span| span.attributes.get("error.type") == Some(&missing))
        })
        .await;
    stage.fixtures.delete::<AttacherConfig>(names.prefix).await?;
    receiver
        .wait_until(LIMIT, |spans| {
            named(spans, "VolumeAttachment.attach").any(|span| span.failed)
        })
        .await;
    stop(&mut operator).await
}

#[tokio::test]
async fn t1_every_span_and_attribute_of_the_registry_is_seen() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::grpc().await;
    let life = Names { prefix: "trace-all" };
    live(&stage, life, traced(&receiver)).await?;
    trouble(
        &stage,
        &Names {
            prefix: "trace-trouble",
        },
        &receiver,
    )
    .await?;
    let claims = Names { prefix: "trace-claims" };
    provisioned(&stage, &claims, &receiver).await?;

    let spans = receiver.spans();
    assert_conform(&spans);
    let missing: Vec<_> = unseen(&spans)
        .into_iter()
        .filter(|missing| !is_excused(missing))
        .collect();
    assert!(missing.is_empty(), "declared and never seen: {missing:#?}");
    check_comparisons(&spans);
    Ok(())
}

/// The mismatch is told, with a link to the life of the VolumeAttachment.
fn check_comparisons(spans: &[ReceivedSpan]) {
    let attach = named(spans, "VolumeAttachment.attach.attempt")
        .find(|span| span.text("k8s.volumeattachment.name") == "trace-trouble-here")
        .expect("it was attached");
    let found = named(spans, "VolumeAttachment.reconcile_sync").find(|span| !span.events.is_empty());
    let found = found.expect("a comparison found the mismatch");
    let (name, attributes) = &found.events[0];
    assert_eq!(name, "mismatch");
    assert_eq!(attributes["va"], "trace-trouble-here".into());
    assert_eq!(attributes["expected"], "attached".into());
    assert_eq!(attributes["actual"], "detached".into());
    let linked = found.links.iter().any(|(trace_id, _)| *trace_id == attach.trace_id);
    assert!(linked, "{found:#?}");
}
