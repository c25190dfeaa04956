//! `why`: one question, one tree.

use csi_attacher_model::objects::{PersistentVolumeWire, VolumeAttachmentWire};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{Resource, ResourceExt};
use kube_core::{ClusterResourceScope, NamespaceResourceScope};

use super::list::name_line;
use super::{Context, print};
use crate::cli::{WhyArguments, WhyKind, WhyOutput};
use crate::error::{EXIT_BLOCKED, EXIT_OK, EXIT_UNKNOWN, PluginError, Result};
use crate::explain::{Case, chain, node_steps, volume_release};
use crate::explain::{Chain, Diagnosis, Explanation, ObjectName, Step, StepState, Verdict};
use crate::gather::{Readable, Sources, attachment_scene, nearest, node_scenes, pod_scenes, volume_scenes};
use crate::observed::{PodRecord, PodVolumeSource, PodWire, Scene, is_settled};
use crate::output::{self, Text};

pub(super) async fn run(context: &Context, arguments: &WhyArguments) -> Result<u8> {
    let sources = context.sources();
    let (kind, name) = arguments.object.with(arguments.name.as_deref())?;
    let explanation = explain(&sources, kind, &name, &context.namespace).await?;
    let explanation = explanation.with_commands(|command| context.flags.add_to(command));
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
        text.line(&name_line(name));
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
    let pod = PodRecord::from(in_namespace::<PodWire>(sources, namespace, name).await?);
    let subject = ObjectName::namespaced("Pod", namespace, name);
    let inline = pod.volumes.iter().filter_map(|volume| match &volume.source {
        PodVolumeSource::Inline(driver) => Some(Step::note(
            subject.clone(),
            format!(
                "volume {} is an ephemeral volume of driver {driver}, which is never attached",
                volume.name
            ),
        )),
        PodVolumeSource::Claim(_) | PodVolumeSource::InTree(_) => None,
    });
    let steps: Vec<Step> = inline.collect();
    let mut chains: Vec<Chain> = pod_scenes(sources, &pod).await.iter().map(chain).collect();
    chains.extend(in_tree(&pod));
    if chains.is_empty() {
        chains.push(no_volumes(sources, pod));
    }
    Ok(Explanation::new(subject, steps, chains, sources.reader.gaps()))
}

/// The in-tree volumes that the spec of a pod on a node names. kube-controller-manager writes such a volume itself into its
/// VolumeAttachment, so that nothing there names the pod.
fn in_tree(pod: &PodRecord) -> Option<Chain> {
    let node = pod.node.as_ref().filter(|_| !pod.is_over())?;
    let volumes = pod.volumes.iter().filter_map(|volume| match volume.source {
        PodVolumeSource::InTree(plugin) => Some(format!("{} of driver {}", volume.name, plugin.as_str())),
        PodVolumeSource::Claim(_) | PodVolumeSource::Inline(_) => None,
    });
    let volumes: Vec<String> = volumes.collect();
    if volumes.is_empty() {
        return None;
    }
    let summary = format!(
        "cannot tell of in-tree volume {}: its VolumeAttachment has the volume itself, and does not name the pod",
        volumes.join(", ")
    );
    let object = ObjectName::namespaced("Pod", &pod.namespace, &pod.name);
    let diagnosis = Diagnosis::new(Case::NotVisible, summary.clone()).run(
        "look for the driver among the VolumeAttachments of the node",
        format!("kubectl attacher why node {node}"),
    );
    Some(Chain {
        volume: None,
        node: Some(node.clone()),
        driver: None,
        attachment: None,
        trace_id: None,
        steps: vec![Step::new(StepState::Unknown, object, summary)],
        diagnosis,
    })
}

/// A pod that uses no claim.
fn no_volumes(sources: &Sources, pod: PodRecord) -> Chain {
    let scene = Scene {
        pod: Some(pod),
        ..Scene::empty(sources.now)
    };
    let mut chain = chain(&scene);
    if chain.diagnosis.case != Case::PodNotScheduled {
        chain.diagnosis = Diagnosis::new(Case::NotUsed, "the pod uses no volume that would have to be attached");
    }
    chain
}

