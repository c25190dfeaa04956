//! `make demo` on a cluster that it did not start, and how it shows tables.

#[path = "../demo/table.rs"]
mod table;

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::ListParams;

use crate::support::fixtures::Object;
use crate::support::wait::wait_for;
use crate::support::{ControlPlane, Fixtures, Options, Result, Volume, built_program};

/// Longer than any wait of the demonstration that is to succeed here.
const LIMIT: Duration = Duration::from_mins(4);

/// The API server makes them, some of them a while after it is ready.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Runs the demonstration once against a cluster.
async fn run(kubeconfig: &Path) -> Output {
    let run = tokio::process::Command::new(built_program("examples/demo").expect("built"))
        .env("KUBECONFIG_TARGET", kubeconfig)
        .env("ONCE", "1")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, run).await;
    output.expect("it ends by itself").expect("it starts")
}

/// All objects of the kinds that the demonstration creates, as "Kind name".
async fn objects(fixtures: &Fixtures) -> Vec<String> {
    let mut all = names::<Namespace>(fixtures).await;
    all.extend(names::<Node>(fixtures).await);
    all.extend(names::<PersistentVolume>(fixtures).await);
    all.extend(names::<ClusterRole>(fixtures).await);
    all.extend(names::<ClusterRoleBinding>(fixtures).await);
    all.extend(names::<CSIDriver>(fixtures).await);
    all.extend(names::<CSINode>(fixtures).await);
    all.extend(names::<VolumeAttachment>(fixtures).await);
    all.extend(names::<StorageClass>(fixtures).await);
    all.extend(names::<CustomResourceDefinition>(fixtures).await);
    all
}

async fn names<K: Object + kube::Resource<Scope = ClusterResourceScope>>(fixtures: &Fixtures) -> Vec<String> {
    let list = fixtures.cluster::<K>().list(&ListParams::default()).await;
    let items = list.expect("an administrator may list").items;
    items
        .iter()
        .map(|item| format!("{} {}", K::kind(&()), item.name_any()))
        .collect()
}

#[tokio::test]
async fn leaves_a_foreign_cluster_as_it_was_and_overwrites_nothing() -> Result<()> {
    let _permit = crate::rig::own_control_plane().await;
    let cluster = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let fixtures = Fixtures::new(cluster.admin_client().await?);
    for name in SYSTEM_NAMESPACES {
        let namespaces = fixtures.cluster::<Namespace>();
        wait_for(namespaces, name, "there", LIMIT, |namespace| namespace.is_some()).await?;
    }
    let before = objects(&fixtures).await;

    let output = run(&cluster.admin_kubeconfig()).await;
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}\n{errors}");
    for wanted in [
        "kube-controller-manager\n",
        "ssd.demo.example.com was asked 3 times for ControllerPublishVolume",
        "├─ csi.v1.Controller/ControllerPublishVolume  ",
        "ssd.demo.example.com was asked 1 time for CreateVolume, 1 time for DeleteVolume",
        "PersistentVolumeClaim.provision  ",
        "csi.v1.Controller/DeleteVolume  ",
        "All objects of the demonstration are gone.",
    ] {
        assert!(told.contains(wanted), "{wanted:?} is not in:\n{told}");
    }
    assert!(!told.contains('\x1b'), "colour in a pipe");
    assert_eq!(objects(&fixtures).await, before);

    let volume = Volume::new("demo-web-0", "somebody.example.com", "theirs");
    fixtures.persistent_volume(&volume).await?;
    let before = objects(&fixtures).await;
    let output = run(&cluster.admin_kubeconfig()).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("did nothing: PersistentVolume demo-web-0."), "{errors}");
    assert_eq!(objects(&fixtures).await, before);
    Ok(())
}
