//! Where a run ends, in a form that two runs can be compared by: without what differs each time, such as times, versions and who leads.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::{TRACEPARENT_ANNOTATION, lease_name};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::checker::Kind;
use super::other;
use super::workers::{Order, SETTLED_WITHIN, Workers};
use super::world::World;
use crate::support::Result;
use crate::support::operator::IDENTITY;

/// How long an end must stay as it is to count as one.
const STAYS_FOR: Duration = Duration::from_secs(4);

/// Everything that matters now.
async fn ending(world: &World) -> Result<Value> {
    let all = ListParams::default();
    let attachments = Api::<VolumeAttachment>::all(world.client.clone())
        .list(&all)
        .await
        .map_err(other)?;
    let volumes = Api::<PersistentVolume>::all(world.client.clone())
        .list(&all)
        .await
        .map_err(other)?;
    let configs = Api::<AttacherConfig>::all(world.client.clone())
        .list(&all)
        .await
        .map_err(other)?;
    let attachments = attachments
        .items
        .iter()
        .map(|object| (object.name_any(), attachment(object)));
    let volumes = volumes
        .items
        .iter()
        .map(|object| (object.name_any(), json!(object.finalizers())));
    let configs = configs.items.iter().map(|object| (object.name_any(), config(object)));
    let mut drivers = Map::new();
    for driver in &world.drivers {
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), IDENTITY);
        let lease = leases.get_opt(&lease_name(&driver.name)).await.map_err(other)?;
        let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
        let is_held = spec.holder_identity.is_some_and(|holder| !holder.is_empty());
        let of_driver = json!({
            "published": driver.mock.published(), "leaseIsHeld": is_held, "leaseSeconds": spec.lease_duration_seconds,
        });
        drivers.insert(driver.name.clone(), of_driver);
    }
    Ok(json!({
        "attachments": attachments.collect::<BTreeMap<_, _>>(), "volumes": volumes.collect::<BTreeMap<_, _>>(),
        "configs": configs.collect::<BTreeMap<_, _>>(), "drivers": drivers,
    }))
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
        (name, json!([condition["status"], condition["reason"]]))
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
    for object in api.list(&ListParams::default()).await.map_err(other)? {
        drop(api.delete(&object.name_any(), &DeleteParams::default()).await);
    }
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let left = api.list(&ListParams::default()).await.map_err(other)?.items;
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
    }
    Ok(())
}
