//! `why`: one question, one tree.

use csi_attacher_model::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use kube_core::{ClusterResourceScope, NamespaceResourceScope};

use super::{Context, print};
use crate::cli::{WhyArguments, WhyKind, WhyOutput};
use crate::error::{EXIT_BLOCKED, EXIT_OK, EXIT_UNKNOWN, PluginError, Result};
use crate::explain::{Case, chain, node_steps, volume_release};
use crate::explain::{Chain, Diagnosis, Explanation, ObjectName, Step, Verdict};
use crate::gather::{
    Readable, ResourceName, Sources, attachment_scene, nearest, node_scenes, pod_scenes, volume_scenes,
};
use crate::observed::{PodRecord, PodVolumeSource, PodWire, Scene};
use crate::output::{self, Text};

/// Answers and prints.
pub(super) async fn run(context: &Context, arguments: &WhyArguments) -> Result<u8> {
    let sources = context.sources();
    let explanation = explain(&sources, arguments.kind, &arguments.name, &context.namespace).await?;
    let text = match arguments.output {
        Some(WhyOutput::Json) => output::json(&explanation)?,
        Some(WhyOutput::Yaml) => output::yaml(&explanation)?,
        Some(WhyOutput::Name) => names(&explanation),
        None => {
            let mut tree = output::tree(&explanation, sources.now, context.style, arguments.verbose);
            add_links(&mut tree, &explanation, arguments.traces.as_deref());
            tree
        }
    };
    print(&text)?;
    Ok(match explanation.verdict {
        Verdict::Healthy | Verdict::InProgress => EXIT_OK,
        Verdict::Unknown => EXIT_UNKNOWN,
        Verdict::Blocked => EXIT_BLOCKED,
    })
}

/// Adds where to look at the traces.
fn add_links(text: &mut Text, explanation: &Explanation, jaeger: Option<&str>) {
    let Some(jaeger) = jaeger else { return };
    for id in explanation.chains.iter().filter_map(|chain| chain.trace_id.as_ref()) {
        text.line(&format!("trace: {}/trace/{id}", jaeger.trim_end_matches('/')));
    }
}

fn names(explanation: &Explanation) -> Text {
    let mut text = Text::default();
    for name in explanation.chains.iter().filter_map(|chain| chain.attachment.as_ref()) {
        text.line(&format!("volumeattachment.storage.k8s.io/{name}"));
    }
    text
}

/// The answer to one question.
pub(crate) async fn explain(sources: &Sources, kind: WhyKind, name: &str, namespace: &str) -> Result<Explanation> {
    match kind {
        WhyKind::Pod => pod(sources, namespace, name).await,
        WhyKind::Pvc => claim(sources, namespace, name).await,
        WhyKind::Pv => volume(sources, name).await,
        WhyKind::Va => attachment(sources, name).await,
        WhyKind::Node => node(sources, name).await,
    }
}

async fn pod(sources: &Sources, namespace: &str, name: &str) -> Result<Explanation> {
    let found = in_namespace::<PodWire>(sources, ResourceName::new("", "pods"), namespace, name, "Pod").await?;
    let pod = PodRecord::from(found);
    let subject = ObjectName::namespaced("Pod", namespace, name);
    let inline = pod.volumes.iter().filter_map(|volume| match &volume.source {
        PodVolumeSource::Inline(driver) => Some(Step::note(
            subject.clone(),
            format!(
                "volume {} is an ephemeral volume of driver {driver}, which is never attached",
                volume.name
            ),
        )),
        PodVolumeSource::Claim(_) => None,
    });
    let steps: Vec<Step> = inline.collect();
    let found = pod_scenes(sources, pod).await;
    let mut chains: Vec<Chain> = found.scenes.iter().map(chain).collect();
    if chains.is_empty() {
        chains.push(no_volumes(sources, &found.pod));
    }
    Ok(Explanation::new(subject, steps, chains, sources.reader.gaps()))
}

/// A pod that uses no claim.
fn no_volumes(sources: &Sources, pod: &PodRecord) -> Chain {
    let scene = Scene {
        pod: Some(pod.clone()),
        ..Scene::empty(sources.now)
    };
    let mut chain = chain(&scene);
    if chain.diagnosis.case != Case::PodNotScheduled {
        chain.diagnosis = Diagnosis::new(Case::NotUsed, "the pod uses no volume that would have to be attached");
    }
    chain
}

