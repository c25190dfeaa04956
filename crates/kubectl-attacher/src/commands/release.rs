//! `release`: the evidence, then a request to the operator, or, where nobody serves the driver, a guarded patch.

use csi_attacher_model::api::names::{RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION};
use csi_attacher_model::decide::patch::{self, Write};
use csi_attacher_model::decide::{ReleaseAnswer, ReleaseProof, ReleaseRequest};
use csi_attacher_model::objects::{Attachment, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::audit;
use super::list::fatal;
use super::{Context, print};
use crate::cli::{DryRun, ReleaseArguments, ReleaseKind};
use crate::error::{EXIT_OK, EXIT_REFUSED, PluginError, Result};
use crate::explain::{ObjectName, chain, volume_release};
use crate::gather::{ResourceName, Sources, attachment_scene, now, users, volume_scenes, words};
use crate::observed::{LeaseRecord, Lookup, NodeRecord, Scene};
use crate::output;
use crate::release::{self, ReleaseFacts, ReleaseWay};

/// Who writes, in `managedFields` and Events.
pub(super) const MANAGER: &str = "kubectl-attacher";
/// How much longer than its duration a Lease is watched before it counts as one that nobody renews.
const LEASE_MARGIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Shows the evidence and releases, or refuses.
pub(super) async fn run(context: &Context, arguments: &ReleaseArguments) -> Result<u8> {
    match arguments.kind {
        ReleaseKind::Va => attachment(context, arguments).await,
        ReleaseKind::Pv => volume(context, arguments).await,
    }
}

/// The exact object: a name that is only like it is not enough to write.
fn exact<T>(found: Option<T>, object: String) -> Result<T> {
    found.ok_or(PluginError::NotFound {
        object,
        nearest: Vec::new(),
    })
}

async fn attachment(context: &Context, arguments: &ReleaseArguments) -> Result<u8> {
    let sources = context.sources();
    let reader = &sources.reader;
    let resource = ResourceName::new("storage.k8s.io", "volumeattachments");
    let api = reader.cluster::<VolumeAttachmentWire>();
    let wire = reader.require(api, resource, &arguments.name).await?;
    let wire = exact(wire, format!("VolumeAttachment {}", arguments.name))?;
    let record = Attachment::from(wire);
    let scene = Box::pin(attachment_scene(&sources, record.clone())).await;
    let facts = ReleaseFacts {
        users: users(&sources, scene.claim_name.as_deref(), Some(&record.node)).await,
        confirmed: arguments.i_know_the_volume_is_not_attached_anywhere,
        quiet_for: arguments.quiet_for,
    };
    print(&evidence(&scene, &facts, &sources))?;
    match release::attachment(&scene, &facts).map_err(PluginError::Refused)? {
        ReleaseWay::AskOperator(proof) => ask(context, arguments, &record, proof).await,
        ReleaseWay::PatchDirectly(proof) => {
            leases_rest(&sources, &scene.driver.name).await?;
            let finalizer = &scene.driver.facts().finalizer;
            let write = patch::release(&record, finalizer).map(|write| guarded(write, record.resource_version));
            let target = ObjectName::cluster("VolumeAttachment", &*record.name);
            let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", record.name);
            patch_directly(
                context,
                arguments,
                Direct {
                    target,
                    uid: &record.uid,
                    path,
                    write,
                    proof,
                },
            )
            .await
        }
    }
}

async fn volume(context: &Context, arguments: &ReleaseArguments) -> Result<u8> {
    let sources = context.sources();
    let reader = &sources.reader;
    let resource = ResourceName::new("", "persistentvolumes");
    let wire = reader
        .require(reader.cluster::<PersistentVolumeWire>(), resource, &arguments.name)
        .await?;
    let record = Volume::from(exact(wire, format!("PersistentVolume {}", arguments.name))?);
    let found = Box::pin(volume_scenes(&sources, None, Some(&arguments.name))).await;
    let Some(scene) = found.scenes.first() else {
        return Err(PluginError::Refused("the volume could not be read".to_owned()));
    };
    let nodes = ResourceName::new("", "nodes");
    let nodes = reader
        .list(reader.cluster::<Node>(), nodes, ListParams::default())
        .await;
    let nodes = nodes.map(|nodes| nodes.into_iter().map(NodeRecord::from).collect());
    let mut shown = volume_release(scene, &found.naming).map_or_else(String::new, |chain| lines(&chain.steps));
    shown.extend(reader.gaps().iter().map(|gap| format!("not seen: {gap}\n")));
    print(&shown)?;
    let confirmed = arguments.i_know_the_volume_is_not_attached_anywhere;
    let way = release::volume(scene, &found.naming, &nodes, confirmed).map_err(PluginError::Refused)?;
    let ReleaseWay::PatchDirectly(proof) = way else {
        return Err(PluginError::Refused(
            "a PersistentVolume is not released on request".to_owned(),
        ));
    };
    leases_rest(&sources, &scene.driver.name).await?;
    let finalizer = &scene.driver.facts().finalizer;
    let write = patch::release_volume(&record, finalizer).map(|write| guarded(write, record.resource_version));
    let target = ObjectName::cluster("PersistentVolume", &*record.name);
    let path = format!("/api/v1/persistentvolumes/{}", record.name);
    patch_directly(
        context,
        arguments,
        Direct {
            target,
            uid: &record.uid,
            path,
            write,
            proof,
        },
    )
    .await
}

fn lines(steps: &[crate::explain::Step]) -> String {
    steps
        .iter()
        .map(|step| format!("evidence: {}: {}\n", step.object, step.text))
        .collect::<Vec<_>>()
        .concat()
}

/// What is known, before anything is done.
fn evidence(scene: &Scene, facts: &ReleaseFacts, sources: &Sources) -> String {
    let mut text = lines(&chain(scene).steps);
    if let Some(attachment) = scene.attachment.found() {
        let node = &attachment.node;
        let mounted = scene
            .node
            .found()
            .zip(scene.handle())
            .map(|(node, handle)| node.uses(&attachment.attacher, handle));
        let mounted = match mounted {
            Some(true) => "reports the volume as mounted (status.volumesInUse)",
            Some(false) => "does not report the volume as mounted (status.volumesInUse)",
            None => "says nothing about the volume",
        };
        text += &format!("evidence: Node {node}: {mounted}\n");
        if let Some(error) = &attachment.detach_error {
            let at = error
                .time
                .map_or_else(String::new, |at| format!(" {} ago", output::ago(at, scene.now)));
            text += &format!("evidence: last error of the detach{at}: {}\n", error.message);
        }
    }
    for pod in facts.users.found().into_iter().flatten() {
        text += &format!(
            "evidence: Pod {}/{} uses the claim on this node\n",
            pod.namespace, pod.name
        );
    }
    for holder in scene.holders.found().into_iter().flatten() {
        let other = &holder.attachment;
        let state = if other.attached { "attached" } else { "not attached" };
        text += &format!(
            "evidence: VolumeAttachment {} of the same volume: node {}, {state}\n",
            other.name, other.node
        );
    }
    text.extend(sources.reader.gaps().iter().map(|gap| format!("not seen: {gap}\n")));
    text
}

/// Asks the operator by the annotation, and waits for its answer.
async fn ask(
    context: &Context,
    arguments: &ReleaseArguments,
    record: &Attachment,
    proof: Option<ReleaseProof>,
) -> Result<u8> {
    let Some(deleted) = record.deleting else {
        return Err(PluginError::Refused("it is not being deleted".to_owned()));
    };
    let request = ReleaseRequest {
        uid: record.uid.to_string(),
        deleted,
        at: now(),
        by: whoami(&context.client).await,
        reason: arguments.reason.clone(),
        proof,
    };
    let value = serde_json::to_string(&request).map_err(|error| PluginError::Output(error.to_string()))?;
    let api: Api<VolumeAttachmentWire> = Api::all(context.client.clone());
    let dry = arguments.dry_run == DryRun::Server;
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        dry_run: dry,
        ..PatchParams::default()
    };
    // A name comes back with another object; the UID does not.
    let body = json!({"metadata": {"uid": &*record.uid, "annotations": {RELEASE_ANNOTATION: value}}});
    let name = &record.name;
    let patched = api.patch_metadata(name, &parameters, &Patch::Merge(&body)).await;
    patched.map_err(|error| PluginError::Api {
        what: format!("cannot set the annotation {RELEASE_ANNOTATION} on VolumeAttachment {name}"),
        message: words(&error),
    })?;
    if dry {
        print(&format!(
            "VolumeAttachment {name}: the operator would be asked (server dry run)\n"
        ))?;
        return Ok(EXIT_OK);
    }
    print(&format!(
        "VolumeAttachment {name}: asked the operator, waiting for its answer\n"
    ))?;
    let answer = tokio::select! {
        answer = tokio::time::timeout(arguments.timeout, answer(context, record, &request)) => answer.ok(),
        _ = tokio::signal::ctrl_c() => None,
    };
    match answer {
        Some(Ok(Answer::Released)) => {
            print(&format!(
                "VolumeAttachment {name}: released; the Event Released on it says who asked and why\n"
            ))?;
            Ok(EXIT_OK)
        }
        Some(Ok(Answer::Refused(answer))) => {
            print(&format!(
                "VolumeAttachment {name}: refused by the operator: {}: {}\n",
                answer.reason, answer.message
            ))?;
            Ok(EXIT_REFUSED)
        }
        Some(Err(error)) => {
            withdraw(&context.client, record, &value).await;
            Err(error)
        }
        None => {
            withdraw(&context.client, record, &value).await;
            Err(PluginError::Timeout {
                what: format!(
                    "the operator has not answered, and the request was withdrawn; go on with: kubectl attacher why va {name}"
                ),
                seconds: arguments.timeout.as_secs(),
            })
        }
    }
}

