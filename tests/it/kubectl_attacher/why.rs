//! `why`, one golden file for each case.

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::PostParams;
use serde_json::{Value, json};
use tonic::Code;

use super::golden::compare;
use super::plugin::Plugin;
use crate::controller_manager::node_is_seen;
use crate::rig::{Driver, World, merge, merge_status};
use crate::support::operator::{self, apply_config};
use crate::support::{ControlPlane, Fixtures, Options, Result};

const NAMESPACE: &str = "default";

/// One question in one cluster.
pub(super) struct Asked<'w> {
    world: &'w World,
    plugin: Plugin,
}

impl<'w> Asked<'w> {
    pub(super) async fn in_world(world: &'w World) -> Result<Self> {
        let plugin = Plugin::of(world).await?;
        Ok(Self { world, plugin })
    }

    /// Asks until the answer has these parts, and compares it with the file of the case.
    pub(super) async fn why(&self, golden: &str, kind: &str, name: &str, code: i32, parts: &[&str]) -> Result<()> {
        let ran = self.plugin.until(&["why", kind, name, "-n", NAMESPACE], parts).await?;
        assert_eq!(ran.code, code, "{golden}: {ran:?}");
        compare(golden, &ran.out);
        Ok(())
    }

    pub(super) fn fixtures(&self) -> &Fixtures {
        &self.world.fixtures
    }

    /// A pod on a node with a bound claim of its name.
    async fn pod(&self, driver: &Driver<'_>, name: &str, node: &str) -> Result<()> {
        driver.claimed(&driver.volume(name), name).await?;
        self.fixtures().pod(NAMESPACE, name, node, &[name]).await.map(drop)
    }

    async fn patch_node(&self, name: &str, patch: &Value) {
        let patched = merge(&self.fixtures().cluster::<Node>(), name, patch).await;
        patched.expect("an administrator may do this");
    }

    async fn unready(&self, name: &str) {
        let ready =
            json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "played by a test"});
        let patch = json!({"status": {"conditions": [ready]}});
        let patched = merge_status(&self.fixtures().cluster::<Node>(), name, &patch).await;
        patched.expect("an administrator may do this");
    }
}

/// A driver that answers each call of a method so.
fn failing(driver: &Driver<'_>, method: Method, code: Code, message: &str) {
    driver.mock.script(Rule::on(method).fail(code, message));
}

/// Long pauses between attempts, so that an answer stays as it is.
async fn patient(driver: &Driver<'_>) -> Result<()> {
    let backoff = json!({ "initial": "1m", "max": "5m", "jitterPercent": 0 });
    driver.configure(&json!({ "backoff": backoff })).await
}

#[tokio::test]
async fn before_there_is_an_attachment() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-early").await?;
    let node = driver.node();
    let pods = asked.fixtures().namespaced::<Pod>(NAMESPACE);
    let claims = asked.fixtures().namespaced::<PersistentVolumeClaim>(NAMESPACE);
    let unbound = json!({
        "metadata": {"name": "why-unbound"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}},
    });
    let unbound: PersistentVolumeClaim = serde_json::from_value(unbound)?;
    claims.create(&PostParams::default(), &unbound).await.expect("new");
    let pod = |name: &str, claim: &str| {
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "never-pulled"}], "volumes": volumes}})
    };
    let unscheduled: Pod = serde_json::from_value(pod("why-unscheduled", "why-unbound"))?;
    pods.create(&PostParams::default(), &unscheduled).await.expect("new");
    asked
        .why("pod-not-scheduled", "pod", "why-unscheduled", 3, &["PodNotScheduled"])
        .await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-pending", &node, &["why-unbound"])
        .await?;
    asked
        .why(
            "claim-not-bound",
            "pod",
            "why-pending",
            3,
            &["ClaimNotBound", "is Pending"],
        )
        .await?;
    asked
        .why(
            "claim-not-bound-pvc",
            "pvc",
            "why-unbound",
            3,
            &["ClaimNotBound", "is Pending"],
        )
        .await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-no-claim", &node, &["why-absent"])
        .await?;
    asked
        .why("claim-missing", "pod", "why-no-claim", 3, &["ClaimMissing"])
        .await?;
    let ran = asked.plugin.run(&["why", "pod", "why-pendin"]).await?;
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.error.contains("did you mean why-pending"), "{ran:?}");
    Ok(())
}

