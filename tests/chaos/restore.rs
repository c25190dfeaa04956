//! etcd goes back to a copy while volumes are attached and detached. What was attached since has no VolumeAttachment any more, what
//! was detached since has one again: everything ends as the objects demand, without a restart of the operator, and what no object
//! names is left alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use tokio::time::{sleep, timeout};

use super::checker::Kind;
use super::history::{Place, Step};
use super::plan::Planned;
use super::recorder::call;
use super::workers::{Order, SETTLED_WITHIN, Workers, attachment_name, brief};
use super::world::World;
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

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
    // As a person does who was told of them.
    let objects = named(world, &list(world).await?);
    for place in published(world).difference(&objects) {
        if let Some(driver) = world.drivers.iter().find(|driver| driver.name == place.driver) {
            driver.mock.drift_detach(&place.volume, &place.node);
        }
    }
    as_demanded(world, false).await;
    let api: Api<VolumeAttachment> = Api::all(world.client.clone());
    for object in list(world).await? {
        drop(api.delete(&object.name_any(), &DeleteParams::default()).await);
    }
    as_demanded(world, true).await;
    world.recorder.restored(from);
    Ok(())
}

/// Writes down what was unpublished of these since. What was about to be detached when etcd went back may be, and is not among them.
fn look_for_touched(world: &World, left_alone: &BTreeSet<Place>, since: Timestamp) {
    for (driver, records) in world.calls() {
        let calls = records.iter().filter_map(|record| call(&driver, record));
        let touched = calls.filter(|call| !call.publish && call.started > since && left_alone.contains(&call.place));
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
            let objects = world.watched.all();
            let done = |object: &Arc<VolumeAttachment>| {
                object.metadata.deletion_timestamp.is_none()
                    && object.status.as_ref().is_some_and(|status| status.attached)
            };
            let is_empty = objects.is_empty() || !empty;
            if is_empty && objects.iter().all(done) && places(world, &objects) == published(world) {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    };
    if timeout(within, agree).await.is_ok() {
        return;
    }
    let objects = world.watched.all();
    let wanted = places(world, &objects);
    let published = published(world);
    for place in wanted.union(&published) {
        let name = attachment_name(&place.volume, &place.node);
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

async fn list(world: &World) -> Result<Vec<Arc<VolumeAttachment>>> {
    let api: Api<VolumeAttachment> = Api::all(world.client.clone());
    // A watch that works shows that the API server does.
    wait_for(api.clone(), "none", "the API server answers", BACK_WITHIN, |object| {
        object.is_none()
    })
    .await?;
    let objects = api.list(&ListParams::default()).await;
    let objects = objects.map_err(|error| Error::Other(error.to_string()))?;
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
        let volume = spec.source.persistent_volume_name.clone()?;
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
    let of = |driver: &super::world::Driver| {
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