enum Answer {
    Released,
    Refused(ReleaseAnswer),
}

/// Follows the object until the operator has answered.
async fn answer(context: &Context, record: &Attachment, request: &ReleaseRequest) -> Result<Answer> {
    let only = watcher::Config::default().fields(&format!("metadata.name={}", record.name));
    let stream = watcher(Api::<VolumeAttachmentWire>::all(context.client.clone()), only);
    pin_mut!(stream);
    let mut present = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => present = false,
            Ok(Event::InitDone) if present => {}
            Ok(Event::InitDone | Event::Delete(_)) => return Ok(Answer::Released),
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                present = true;
                let answer = wire
                    .metadata
                    .annotations
                    .as_ref()
                    .and_then(|all| all.get(RELEASE_REFUSED_ANNOTATION));
                let answer = answer.and_then(|text| serde_json::from_str::<ReleaseAnswer>(text).ok());
                if let Some(answer) = answer.filter(|answer| answer.request == request.at.to_string()) {
                    return Ok(Answer::Refused(answer));
                }
                let now = Attachment::from(wire);
                let finalizer = csi_attacher_model::api::names::finalizer_name(&now.attacher);
                if now.uid != record.uid || !now.finalizers.contains(&finalizer) {
                    return Ok(Answer::Released);
                }
            }
            Err(error) => {
                if let Some(error) = fatal(&error) {
                    return Err(error);
                }
            }
        }
    }
    Err(PluginError::Usage("the watch of the VolumeAttachment ended".to_owned()))
}

