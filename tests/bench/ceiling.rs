//! What the API server takes when nothing but the writes of an attacher is sent: the same patches, as many at a time, over
//! the same HTTP/2 client, prepared before the clock starts, and nobody who watches but the recorder.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;

use csi_attacher_model::decide::patch;
use csi_attacher_model::decide::{Capabilities, DriverFacts};
use csi_attacher_model::objects::{
    Attachment, AttachmentSource, PersistentVolumeWire, StringMap, Volume, VolumeAttachmentWire, VolumeSource,
};

use super::cluster::{Bench, NOBODYS_DRIVER, name};
use super::operator_run::PHASE_LIMIT;
use super::recorder::Stage;
use super::requests::{Prepared, each, send_all};
use super::support::{Error, Result};

/// Volumes a second for each kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// Three patches for each attach; the objects are there already.
    pub attach: f64,
    /// Creation of the VolumeAttachment by somebody, then the three patches.
    pub burst: f64,
    /// One patch for each detach; the objects are being deleted already.
    pub detach: f64,
}

/// Measures all three, and removes what it made.
pub async fn measure(bench: &Bench, group: &str, count: usize) -> Result<Ceiling> {
    let facts = Arc::new(DriverFacts::new(NOBODYS_DRIVER, Capabilities::default()));
    let (first, second) = (format!("{group}-present"), format!("{group}-burst"));
    let attach = attach(bench, &first, count, &facts).await?;
    let burst = burst(bench, &second, count, &facts).await?;
    let mut detach = 0.0;
    for group in [&first, &second] {
        detach += detach_all(bench, group, count, &facts).await? / 2.0;
        remove_volumes(bench, group, count).await?;
    }
    Ok(Ceiling { attach, burst, detach })
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
        Ok(Self {
            protect: Prepared::patch(&patch::protect_volume(volume, &facts.finalizer)),
            claim: Prepared::patch(&patch::claim(attachment, facts, "node-id", source)),
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

async fn attach(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<f64> {
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
    let client = bench.client.clone();
    let (_, took) = each(prepared?, move |writes: Writes| {
        let client = client.clone();
        async move { writes.send(&client).await }
    })
    .await?;
    bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
    Ok(count as f64 / took.as_secs_f64())
}

async fn burst(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<f64> {
    let volumes = volumes(bench, group, count).await?;
    let attachments = Bench::attachments(group, NOBODYS_DRIVER, count);
    let pairs = volumes.into_iter().zip(attachments).collect();
    let (client, facts) = (bench.client.clone(), facts.clone());
    let (_, took) = each(pairs, move |(volume, create): (Volume, Prepared)| {
        let (client, facts) = (client.clone(), facts.clone());
        async move {
            let attachment: VolumeAttachmentWire = create.send_for(&client).await?;
            Writes::new(&volume, &attachment.into(), &facts)?.send(&client).await
        }
    })
    .await?;
    bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
    Ok(count as f64 / took.as_secs_f64())
}

async fn detach_all(bench: &Bench, group: &str, count: usize, facts: &Arc<DriverFacts>) -> Result<f64> {
    bench.delete_attachments(group, count).await?;
    let names: Vec<String> = (0..count).map(|number| name(group, number)).collect();
    let client = bench.client.clone();
    let (attachments, _) = each(names, move |name: String| {
        let client = client.clone();
        // Deleting a second time changes nothing and answers the object as it is.
        async move {
            let delete = Prepared::delete_attachment(&name);
            delete
                .send_for::<VolumeAttachmentWire>(&client)
                .await
                .map(Attachment::from)
        }
    })
    .await?;
    let releases: Vec<Prepared> = attachments
        .iter()
        .filter(|attachment| matches!(attachment.source, AttachmentSource::PersistentVolume(_)))
        .filter_map(|attachment| patch::release(attachment, &facts.finalizer))
        .map(|write| Prepared::patch(&write))
        .collect();
    if releases.len() != count {
        return Err(Error::Other(format!(
            "{group}: only {} can be detached",
            releases.len()
        )));
    }
    let took = send_all(&bench.client, releases).await?;
    bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
    Ok(count as f64 / took.as_secs_f64())
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
