//! Each runbook begins with commands that work as they are typed.

use std::path::Path;
use std::process::Output;

use kube::CustomResourceExt;
use serde_json::json;
use tokio::process::Command;

use super::{names, read};
use crate::rig::own_control_plane;
use crate::support::{ControlPlane, Error, Kubectl, Options, Result};

const NAMESPACE: &str = "csi-attacher-operator";
const MESSAGE: &str = "a message of the condition";

/// The commands before the first heading of a page.
fn commands(page: &str) -> Vec<String> {
    let head = page.split("\n## ").next().unwrap_or_default();
    let block = head
        .split_once("\n```console\n")
        .and_then(|(_, rest)| rest.split_once("\n```\n"));
    block.map_or_else(Vec::new, |(lines, _)| lines.lines().map(str::to_owned).collect())
}

#[test]
fn a_block_after_the_first_heading_is_not_the_first_command() {
    assert_eq!(commands("# A\n\n```console\na\nb\n```\n\n## S\n"), ["a", "b"]);
    assert!(commands("# A\n\n## S\n\n```console\na\n```\n").is_empty());
}

/// A driver with an attachment that fails and a Lease, so that the commands have something to show.
async fn prepare(cluster: &ControlPlane, kubectl: &Kubectl) -> Result<()> {
    let definition = csi_attacher_model::api::AttacherConfig::crd();
    let definition = serde_json::to_string(&definition)?;
    cluster.apply_yaml(&definition).await?;
    kubectl.run(&["create", "namespace", NAMESPACE]).await?;
    let config = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1",
        "kind": "AttacherConfig",
        "metadata": {"name": "shown"},
        "spec": {"endpoint": "unix:///csi/csi.sock"},
    });
    cluster.apply_yaml(&config.to_string()).await?;
    let condition = |name: &str| {
        json!({"type": name, "status": "False", "reason": "Shown", "message": MESSAGE,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions: Vec<_> = [
        "Ready",
        "DriverReachable",
        "Stalled",
        "Saturated",
        "AttachmentsConsistent",
        "ProvisioningHealthy",
        "DeletionHealthy",
    ]
    .map(condition)
    .into();
    status(kubectl, "attacherconfig/shown", json!({"conditions": conditions})).await?;
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "shown"},
        "spec": {"attacher": "d.csi.example", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
    });
    cluster.apply_yaml(&attachment.to_string()).await?;
    let errors = json!({"attached": false, "attachError": {"message": MESSAGE}, "detachError": {"message": MESSAGE}});
    status(kubectl, "volumeattachment/shown", errors).await?;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "external-attacher-leader-d-csi-example", "namespace": NAMESPACE},
        "spec": {"holderIdentity": "a-replica", "leaseDurationSeconds": 15},
    });
    cluster.apply_yaml(&lease.to_string()).await?;
    Ok(())
}

async fn status(kubectl: &Kubectl, object: &str, status: serde_json::Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    kubectl
        .run(&["patch", object, "--subresource=status", "--type=merge", "-p", &patch])
        .await?;
    Ok(())
}

/// Runs a line in a shell that finds kubectl and the cluster.
async fn typed(line: &str, kubectl: &Path, kubeconfig: &Path, home: &Path) -> Result<Output> {
    let folder = kubectl.parent().unwrap_or(kubectl).display();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .env("PATH", format!("{folder}:{path}"))
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", home)
        .kill_on_drop(true)
        .output();
    output.await.map_err(Error::from)
}

#[tokio::test]
async fn each_runbook_begins_with_commands_that_work_as_they_are() -> Result<()> {
    let _permit = own_control_plane().await;
    let cluster = ControlPlane::start(Options::default()).await?;
    let kubectl = Kubectl::of(&cluster).await?;
    prepare(&cluster, &kubectl).await?;
    let home = tempfile::tempdir()?;
    let (program, kubeconfig) = (cluster.kubectl_path().await?, cluster.admin_kubeconfig());
    for name in names() {
        let lines = commands(&read(&format!("docs/runbooks/{name}.md")));
        assert!(!lines.is_empty(), "{name} does not begin with a command");
        for line in lines {
            let output = typed(&line, &program, &kubeconfig, home.path()).await?;
            let [shown, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
            // No kubelet runs here, so there is no pod and no log.
            if line.contains(" logs ") || line.contains("get pods") || line.contains("get events") {
                assert!(said.contains("No resources found"), "{name}: {line}: {said}");
                continue;
            }
            assert!(output.status.success(), "{name}: {line}: {said}");
            for (part, expected) in [
                ("conditions[", MESSAGE),
                ("Error.message", MESSAGE),
                ("get leases", "a-replica"),
                ("get volumeattachments", "d.csi.example"),
                ("get attacherconfigs", "shown"),
            ] {
                assert!(
                    !line.contains(part) || shown.contains(expected),
                    "{name}: {line}: {shown}"
                );
            }
        }
    }
    Ok(())
}
