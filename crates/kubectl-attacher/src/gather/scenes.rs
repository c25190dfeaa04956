//! From a name to the scenes that an explanation is made of.

use aws_lc_rs::digest::{SHA256, digest};
use csi_attacher_model::objects::{
    Attachment, AttachmentSource, PersistentVolumeWire, SecretReference, Volume, VolumeAttachmentWire,
};
use futures::future::{OptionFuture, join_all};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use std::fmt::Write as _;
use std::sync::Arc;

use super::others::{naming, read_others, users};
use super::sources::Sources;
use crate::error::Result;
use crate::observed::{ClaimRecord, Lookup, PodRecord, PodVolumeSource, Scene, is_settled};

/// The name that kube-controller-manager gives the VolumeAttachment of a volume at a node.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let hash = digest(&SHA256, format!("{handle}{driver}{node}").as_bytes());
    hash.as_ref().iter().fold("csi-".to_owned(), |mut name, byte| {
        // Writing to a String cannot fail.
        let _written = write!(name, "{byte:02x}");
        name
    })
}

/// One scene for each volume of a pod.
pub async fn pod_scenes(sources: &Sources, pod: &PodRecord) -> Vec<Scene> {
    let claims = pod.volumes.iter().filter_map(|volume| match &volume.source {
        PodVolumeSource::Claim(claim) => Some(claim),
        PodVolumeSource::Inline(_) | PodVolumeSource::InTree(_) => None,
    });
    let scenes = claims.map(|claim| async move {
        let mut scene = claim_scene(sources, &pod.namespace, claim).await;
        scene.node_name.clone_from(&pod.node);
        scene.pod = Some(pod.clone());
        Box::pin(complete(sources, scene)).await
    });
    join_all(scenes).await
}

/// A claim, and its volume if it has one.
async fn claim_scene(sources: &Sources, namespace: &str, claim: &str) -> Scene {
    let reader = &sources.reader;
    let mut scene = Scene::empty(sources.now);
    scene.claim_name = Some(format!("{namespace}/{claim}"));
    let found = reader
        .get(reader.namespaced::<PersistentVolumeClaim>(namespace), claim)
        .await;
    scene.claim = found.map(ClaimRecord::from);
    scene.volume_name = scene.claim.found().and_then(|claim| claim.volume.clone());
    scene
}

/// The volume of a claim at each node that has or needs it; one scene without a node where none is known to.
pub async fn volume_scenes(sources: &Sources, claim: Option<(&str, &str)>, volume: Option<&str>) -> Vec<Scene> {
    let mut base = match claim {
        Some((namespace, claim)) => claim_scene(sources, namespace, claim).await,
        None => Scene {
            volume_name: volume.map(str::to_owned),
            ..Scene::empty(sources.now)
        },
    };
    read_volume(sources, &mut base).await;
    read_claim(sources, &mut base).await;
    let naming = naming(sources, base.volume_name.as_deref());
    let (naming, users) = futures::join!(naming, users(sources, &base, None));
    base.naming = naming.map(Arc::from);
    base.users = users.map(Arc::from);
    let users = || {
        let all = base.users.found().into_iter().flat_map(|users| users.iter());
        all.filter(|pod| !pod.is_over())
    };
    let naming = base.naming.found().into_iter().flat_map(|naming| naming.iter());
    let mut nodes: Vec<String> = naming.map(|attachment| attachment.node.to_string()).collect();
    nodes.extend(users().filter_map(|pod| pod.node.clone()));
    nodes.sort();
    nodes.dedup();
    let mut bases: Vec<Scene> = nodes
        .into_iter()
        .map(|node| {
            let pod = users().find(|pod| pod.node.as_ref() == Some(&node));
            Scene {
                pod: pod.cloned(),
                node_name: Some(node),
                ..base.clone()
            }
        })
        .collect();
    if bases.is_empty() {
        let waiting = users().next().cloned();
        base.pod = waiting;
        bases.push(base);
    }
    join_all(bases.into_iter().map(|scene| complete(sources, scene))).await
}

/// The scene of one VolumeAttachment.
pub async fn attachment_scene(sources: &Sources, attachment: Attachment) -> Scene {
    let mut scene = Scene::empty(sources.now);
    scene.node_name = Some(attachment.node.to_string());
    scene.volume_name = attachment.volume_name().map(ToString::to_string);
    scene.attachment = Lookup::Found(Arc::new(attachment));
    read_volume(sources, &mut scene).await;
    read_claim(sources, &mut scene).await;
    Box::pin(complete(sources, scene)).await
}

/// A node by itself, and one scene for each attachment of it.
pub async fn node_scenes(sources: &Sources, name: &str) -> Result<(Scene, Vec<Scene>)> {
    // They are read first: without them there is no answer, whatever else could not be read.
    let attachments: &[Arc<Attachment>] = match sources.attachments().await {
        Lookup::Missing => &[],
        Lookup::Found(_) | Lookup::Unknown => sources.require_attachments().await?,
    };
    let mut node = Scene::empty(sources.now);
    node.node_name = Some(name.to_owned());
    (node.node, node.csi_node) = sources.node(name).await;
    let mine = attachments.iter().filter(|attachment| &*attachment.node == name);
    let scenes = join_all(mine.map(|attachment| attachment_scene(sources, (**attachment).clone()))).await;
    node.on_node = Some(scenes.len());
    Ok((node, scenes))
}