async fn claim(sources: &Sources, namespace: &str, name: &str) -> Result<Explanation> {
    in_namespace::<PersistentVolumeClaim>(sources, namespace, name).await?;
    let subject = ObjectName::namespaced("PersistentVolumeClaim", namespace, name);
    of_volume(sources, subject, Some((namespace, name)), None).await
}

async fn volume(sources: &Sources, name: &str) -> Result<Explanation> {
    // What was typed may be the beginning of the name.
    let name = in_cluster::<PersistentVolumeWire>(sources, name).await?.name_any();
    let subject = ObjectName::cluster("PersistentVolume", name.as_str());
    of_volume(sources, subject, None, Some(&name)).await
}

async fn of_volume(
    sources: &Sources,
    subject: ObjectName,
    claim: Option<(&str, &str)>,
    volume: Option<&str>,
) -> Result<Explanation> {
    let scenes = volume_scenes(sources, claim, volume).await;
    let mut chains: Vec<Chain> = scenes.iter().map(chain).collect();
    let release = scenes.first().and_then(volume_release);
    if release.is_some() {
        chains.retain(|chain| chain.node.is_some());
    }
    chains.extend(release);
    Ok(Explanation::new(subject, Vec::new(), chains, sources.reader.gaps()))
}

async fn attachment(sources: &Sources, name: &str) -> Result<Explanation> {
    let found = in_cluster::<VolumeAttachmentWire>(sources, name).await?;
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
    let (node, scenes) = node_scenes(sources, name).await?;
    let is_missing = node.node.is_missing() && node.csi_node.is_missing();
    if is_missing && node.on_node == Some(0) {
        return Err(PluginError::NotFound {
            object: format!("Node {name}"),
            nearest: sources.reader.nearest(sources.reader.cluster::<Node>(), name).await,
        });
    }
    let mut steps = node_steps(&node);
    let is_pending = |scene: &&Scene| !scene.attachment.found().is_some_and(|own| is_settled(own));
    let (count, pending) = (scenes.len(), scenes.iter().filter(is_pending).count());
    steps.push(Step::done(
        ObjectName::cluster("Node", name),
        format!("has {count} VolumeAttachments, {pending} of them being attached or detached"),
    ));
    // What is attached as it should be is counted only.
    let chains = scenes.iter().map(chain);
    let chains = chains.filter(|chain| chain.diagnosis.verdict != Verdict::Healthy);
    let subject = ObjectName::cluster("Node", name);
    Ok(Explanation::new(
        subject,
        steps,
        chains.collect(),
        sources.reader.gaps(),
    ))
}

/// An object without a namespace that has to be there, by its name or the beginning of it.
pub(crate) async fn in_cluster<K: Readable + Resource<Scope = ClusterResourceScope>>(
    sources: &Sources,
    name: &str,
) -> Result<K> {
    let reader = &sources.reader;
    if let Some(found) = reader.require(reader.cluster::<K>(), name).await? {
        return Ok(found);
    }
    let names = reader.names(reader.cluster::<K>()).await?;
    // A prefix that fits one name only is as good as the name: those of VolumeAttachments are hashes.
    let mut fitting = names.iter().filter(|known| known.starts_with(name));
    if let (Some(only), None) = (fitting.next(), fitting.next())
        && let Some(found) = reader.require(reader.cluster::<K>(), only).await?
    {
        return Ok(found);
    }
    Err(PluginError::NotFound {
        object: format!("{} {name}", K::kind(&())),
        nearest: nearest(name, &names),
    })
}