async fn claim(sources: &Sources, namespace: &str, name: &str) -> Result<Explanation> {
    let resource = ResourceName::new("", "persistentvolumeclaims");
    in_namespace::<PersistentVolumeClaim>(sources, resource, namespace, name, "PersistentVolumeClaim").await?;
    let subject = ObjectName::namespaced("PersistentVolumeClaim", namespace, name);
    of_volume(sources, subject, Some((namespace, name)), None).await
}

async fn volume(sources: &Sources, name: &str) -> Result<Explanation> {
    let resource = ResourceName::new("", "persistentvolumes");
    // What was typed may be the beginning of the name.
    let name = in_cluster::<PersistentVolumeWire>(sources, resource, name, "PersistentVolume")
        .await?
        .name_any();
    let subject = ObjectName::cluster("PersistentVolume", name.as_str());
    of_volume(sources, subject, None, Some(&name)).await
}

async fn of_volume(
    sources: &Sources,
    subject: ObjectName,
    claim: Option<(&str, &str)>,
    volume: Option<&str>,
) -> Result<Explanation> {
    let found = volume_scenes(sources, claim, volume).await;
    let mut chains: Vec<Chain> = found.scenes.iter().map(chain).collect();
    let release = found
        .scenes
        .first()
        .and_then(|scene| volume_release(scene, &found.naming));
    if release.is_some() {
        chains.retain(|chain| chain.node.is_some());
    }
    chains.extend(release);
    Ok(Explanation::new(subject, Vec::new(), chains, sources.reader.gaps()))
}

async fn attachment(sources: &Sources, name: &str) -> Result<Explanation> {
    let resource = ResourceName::new("storage.k8s.io", "volumeattachments");
    let found = in_cluster::<VolumeAttachmentWire>(sources, resource, name, "VolumeAttachment").await?;
    let subject = ObjectName::cluster("VolumeAttachment", found.name_any());
    let scene = attachment_scene(sources, found.into()).await;
    Ok(Explanation::new(
        subject,
        Vec::new(),
        vec![chain(&scene)],
        sources.reader.gaps(),
    ))
}

async fn node(sources: &Sources, name: &str) -> Result<Explanation> {
    let found = node_scenes(sources, name).await?;
    let known = found.node.node.is_missing() && found.node.csi_node.is_missing();
    if known && found.node.on_node == Some(0) {
        return Err(PluginError::NotFound {
            object: format!("Node {name}"),
            nearest: sources.reader.nearest(sources.reader.cluster::<Node>(), name).await,
        });
    }
    let mut steps = node_steps(&found.node);
    let count = found.node.on_node.unwrap_or_default();
    let pending = found.scenes.len();
    steps.push(Step::note(
        ObjectName::cluster("Node", name),
        format!("has {count} VolumeAttachments, {pending} of them being attached or detached"),
    ));
    let chains: Vec<Chain> = found.scenes.iter().map(chain).collect();
    Ok(Explanation::new(
        ObjectName::cluster("Node", name),
        steps,
        chains,
        sources.reader.gaps(),
    ))
}

/// An object without a namespace that has to be there, by its name or the beginning of it.
pub(crate) async fn in_cluster<K: Readable + Resource<Scope = ClusterResourceScope>>(
    sources: &Sources,
    resource: ResourceName,
    name: &str,
    kind: &str,
) -> Result<K> {
    let reader = &sources.reader;
    if let Some(found) = reader.require(reader.cluster::<K>(), resource, name).await? {
        return Ok(found);
    }
    let names = reader.names(reader.cluster::<K>(), resource).await?;
    // A prefix that fits one name only is as good as the name: those of VolumeAttachments are hashes.
    let mut fitting = names.iter().filter(|known| known.starts_with(name));
    if let (Some(only), None) = (fitting.next(), fitting.next())
        && let Some(found) = reader.require(reader.cluster::<K>(), resource, only).await?
    {
        return Ok(found);
    }
    Err(PluginError::NotFound {
        object: format!("{kind} {name}"),
        nearest: nearest(name, &names),
    })
}