/// Reads the PersistentVolume of a scene.
async fn read_volume(sources: &Sources, scene: &mut Scene) {
    let Some(name) = &scene.volume_name else { return };
    if !scene.volume.is_unknown() {
        return;
    }
    let reader = &sources.reader;
    let found = reader.get(reader.cluster::<PersistentVolumeWire>(), name).await;
    if let Lookup::Found(wire) = &found {
        scene.volume_deleting = wire.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    }
    if scene.volume_deleting.is_some() {
        // The operator has no use for the policy, so its record of a volume lacks it.
        let whole = reader.get(reader.cluster::<PersistentVolume>(), name).await;
        let spec = whole.found().and_then(|volume| volume.spec.as_ref());
        scene.reclaim_policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.clone());
    }
    scene.volume = found.map(|wire| Arc::new(Volume::from(wire)));
}

/// Reads the claim that the volume of a scene names, unless the scene is of a claim.
async fn read_claim(sources: &Sources, scene: &mut Scene) {
    if scene.claim_name.is_some() {
        return;
    }
    let Some(volume) = scene.volume.found().cloned() else {
        return;
    };
    let Some(claim) = &volume.claim else { return };
    let of_claim = claim_scene(sources, &claim.namespace, &claim.name).await;
    if let Some(other) = of_claim.claim.found().filter(|claim| !claim.is_of(&volume)) {
        // Its name stands for another claim now, whose pods use another volume.
        scene.former_claim = of_claim.claim_name.map(|name| (name, other.created));
        scene.claim = Lookup::Missing;
        return;
    }
    (scene.claim_name, scene.claim) = (of_claim.claim_name, of_claim.claim);
}

/// Reads whatever else bears on a volume and a node.
async fn complete(sources: &Sources, mut scene: Scene) -> Scene {
    read_volume(sources, &mut scene).await;
    scene.driver.name = driver_name(&scene);
    if scene.driver.name.is_empty() {
        // The volume is gone or none of CSI: which driver has what had its name, a VolumeAttachment says alone.
        let own = own_attachment(sources, &scene).await;
        let Lookup::Found(own) = own else { return scene };
        scene.driver.name = own.attacher.to_string();
        scene.attachment = Lookup::Found(own);
    }
    let driver = sources.driver(&scene.driver.name);
    let node = OptionFuture::from(scene.node_name.as_ref().map(|node| sources.node(node)));
    let (driver, node, attachment) = futures::join!(driver, node, own_attachment(sources, &scene));
    let (node, csi_node) = node.unwrap_or_default();
    (scene.driver, scene.node, scene.csi_node, scene.attachment) = (driver, node, csi_node, attachment);
    let settled = scene.attachment.found().is_some_and(|own| is_settled(own));
    if !settled || scene.is_for_one_node() {
        read_others(sources, &mut scene).await;
    }
    if settled {
        return scene;
    }
    read_details(sources, &mut scene).await;
    scene
}

fn driver_name(scene: &Scene) -> String {
    if let Some(attachment) = scene.attachment.found() {
        return attachment.attacher.to_string();
    }
    let source = scene.volume.found().and_then(|volume| volume.spec.csi());
    source.map(|source| source.driver.to_string()).unwrap_or_default()
}

/// The VolumeAttachment of the scene: by the name that kube-controller-manager computes, else from the list.
async fn own_attachment(sources: &Sources, scene: &Scene) -> Lookup<Arc<Attachment>> {
    if scene.attachment.found().is_some() {
        return scene.attachment.clone();
    }
    let Some(node) = &scene.node_name else {
        return Lookup::Missing;
    };
    let source = scene.volume.found().and_then(|volume| volume.spec.csi());
    if let Some(source) = source {
        let name = attachment_name(&source.handle, &source.driver, node);
        let reader = &sources.reader;
        let found = reader.get(reader.cluster::<VolumeAttachmentWire>(), &name).await;
        if let Lookup::Found(wire) = found {
            return Lookup::Found(Arc::new(wire.into()));
        }
        if found.is_unknown() {
            return Lookup::Unknown;
        }
    }
    let naming = naming(sources, scene.volume_name.as_deref()).await;
    if naming.is_unknown() && source.is_some() {
        // The computed name is the usual one, and there is none of it.
        return Lookup::Missing;
    }
    naming.and_then(|naming| naming.into_iter().find(|attachment| *attachment.node == **node))
}

/// Events and the publish secret.
async fn read_details(sources: &Sources, scene: &mut Scene) {
    let reference = secret(scene);
    let secret = reference.as_ref().map(|reference| sources.secret(reference));
    let attachment = scene.attachment.found();
    let events = attachment.map(|own| sources.events("VolumeAttachment", ("default", &own.name), &own.uid));
    let pod = scene.pod.as_ref();
    let pod_events = pod.map(|pod| sources.events("Pod", (&pod.namespace, &pod.name), &pod.uid));
    let (secret, events) = (OptionFuture::from(secret), OptionFuture::from(events));
    let (secret, events, pod_events) = futures::join!(secret, events, OptionFuture::from(pod_events));
    scene.secret = reference.zip(secret);
    (scene.events, scene.pod_events) = (events.unwrap_or_default(), pod_events.unwrap_or_default());
}

/// The publish secret that the driver's calls need.
fn secret(scene: &Scene) -> Option<SecretReference> {
    let attachment = scene.attachment.found();
    let inline = || match &attachment?.source {
        AttachmentSource::Inline(spec) => spec.csi()?.publish_secret.as_ref(),
        _ => None,
    };
    let noted = || Some(&attachment?.volume_note.as_ref()?.secret);
    let of_volume = scene.volume.found().and_then(|volume| volume.spec.csi());
    let known = of_volume.map(|source| &source.publish_secret).or_else(noted);
    known.and_then(Option::as_ref).or_else(inline).cloned()
}
