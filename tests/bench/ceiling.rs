//! What the API server takes when nothing but the writes of an attacher is sent: the same patches, as many at a time, over
//! the same HTTP/2 client, prepared before the clock starts, and nobody who watches but the recorder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;

use csi_attacher_model::decide::patch;
use csi_attacher_model::decide::{Capabilities, DriverFacts};
use csi_attacher_model::objects::{
    Attachment, PersistentVolumeWire, StringMap, Volume, VolumeAttachmentWire, VolumeSource,
};

use super::attacher::PHASE_LIMIT;
use super::cluster::{Bench, NOBODYS_DRIVER, name};

use super::recorder::Stage;
use super::requests::{Prepared, each};
use super::stats::each_of;
use super::support::{Error, Result};

/// What it takes for each kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// Attaches a second: three patches for each; the objects are there already.
    pub attach: f64,
    /// CPU time of etcd and kube-apiserver for each of these attaches.
    pub attach_cpu: Duration,
    /// Detaches a second: the deletion, and the patch with which the object goes.
    pub detach: f64,
}

/// Measures both, and removes what it made.
pub async fn measure(bench: &Bench, group: &str, count: usize) -> Result<Ceiling> {
    let facts = Arc::new(DriverFacts::new(NOBODYS_DRIVER, Capabilities::default()));
    let (attach, attach_cpu) = attach(bench, group, count, &facts).await?;
    let detach = detach_all(bench, group, count, &facts).await?;
    remove_volumes(bench, group, count).await?;
    Ok(Ceiling {
        attach,
        attach_cpu,
        detach,
    })
}

/// Time for a burst: the creation of each VolumeAttachment and the three patches, until all are seen attached.
pub async fn burst(bench: &Bench, group: &str, count: usize) -> Result<Duration> {
    let facts = Arc::new(DriverFacts::new(NOBODYS_DRIVER, Capabilities::default()));
    let took = attach_as_they_come(bench, group, count, &facts).await?;
    detach_all(bench, group, count, &facts).await?;
    remove_volumes(bench, group, count).await?;
    Ok(took)
}

/// The first two writes of a first attach; the third is made from the answer to the second.
#[derive(Clone, Debug)]
pub struct Writes {
    protect: Prepared,
    claim: Prepared,
}

impl Writes {
    /// For this volume and attachment.
    pub fn new(volume: &Volume, attachment: &Attachment, facts: &DriverFacts) -> Result<Self> {
        let VolumeSource::Csi(source) = &volume.spec.source else {
            return Err(Error::Other(format!("{} is no CSI volume", volume.name)));
        };
        let claim = patch::claim(attachment, facts, "node-id", source)
            .map_err(|too_large| Error::Other(format!("the note of {} is too large: {too_large:?}", volume.name)))?;
        Ok(Self {
            protect: Prepared::patch(&patch::protect_volume(volume, &facts.finalizer)),
            claim: Prepared::patch(&claim),
        })
    }

    /// Sends all three, each after the answer to the one before.
    pub async fn send(&self, client: &Client) -> Result<()> {
        self.protect.send(client).await?;
        let claimed: VolumeAttachmentWire = self.claim.send_for(client).await?;
        // Like what the mock driver answers.
        let context = StringMap::from(BTreeMap::from([
            ("devicePath".to_owned(), "/dev/xvdba".to_owned()),
            ("readonly".to_owned(), "false".to_owned()),
        ]));
        let write = patch::attached(&claimed.into(), Some(&context));
        Prepared::patch(&write).send(client).await.map(drop)
    }
}

/// Attaches a second, and the CPU time of the control plane for each.
async fn attach(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<(f64, Duration)> {
    let client = bench.client.clone();
    let volumes = volumes(bench, group, count).await?;
    let attachments = Bench::attachments(group, NOBODYS_DRIVER, count);
    let (attachments, _) = each(attachments, move |create: Prepared| {
        let client = client.clone();
        async move {
            create
                .send_for::<VolumeAttachmentWire>(&client)
                .await
                .map(Attachment::from)
        }
    })
    .await?;
    let prepared: Result<Vec<_>> = volumes
        .iter()
        .zip(&attachments)
        .map(|(volume, attachment)| Writes::new(volume, attachment, facts))
        .collect();
    let (client, prepared, cpu) = (bench.client.clone(), prepared?, bench.control_plane_cpu()?);
    each(prepared, move |writes: Writes| {
        let client = client.clone();
        async move { writes.send(&client).await }
    })
    .await?;
    bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
    let cpu = bench.control_plane_cpu()?.saturating_sub(cpu);
    Ok((bench.recorder.attach_rate(group), each_of(cpu, count)))
}

async fn attach_as_they_come(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<Duration> {
    let volumes = volumes(bench, group, count).await?;
    let attachments = Bench::attachments(group, NOBODYS_DRIVER, count);
    let pairs = volumes.into_iter().zip(attachments).collect();
    let (client, facts) = (bench.client.clone(), facts.clone());
    let started = Instant::now();
    each(pairs, move |(volume, create): (Volume, Prepared)| {
        let (client, facts) = (client.clone(), facts.clone());
        async move {
            let attachment: VolumeAttachmentWire = create.send_for(&client).await?;
            Writes::new(&volume, &attachment.into(), &facts)?.send(&client).await
        }
    })
    .await?;
    bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
    Ok(started.elapsed())
}

async fn detach_all(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<f64> {
    let names: Vec<String> = (0..count).map(|number| name(group, number)).collect();
    let started = Instant::now();
    let (client, finalizer) = (bench.client.clone(), facts.finalizer.clone());
    each(names, move |name: String| {
        let (client, finalizer) = (client.clone(), finalizer.clone());
        async move {
            // The answer is the object as it is then, as a watch would show it.
            let deleted: VolumeAttachmentWire = Prepared::delete_attachment(&name).send_for(&client).await?;
            match patch::release(&deleted.into(), &finalizer) {
                Some(write) => Prepared::patch(&write).send(&client).await.map(drop),
                None => Err(Error::Other(format!("{name} has no finalizer"))),
            }
        }
    })
    .await?;
    bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Makes the PersistentVolumes of a group and returns them.
pub async fn volumes(bench: &Bench, group: &str, count: usize) -> Result<Vec<Volume>> {
    let create = (0..count).map(|number| Prepared::create_volume(&name(group, number), NOBODYS_DRIVER));
    let client = bench.client.clone();
    let (volumes, _) = each(create.collect(), move |create: Prepared| {
        let client = client.clone();
        async move { create.send_for::<PersistentVolumeWire>(&client).await.map(Volume::from) }
    })
    .await?;
    Ok(volumes)
}

/// Removes the PersistentVolumes of a group with their finalizers, so that nobody has to cache them later.
async fn remove_volumes(bench: &Bench, group: &str, count: usize) -> Result<()> {
    bench.delete_volumes(group, count).await?;
    let facts = DriverFacts::new(NOBODYS_DRIVER, Capabilities::default());
    let client = bench.client.clone();
    let names: Vec<String> = (0..count).map(|number| name(group, number)).collect();
    each(names, move |name: String| {
        let (client, finalizer) = (client.clone(), facts.finalizer.clone());
        async move {
            let delete = Prepared::delete_volume(&name);
            let volume = Volume::from(delete.send_for::<PersistentVolumeWire>(&client).await?);
            match patch::release_volume(&volume, &finalizer) {
                Some(write) => Prepared::patch(&write).send(&client).await.map(drop),
                None => Err(Error::Other(format!("{name} has no finalizer"))),
            }
        }
    })
    .await
    .map(drop)
}
