//! Where a run ends, in a form that two runs can be compared by: without what differs each time, such as times, versions and who leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::{FINALIZER_PREFIX, PROVISIONING_MARKER, TRACEPARENT_ANNOTATION};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::checker::Kind;
use super::claims::{handle, is_bound, volume_name};
use super::workers::{Order, SETTLED_WITHIN, Workers};
use super::world::{Driver, NAMESPACE, World};
use crate::support::Result;

/// How long an end must stay as it is to count as one.
const STAYS_FOR: Duration = Duration::from_secs(4);

/// Everything that matters now.
async fn ending(world: &World) -> Result<Value> {
    let all = ListParams::default();
    let attachments = Api::<VolumeAttachment>::all(world.client.clone()).list(&all).await?;
    let volumes = Api::<PersistentVolume>::all(world.client.clone()).list(&all).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone()).list(&all).await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), NAMESPACE)
        .list(&all)
        .await?;
    // Volumes that are made for claims have other names in each run: they are called as the claims.
    let names = claimed(&volumes.items);
    let attached = named(&attachments.items);
    let attachments = attachments
        .items
        .iter()
        .map(|object| (object.name_any(), attachment(object)));
    let volumes = volumes.items.iter().map(|object| {
        let name = object.name_any();
        let is_named = attached.contains(&name);
        (name, volume(object, is_named))
    });
    let of_claims = claims.items.iter().map(|object| (object.name_any(), claim(object)));
    let configs = configs.items.iter().map(|object| (object.name_any(), config(object)));
    let mut drivers = Map::new();
    for driver in &world.drivers {
        let spec = world.lease(driver).await?;
        let is_held = spec.holder_identity.is_some_and(|holder| !holder.is_empty());
        let called = |(volume, node): (String, String)| (names.get(&volume).cloned().unwrap_or(volume), node);
        let published: BTreeSet<(String, String)> = driver.mock.published().into_iter().map(called).collect();
        let made: BTreeSet<String> = driver
            .mock
            .volumes()
            .into_keys()
            .map(|made| called((made, String::new())).0)
            .collect();
        let of_driver = json!({
            "published": published, "made": made, "leaseIsHeld": is_held, "leaseSeconds": spec.lease_duration_seconds,
        });
        drivers.insert(driver.name.clone(), of_driver);
    }
    let ending = json!({
        "claims": of_claims.collect::<BTreeMap<_, _>>(),
        "attachments": attachments.collect::<BTreeMap<_, _>>(), "volumes": volumes.collect::<BTreeMap<_, _>>(),
        "configs": configs.collect::<BTreeMap<_, _>>(), "drivers": drivers,
    });
    // The longest first: an ID begins with the name.
    let text = names.iter().rev().fold(ending.to_string(), |text, (name, claim)| {
        text.replace(name.as_str(), claim)
    });
    Ok(serde_json::from_str(&text)?)
}

/// Names and IDs of volumes that were made for claims, and the names of the claims.
fn claimed(volumes: &[PersistentVolume]) -> BTreeMap<String, String> {
    let of_volume = |volume: &PersistentVolume| {
        let claim = volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone()?;
        let handle = handle(volume)?.to_owned();
        Some([(volume.name_any(), claim.clone()), (handle, claim)])
    };
    volumes.iter().filter_map(of_volume).flatten().collect()
}

/// The PersistentVolumes that VolumeAttachments name.
fn named(attachments: &[VolumeAttachment]) -> BTreeSet<String> {
    let sources = attachments.iter().map(|object| &object.spec.source);
    sources
        .filter_map(|source| source.persistent_volume_name.clone())
        .collect()
}

/// The finalizer of attaching stays after a detach, unless etcd went back to before the first attach: it counts where a VolumeAttachment
/// names the PersistentVolume.
fn volume(object: &PersistentVolume, is_named: bool) -> Value {
    let finalizers = object.finalizers().iter();
    let finalizers: BTreeSet<&String> = finalizers
        .filter(|name| is_named || !name.starts_with(FINALIZER_PREFIX))
        .collect();
    json!({"finalizers": finalizers, "phase": object.status.as_ref().and_then(|status| status.phase.as_ref())})
}

