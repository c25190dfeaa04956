//! `release`: the evidence, then a request to the operator, or, where nobody serves the driver, a guarded patch.

mod ask;
mod direct;

use csi_attacher_model::decide::patch;
use csi_attacher_model::objects::{Attachment, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource};
use kube_core::ClusterResourceScope;

use self::ask::ask;
use self::direct::{Direct, patch_directly};
use super::{Context, print};
use crate::cli::{ReleaseArguments, ReleaseKind};
use crate::error::{PluginError, Result};
use crate::explain::{ObjectName, Step, chain, volume_release};
use crate::gather::{Readable, Reader, attachment_scene, users, volume_scenes};
use crate::observed::{Gap, Lookup, NodeRecord, Scene};
use crate::output::{self, Text};
use crate::release::{self, ReleaseFacts, ReleaseWay};

/// Shows the evidence and releases, or refuses.
pub(super) async fn run(context: &Context, arguments: &ReleaseArguments) -> Result<u8> {
    let (kind, name) = arguments.object.with(arguments.name.as_deref())?;
    match kind {
        ReleaseKind::Va => attachment(context, arguments, &name).await,
        ReleaseKind::Pv => volume(context, arguments, &name).await,
    }
}

/// The exact object: a name that is only like it, or begins so, is told and is not enough to write.
async fn exact<K: Readable + Resource<Scope = ClusterResourceScope>>(reader: &Reader, name: &str) -> Result<K> {
    if let Some(found) = reader.require(reader.cluster::<K>(), name).await? {
        return Ok(found);
    }
    Err(PluginError::NotFound {
        object: format!("{} {name}", K::kind(&())),
        nearest: reader.nearest(reader.cluster::<K>(), name).await,
    })
}

async fn attachment(context: &Context, arguments: &ReleaseArguments, name: &str) -> Result<u8> {
    let sources = context.sources();
    let reader = &sources.reader;
    let record = Attachment::from(exact::<VolumeAttachmentWire>(reader, name).await?);
    let scene = Box::pin(attachment_scene(&sources, record.clone())).await;
    let facts = ReleaseFacts {
        users: users(&sources, &scene, Some(&record.node)).await,
        confirmed: arguments.i_know_the_volume_is_not_attached_anywhere,
        quiet_for: arguments.quiet_for,
    };
    print(&evidence(&scene, &facts, &reader.gaps()))?;
    match release::attachment(&scene, &facts).map_err(PluginError::Refused)? {
        ReleaseWay::AskOperator(proof) => ask(context, arguments, &record, proof).await,
        ReleaseWay::PatchDirectly(proof) => {
            let direct = Direct {
                target: ObjectName::cluster("VolumeAttachment", &*record.name),
                uid: &record.uid,
                version: record.resource_version,
                path: format!("/apis/storage.k8s.io/v1/volumeattachments/{}", record.name),
                write: patch::release(&record, &scene.driver.facts().finalizer),
                proof,
            };
            patch_directly(context, arguments, &sources, &scene.driver.name, direct).await
        }
    }
}

async fn volume(context: &Context, arguments: &ReleaseArguments, name: &str) -> Result<u8> {
    let sources = context.sources();
    let reader = &sources.reader;
    let record = Volume::from(exact::<PersistentVolumeWire>(reader, name).await?);
    let scenes = Box::pin(volume_scenes(&sources, None, Some(name))).await;
    let Some(scene) = scenes.first() else {
        return Err(PluginError::Refused("the volume could not be read".to_owned()));
    };
    let nodes = reader.list(reader.cluster::<Node>(), ListParams::default());
    let nodes: Lookup<Vec<NodeRecord>> = nodes.await;
    let mut shown = Text::default();
    if let Some(chain) = volume_release(scene) {
        add_steps(&mut shown, &chain.steps);
    }
    shown.not_seen(&reader.gaps());
    print(&shown)?;
    let confirmed = arguments.i_know_the_volume_is_not_attached_anywhere;
    let proof = release::volume(scene, &nodes, confirmed).map_err(PluginError::Refused)?;
    let direct = Direct {
        target: ObjectName::cluster("PersistentVolume", &*record.name),
        uid: &record.uid,
        version: record.resource_version,
        path: format!("/api/v1/persistentvolumes/{}", record.name),
        write: patch::release_volume(&record, &scene.driver.facts().finalizer),
        proof,
    };
    patch_directly(context, arguments, &sources, &scene.driver.name, direct).await
}