#[tokio::test]
async fn drivers_that_need_no_attach() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.unconfigured_driver("why-plain", |builder| builder).await?;
    asked.fixtures().csi_driver(&driver.name, false).await?;
    asked.fixtures().node(&driver.node()).await?;
    asked.pod(&driver, "why-plain", &driver.node()).await?;
    asked
        .why("attach-not-required", "pod", "why-plain", 0, &["attachRequired: false"])
        .await
}

#[tokio::test]
async fn nobody_serves_the_driver() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.unconfigured_driver("why-nobody", |builder| builder).await?;
    asked.fixtures().csi_driver(&driver.name, true).await?;
    asked.fixtures().node(&driver.node()).await?;
    node_is_seen(asked.fixtures(), &driver.node()).await?;
    asked.pod(&driver, "why-nobody", &driver.node()).await?;
    asked
        .fixtures()
        .wait_for_attachment_of("why-nobody", &driver.node())
        .await?;
    asked
        .why("no-attacher", "pod", "why-nobody", 3, &["NoAttacher"])
        .await?;
    // A sidecar's Lease that moves: it serves the driver.
    let leases = asked.fixtures().namespaced::<Lease>(NAMESPACE);
    let now = k8s_openapi::jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        .to_string();
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": "external-attacher-leader-why-nobody-csi-test"},
        "spec": {"holderIdentity": "sidecar-0", "leaseDurationSeconds": 600, "renewTime": now, "acquireTime": now},
    }))?;
    leases.create(&PostParams::default(), &lease).await.expect("new");
    asked
        .why("sidecar-serves", "pod", "why-nobody", 0, &["a sidecar serves driver"])
        .await
}

#[tokio::test]
async fn the_finalizer_of_a_driver_that_nobody_runs() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.unconfigured_driver("why-orphan", |builder| builder).await?;
    asked.fixtures().persistent_volume(&driver.volume("why-orphan")).await?;
    held(&driver, "why-orphan").await?;
    asked.fixtures().delete::<VolumeAttachment>("why-orphan").await?;
    asked
        .why("orphan-finalizer", "va", "why-orphan", 3, &["OrphanFinalizer"])
        .await?;
    let finalizers = json!({"metadata": {"finalizers": [driver.finalizer()]}});
    let volumes = asked.fixtures().cluster::<PersistentVolume>();
    merge(&volumes, "why-orphan", &finalizers).await?;
    asked.fixtures().delete::<PersistentVolume>("why-orphan").await?;
    asked
        .why("pv-attached", "pv", "why-orphan", 3, &["VolumeInUse"])
        .await?;
    patch(&driver, "why-orphan", &json!({"metadata": {"finalizers": null}})).await;
    asked.fixtures().wait_for_attachment_gone("why-orphan").await?;
    asked
        .why("pv-orphan-finalizer", "pv", "why-orphan", 3, &["OrphanFinalizer"])
        .await
}

/// A VolumeAttachment that carries the driver's finalizer, as one that was attached.
pub(super) async fn held(driver: &Driver<'_>, name: &str) -> Result<()> {
    driver.attachment(name, name).await?;
    let annotations = json!({"csi.alpha.kubernetes.io/node-id": driver.node_id()});
    let claim = json!({"metadata": {"finalizers": [driver.finalizer()], "annotations": annotations}});
    patch(driver, name, &claim).await;
    record_attached(driver, name).await;
    Ok(())
}

/// Changes a VolumeAttachment by hand.
pub(super) async fn patch(driver: &Driver<'_>, name: &str, patch: &Value) {
    let attachments = driver.world.fixtures.cluster::<VolumeAttachment>();
    let patched = merge(&attachments, name, patch).await;
    patched.expect("an administrator may do this");
}

/// Records a VolumeAttachment as attached, by hand.
pub(super) async fn record_attached(driver: &Driver<'_>, name: &str) {
    let attachments = driver.world.fixtures.cluster::<VolumeAttachment>();
    let status = json!({"status": {"attached": true}});
    let patched = merge_status(&attachments, name, &status).await;
    patched.expect("an administrator may do this");
}

