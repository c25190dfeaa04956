//! Who else has, or wants, a volume: other attachments of it, and pods that use its claim.

use csi_attacher_model::objects::Attachment;
use futures::future::join_all;
use std::sync::Arc;

use super::sources::Sources;
use crate::observed::{Holder, HolderPod, Lookup, PodRecord, Scene};

/// The VolumeAttachments that name a PersistentVolume.
pub(super) async fn naming(sources: &Sources, volume: Option<&str>) -> Lookup<Vec<Arc<Attachment>>> {
    let Some(volume) = volume else {
        return Lookup::Found(Vec::new());
    };
    let is_meant = |attachment: &&Arc<Attachment>| attachment.volume_name().is_some_and(|name| **name == *volume);
    let all = sources.attachments().await.as_ref();
    all.map(|all| all.iter().filter(is_meant).cloned().collect())
}

/// Pods of the claim's namespace that use it. Those of an inline volume, or of a PersistentVolume that was not read, are not known.
pub(crate) async fn users(sources: &Sources, scene: &Scene, node: Option<&str>) -> Lookup<Vec<PodRecord>> {
    let former = scene.former_claim.as_ref();
    let claim = scene.claim_name.as_ref().or(former.map(|(claim, _)| claim));
    let Some((namespace, name)) = claim.and_then(|claim| claim.split_once('/')) else {
        let is_unclaimed = scene.volume.found().is_some();
        return if is_unclaimed {
            Lookup::Found(Vec::new())
        } else {
            Lookup::Unknown
        };
    };
    // Without its claim no pod is scheduled: one without a node waits for another claim of the name.
    let may_use = |pod: &PodRecord| pod.node.is_some() || !scene.claim.is_missing();
    // A pod that was there before that other claim has the volume of the former one.
    let again = former.and_then(|(_, created)| *created);
    let is_earlier = |pod: &PodRecord| again.is_none_or(|again| pod.created.is_none_or(|created| created < again));
    let uses = |pod: &PodRecord| pod.uses(name) && may_use(pod) && is_earlier(pod);
    let pods = sources.pods(namespace, node).await;
    pods.map(|pods| pods.into_iter().filter(uses).collect())
}

/// The other attachments of the volume, and how many the node has.
pub(super) async fn read_others(sources: &Sources, scene: &mut Scene) {
    let Lookup::Found(all) = sources.attachments().await else {
        return;
    };
    let driver = &scene.driver.name;
    scene.on_node = scene.node_name.as_ref().map(|node| {
        let of_node = |attachment: &&Arc<Attachment>| *attachment.node == **node && *attachment.attacher == **driver;
        all.iter().filter(of_node).count()
    });
    let own = scene.attachment.found().map(|own| own.name.clone());
    let is_other = |other: &&Arc<Attachment>| Some(&other.name) != own.as_ref() && *other.attacher == **driver;
    let others = all.iter().filter(is_other).filter(|other| scene.is_of_volume(other));
    let holders = join_all(others.map(|other| holder(sources, scene, other))).await;
    scene.holders = Lookup::Found(holders);
}

async fn holder(sources: &Sources, scene: &Scene, other: &Arc<Attachment>) -> Holder {
    let name = &other.name;
    let elsewhere = Some(&*other.node) != scene.node_name.as_deref();
    let (node, pods, events) = if scene.is_for_one_node() && elsewhere {
        let (node, pods, events) = futures::join!(
            sources.node(&other.node),
            users(sources, scene, Some(&other.node)),
            sources.events("VolumeAttachment", ("default", name), &other.uid)
        );
        (node.0, pods, events)
    } else {
        (Lookup::Unknown, Lookup::Unknown, Lookup::Unknown)
    };
    let shown = |pod: PodRecord| HolderPod {
        name: format!("{}/{}", pod.namespace, pod.name),
        deleting: pod.deleting,
        owner: pod.owner,
    };
    let pods = pods.map(|pods| pods.into_iter().filter(|pod| !pod.is_over()).map(shown).collect());
    Holder {
        attachment: Arc::clone(other),
        node,
        pods,
        events,
    }
}
