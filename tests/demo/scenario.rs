//! What happens on the cluster, step by step.

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, interval};

use csi_attacher_model::api::AttacherConfig;

use crate::attachments::{Attachments, Known, Seen, short_name};
use crate::cluster::Cluster;
use crate::plan::{self, DEFINITION, DRIVERS, NAMESPACE, NODES, PODS};
use crate::processes::{MockDriver, write_private};
use crate::say::Say;
use crate::support::operator::{IDENTITY, release_lease, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Fixtures, Result, Volume};
use crate::table;

/// How long kube-controller-manager may take for its part.
const CONTROLLER_WITHIN: Duration = Duration::from_mins(1);
/// How long all volumes may take. Far more than they need, so that a busy machine is no failure.
const ALL_WITHIN: Duration = Duration::from_mins(2);
/// How long the counts in the status of an AttacherConfig may take to follow.
const STATUS_WITHIN: Duration = Duration::from_secs(30);

/// Installs the resource and the rules, as the README says it is done.
pub async fn install(cluster: &Cluster, say: Say) -> Result<()> {
    say.step("Installing the CustomResourceDefinition and the RBAC rules of the operator");
    cluster
        .kubectl(&[
            "apply",
            "-f",
            "crds/",
            "-f",
            "config/rbac.yaml",
            "-f",
            "config/samples/rbac-provisioning.yaml",
        ])
        .await?;
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    let definition = format!("crd/{DEFINITION}");
    cluster
        .quiet_kubectl(&[&established[..], &[&definition]].concat())
        .await
        .map(drop)
}

/// Applies an AttacherConfig for each driver and waits until the operator says that they are ready.
pub async fn configure(cluster: &Cluster, drivers: &[MockDriver], say: Say) -> Result<()> {
    say.step("Two AttacherConfig objects, one for each driver");
    let mut manifest = String::new();
    for driver in drivers {
        let (plan, socket) = (driver.driver, driver.socket.display());
        let separator = if manifest.is_empty() { "" } else { "---\n" };
        let written = write!(
            manifest,
            "{separator}apiVersion: attacher.csi.dev/v1alpha1\nkind: AttacherConfig\nmetadata:\n  name: {}\nspec:\n  \
             driverName: {}\n  endpoint: unix://{socket}\n",
            plan.config, plan.name
        );
        written.map_err(|error| Error::Other(error.to_string()))?;
        if plan.name == DRIVERS[0].name {
            manifest.push_str("  provisioning: {}\n");
        }
    }
    release_provisioner_lease(&cluster.client, IDENTITY, DRIVERS[0].name).await?;
    // An operator that creates a Lease waits for its duration; this one comes after another.
    for driver in DRIVERS {
        release_lease(&cluster.client, IDENTITY, driver.name).await?;
    }
    let path = cluster.folder().join("attacherconfigs.yaml");
    write_private(&path, &manifest).await?;
    say.line(&manifest);
    let path = path.display().to_string();
    say.command(format!("kubectl apply -f {path}"));
    say.line(apply_new_kind(cluster, &path).await?);
    let configs = DRIVERS.map(|driver| format!("attacherconfig/{}", driver.config));
    let configs = configs.each_ref().map(String::as_str);
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s"];
    cluster.kubectl(&[&wait[..], &configs].concat()).await?;
    let provisions = ["wait", "--for=condition=ProvisioningReady", "--timeout=60s", configs[0]];
    cluster.kubectl(&provisions).await
}

/// The discovery documents follow a new definition with a delay, so that kubectl may not know the kind for a moment.
async fn apply_new_kind(cluster: &Cluster, path: &str) -> Result<String> {
    let deadline = Instant::now() + STATUS_WITHIN;
    let mut ticks = interval(Duration::from_millis(250));
    loop {
        ticks.tick().await;
        match cluster.quiet_kubectl(&["apply", "-f", path]).await {
            Err(error) if error.to_string().contains("no matches for kind") && Instant::now() < deadline => {}
            outcome => return outcome,
        }
    }
}