#[tokio::test]
async fn the_attacher_cannot_begin() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-begin").await?;
    patient(&driver).await?;
    // A node without the driver.
    asked.fixtures().node("why-bare").await?;
    node_is_seen(asked.fixtures(), "why-bare").await?;
    asked.pod(&driver, "why-bare", "why-bare").await?;
    asked
        .why(
            "no-csinode-entry",
            "pod",
            "why-bare",
            3,
            &["DriverNotOnNode", "last error"],
        )
        .await?;
    // Secrets.
    let secret = |name: &str, namespace: &str| driver.volume(name).publish_secret(namespace, "why-key");
    let cases = [
        (
            "secret-not-allowed",
            "why-secret-unlisted",
            "elsewhere",
            "SecretNotAllowed",
        ),
        ("secret-missing", "why-secret-missing", NAMESPACE, "SecretMissing"),
    ];
    let backoff = json!({ "initial": "1m", "max": "5m", "jitterPercent": 0 });
    let listed = json!({ "backoff": backoff, "publishSecrets": [{"namespace": NAMESPACE}] });
    driver.configure(&listed).await?;
    operator::grant_secret(&world.cluster, NAMESPACE, "why-key").await?;
    for (golden, name, namespace, case) in cases {
        driver.claimed(&secret(name, namespace), name).await?;
        asked.fixtures().pod(NAMESPACE, name, &driver.node(), &[name]).await?;
        asked
            .why(golden, "pod", name, 3, &[case, "last error", "next attempt in"])
            .await?;
    }
    let hidden = driver
        .volume("why-secret-hidden")
        .publish_secret(NAMESPACE, "why-hidden");
    asked.fixtures().secret(NAMESPACE, "why-hidden", &[("k", "v")]).await?;
    driver.claimed(&hidden, "why-secret-hidden").await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-secret-hidden", &driver.node(), &["why-secret-hidden"])
        .await?;
    asked
        .why(
            "secret-forbidden",
            "pod",
            "why-secret-hidden",
            3,
            &["SecretForbidden", "last error", "next attempt in"],
        )
        .await
}

/// The VolumeAttachment of the pod that waits, as the JSON form has it with its error.
async fn attachment_by_json(asked: &Asked<'_>) -> Result<String> {
    let json = asked.plugin.run(&["why", "pod", "why-busy", "-o", "json"]).await?;
    let parsed: Value = serde_json::from_str(&json.out)?;
    assert_eq!(parsed["schema"], "attacher.csi.dev/why-v1");
    assert_eq!(parsed["chains"][0]["diagnosis"]["case"], "AttachFailing");
    assert_eq!(parsed["chains"][0]["diagnosis"]["lastError"]["code"], "Internal");
    Ok(parsed["chains"][0]["attachment"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table")]
async fn the_driver_refuses() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-refuse").await?;
    patient(&driver).await?;
    let cases = [
        (
            "attach-failing",
            "why-busy",
            Code::Internal,
            "the volume is busy",
            "AttachFailing",
        ),
        (
            "attach-uncertain",
            "why-late",
            Code::DeadlineExceeded,
            "too late",
            "AttachUncertain",
        ),
        (
            "attach-limit",
            "why-full",
            Code::ResourceExhausted,
            "node is full",
            "AttachLimit",
        ),
    ];
    for (golden, name, code, message, case) in cases {
        driver.mock.script(
            Rule::on(Method::ControllerPublishVolume)
                .volume(name)
                .fail(code, message),
        );
        asked.pod(&driver, name, &driver.node()).await?;
        asked
            .why(golden, "pod", name, 3, &[case, "last error", "next attempt in"])
            .await?;
    }
    asked
        .why(
            "attach-failing-pvc",
            "pvc",
            "why-busy",
            3,
            &["AttachFailing", "next attempt in"],
        )
        .await?;
    let name = attachment_by_json(&asked).await?;
    // Retried, it succeeds.
    driver.mock.clear_rules();
    let ran = asked.plugin.run(&["retry", &name]).await?;
    assert_eq!((ran.code, ran.out.contains("attached to node")), (0, true), "{ran:?}");
    asked
        .why("healthy-pod", "pod", "why-busy", 0, &["is attached to node"])
        .await
}

#[tokio::test]
async fn the_driver_is_away() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-away").await?;
    driver.configure(&json!({ "suspend": true })).await?;
    driver.wait("Ready", "True", Some("Suspended")).await?;
    asked.pod(&driver, "why-away", &driver.node()).await?;
    asked
        .fixtures()
        .wait_for_attachment_of("why-away", &driver.node())
        .await?;
    asked
        .why("config-suspended", "pod", "why-away", 3, &["ConfigSuspended"])
        .await?;
    driver.stop().await;
    driver.configure(&json!({ "suspend": false })).await?;
    driver.wait("DriverReachable", "False", None).await?;
    asked
        .why("driver-unreachable", "pod", "why-away", 3, &["DriverUnreachable"])
        .await
}

#[tokio::test]
async fn a_full_lane() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-lane").await?;
    driver
        .configure(&json!({ "concurrency": {"attach": 1}, "backoff": {"initial": "100ms"} }))
        .await?;
    driver
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).volume("why-lane-1").hang());
    asked.pod(&driver, "why-lane-1", &driver.node()).await?;
    driver
        .call(Method::ControllerPublishVolume, "why-lane-1", |_| true)
        .await?;
    asked.pod(&driver, "why-lane-2", &driver.node()).await?;
    asked
        .fixtures()
        .wait_for_attachment_of("why-lane-2", &driver.node())
        .await?;
    driver.wait("Saturated", "True", Some("LaneFull")).await?;
    asked
        .why("lane-saturated", "pod", "why-lane-2", 3, &["LaneSaturated"])
        .await?;
    asked
        .why(
            "attaching",
            "pod",
            "why-lane-1",
            0,
            &["Attaching", "ControllerPublishVolume"],
        )
        .await
}

