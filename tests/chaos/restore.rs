//! etcd goes back to a copy while volumes are attached and detached. What was attached since has no VolumeAttachment any more, what
//! was detached since has one again: everything ends as the objects demand, without a restart of the operator, and what no object
//! names is left alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::checker::Kind;
use super::ending::made;
use super::history::{Place, Step, name_of};
use super::plan::Planned;
use super::recorder::call;
use super::workers::{Order, SETTLED_WITHIN, Workers, attachment_name, brief};
use super::world::{Driver, NAMESPACE, World};
use crate::support::Result;
use crate::support::wait::wait_for;

/// As the documentation of etcd advises.
const BUMPED_BY: u64 = 1_000_000_000;
/// How long is looked whether what no object names is left alone.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(12);
/// How long it may take after a restore until everything is as the objects demand: a comparison with what the driver lists takes
/// two rounds of it.
const BACK_WITHIN: Duration = Duration::from_mins(1);

/// Does it all; the workers begin from nothing afterwards.
pub async fn restore(world: &Arc<World>, workers: &Workers, fault: &Planned) -> Result<()> {
    world.cluster.back_up_running()?;
    world.recorder.note("", "etcd was copied");
    sleep(fault.at + Duration::from_secs(3)).await;
    let from = Timestamp::now();
    // It takes nothing that is older than what it has: the documentation of etcd advises to start it again.
    world.cluster.stop_controller_manager();
    world.cluster.stop_storage();
    let mut attached = settled(world);
    attached.retain(|place| world.recorder.is_wanted(place));
    workers.order(Order::Forget);
    sleep(fault.lasts).await;
    // By the documented way every other time, which moves the revision on.
    let bumped = fault.choice % 2 == 1;
    if bumped {
        world.cluster.restore_bumped(BUMPED_BY).await?;
    } else {
        world.cluster.restore()?;
    }
    world.cluster.start_storage().await?;
    world.cluster.start_controller_manager().await?;
    let back = Timestamp::now();
    world.recorder.note(
        "",
        format!("etcd is back at the copy, with a bumped revision: {bumped}"),
    );
    world.watched.start_again();
    let objects = list(world).await?;
    let leftovers: BTreeSet<Place> = published(world).difference(&named(world, &objects)).cloned().collect();
    world.recorder.note(
        "",
        format!(
            "{} VolumeAttachments; published without one: {}",
            objects.len(),
            leftovers.len()
        ),
    );
    sleep(LEFT_ALONE_FOR).await;
    let left_alone: BTreeSet<Place> = leftovers.intersection(&attached).cloned().collect();
    look_for_touched(world, &left_alone, back);
    clean_up(world).await?;
    as_demanded(world, false).await;
    claims_as_demanded(world, false).await?;
    delete_all(world).await?;
    as_demanded(world, true).await;
    claims_as_demanded(world, true).await?;
    world.recorder.restored(from);
    Ok(())
}

/// As a person does who was told of what is left.
async fn clean_up(world: &World) -> Result<()> {
    let objects = named(world, &list(world).await?);
    for place in published(world).difference(&objects) {
        if let Some(driver) = world.drivers.iter().find(|driver| driver.name == place.driver) {
            driver.mock.drift_detach(&place.volume, &place.node);
        }
    }
    // Claims that were made after the copy, and their PersistentVolumes, are gone: nobody can know of their volumes.
    for driver in &world.drivers {
        for name in made(world, driver).await?.unnamed.values() {
            driver.delete_made(name);
        }
    }
    Ok(())
}

async fn delete_all(world: &World) -> Result<()> {
    let api: Api<VolumeAttachment> = Api::all(world.client.clone());
    for object in list(world).await? {
        drop(api.delete(&object.name_any(), &DeleteParams::default()).await);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), NAMESPACE);
    let all = claims.list(&ListParams::default()).await;
    for claim in all? {
        drop(claims.delete(&claim.name_any(), &DeleteParams::default()).await);
    }
    Ok(())
}