/// An object of a namespace that has to be there.
pub(crate) async fn in_namespace<K: Readable + Resource<Scope = NamespaceResourceScope>>(
    sources: &Sources,
    namespace: &str,
    name: &str,
) -> Result<K> {
    let reader = &sources.reader;
    if let Some(found) = reader.require(reader.namespaced::<K>(namespace), name).await? {
        return Ok(found);
    }
    Err(PluginError::NotFound {
        object: format!("{} {namespace}/{name}", K::kind(&())),
        nearest: reader.nearest(reader.namespaced::<K>(namespace), name).await,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, attachment, list, page};
    use crate::error::{EXIT_ERROR, EXIT_NOT_FOUND};
    use crate::gather::users;
    use serde_json::{Value, json};
    use std::sync::Arc;

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

    fn claim(uid: &str, volume: Option<&str>) -> Value {
        let phase = if volume.is_some() { "Bound" } else { "Pending" };
        json!({
            "metadata": {
                "name": "data", "namespace": "shop", "uid": uid, "creationTimestamp": "2026-01-01T09:00:00Z",
            },
            "spec": {"volumeName": volume},
            "status": {"phase": phase},
        })
    }

    /// A PersistentVolume of a claim shop/data that had the UID "old".
    fn claimed_volume() -> Value {
        let mut object = volume("pv-old");
        object["spec"]["claimRef"] = json!({"namespace": "shop", "name": "data", "uid": "old"});
        object
    }

    /// What is not seen may have the volume, or need it.
    #[tokio::test]
    async fn lists_that_could_not_be_read_are_not_taken_for_empty() {
        let empty: Answer = Ok(list(&[]));
        for (attachments, pods, verdict) in [
            (empty.clone(), empty.clone(), Verdict::Healthy),
            (Err(403), empty.clone(), Verdict::Unknown),
            (empty.clone(), Err(403), Verdict::Unknown),
            (empty.clone(), Err(500), Verdict::Unknown),
            (Err(403), Err(403), Verdict::Unknown),
        ] {
            let server = ApiServerFixture::start(move |path, _| match path {
                "/api/v1/persistentvolumes/pv-old" => Ok(claimed_volume()),
                "/api/v1/namespaces/shop/persistentvolumeclaims/data" => Ok(claim("old", Some("pv-old"))),
                "/api/v1/namespaces/shop/pods" => pods.clone(),
                "/apis/storage.k8s.io/v1/volumeattachments" => attachments.clone(),
                _ => Err(404),
            });
            for (kind, name) in [(WhyKind::Pv, "pv-old"), (WhyKind::Pvc, "data")] {
                let answer = explain(&server.sources(), kind, name, "shop").await.unwrap();
                assert_eq!(answer.verdict, verdict, "{answer:?}");
            }
        }
    }

    /// The claim was deleted and made again under its name, and has another volume: its pods are not those of the former one, but for one that was
    /// there before.
    #[tokio::test]
    async fn a_claim_of_the_same_name_is_not_that_of_the_volume() {
        let pod = |created: &str| {
            json!({
                "metadata": {"name": "web-1", "namespace": "shop", "creationTimestamp": created},
                "spec": {
                    "nodeName": "node1",
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                },
                "status": {"phase": "Running"},
            })
        };
        let mut leaving = attachment("csi-old");
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T10:00:00Z".into();
        leaving["metadata"]["finalizers"] = json!(["external-attacher/ssd-csi-test"]);
        leaving["spec"]["source"]["persistentVolumeName"] = "pv-old".into();
        let (before, after) = ("2026-01-01T08:00:00Z", "2026-01-01T09:00:00Z");
        for (new, created, count) in [
            (claim("new", Some("pv-new")), after, 0),
            (claim("new", None), after, 0),
            (claim("new", Some("pv-new")), before, 1),
        ] {
            let (pod, attached) = (pod(created), leaving.clone());
            let server = ApiServerFixture::start(move |path, _| match path {
                "/api/v1/persistentvolumes/pv-old" => Ok(claimed_volume()),
                "/api/v1/namespaces/shop/persistentvolumeclaims/data" => Ok(new.clone()),
                "/api/v1/namespaces/shop/pods" => Ok(list(std::slice::from_ref(&pod))),
                "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[])),
                "/apis/storage.k8s.io/v1/volumeattachments/csi-old" => Ok(attached.clone()),
                _ => Err(404),
            });
            let sources = server.sources();
            let of_volume = explain(&sources, WhyKind::Pv, "pv-old", "shop").await.unwrap();
            let case = of_volume.chains[0].diagnosis.case;
            assert_eq!(case == Case::NotUsed, count == 0, "{of_volume:?}");
            let of_attachment = explain(&sources, WhyKind::Va, "csi-old", "shop").await.unwrap();
            let case = of_attachment.chains[0].diagnosis.case;
            assert_eq!(case, Case::OrphanFinalizer, "{of_attachment:?}");
            // A release is refused while a pod on the node uses the volume.
            let wire: VolumeAttachmentWire = serde_json::from_value(leaving.clone()).unwrap();
            let scene = attachment_scene(&sources, wire.into()).await;
            let users = users(&sources, &scene, Some("node1")).await;
            assert_eq!(users.found().map(Vec::len), Some(count), "{users:?}");
        }
    }

    /// Somebody took the finalizers off the PersistentVolume: what had its name is still attached.
    #[tokio::test]
    async fn what_is_attached_outlives_its_volume() {
        let mut lost = claim("old", Some("pv1"));
        lost["status"]["phase"] = "Lost".into();
        let pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop"},
            "spec": {
                "nodeName": "node1",
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": "Running"},
        });
        let server = ApiServerFixture::start(move |path, _| match path {
            "/api/v1/namespaces/shop/persistentvolumeclaims/data" => Ok(lost.clone()),
            "/api/v1/namespaces/shop/pods" => Ok(list(std::slice::from_ref(&pod))),
            "/api/v1/namespaces/shop/pods/web-1" => Ok(pod.clone()),
            "/apis/storage.k8s.io/v1/csinodes/node1" => Ok(csi_node()),
            "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[attached()])),
            _ => Err(404),
        });
        for (kind, name) in [(WhyKind::Pvc, "data"), (WhyKind::Pod, "web-1")] {
            let answer = explain(&server.sources(), kind, name, "shop").await.unwrap();
            let chain = &answer.chains[0];
            assert_eq!(chain.diagnosis.case, Case::VolumeMissing, "{answer:?}");
            assert_eq!(chain.attachment.as_deref(), Some("csi-1"), "{answer:?}");
        }
    }

    fn attached() -> Value {
        let mut object = attachment("csi-1");
        object["status"]["attached"] = true.into();
        object
    }

    fn csi_node() -> Value {
        let drivers = json!([{"name": "ssd.csi.test", "nodeID": "id1"}]);
        json!({"metadata": {"name": "node1"}, "spec": {"drivers": drivers}})
    }

    /// In the first minutes nothing of a machine that is off is being detached.
    #[tokio::test]
    async fn a_node_is_told_with_what_is_attached_to_it() {
        let unready = json!({
            "metadata": {"name": "node1"},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        });
        for (node, registered, verdict, says) in [
            (
                Ok(unready),
                Ok(csi_node()),
                Verdict::Healthy,
                "node1: is not Ready; has 1 VolumeAttachments",
            ),
            (Err(404), Err(404), Verdict::Blocked, "node1: does not exist"),
            (Err(404), Err(404), Verdict::Blocked, "DriverNotOnNode"),
        ] {
            let server = ApiServerFixture::start(move |path, _| match path {
                "/api/v1/nodes/node1" => node.clone(),
                "/api/v1/persistentvolumes/pv1" => Ok(volume("pv1")),
                "/apis/storage.k8s.io/v1/csinodes/node1" => registered.clone(),
                "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[attached()])),
                _ => Err(404),
            });
            let sources = server.sources();
            let answer = explain(&sources, WhyKind::Node, "node1", "shop").await.unwrap();
            assert_eq!(answer.verdict, verdict, "{answer:?}");
            let shown = output::tree(&answer, sources.now, output::Style::PLAIN, false);
            let words = shown.as_str().replace("  ", " ");
            assert!(words.contains(says), "{says} is not in {words}");
        }
    }

    /// A pod on the node may still have the volume of a claim that was removed by force; one that waits for a node has none.
    #[tokio::test]
    async fn without_the_claim_a_pod_that_has_no_node_uses_nothing() {
        for (node, count) in [(Some("node1"), 1), (None, 0)] {
            let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
            let pod = json!({
                "metadata": {"name": "web-1", "namespace": "shop"},
                "spec": {"nodeName": node, "volumes": volumes},
                "status": {"phase": "Pending"},
            });
            let server = ApiServerFixture::start(move |path, _| match path {
                "/api/v1/persistentvolumes/pv-old" => Ok(claimed_volume()),
                "/api/v1/namespaces/shop/pods" => Ok(list(std::slice::from_ref(&pod))),
                "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[])),
                _ => Err(404),
            });
            let scenes = volume_scenes(&server.sources(), None, Some("pv-old")).await;
            assert_eq!(scenes[0].users.found().map(|users| users.len()), Some(count));
        }
    }

    /// A volume that a thousand pods on a thousand nodes share has a thousand scenes; a copy of the pods in each would be a million.
    #[tokio::test]
    async fn the_scenes_of_a_shared_volume_share_its_pods() {
        let pod = |number: usize| {
            json!({
                "metadata": {"name": format!("web-{number}"), "namespace": "shop"},
                "spec": {
                    "nodeName": format!("node{number}"),
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                },
                "status": {"phase": "Running"},
            })
        };
        let server = ApiServerFixture::start(move |path, _| match path {
            "/api/v1/persistentvolumes/pv-old" => Ok(claimed_volume()),
            "/api/v1/namespaces/shop/persistentvolumeclaims/data" => Ok(claim("old", Some("pv-old"))),
            "/api/v1/namespaces/shop/pods" => Ok(list(&[pod(1), pod(2), pod(3)])),
            "/apis/storage.k8s.io/v1/volumeattachments" => Ok(list(&[])),
            _ => Err(404),
        });
        let scenes = volume_scenes(&server.sources(), None, Some("pv-old")).await;
        assert_eq!(scenes.len(), 3);
        let (naming, users) = (scenes[0].naming.found().unwrap(), scenes[0].users.found().unwrap());
        assert_eq!(users.len(), 3);
        for scene in &scenes {
            assert!(Arc::ptr_eq(naming, scene.naming.found().unwrap()));
            assert!(Arc::ptr_eq(users, scene.users.found().unwrap()));
        }
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

    /// Its VolumeAttachment has the volume in its spec, where nothing names the pod.
    #[tokio::test]
    async fn an_in_tree_volume_of_a_pod_is_not_taken_for_none() {
        for (source, phase, verdict) in [
            ("awsElasticBlockStore", "Pending", Verdict::Unknown),
            ("gcePersistentDisk", "Pending", Verdict::Unknown),
            ("cinder", "Pending", Verdict::Unknown),
            ("azureDisk", "Pending", Verdict::Unknown),
            ("vsphereVolume", "Pending", Verdict::Unknown),
            ("vsphereVolume", "Succeeded", Verdict::Healthy),
            ("azureFile", "Pending", Verdict::Healthy),
            ("emptyDir", "Pending", Verdict::Healthy),
        ] {
            let server = ApiServerFixture::start(move |path, _| match path {
                "/api/v1/namespaces/shop/pods/web-1" => Ok(json!({
                    "metadata": {"name": "web-1", "namespace": "shop"},
                    "spec": {"nodeName": "node1", "volumes": [{"name": "data", source: {}}]},
                    "status": {"phase": phase},
                })),
                _ => Err(404),
            });
            let answer = explain(&server.sources(), WhyKind::Pod, "web-1", "shop").await.unwrap();
            assert_eq!(answer.verdict, verdict, "{source}: {answer:?}");
            let advice = answer.chains[0].diagnosis.advice.first();
            let command = advice.and_then(|advice| advice.command.as_deref());
            let goes_on = command == Some("kubectl attacher why node node1");
            assert_eq!(goes_on, verdict == Verdict::Unknown, "{source}: {answer:?}");
        }
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