/// A volume for one node moves, and something is in the way.
#[tokio::test]
async fn another_node_has_the_volume() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-move").await?;
    patient(&driver).await?;
    let (first, second) = (driver.node(), driver.second_node().await?);
    driver.claimed(&driver.volume("why-move"), "why-move").await?;
    driver.run_pod("why-move-1", &first, "why-move").await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-move-2", &second, &["why-move"])
        .await?;
    asked
        .why("multi-attach", "pod", "why-move-2", 3, &["UsedOnOtherNode"])
        .await?;
    asked
        .fixtures()
        .mark_volume_in_use(&first, &driver.name, "why-move")
        .await?;
    node_is_seen(asked.fixtures(), &first).await?;
    asked.fixtures().delete_pod(NAMESPACE, "why-move-1").await?;
    asked
        .why("waiting-for-unmount", "pod", "why-move-2", 3, &["WaitingForUnmount"])
        .await?;
    asked.unready(&first).await;
    asked
        .why("unready-node", "pod", "why-move-2", 3, &["is not Ready"])
        .await?;
    // The taint lets kube-controller-manager detach by force, and the driver refuses. While it does, kube-controller-manager no
    // longer counts the volume as attached there, and asks for the other node.
    failing(
        &driver,
        Method::ControllerUnpublishVolume,
        Code::Internal,
        "the machine is off",
    );
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
    asked.patch_node(&first, &json!({"spec": {"taints": [taint]}})).await;
    asked
        .why(
            "out-of-service-taint",
            "pod",
            "why-move-2",
            3,
            &[
                "OutOfServiceTaint",
                "keeps failing",
                "next attempt in",
                "refuses the attach meanwhile",
            ],
        )
        .await
}

#[tokio::test]
async fn a_detach_that_fails() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-detach").await?;
    patient(&driver).await?;
    let (first, second) = (driver.node(), driver.second_node().await?);
    driver.claimed(&driver.volume("why-detach"), "why-detach").await?;
    let attachment = driver.run_pod("why-detach-1", &first, "why-detach").await?;
    failing(
        &driver,
        Method::ControllerUnpublishVolume,
        Code::Internal,
        "read-only for maintenance",
    );
    asked.fixtures().delete_pod(NAMESPACE, "why-detach-1").await?;
    let name = attachment.metadata.name.unwrap_or_default();
    asked
        .why("detach-failing", "va", &name, 3, &["DetachFailing", "next attempt in"])
        .await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-detach-2", &second, &["why-detach"])
        .await?;
    asked
        .why(
            "waiting-for-detach",
            "pod",
            "why-detach-2",
            3,
            &[
                "WaitingForDetach",
                "keeps failing",
                "next attempt in",
                "refuses the attach meanwhile",
            ],
        )
        .await?;
    asked
        .why("node", "node", &first, 3, &["DetachFailing", "next attempt in"])
        .await?;
    let listed = asked
        .plugin
        .run(&["list", "--stuck", "--stuck-after", "0", "--driver", &driver.name])
        .await?;
    assert_eq!(
        (listed.code, listed.out.contains("DetachFailing")),
        (3, true),
        "{listed:?}"
    );
    let drivers = asked.plugin.run(&["drivers", "-o", "json"]).await?;
    let parsed: Value = serde_json::from_str(&drivers.out)?;
    let rows = parsed["items"].as_array().cloned().unwrap_or_default();
    assert!(
        rows.iter()
            .any(|row| row["driver"] == driver.name.as_str() && row["health"] == "Ready"),
        "{rows:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_volume_that_is_being_deleted() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-doomed").await?;
    patient(&driver).await?;
    driver.claimed(&driver.volume("why-doomed"), "why-doomed").await?;
    asked.fixtures().delete::<PersistentVolume>("why-doomed").await?;
    asked
        .fixtures()
        .pod(NAMESPACE, "why-doomed", &driver.node(), &["why-doomed"])
        .await?;
    asked
        .why(
            "volume-deleting",
            "pod",
            "why-doomed",
            3,
            &["VolumeDeleting", "last error", "next attempt in"],
        )
        .await?;
    asked
        .why(
            "pv-protected-by-claim",
            "pv",
            "why-doomed",
            3,
            &["until claim default/why-doomed is deleted"],
        )
        .await
}