/// Takes a request back that nobody answered: what it vouches for may not hold later.
async fn withdraw(client: &Client, record: &Attachment, value: &str) {
    let path = format!("/metadata/annotations/{}", RELEASE_ANNOTATION.replace('/', "~1"));
    let body = json!([
        {"op": "test", "path": "/metadata/uid", "value": &*record.uid},
        {"op": "test", "path": path, "value": value},
        {"op": "remove", "path": path},
    ]);
    let target = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", record.name);
    // An operator expires what stays: see `MAX_REQUEST_AGE` of the core.
    drop(json_patch(client, &target, &body, false).await);
}

/// A patch by this program.
struct Direct<'a> {
    target: ObjectName,
    uid: &'a str,
    path: String,
    write: Option<Write>,
    proof: ReleaseProof,
}

/// The write, on condition that nobody changed the object since it was read.
fn guarded(mut write: Write, version: ResourceVersion) -> Write {
    if let Value::Array(operations) = &mut write.body {
        let ResourceVersion(version) = version;
        operations.insert(
            1,
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": version.to_string()}),
        );
    }
    write
}

/// Records who does what and why, and then does it.
async fn patch_directly(context: &Context, arguments: &ReleaseArguments, direct: Direct<'_>) -> Result<u8> {
    let Some(write) = &direct.write else {
        return Err(PluginError::Refused(format!(
            "{} does not carry the finalizer",
            direct.target
        )));
    };
    let dry = arguments.dry_run == DryRun::Server;
    let by = whoami(&context.client).await;
    let basis = match direct.proof {
        ReleaseProof::OutOfServiceTaint => "the node has the out-of-service taint",
        ReleaseProof::Confirmed => "the person confirmed that the volume is attached nowhere",
    };
    let reason = if arguments.reason.is_empty() {
        "without a reason".to_owned()
    } else {
        format!("reason: {}", arguments.reason)
    };
    let note = format!(
        "released without the driver's confirmation, because no attacher serves the driver and {basis}; by {by}, {reason}"
    );
    audit::record(&context.client, &direct.target, direct.uid, &note, dry).await?;
    json_patch(&context.client, &direct.path, &write.body, dry)
        .await
        .map_err(|error| {
            let message = words(&error);
            PluginError::Refused(format!(
                "{} was not released: {message}; read it again and ask again",
                direct.target
            ))
        })?;
    let dry = if dry { " (server dry run)" } else { "" };
    print(&format!("{}: released{dry}\n", direct.target))?;
    Ok(EXIT_OK)
}