/// Waits until claims are bound and volumes are those that PersistentVolumes name, or nothing is left; writes down where it does not come
/// about. A volume that was deleted after the copy has its PersistentVolume back, and is lost: nobody can bring it back. One with the
/// policy Retain is deleted by hand.
async fn claims_as_demanded(world: &World, empty: bool) -> Result<()> {
    let deadline = Instant::now() + BACK_WITHIN;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    for driver in &world.drivers {
        loop {
            let found = made(world, driver).await?;
            let is_sound = found.marked.is_empty() && found.unbound.is_empty() && found.unnamed.is_empty();
            if is_sound && (!empty || found.named.is_empty()) {
                break;
            }
            if Instant::now() > deadline {
                let object = found
                    .unnamed
                    .values()
                    .chain(&found.marked)
                    .chain(&found.unbound)
                    .chain(&found.named)
                    .next();
                let object = object.cloned().unwrap_or_default();
                let text = format!("{} after a restore of etcd: {found:?}", driver.name);
                world.recorder.finding(Kind::Overdue, &object, text);
                return Ok(());
            }
            if empty {
                delete_retained(&volumes, driver).await?;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }
    Ok(())
}

async fn delete_retained(volumes: &Api<PersistentVolume>, driver: &Driver) -> Result<()> {
    for volume in volumes.list(&ListParams::default()).await? {
        let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if class == Some(format!("{}-retain", driver.config)) && phase == Some("Released") {
            driver.delete_made(&volume.name_any());
            drop(volumes.delete(&volume.name_any(), &DeleteParams::default()).await);
        }
    }
    Ok(())
}

/// Writes down what was unpublished of these since. What was about to be detached when etcd went back may be, and is not among them.
fn look_for_touched(world: &World, left_alone: &BTreeSet<Place>, since: Timestamp) {
    for (driver, records) in world.calls() {
        let calls = records.iter().filter_map(|record| call(&driver, record));
        let touched = calls.filter(|call| !call.makes && call.started > since && left_alone.contains(&call.place));
        for call in touched {
            let text = format!(
                "{}: Unpublish at {}, though no VolumeAttachment names it",
                call.place, call.started
            );
            world.recorder.finding(Kind::LeftoverTouched, &call.place.volume, text);
        }
    }
}

/// Waits until drivers and objects agree, and nothing is under way; writes down what does not come about.
async fn as_demanded(world: &World, empty: bool) {
    let within = if empty { SETTLED_WITHIN } else { BACK_WITHIN };
    let agree = async {
        loop {
            let objects = demanding(world);
            let done = |object: &Arc<VolumeAttachment>| {
                object.metadata.deletion_timestamp.is_none()
                    && object.status.as_ref().is_some_and(|status| status.attached)
            };
            let is_empty = world.watched.all().is_empty() || !empty;
            if is_empty && objects.iter().all(done) && places(world, &objects) == published(world) {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    };
    if timeout(within, agree).await.is_ok() {
        return;
    }
    let objects = demanding(world);
    let wanted = places(world, &objects);
    let published = published(world);
    for place in wanted.union(&published) {
        let name = attachment_name(name_of(&place.volume), &place.node);
        let object = world.watched.get(&name);
        let settled = object.as_ref().is_some_and(|object| {
            object.metadata.deletion_timestamp.is_none() && object.status.as_ref().is_some_and(|status| status.attached)
        });
        if !settled || empty || !published.contains(place) {
            let found = object.map_or_else(|| "no VolumeAttachment".to_owned(), |object| brief(&object));
            let found = format!("published: {}; {found}", published.contains(place));
            let wanted = if empty {
                "nothing is left"
            } else {
                "as the objects demand after a restore of etcd"
            };
            world.recorder.step(
                place,
                Step::Overdue {
                    wanted: wanted.to_owned(),
                    found,
                },
            );
        }
    }
}

/// The VolumeAttachments, but for those whose volume was deleted after the copy: it can be attached nowhere.
fn demanding(world: &World) -> Vec<Arc<VolumeAttachment>> {
    let lost = |object: &Arc<VolumeAttachment>| {
        let volume = object.spec.source.persistent_volume_name.as_ref();
        let handle = volume.map(|name| world.handle_of(name)).unwrap_or_default();
        let mut drivers = world.drivers.iter();
        name_of(&handle) != handle && !drivers.any(|driver| driver.mock.volumes().contains_key(&handle))
    };
    let all = world.watched.all().into_iter();
    all.filter(|object| !lost(object)).collect()
}

async fn list(world: &World) -> Result<Vec<Arc<VolumeAttachment>>> {
    let api: Api<VolumeAttachment> = Api::all(world.client.clone());
    // A watch that works shows that the API server does.
    wait_for(api.clone(), "none", "the API server answers", BACK_WITHIN, |object| {
        object.is_none()
    })
    .await?;
    let objects = api.list(&ListParams::default()).await;
    let objects = objects?;
    Ok(objects.items.into_iter().map(Arc::new).collect())
}

/// Where the objects want their volumes; those in deletion want them nowhere.
fn places(world: &World, objects: &[Arc<VolumeAttachment>]) -> BTreeSet<Place> {
    let wanted = objects.iter().cloned();
    let wanted = wanted.filter(|object| object.metadata.deletion_timestamp.is_none());
    named(world, &wanted.collect::<Vec<_>>())
}

/// What the objects are about.
fn named(world: &World, objects: &[Arc<VolumeAttachment>]) -> BTreeSet<Place> {
    let place = |object: &Arc<VolumeAttachment>| {
        let spec = &object.spec;
        let volume = world.handle_of(spec.source.persistent_volume_name.as_ref()?);
        Some(Place {
            driver: spec.attacher.clone(),
            volume,
            node: spec.node_name.clone(),
        })
    };
    let known = |place: &Place| world.drivers.iter().any(|driver| driver.name == place.driver);
    objects.iter().filter_map(place).filter(known).collect()
}

fn published(world: &World) -> BTreeSet<Place> {
    let of = |driver: &Driver| {
        let name = driver.name.clone();
        driver.mock.published().into_iter().map(move |(volume, node)| Place {
            driver: name.clone(),
            volume,
            node,
        })
    };
    world.drivers.iter().flat_map(of).collect()
}

/// Places whose VolumeAttachments are attached, and not in deletion, as they were seen last.
fn settled(world: &World) -> BTreeSet<Place> {
    let attached = world.watched.all().into_iter().filter(|object| {
        object.metadata.deletion_timestamp.is_none() && object.status.as_ref().is_some_and(|status| status.attached)
    });
    places(world, &attached.collect::<Vec<_>>())
}