/// Without the operator the objects are still explained, and with its CRD alone nobody leads.
#[tokio::test]
async fn clusters_without_an_operator() -> Result<()> {
    let _permit = crate::rig::own_control_plane().await;
    let cluster = Box::pin(ControlPlane::start(Options::default())).await?;
    let client = cluster.admin_client().await?;
    let fixtures = Fixtures::new(client.clone());
    let plugin = Plugin::in_cluster(&cluster).await?;
    fixtures.csi_node("bare-node", "bare.csi.test", "id").await?;
    fixtures
        .persistent_volume(&crate::support::Volume::new("bare", "bare.csi.test", "bare"))
        .await?;
    fixtures
        .volume_attachment("bare", "bare.csi.test", "bare", "bare-node")
        .await?;
    let ran = plugin
        .until(
            &["why", "va", "bare"],
            &["NoAttacher", "CRD of AttacherConfig is not installed"],
        )
        .await?;
    assert_eq!(ran.code, 3, "{ran:?}");
    compare("no-operator", &ran.out);
    a_former_pod_says_nothing(&fixtures, &plugin).await?;
    operator::install(&cluster).await?;
    let spec = json!({ "endpoint": "unix:///csi/csi.sock", "driverName": "bare.csi.test" });
    apply_config(&client, "bare", spec).await?;
    let ran = plugin.until(&["why", "va", "bare"], &["NoLeader"]).await?;
    compare("no-leader", &ran.out);
    // Somebody who may read only VolumeAttachments is shown what is missing.
    let reader = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "only-attachments"},
        "rules": [{"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"], "verbs": ["get", "list"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "only-attachments"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "only-attachments"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    cluster.apply_yaml(&reader.to_string()).await?;
    cluster.apply_yaml(&binding.to_string()).await?;
    let jane = Plugin::in_cluster(&cluster)
        .await?
        .with_kubeconfig(cluster.kubeconfig_for("jane", &[])?);
    let ran = jane.until(&["why", "va", "bare"], &["not seen"]).await?;
    assert_eq!(ran.code, 7, "{ran:?}");
    compare("forbidden", &ran.out);
    let ran = plugin.run(&["why", "va", "bare", "--as", "jane"]).await?;
    assert_eq!(ran.code, 7, "{ran:?}");
    Ok(())
}

/// A pod of a StatefulSet has the name of the one before it, whose Events live on for an hour.
async fn a_former_pod_says_nothing(fixtures: &Fixtures, plugin: &Plugin) -> Result<()> {
    let volume = crate::support::Volume::new("told", "bare.csi.test", "told");
    fixtures.csi_node("told-node", "bare.csi.test", "told").await?;
    fixtures.bound_claim(&volume, NAMESPACE, "told").await?;
    let pod = fixtures.pod(NAMESPACE, "told", "told-node", &["told"]).await?;
    let uid = pod.metadata.uid.unwrap_or_default();
    for (name, uid, message, last) in [
        ("told.1", "of-the-former", "of the former pod", "2026-01-01T00:01:00Z"),
        ("told.2", &*uid, "of this pod", "2026-01-01T00:00:00Z"),
    ] {
        let event = json!({
            "metadata": {"name": name},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": "told", "uid": uid},
            "reason": "FailedAttachVolume", "type": "Warning", "message": message, "lastTimestamp": last,
        });
        let event: Event = serde_json::from_value(event)?;
        let events = fixtures.namespaced::<Event>(NAMESPACE);
        events.create(&PostParams::default(), &event).await.expect("new");
    }
    let told = "the pod's last event FailedAttachVolume says: of this pod";
    plugin.until(&["why", "pod", "told"], &[told]).await.map(drop)
}
