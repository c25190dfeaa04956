//! Proves the test support itself: what the other tests build on.

mod build_script;
mod processes;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::controller_manager::node_is_seen;
use crate::rig::{own_control_planes, within};
use crate::support::{ControlPlane, Fixtures, Options, Result, Volume, shared_control_plane};

const DRIVER: &str = "harness.example.com";
const LIMIT: Duration = Duration::from_secs(30);

const MANIFEST: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: parrots.test.example.com}
spec:
  group: test.example.com
  scope: Cluster
  names: {plural: parrots, singular: parrot, kind: Parrot}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {voltage: {type: integer}}}}
---
apiVersion: test.example.com/v1
kind: Parrot
metadata: {name: norwegian}
spec: {voltage: 4000}
---
---
apiVersion: v1
kind: ConfigMap
metadata: {name: colours}
data: {plumage: blue}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: colours, namespace: default}
rules:
- {apiGroups: [''], resources: [configmaps], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: colours, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: colours}
subjects:
- {kind: ServiceAccount, name: keeper, namespace: zoo}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: visitors}
";

fn is_forbidden<T: std::fmt::Debug>(outcome: &kube::Result<T>) -> bool {
    matches!(outcome, Err(kube::Error::Api(status)) if status.is_forbidden())
}

/// A ConfigMap that a role allows to read. The API server itself hears of roles by watches, a moment after they are made.
async fn by_role(config_maps: &Api<ConfigMap>, name: &str) -> Result<ConfigMap> {
    let asking = async {
        loop {
            let answer = config_maps.get(name).await;
            if !is_forbidden(&answer) {
                return answer;
            }
            // Nobody tells when a role is known.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let answer = within("reading what the role allows", asking).await?;
    Ok(answer.expect("the role allows it"))
}

#[tokio::test]
async fn applies_manifests_and_enforces_rbac() -> Result<()> {
    let control_plane = shared_control_plane().await?;
    for round in 0..2 {
        let applied = control_plane.apply_yaml(MANIFEST).await?;
        let names: Vec<_> = applied
            .iter()
            .filter_map(|object| object.metadata.name.as_deref())
            .collect();
        assert_eq!(
            names,
            ["parrots.test.example.com", "norwegian", "colours", "colours", "colours"],
            "round {round}"
        );
        assert_eq!(applied[1].data["spec"]["voltage"], 4000);
    }

    let keeper = control_plane.kubeconfig_for_service_account("zoo", "keeper").await?;
    let keeper = control_plane.client_from(&keeper).await?;
    let visitor = control_plane.client_for("anna", &["guests", "visitors"]).await?;
    for client in [keeper, visitor] {
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let colours = by_role(&config_maps, "colours").await?;
        assert_eq!(colours.data.unwrap_or_default()["plumage"], "blue");
        assert!(is_forbidden(&config_maps.list(&ListParams::default()).await));
        assert!(is_forbidden(
            &Api::<PersistentVolume>::all(client).list(&ListParams::default()).await
        ));
    }
    let stranger = control_plane.client_for("anna", &["guests"]).await?;
    assert!(is_forbidden(
        &Api::<ConfigMap>::namespaced(stranger, "default").get("colours").await
    ));
    Ok(())
}

/// Plays the user who runs a pod with a volume, and the attacher. Returns the name of the VolumeAttachment.
async fn attach(fixtures: &Fixtures, node: &str, name: &str) -> Result<String> {
    let volume = Volume::new(name, DRIVER, name)
        .attribute("tier", "gold")
        .fs_type("ext4");
    fixtures.bound_claim(&volume, "default", name).await?;
    fixtures.pod("default", name, node, &[name]).await?;
    let attachment = fixtures.wait_for_attachment_of(name, node).await?;
    assert_eq!(attachment.spec.attacher, DRIVER);
    let attachment = attachment.metadata.name.unwrap_or_default();
    let attached = json!({ "status": { "attached": true } });
    let attachments = fixtures.cluster::<VolumeAttachment>();
    let patched = attachments
        .patch_status(&attachment, &PatchParams::default(), &Patch::Merge(attached))
        .await;
    assert!(
        patched
            .expect("an administrator may do this")
            .status
            .is_some_and(|status| status.attached)
    );
    fixtures.wait_for_attached(&attachment).await?;
    fixtures.wait_for_volume_attached(node, DRIVER, name).await?;
    Ok(attachment)
}

#[tokio::test]
async fn stock_controller_attaches_and_detaches() -> Result<()> {
    let control_plane = shared_control_plane().await?;
    let fixtures = Fixtures::new(control_plane.admin_client().await?);
    let node = "harness-node";
    fixtures.node(node).await?;
    fixtures.csi_node(node, DRIVER, "harness-node-id").await?;
    fixtures.csi_driver(DRIVER, true).await?;
    node_is_seen(&fixtures, node).await?;
    let mounted = attach(&fixtures, node, "mounted").await?;
    let unmounted = attach(&fixtures, node, "unmounted").await?;

    // As long as the kubelet uses a volume, the controller must keep its attachment. The volume which is not in use is
    // considered last, so when that is gone the other one was considered too.
    fixtures.mark_volume_in_use(node, DRIVER, "mounted").await?;
    node_is_seen(&fixtures, node).await?;
    fixtures.delete_pod("default", "mounted").await?;
    fixtures.delete_pod("default", "unmounted").await?;
    fixtures.wait_for_attachment_gone(&unmounted).await?;
    assert!(
        fixtures
            .get_attachment(&mounted)
            .await?
            .metadata
            .deletion_timestamp
            .is_none()
    );
    fixtures.unmark_volume_in_use(node, DRIVER, "mounted").await?;
    fixtures.wait_for_attachment_gone(&mounted).await?;
    fixtures.wait_for_volume_detached(node, DRIVER, "mounted").await
}

#[tokio::test]
async fn audit_log_tells_who_changed_what() -> Result<()> {
    let control_plane = shared_control_plane().await?;
    let client = control_plane.client_for("auditor", &["system:masters"]).await?;
    let fixtures = Fixtures::new(client);
    fixtures
        .volume_attachment("audited", "audit.example.com", "no-such-volume", "no-such-node")
        .await?;
    let status = json!({ "status": { "attached": false, "attachError": { "message": "no such volume" } } });
    let attachments = fixtures.cluster::<VolumeAttachment>();
    attachments
        .patch_status("audited", &PatchParams::default(), &Patch::Merge(status.clone()))
        .await
        .expect("an administrator may do this");
    let error = fixtures.wait_for_attach_error("audited").await?;
    assert_eq!(error.message.as_deref(), Some("no such volume"));
    fixtures
        .secret("default", "audited", &[("password", "swordfish")])
        .await?;
    fixtures.delete::<VolumeAttachment>("audited").await?;
    fixtures.wait_for_attachment_gone("audited").await?;

    let patch = control_plane
        .wait_for_audit_event("the status patch", LIMIT, |event| {
            event.is("patch", "volumeattachments/status") && event.name == "audited"
        })
        .await?;
    assert_eq!(patch.request_body.as_ref(), Some(&status));
    assert_eq!((patch.username.as_str(), patch.response_code), ("auditor", 200));
    assert_eq!(
        patch.response_body.as_ref().map(|body| &body["kind"]),
        Some(&json!("VolumeAttachment"))
    );
    assert!(patch.stage_timestamp >= patch.request_timestamp);
    assert!(
        patch
            .uri
            .starts_with("/apis/storage.k8s.io/v1/volumeattachments/audited/status"),
        "{}",
        patch.uri
    );

    let secret = control_plane
        .wait_for_audit_event("the secret", LIMIT, |event| {
            event.is("create", "secrets") && event.name == "audited"
        })
        .await?;
    assert_eq!(
        (secret.request_body.as_ref(), secret.response_body.as_ref()),
        (None, None)
    );
    let delete = control_plane
        .wait_for_audit_event("the delete", LIMIT, |event| {
            event.is("delete", "volumeattachments") && event.name == "audited"
        })
        .await?;
    assert!(
        control_plane
            .audit_events()?
            .iter()
            .any(|event| event.uri == delete.uri && event.verb == delete.verb)
    );
    Ok(())
}

#[tokio::test]
async fn kubectl_of_the_same_release_works_with_the_kubeconfig() -> Result<()> {
    let control_plane = shared_control_plane().await?;
    let output = tokio::process::Command::new(control_plane.kubectl_path().await?)
        .args(["get", "namespace", "default", "--output=name", "--cache-dir"])
        .arg(control_plane.folder().join("kubectl-cache"))
        .env("KUBECONFIG", control_plane.admin_kubeconfig())
        .output()
        .await
        .expect("kubectl starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "namespace/default\n");
    Ok(())
}

#[tokio::test]
async fn works_without_controller_manager() -> Result<()> {
    let _permit = own_control_planes(1).await;
    let control_plane = ControlPlane::start(Options {
        priority_and_fairness: false,
        ..Options::default()
    })
    .await?;
    let fixtures = Fixtures::new(control_plane.admin_client().await?);
    let volume = Volume::new("alone", DRIVER, "alone")
        .access_modes(&["ReadWriteMany"])
        .publish_secret("default", "s");
    let (_, claim) = fixtures.bound_claim(&volume, "default", "alone").await?;
    assert_eq!(claim.status.and_then(|status| status.phase).as_deref(), Some("Bound"));
    fixtures.pod("default", "alone", "no-such-node", &["alone"]).await?;
    fixtures.delete_namespaced::<Pod>("default", "alone").await?;
    fixtures.delete::<PersistentVolume>("alone").await?;
    fixtures.wait_for_volume_gone("alone").await?;

    let kubeconfig = std::fs::metadata(control_plane.admin_kubeconfig()).expect("the file is there");
    assert_eq!(kubeconfig.permissions().mode() & 0o777, 0o600);
    let folder = std::fs::metadata(control_plane.folder()).expect("the folder is there");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    assert!(control_plane.audit_events().is_err());
    Ok(())
}

#[tokio::test]
async fn two_run_side_by_side_and_a_restart_keeps_the_data() -> Result<()> {
    let _permits = own_control_planes(2).await;
    let start = || ControlPlane::start(Options::default());
    let (first, second) = tokio::try_join!(start(), start())?;
    assert_ne!(first.url(), second.url());
    let fixtures = Fixtures::new(first.admin_client().await?);
    fixtures.persistent_volume(&Volume::new("kept", DRIVER, "kept")).await?;
    let elsewhere: Api<PersistentVolume> = Api::all(second.admin_client().await?);
    assert!(elsewhere.get_opt("kept").await.expect("it answers").is_none());

    first.stop_apiserver();
    let volumes = fixtures.cluster::<PersistentVolume>();
    assert!(
        volumes.get("kept").await.is_err(),
        "the API server answers after it was stopped"
    );
    let waits = tokio::spawn({
        // Longer than an API server takes to start, and than the pause after which the watch is tried again then.
        let fixtures = fixtures.clone().with_limit(LIMIT * 6);
        async move { fixtures.wait_for_volume_gone("kept").await }
    });
    first.start_apiserver().await?;
    assert!(volumes.get("kept").await.is_ok());
    fixtures.delete::<PersistentVolume>("kept").await?;
    waits.await.expect("it does not panic")
}

#[tokio::test]
async fn a_component_that_cannot_start_is_reported_with_its_log() {
    let options = Options {
        apiserver_args: vec!["--no-such-flag".to_owned()],
        ..Options::default()
    };
    let error = ControlPlane::start(options)
        .await
        .err()
        .expect("it cannot start")
        .to_string();
    assert!(
        error.contains("kube-apiserver ended") && error.contains("unknown flag: --no-such-flag"),
        "{error}"
    );
}