fn claim(object: &PersistentVolumeClaim) -> Value {
    json!({"isBound": is_bound(object), "finalizers": object.finalizers(), "isMarked": is_marked(object)})
}

fn is_marked(object: &PersistentVolumeClaim) -> bool {
    let finalizers = object.finalizers().iter().map(String::as_str);
    finalizers
        .chain(object.annotations().keys().map(String::as_str))
        .any(|key| key == PROVISIONING_MARKER)
}

/// What names volumes of a driver, and what the driver has: PersistentVolumes, claims that carry a marker, claims that nobody has bound, and
/// the volumes that nothing names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// IDs of volumes that PersistentVolumes name.
    pub named: BTreeSet<String>,
    /// Names of volumes that may be made: for claims that carry a marker.
    pub marked: BTreeSet<String>,
    /// Names of claims that are Pending or in deletion.
    pub unbound: BTreeSet<String>,
    /// Volumes that the driver has and nothing names, with their names.
    pub unnamed: BTreeMap<String, String>,
    /// Volumes that PersistentVolumes name and the driver does not have.
    pub lost: BTreeSet<String>,
}

/// Looks at the volumes of a driver. The objects are read after the driver, so that what is just made is not taken for unnamed.
pub async fn made(world: &World, driver: &Driver) -> Result<Made> {
    let volumes = driver.mock.volumes();
    let all = ListParams::default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), NAMESPACE);
    let claims = claims.list(&all).await?.items;
    let objects: Api<PersistentVolume> = Api::all(world.client.clone());
    let objects = objects.list(&all).await?.items;
    let is_of_driver = |object: &&PersistentVolume| {
        let csi = object.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == driver.name) && object.name_any().starts_with("pvc-")
    };
    let named: BTreeSet<String> = objects
        .iter()
        .filter(is_of_driver)
        .filter_map(handle)
        .map(str::to_owned)
        .collect();
    let of_driver = claims
        .iter()
        .filter(|claim| claim.name_any().starts_with(&format!("{}-", driver.config)));
    let name = |claim: &PersistentVolumeClaim| volume_name(&claim.uid().unwrap_or_default());
    let is_open = |claim: &&PersistentVolumeClaim| !is_bound(claim) || claim.metadata.deletion_timestamp.is_some();
    let open: Vec<&PersistentVolumeClaim> = of_driver.clone().filter(is_open).collect();
    let unnamed = volumes
        .iter()
        .filter(|(handle, of)| !named.contains(*handle) && !claims.iter().any(|claim| name(claim) == **of));
    Ok(Made {
        marked: of_driver.filter(|claim| is_marked(claim)).map(name).collect(),
        unbound: open.into_iter().map(kube::ResourceExt::name_any).collect(),
        unnamed: unnamed.map(|(handle, of)| (handle.clone(), of.clone())).collect(),
        lost: named
            .iter()
            .filter(|handle| !volumes.contains_key(*handle))
            .cloned()
            .collect(),
        named,
    })
}