fn add_steps(shown: &mut Text, steps: &[Step]) {
    for step in steps {
        shown.line(&format!("evidence: {}: {}", step.object, step.text));
    }
}

/// What is known, before anything is done.
fn evidence(scene: &Scene, facts: &ReleaseFacts, gaps: &[Gap]) -> Text {
    let mut shown = Text::default();
    add_steps(&mut shown, &chain(scene).steps);
    if let Some(attachment) = scene.attachment.found() {
        let node = &attachment.node;
        let mounted = scene.node.found().zip(scene.handle());
        let mounted = match mounted.map(|(node, handle)| node.uses(&attachment.attacher, handle)) {
            Some(true) => "reports the volume as mounted (status.volumesInUse)",
            Some(false) => "does not report the volume as mounted (status.volumesInUse)",
            None => "says nothing about the volume",
        };
        shown.line(&format!("evidence: Node {node}: {mounted}"));
        if let Some(error) = &attachment.detach_error {
            let at = error
                .time
                .map_or_else(String::new, |at| format!(" {} ago", output::ago(at, scene.now)));
            shown.line(&format!("evidence: last error of the detach{at}: {}", error.message));
        }
    }
    for pod in facts.users.found().into_iter().flatten() {
        shown.line(&format!(
            "evidence: Pod {}/{} uses the claim on this node",
            pod.namespace, pod.name
        ));
    }
    for holder in scene.holders.found().into_iter().flatten() {
        let other = &holder.attachment;
        let state = if other.attached { "attached" } else { "not attached" };
        let (name, node) = (&other.name, &other.node);
        shown.line(&format!(
            "evidence: VolumeAttachment {name} of the same volume: node {node}, {state}"
        ));
    }
    shown.not_seen(gaps);
    shown
}

/// Who asks, as the API server knows them.
pub(super) async fn whoami(client: &Client) -> String {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let user = review.ok().and_then(|review| review.status?.user_info?.username);
    user.unwrap_or_else(|| "an unknown user".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{ApiServerFixture, attachment as stored, list};
    use crate::error::EXIT_NOT_FOUND;
    use crate::explain::tests::builders::{attachment, both, detaching, error, holder, node, with};
    use crate::observed::GapReason;
    use serde_json::json;

    /// The other commands take the beginning of a name, and people copy it from there.
    #[tokio::test]
    async fn the_beginning_of_a_name_is_answered_with_the_name() {
        let server = ApiServerFixture::start(|path, _| match path {
            "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[stored("csi-4ee2b0")])),
            "/apis/storage.k8s.io/v1/volumeattachments/csi-4ee2b0" => Ok(stored("csi-4ee2b0")),
            _ => Err(404),
        });
        let sources = server.sources();
        let whole = exact::<VolumeAttachmentWire>(&sources.reader, "csi-4ee2b0").await;
        assert!(whole.is_ok());
        let found = exact::<VolumeAttachmentWire>(&sources.reader, "csi-4ee2").await;
        let error = found.map(drop).unwrap_err();
        assert_eq!(error.exit_code(), EXIT_NOT_FOUND, "{error}");
        assert!(error.to_string().contains("csi-4ee2b0"), "{error}");
    }

    /// Whoever writes the objects of a driver or the names of nodes writes no evidence of his own.
    #[test]
    fn evidence_cannot_be_forged() {
        let forged = "gone\nevidence: Node node1: FORGED\r\u{1b}[31m";
        let at_forged = json!({"spec": {"nodeName": forged}});
        let scene = with(|scene| {
            let failed = both(detaching(60), &error("detachError", forged));
            scene.attachment = Lookup::Found(attachment(both(failed, &at_forged)));
            scene.holders = Lookup::Found(vec![holder(at_forged.clone(), node("node2"), &[])]);
        });
        let gap = Gap {
            verb: "get",
            group: String::new(),
            resource: "nodes".to_owned(),
            namespace: None,
            reason: GapReason::Failed(forged.to_owned()),
        };
        let shown = evidence(&scene, &ReleaseFacts::default(), &[gap]);
        let told = shown.as_str().matches("FORGED").count();
        assert!(told >= 4, "the errors, and each node: {}", shown.as_str());
        for line in shown.as_str().lines() {
            assert!(!line.starts_with("evidence: Node node1: FORGED"), "{line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
}