/// Makes nodes, drivers and the namespace, and waits for the first sign of life of kube-controller-manager.
pub async fn furnish(cluster: &Cluster, say: Say) -> Result<()> {
    say.step("Nodes, drivers and volumes");
    let fixtures = Fixtures::new(cluster.client.clone());
    let registered: Vec<(&str, String)> = NODES.iter().map(|node| (*node, plan::node_id(node))).collect();
    for (node, id) in &registered {
        fixtures.node(node).await?;
        close_to_scheduler(&fixtures, node).await?;
        let drivers = DRIVERS.map(|driver| (driver.name, id.as_str()));
        fixtures.csi_node_with(node, &drivers).await?;
    }
    for driver in DRIVERS {
        fixtures.csi_driver(driver.name, true).await?;
    }
    say.line(format!(
        "{} Node, {} CSINode and {} CSIDriver objects",
        NODES.len(),
        NODES.len(),
        DRIVERS.len()
    ));
    make_namespace(&fixtures).await?;
    for (volume, _) in plan::volumes() {
        let object = Volume::new(volume.name, volume.driver, volume.handle).fs_type("ext4");
        fixtures.bound_claim(&object, NAMESPACE, volume.name).await?;
    }
    let count = plan::volumes().count();
    say.line(format!(
        "{count} PersistentVolumes, each bound to a PersistentVolumeClaim in namespace {NAMESPACE}"
    ));
    Ok(())
}

/// Nobody else's pod may be scheduled to a node that does not exist.
async fn close_to_scheduler(fixtures: &Fixtures, node: &str) -> Result<()> {
    let closed = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    let nodes = fixtures.cluster::<Node>();
    let patched = nodes.patch(node, &PatchParams::default(), &closed).await;
    patched
        .map(drop)
        .map_err(|error| Error::Other(format!("cannot close node {node}: {error}")))
}

async fn make_namespace(fixtures: &Fixtures) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    let created = fixtures
        .cluster::<Namespace>()
        .create(&PostParams::default(), &namespace)
        .await;
    created.map_err(|error| Error::Other(format!("cannot create namespace {NAMESPACE}: {error}")))?;
    // Pods need it, and only kube-controller-manager makes it.
    let accounts: Api<ServiceAccount> = fixtures.namespaced(NAMESPACE);
    let there = |account: Option<&ServiceAccount>| account.is_some();
    let account = wait_for(
        accounts,
        "default",
        "made by kube-controller-manager",
        CONTROLLER_WITHIN,
        there,
    )
    .await;
    account.map(drop).map_err(|error| no_controller(&error))
}

fn no_controller(error: &Error) -> Error {
    Error::Other(format!(
        "{error}\nDoes a kube-controller-manager run for this cluster? Its attach/detach controller makes the \
         VolumeAttachments; without it there is nothing to attach."
    ))
}

/// Makes the pods and plays the kubelet until all volumes are attached.
pub async fn attach(cluster: &Cluster, seen: &Attachments, say: Say) -> Result<()> {
    say.step("Pods; now kube-controller-manager makes VolumeAttachments and the operator attaches");
    let fixtures = Fixtures::new(cluster.client.clone()).with_limit(ALL_WITHIN);
    start_pods(&fixtures, say).await?;
    let attached = seen
        .wait_for_all("attached", ALL_WITHIN, |seen| seen.attaching_took().is_some())
        .await
        .map_err(|error| if seen.any() { error } else { no_controller(&error) })?;
    let told = plan::volumes().map(|(volume, node)| {
        let fixtures = fixtures.clone();
        async move {
            fixtures
                .wait_for_volume_attached(node, volume.driver, volume.handle)
                .await
        }
    });
    try_join_all(told).await?;
    show(&attached, "TOOK TO ATTACH", Seen::attaching_took, say);
    say.line("Each node lists its volumes in status.volumesAttached; a kubelet would mount them now.");
    Ok(())
}