/// Waits until the volumes of each driver are those that PersistentVolumes name, and no claim is Pending or carries a marker; writes down
/// where they are not.
pub async fn agree(world: &World) -> Result<()> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    for driver in &world.drivers {
        loop {
            let found = made(world, driver).await?;
            let is_sound = found.unnamed.is_empty() && found.lost.is_empty();
            if is_sound && found.marked.is_empty() && found.unbound.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                let object = found
                    .unnamed
                    .values()
                    .chain(&found.lost)
                    .chain(&found.marked)
                    .chain(&found.unbound)
                    .next();
                let object = object.cloned().unwrap_or_default();
                world
                    .recorder
                    .finding(Kind::VolumesDiffer, &object, format!("{}: {found:?}", driver.name));
                // So that the rest of the run tells something.
                found.unnamed.values().for_each(|name| driver.delete_made(name));
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

fn attachment(object: &VolumeAttachment) -> Value {
    let mut annotations = object.annotations().clone();
    if let Some(context) = annotations.get_mut(TRACEPARENT_ANNOTATION) {
        "...".clone_into(context);
    }
    let status = object.status.clone().unwrap_or_default();
    // The names of devices follow from the order in which volumes came.
    let metadata: Vec<String> = status.attachment_metadata.unwrap_or_default().into_keys().collect();
    json!({
        "spec": object.spec, "finalizers": object.finalizers(), "annotations": annotations, "labels": object.labels(),
        "inDeletion": object.metadata.deletion_timestamp.is_some(), "attached": status.attached, "metadata": metadata,
        "attachError": status.attach_error.is_some(), "detachError": status.detach_error.is_some(),
    })
}

fn config(object: &AttacherConfig) -> Value {
    let status = serde_json::to_value(&object.status).unwrap_or_default();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let conditions = conditions.iter().map(|condition| {
        let name = condition["type"].as_str().unwrap_or_default().to_owned();
        // It is told by the replica that provisions or by another one.
        let is_standby = name == "ProvisioningReady" && condition["reason"] == "Standby";
        let reason = if is_standby {
            &json!("Running")
        } else {
            &condition["reason"]
        };
        (name, json!([condition["status"], reason]))
    });
    json!({
        "spec": object.spec.driver_name, "finalizers": object.finalizers(), "driver": status["driver"],
        "isCurrent": status["observedGeneration"] == json!(object.metadata.generation),
        "attachments": {"attached": status["attachments"]["attached"], "pending": status["attachments"]["pending"]},
        "conditions": conditions.collect::<BTreeMap<_, _>>(),
    })
}

/// The end of a run without faults, once it stays as it is.
pub async fn reference(world: &World) -> Result<Value> {
    let mut last = ending(world).await?;
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        sleep(STAYS_FOR).await;
        let now = ending(world).await?;
        if now == last || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

/// Waits until a run has ended as the one without faults, and writes down where it differs.
pub async fn compare(world: &World, reference: &Value) -> Result<()> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let now = ending(world).await?;
        if now == *reference {
            return Ok(());
        }
        if Instant::now() > deadline {
            let mut differences = Vec::new();
            differ("", reference, &now, &mut differences);
            for (path, text) in differences.into_iter().take(20) {
                // Names of volumes are the objects of everything else that is told.
                let object = path
                    .split('/')
                    .nth(2)
                    .map_or("", |name| name.get(..6).unwrap_or(name))
                    .to_owned();
                world
                    .recorder
                    .finding(Kind::EndDiffers, &object, format!("{path}: {text}"));
            }
            return Ok(());
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Where two values differ, by their paths.
pub fn differ(path: &str, wanted: &Value, found: &Value, differences: &mut Vec<(String, String)>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let keys: std::collections::BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differ(&format!("{path}/{key}"), &of(wanted), &of(found), differences);
            }
        }
        _ if wanted == found => {}
        _ => differences.push((path.to_owned(), format!("without faults {wanted}, now {found}"))),
    }
}

/// Detaches everything, deletes the volumes, and looks whether anything is left.
pub async fn leave_nothing(world: &World, workers: &Workers) -> Result<()> {
    workers.settle(Order::Empty).await;
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    for object in api.list(&ListParams::default()).await? {
        drop(api.delete(&object.name_any(), &DeleteParams::default()).await);
    }
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let left = api.list(&ListParams::default()).await?.items;
        if left.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            for object in left {
                let text = format!("the PersistentVolume is not released: {:?}", object.finalizers());
                world.recorder.finding(Kind::Overdue, &object.name_any(), text);
            }
            break;
        }
        sleep(Duration::from_millis(300)).await;
    }
    for driver in &world.drivers {
        for (volume, node) in driver.mock.published() {
            let text = format!("still published at {node}, and there is no VolumeAttachment any more");
            world.recorder.finding(Kind::GoneButPublished, &volume, text);
        }
        for (handle, name) in driver.mock.volumes() {
            let text = format!("{handle} is still there, and no PersistentVolume is any more");
            world.recorder.finding(Kind::VolumesDiffer, &name, text);
        }
    }
    Ok(())
}
