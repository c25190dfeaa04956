//! Others work on the same objects: who removes a namespace, and the role that attaches.

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::claims::Claim;
use super::settings::WITHOUT_CONFIG;
use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, demand};
use crate::test::{FOREIGN, Test, create, delete};

/// So many volumes are detached and deleted at the same time.
const BOTH: usize = 40;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-delete")
        .demands(
            "a namespace that is deleted with all that is in it: volumes are deleted after they are detached, without a warning",
        )
        .safety("namespace", namespace)
        .done()
}

/// So many that the others would have to wait.
pub fn many() -> Vec<Scenario> {
    Group::new("provision-delete")
        .demands("volumes that are detached and deleted at the same time go, and finalizers of others stay")
        .unless(WITHOUT_CONFIG)
        .extension("both-finalizers", both_finalizers)
        .done()
}

async fn namespace(t: Test) -> Outcome {
    t.given_class(|_| {}).await?;
    create::<Namespace>(&t.api(), json!({ "metadata": { "name": t.id } })).await?;
    let claim = Claim {
        namespace: t.id.clone(),
        ..t.claim("")
    };
    claim.create(|_| {}).await?;
    let volume = claim.bound().await?;
    let (name, handle) = (volume.name_any(), handle_of(&volume));
    let pods = given_pod(&t, &claim).await?;
    t.create_attachment(|it| {
        it["metadata"]["finalizers"] = json!([format!("{FOREIGN}attacher")]);
        it["spec"]["attacher"] = json!("another.conformance.test");
        it["spec"]["source"]["persistentVolumeName"] = json!(name);
    })
    .await?;
    t.served_after("b").await?;
    delete::<Namespace>(&t.api(), &t.id).await?;
    delete::<VolumeAttachment>(&t.api(), &t.attachment).await?;
    // The kubelet says that it has ended.
    pods.delete(&t.id, &DeleteParams::default().grace_period(0)).await?;
    t.told(&name, "", &format!("still attached to node {}", t.node)).await?;
    t.not_deleted(&handle)?;
    let detached = Timestamp::now();
    t.strip_finalizers::<VolumeAttachment>(&t.attachment).await?;
    t.persistent_volume_gone(&name).await?;
    demand(t.deletions(&handle).iter().all(|call| call.started >= detached), || {
        "DeleteVolume began before the detach".to_owned()
    })?;
    let mut events = t.events_on(&name).await?;
    events.extend(t.events_on(&claim.name).await?);
    let warnings: Vec<_> = events
        .into_iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"))
        .collect();
    demand(warnings.is_empty(), || {
        let texts: Vec<_> = warnings
            .iter()
            .map(|event| event.message.clone().unwrap_or_default())
            .collect();
        format!("warnings: {texts:?}")
    })
}

/// A pod on the node, with the claim.
async fn given_pod(t: &Test, claim: &Claim) -> Outcome<Api<Pod>> {
    let accounts: Api<ServiceAccount> = Api::namespaced(t.env.client.clone(), &claim.namespace);
    // kube-controller-manager may have made it.
    let account = create(&accounts, json!({ "metadata": { "name": "default" } })).await;
    demand(account.is_ok() || accounts.get_opt("default").await?.is_some(), || {
        "the namespace has no ServiceAccount".to_owned()
    })?;
    let pods: Api<Pod> = Api::namespaced(t.env.client.clone(), &claim.namespace);
    let pod = json!({
        "metadata": { "name": t.id },
        "spec": {
            "nodeName": t.node, "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim.name } }],
        },
    });
    create(&pods, pod).await?;
    Ok(pods)
}

async fn both_finalizers(t: Test) -> Outcome {
    t.config().await?;
    t.given_class(|_| {}).await?;
    t.given_zone(&t.node, None).await?;
    let claims: Vec<Claim> = (0..BOTH).map(|number| t.claim(&number.to_string())).collect();
    try_join_all(claims.iter().map(|claim| claim.create(|_| {}))).await?;
    let volumes = try_join_all(claims.iter().map(Claim::bound)).await?;
    let attached: Vec<Test> = claims
        .iter()
        .zip(&volumes)
        .map(|(claim, volume)| attached_as(&t, claim, volume))
        .collect();
    try_join_all(attached.iter().map(|it| it.create_attachment(|_| {}))).await?;
    try_join_all(attached.iter().map(Test::attached)).await?;
    let theirs = format!("{FOREIGN}theirs");
    t.append_finalizer::<PersistentVolume>(&attached[0].volume, &theirs)
        .await?;
    let detach = try_join_all(attached.iter().map(Test::delete_attachment));
    let (detached, deleted) = tokio::join!(detach, try_join_all(claims.iter().map(Claim::delete)));
    detached?;
    deleted?;
    try_join_all(attached[1..].iter().map(|it| it.persistent_volume_gone(&it.volume))).await?;
    // kube-controller-manager and both roles take their finalizers off in whatever order.
    let first = &attached[0].volume;
    let only_theirs = |it: &PersistentVolume| it.metadata.deletion_timestamp.is_some() && it.finalizers() == [&*theirs];
    t.persistent_volume(first, "without all finalizers but that of others", only_theirs)
        .await?;
    t.strip_finalizers::<PersistentVolume>(first).await
}

/// The names of the attachment of a claim's volume to the node.
fn attached_as(t: &Test, claim: &Claim, volume: &PersistentVolume) -> Test {
    Test {
        volume: volume.name_any(),
        handle: handle_of(volume),
        attachment: claim.name.clone(),
        ..t.clone()
    }
}
