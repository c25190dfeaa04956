//! What the pods and clusters of vendors expect of their attacher beyond its flags.

use std::time::{Duration, Instant};

use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallRecord, ControllerCapability, Method, MockDriver, Rule};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;

use super::{ACCOUNT, DRIVER, NODE, RBAC, Scene, end};
use crate::replicas::moves;
use crate::rig::{LIMIT, other, wait_until};
use crate::support::{Error, Operator, Result, Volume};

const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// Some clusters let nobody discover what they are.
pub async fn without_the_version_of_the_api_server(scene: &Scene) -> Result<()> {
    for binding in ["system:discovery", "system:public-info-viewer", "system:basic-user"] {
        scene.world.fixtures.delete::<ClusterRoleBinding>(binding).await?;
    }
    let mut operator = scene
        .start(&["--leader-election", "--leader-election-namespace=csi-driver"])
        .await?;
    scene.attach("no-version").await?;
    operator.wait_ready().await?;
    // By which kubectl attacher knows that it is no sidecar.
    let held = lease(scene).await?;
    let noted = held.metadata.annotations.unwrap_or_default();
    let holder = held.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(noted.get("attacher.csi.dev/drop-in-holder"), holder.as_ref());
    scene.detach("no-version").await?;
    let log = operator.log_text();
    assert!(!log.contains("cannot reach"), "{log}");
    assert!(log.contains("connected to the API server"), "{log}");
    end(&mut operator).await
}

/// A storage that takes one call at a time, whatever it is.
pub async fn one_call_at_a_time(scene: &Scene) -> Result<()> {
    let before = scene.mock.call_count();
    let mut operator = scene.start(&["--worker-threads=1"]).await?;
    let names = |kind: &str| (0..4).map(|number| format!("one-{kind}-{number}")).collect::<Vec<_>>();
    let (old, new) = (names("old"), names("new"));
    try_join_all(old.iter().map(|name| scene.attach(name))).await?;
    for method in [PUBLISH, UNPUBLISH] {
        scene.mock.script(Rule::on(method).delay(Duration::from_millis(200)));
    }
    let fixtures = &scene.world.fixtures;
    let detaches = old.iter().map(|name| fixtures.delete::<VolumeAttachment>(name));
    tokio::try_join!(
        try_join_all(detaches),
        try_join_all(new.iter().map(|name| scene.claim(name)))
    )?;
    try_join_all(new.iter().map(|name| fixtures.wait_for_attached(name))).await?;
    try_join_all(old.iter().map(|name| fixtures.wait_for_attachment_gone(name))).await?;
    let mut calls = moves(&scene.mock);
    calls.retain(|call| call.id >= before);
    assert_eq!(calls.len(), 12, "{calls:#?}");
    calls.sort_by_key(|call| call.started);
    for pair in calls.windows(2) {
        assert!(
            pair[0].finished.is_some_and(|finished| finished <= pair[1].started),
            "{pair:#?}"
        );
    }
    scene.mock.clear_rules();
    end(&mut operator).await
}

/// A driver without ControllerPublishVolume, and the rules that csi-rclone grants its csi-attacher: there is none for CSINodes, which the
/// sidecar lists only where it makes calls.
pub async fn without_csi_nodes(scene: &Scene) -> Result<()> {
    const NAMESPACE: &str = "trivial-driver";
    const NAME: &str = "trivial.csi.test";
    const CSI_NODES: &str =
        "  - apiGroups: [storage.k8s.io]\n    resources: [csinodes]\n    verbs: [get, list, watch]\n";
    let (world, fixtures) = (&scene.world, &scene.world.fixtures);
    let rules = RBAC.replace(CSI_NODES, "").replace("watch, patch]", "watch, update]");
    assert!(!rules.contains("csinodes"), "{rules}");
    world.cluster.apply_yaml(&rules.replace(ACCOUNT.0, NAMESPACE)).await?;
    let calls = ControllerCapability::PublishUnpublishVolume;
    let driver = MockDriver::builder(NAME).accept_any_volume().without_capability(calls);
    let driver = driver.start(world.socket("trivial")).await?;
    let namespace = format!("--leader-election-namespace={NAMESPACE}");
    let arguments = ["--leader-election", &*namespace];
    let mut operator = scene.start_as((NAMESPACE, ACCOUNT.1), "trivial", &arguments).await?;
    fixtures
        .persistent_volume(&Volume::new("trivial", NAME, "trivial"))
        .await?;
    fixtures.volume_attachment("trivial", NAME, "trivial", NODE).await?;
    fixtures.wait_for_attached("trivial").await?;
    operator.wait_ready().await?;
    let rule = "resources [csinodes], verbs [list, watch]";
    operator.wait_for_log(rule).await?;
    scene.detach("trivial").await?;
    assert_eq!(moves(&driver).len(), 0, "it has no such calls");

    // With the calls the IDs of the nodes are needed.
    driver.set_capability(calls, true);
    driver.start_again().await.map_err(other)?;
    let is_told = |status: u16, body: &str| status == 503 && body.contains(rule);
    operator.wait_for_answer("/readyz", is_told).await?;
    end(&mut operator).await
}

async fn lease(scene: &Scene) -> Result<Lease> {
    let leases: Api<Lease> = Api::namespaced(scene.world.client.clone(), ACCOUNT.0);
    let lease = leases.get(&lease_name(DRIVER)).await;
    lease.map_err(Error::from)
}

async fn ends(scene: &Scene, operator: &mut Operator, code: i32, within: Duration) -> Result<()> {
    let told = Instant::now();
    operator.signal("TERM")?;
    let status = operator.wait_ended(LIMIT).await?;
    let (took, log) = (told.elapsed(), operator.log_text());
    assert_eq!(status.code(), Some(code), "{log}");
    assert!(took < within, "{took:?}: {log}");
    let holder = lease(scene).await?.spec.and_then(|spec| spec.holder_identity);
    assert!(holder.as_deref().unwrap_or_default().is_empty(), "{holder:?}: {log}");
    Ok(())
}

/// A call that lasts longer than the pod has to end: it is cancelled in time for the Lease to be released, so that another
/// replica goes on at once.
pub async fn a_call_that_outlasts(scene: &Scene) -> Result<()> {
    let arguments = [
        "--leader-election",
        "--leader-election-namespace=csi-driver",
        "--timeout=6m",
        "--shutdown-grace-period=15s",
        // A Lease that is kept would be waited for longer than the test waits.
        "--leader-election-lease-duration=60s",
        "--leader-election-renew-deadline=40s",
    ];
    let mut operator = scene.start(&arguments).await?;
    operator.wait_ready().await?;
    scene.mock.script(Rule::on(PUBLISH).times(1).hang());
    scene.claim("outlasts").await?;
    let is_asked = |call: &CallRecord| call.method == PUBLISH && call.volume.as_deref() == Some("outlasts");
    let asked = || scene.mock.calls().iter().any(is_asked);
    wait_until("the call", asked).await?;
    ends(scene, &mut operator, 1, Duration::from_secs(25)).await?;

    let mut operator = scene.start(&arguments).await?;
    scene.world.fixtures.wait_for_attached("outlasts").await?;
    ends(scene, &mut operator, 0, Duration::from_secs(15)).await
}