/// Watches the Leases of the driver for longer than they last: one that moves has an attacher behind it.
async fn leases_rest(sources: &Sources, driver: &str) -> Result<()> {
    let refuse = |text: &str| PluginError::Refused(text.to_owned());
    let Lookup::Found(before) = sources.leases(driver).await else {
        return Err(refuse(
            "Leases could not be listed, so an attacher may serve the driver",
        ));
    };
    let longest = before.iter().map(|lease| lease.duration).max();
    if let Some(longest) = longest {
        tokio::time::sleep(longest + LEASE_MARGIN).await;
    }
    let Lookup::Found(after) = sources.leases(driver).await else {
        return Err(refuse(
            "Leases could not be listed, so an attacher may serve the driver",
        ));
    };
    let sorted = |mut leases: Vec<LeaseRecord>| {
        leases.sort_by(|one, other| one.namespace.cmp(&other.namespace));
        leases
    };
    if sorted(before) == sorted(after) {
        Ok(())
    } else {
        Err(refuse("the Lease of the driver moves, so an attacher serves it"))
    }
}

/// Sends a JSON patch.
async fn json_patch(client: &Client, path: &str, body: &Value, dry: bool) -> Result<(), kube::Error> {
    let dry = if dry { "&dryRun=All" } else { "" };
    let request = http::Request::patch(format!("{path}?fieldManager={MANAGER}{dry}"))
        .header(http::header::CONTENT_TYPE, "application/json-patch+json")
        .body(body.to_string().into_bytes())
        .map_err(|error| kube::Error::Service(error.into()))?;
    client.request::<Value>(request).await.map(drop)
}

/// Who asks, as the API server knows them.
async fn whoami(client: &Client) -> String {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let user = review.ok().and_then(|review| review.status?.user_info?.username);
    user.unwrap_or_else(|| "an unknown user".to_owned())
}