async fn start_pods(fixtures: &Fixtures, say: Say) -> Result<()> {
    for pod in PODS {
        let claims: Vec<&str> = pod.volumes.iter().map(|volume| volume.name).collect();
        fixtures.pod(NAMESPACE, pod.name, pod.node, &claims).await?;
        say.line(format!(
            "pod {} on {} uses {}",
            pod.name,
            pod.node,
            claims.join(" and ")
        ));
        for volume in pod.volumes {
            // A kubelet says which volumes it needs before they are attached; only when it no longer says so may they
            // be detached.
            fixtures
                .mark_volume_in_use(pod.node, volume.driver, volume.handle)
                .await?;
        }
    }
    say.line("");
    Ok(())
}

/// The VolumeAttachments as a table.
fn show(known: &Known, took: &str, duration: fn(&Seen) -> Option<Duration>, say: Say) {
    let rows: Vec<Vec<String>> = known
        .iter()
        .map(|(name, seen)| {
            let duration = seconds(duration(seen));
            let columns = [&short_name(name), &seen.driver, &seen.volume, &seen.node];
            let columns = columns.into_iter().map(String::as_str);
            let columns = columns.chain([seen.state(), &duration, &seen.creator]);
            columns.map(str::to_owned).collect()
        })
        .collect();
    let header = ["VOLUMEATTACHMENT", "DRIVER", "PV", "NODE", "STATE", took, "CREATED BY"];
    say.line("");
    say.line(table::render(&header, &rows));
}

/// Shows the AttacherConfigs when their counts are those of the volumes.
pub async fn show_configs(cluster: &Cluster) -> Result<()> {
    for driver in DRIVERS {
        let wanted = i64::try_from(plan::volumes_of(driver.name)).unwrap_or(i64::MAX);
        let what = format!("status says {wanted} attached");
        let configs: Api<AttacherConfig> = Api::all(cluster.client.clone());
        wait_for(configs, driver.config, &what, STATUS_WITHIN, |config| {
            let counts = config.and_then(|config| config.status.as_ref()?.attachments.as_ref());
            counts.is_some_and(|counts| counts.attached == wanted)
        })
        .await?;
    }
    cluster.kubectl(&["get", "atc"]).await
}

/// Deletes the pods and plays the kubelet until all volumes are detached.
pub async fn detach(cluster: &Cluster, seen: &Attachments, say: Say) -> Result<()> {
    say.step("Deleting the pods; now kube-controller-manager deletes the VolumeAttachments and the operator detaches");
    let fixtures = Fixtures::new(cluster.client.clone());
    for pod in PODS {
        fixtures.delete_pod(NAMESPACE, pod.name).await?;
        for volume in pod.volumes {
            fixtures
                .unmark_volume_in_use(pod.node, volume.driver, volume.handle)
                .await?;
        }
    }
    let detached = seen
        .wait_for_all("gone", ALL_WITHIN, |seen| seen.detaching_took().is_some())
        .await?;
    show(&detached, "TOOK TO DETACH", Seen::detaching_took, say);
    Ok(())
}

/// Compares what the drivers were asked with what was to be done: exactly one call for each volume and direction.
pub async fn check_calls(drivers: &[MockDriver], say: Say) -> Result<()> {
    for driver in drivers {
        let name = driver.driver.name;
        let wanted = plan::volumes_of(name);
        let publishes = driver.count_calls("ControllerPublishVolume").await?;
        let unpublishes = driver.count_calls("ControllerUnpublishVolume").await?;
        say.line(format!(
            "{name} was asked {publishes} times for ControllerPublishVolume, {unpublishes} times for \
             ControllerUnpublishVolume"
        ));
        if (publishes, unpublishes) != (wanted, wanted) {
            return Err(Error::Other(format!(
                "{name} should have been asked {wanted} times for each"
            )));
        }
    }
    Ok(())
}

fn seconds(duration: Option<Duration>) -> String {
    duration
        .map(|duration| format!("{:.2} s", duration.as_secs_f64()))
        .unwrap_or_default()
}