/// An object of a namespace that has to be there.
async fn in_namespace<K: Readable + Resource<Scope = NamespaceResourceScope>>(
    sources: &Sources,
    resource: ResourceName,
    namespace: &str,
    name: &str,
    kind: &str,
) -> Result<K> {
    let reader = &sources.reader;
    let found = reader
        .require(reader.namespaced::<K>(namespace), resource, name)
        .await?;
    if let Some(found) = found {
        return Ok(found);
    }
    Err(PluginError::NotFound {
        object: format!("{kind} {namespace}/{name}"),
        nearest: reader.nearest(reader.namespaced::<K>(namespace), name).await,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, attachment, list, page};
    use crate::error::{EXIT_ERROR, EXIT_NOT_FOUND};
    use serde_json::{Value, json};

    fn volume(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "3"},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "ssd.csi.test", "volumeHandle": name}},
        })
    }

    /// PersistentVolume pvc-1a on the first page of the list, and this as the second one.
    fn server(second: Answer) -> ApiServerFixture {
        ApiServerFixture::start(move |path, query| match path {
            "/api/v1/persistentvolumes" if query.contains("continue=") => second.clone(),
            "/api/v1/persistentvolumes" => Ok(page(&[volume("pvc-1a")], "second")),
            "/api/v1/persistentvolumes/pvc-1a" => Ok(volume("pvc-1a")),
            "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[attachment("csi-1a")])),
            "/apis/storage.k8s.io/v1/volumeattachments/csi-1a" => Ok(attachment("csi-1a")),
            _ => Err(404),
        })
    }

    #[tokio::test]
    async fn the_beginning_of_one_name_stands_for_it() {
        let server = server(Ok(list(&[volume("pvc-2")])));
        let of_volume = explain(&server.sources(), WhyKind::Pv, "pvc-1", "shop").await.unwrap();
        assert_eq!(of_volume.subject.name, "pvc-1a");
        assert_eq!(of_volume.chains[0].volume.as_deref(), Some("pvc-1a"));
        assert_ne!(of_volume.chains[0].diagnosis.case, Case::VolumeMissing);
        let of_attachment = explain(&server.sources(), WhyKind::Va, "csi-", "shop").await.unwrap();
        assert_eq!(of_attachment.subject.name, "csi-1a");
        assert_eq!(of_attachment.chains[0].attachment.as_deref(), Some("csi-1a"));
    }

    /// Of a job that is over the claim may be deleted, and then there is no volume to look at.
    #[tokio::test]
    async fn a_pod_that_ended_needs_no_claim() {
        let pod = json!({
            "metadata": {"name": "job-1", "namespace": "shop"},
            "spec": {
                "nodeName": "node1",
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": "Succeeded"},
        });
        let server = ApiServerFixture::start(move |path, _| match path {
            "/api/v1/namespaces/shop/pods/job-1" => Ok(pod.clone()),
            _ => Err(404),
        });
        let answer = explain(&server.sources(), WhyKind::Pod, "job-1", "shop").await.unwrap();
        assert_eq!(answer.verdict, Verdict::Healthy, "{answer:?}");
        assert_eq!(answer.chains[0].diagnosis.case, Case::NotUsed);
    }

    #[tokio::test]
    async fn the_beginning_of_two_names_stands_for_none() {
        let server = server(Ok(list(&[volume("pvc-1b")])));
        let error = explain(&server.sources(), WhyKind::Pv, "pvc-1", "shop")
            .await
            .unwrap_err();
        assert_eq!(error.exit_code(), EXIT_NOT_FOUND, "{error}");
        assert!(error.to_string().contains("pvc-1a or pvc-1b"), "{error}");
    }

    /// What was not listed may begin so too.
    #[tokio::test]
    async fn without_all_names_a_beginning_stands_for_none() {
        for (code, exit_code) in [(403, EXIT_UNKNOWN), (500, EXIT_ERROR)] {
            let server = server(Err(code));
            let error = explain(&server.sources(), WhyKind::Pv, "pvc-1", "shop")
                .await
                .unwrap_err();
            assert_eq!(error.exit_code(), exit_code, "{error}");
        }
    }
}
