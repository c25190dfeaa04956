//! Answers that are not the API server's, and an API server that is restored from a backup. Nothing is taken back that is
//! wanted, and everything ends as the objects demand, without a restart.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::rig::{Driver, LIMIT, World, delete_volume, detach, operator_options, part, strip};
use crate::support::operator::{IDENTITY, install};
use crate::support::proxy::{Fault, Proxy, Seen};
use crate::support::{Fixtures, Operator, Result};

const PAGE: Fault = Fault::Page(404, "404 page not found\n");

/// An operator that reaches its API server through a proxy only.
async fn behind_proxy(world: &World) -> Result<(Proxy, Operator)> {
    install(&world.cluster).await?;
    let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let proxy = Proxy::start(&direct).await?;
    let operator = Operator::start_with(&proxy.kubeconfig(&direct)?, operator_options())?;
    operator.wait_ready().await?;
    Ok((proxy, operator))
}

async fn driver<'w>(world: &'w World, short: &str) -> Result<Driver<'w>> {
    let settings = json!({
        "backoff": { "initial": "200ms", "max": "1s" }, "reconcileSync": { "mode": "Disabled" },
    });
    world.driver(short, settings).await
}

fn writes_to(path: &str) -> impl Fn(&Seen) -> bool + Send + 'static + use<> {
    let path = path.to_owned();
    move |seen| seen.is_write() && seen.path.ends_with(&path)
}

#[tokio::test]
async fn a_404_of_a_proxy_is_not_the_end_of_an_object() -> Result<()> {
    let world = World::own().await?;
    let (proxy, _operator) = behind_proxy(&world).await?;
    let driver = driver(&world, "untrue").await?;
    let fixtures = &world.fixtures;

    // To the record of an attach.
    proxy.fault(PAGE, 1, writes_to("/volumeattachments/untrue-status/status"));
    driver.attach("untrue-status").await?;
    assert_eq!(driver.count(Method::ControllerPublishVolume, "untrue-status"), 1);
    assert_eq!(driver.count(Method::ControllerUnpublishVolume, "untrue-status"), 0);
    // To more of them than one attempt makes.
    proxy.fault(PAGE, 9, writes_to("/volumeattachments/untrue-often/status"));
    driver.attach("untrue-often").await?;
    assert_eq!(driver.count(Method::ControllerUnpublishVolume, "untrue-often"), 0);
    // To the claim, and to what is written on the PersistentVolume.
    proxy.fault(PAGE, 1, writes_to("/volumeattachments/untrue-claim"));
    proxy.fault(PAGE, 1, writes_to("/persistentvolumes/untrue-claim"));
    driver.attach("untrue-claim").await?;
    // To the end of a detach.
    proxy.fault(PAGE, 1, writes_to("/volumeattachments/untrue-status"));
    for name in ["untrue-status", "untrue-often", "untrue-claim"] {
        detach(fixtures, name).await?;
    }
    assert!(driver.mock.published().is_empty());
    // To the release of a volume.
    proxy.fault(PAGE, 1, writes_to("/persistentvolumes/untrue-claim"));
    delete_volume(fixtures, "untrue-claim").await?;
    part("an attachment that is gone", forced(&world, &proxy)).await
}

/// The API server's own word for what is gone, as the operator reads it: a volume whose attachment is removed by force is taken back.
async fn forced(world: &World, proxy: &Proxy) -> Result<()> {
    let driver = driver(world, "forced").await?;
    let fixtures = &world.fixtures;
    let slow = csi_mock_driver::Rule::on(Method::ControllerPublishVolume);
    driver.mock.script(slow.times(1).until_released());
    driver.claim("forced-va").await?;
    let publish = |call: &csi_mock_driver::CallRecord| call.method == Method::ControllerPublishVolume;
    let calls = driver.calls("the call", 1, publish).await?;
    strip(&fixtures.cluster::<VolumeAttachment>(), "forced-va").await?;
    detach(fixtures, "forced-va").await?;
    driver.mock.release(calls[0].id);
    let ended = move |call: &csi_mock_driver::CallRecord| publish(call) && call.finished.is_some();
    driver.calls("the end of the call", 1, ended).await?;
    let reads = |seen: &Seen| !seen.is_write() && seen.path.ends_with("/volumeattachments/forced-va");
    proxy.wait_for("a live read", 1, reads).await?;
    let unpublish = |call: &csi_mock_driver::CallRecord| call.method == Method::ControllerUnpublishVolume;
    driver.calls("the volume is taken back", 1, unpublish).await.map(drop)
}

/// How an API server goes back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The data of etcd are put back as they were: versions are given again.
    Copy,
    /// The same, and so much is written before the operator can ask that the versions are beyond those that it knows.
    CaughtUp,
    /// By etcdutl, with a bumped revision.
    Bumped,
}

/// One way after the other, each with an operator and a driver of its own.
#[tokio::test]
async fn a_restore_of_etcd_is_followed() -> Result<()> {
    let world = World::own().await?;
    for way in [Way::Copy, Way::CaughtUp, Way::Bumped] {
        part(&format!("{way:?}"), goes_back(&world, way)).await?;
    }
    Ok(())
}

async fn goes_back(world: &World, way: Way) -> Result<()> {
    let (proxy, operator) = behind_proxy(world).await?;
    let short = format!("{way:?}").to_lowercase();
    let driver = driver(world, &short).await?;
    let name = |what: &str| format!("{short}-{what}");
    // Watches are tried again after pauses that grow as long as the outage was, and the API server takes long to start beside others.
    let fixtures: Fixtures = world.fixtures.clone().with_limit(LIMIT * 4);
    let cluster = &world.cluster;
    for before in ["kept", "deleted"] {
        driver.attach(&name(before)).await?;
    }
    // Objects of the backup that nobody has attached yet: the driver was away.
    driver.stop().await;
    for new in ["new-0", "new-1", "gone"] {
        driver.claim(&name(new)).await?;
    }
    // What is not yet in the data file of etcd, which is written ten times a second, is in no snapshot of it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.back_up_running()?;
    driver.start_again().await?;
    for new in ["new-0", "new-1", "gone"] {
        fixtures.wait_for_attached(&name(new)).await?;
    }
    // Since the backup: attached, detached, made.
    for ended in ["gone", "deleted"] {
        detach(&fixtures, &name(ended)).await?;
    }
    driver.attach(&name("lost")).await?;
    // That it is attached is on record, and the operator does not hear of it before the API server goes back.
    let of_unheard = format!("/volumeattachments/{}/status", name("unheard"));
    proxy.fault(Fault::Unanswered, 100, writes_to(&of_unheard));
    driver.attach(&name("unheard")).await?;
    let unpublished = |what: &str| driver.count(Method::ControllerUnpublishVolume, &name(what));
    let published = |what: &str| driver.mock.published().contains(&(name(what), driver.node_id()));

    proxy.outage();
    cluster.stop_storage();
    match way {
        Way::Bumped => cluster.restore_bumped(1_000_000_000).await?,
        Way::Copy | Way::CaughtUp => cluster.restore()?,
    }
    cluster.start_storage().await?;
    if let Way::CaughtUp = way {
        let api = fixtures.cluster::<k8s_openapi::api::core::v1::Node>();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "writes"}});
        let apply = PatchParams::apply("test");
        for number in 0..400 {
            let mut node = node.clone();
            node["metadata"]["labels"] = json!({"number": number.to_string()});
            api.patch("writes", &apply, &Patch::Apply(&node)).await?;
        }
    }
    proxy.heal();

    // What the objects demand: all five of the backup are wanted.
    for wanted in ["new-0", "new-1", "gone", "kept", "deleted"] {
        fixtures.wait_for_attached(&name(wanted)).await?;
        let volume = fixtures.cluster::<PersistentVolume>().get(&name(wanted)).await?;
        let finalizers = volume.metadata.finalizers.unwrap_or_default();
        assert_eq!(finalizers, [driver.finalizer()], "{wanted}");
        // What was detached since, and is attached by its object, only a driver that lists its volumes can tell.
        assert!(published(wanted) || wanted == "deleted", "{wanted}");
    }
    // What nobody names any more stays where it is.
    for unnamed in ["lost", "unheard"] {
        assert!(published(unnamed) && unpublished(unnamed) == 0, "{unnamed}");
    }
    for wanted in ["new-0", "new-1", "kept"] {
        assert_eq!(unpublished(wanted), 0, "{wanted}");
    }
    // All can be detached, and what is made now is attached.
    for wanted in ["new-0", "gone", "kept"] {
        detach(&fixtures, &name(wanted)).await?;
        assert!(!published(wanted), "{wanted}");
    }
    driver.attach(&name("after")).await?;
    operator.wait_ready().await?;
    fixtures.delete::<AttacherConfig>(&short).await
}
