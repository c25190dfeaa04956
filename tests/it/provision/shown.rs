//! What is shown of provisioning: conditions, Events, metrics.

use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tonic::Code;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::{FIELD_MANAGER, PROVISIONING_FIELD_MANAGER};

use super::deletion::{serves, unmanaged};
use super::{LIMIT, provisioning, settings, soon};

use crate::admission::wait_effective;
use crate::events::event;
use crate::insight::told;
use crate::rig::{Driver, World, operator_options};
use crate::support::stage::stop;
use crate::support::wait::wait_for;
use crate::support::{OperatorOptions, Result};

/// The time of a deletion has all its attempts in it, also where nothing is traced. With mode Disabled the condition says so. What was done
/// is counted, and has its Event.
#[tokio::test]
async fn the_time_of_a_deletion_is_that_from_released_to_gone() -> Result<()> {
    let world = World::provisioning().await?;
    let operator = world.shared_operator();
    let driver = provisioning(&world, "times", &soon()).await?;
    driver.class("Delete").await?;
    let data = "times-data";
    let claim = driver.ask_for(data).await?;
    driver.bound(data).await?;
    let name = driver.saved(&claim).await?.name_any();
    event(&world, "PersistentVolumeClaim", data, "ProvisioningSucceeded", &name).await?;
    let busy = Rule::on(Method::DeleteVolume)
        .times(3)
        .fail(Code::FailedPrecondition, "busy");
    driver.mock.script(busy);
    let deleted = driver.claims().delete(data, &DeleteParams::default()).await;
    deleted?;
    wait_for(driver.volumes(), &name, "gone", LIMIT, |volume| volume.is_none()).await?;
    let words = "Successfully deleted volume";
    event(&world, "PersistentVolume", &name, "VolumeDeleted", words).await?;
    for operation in ["provision", "delete"] {
        let once = format!(
            "csi_attacher_operation_e2e_seconds_count{{driver_name=\"{}\",operation=\"{operation}\",outcome=\"succeeded\"}} 1\n",
            driver.name
        );
        let is_counted = |status: u16, text: &str| status == 200 && text.contains(&once);
        operator.wait_for_answer("/metrics", is_counted).await?;
    }
    let sum = format!(
        "csi_attacher_operation_e2e_seconds_sum{{driver_name=\"{}\",operation=\"delete\",outcome=\"succeeded\"}} ",
        driver.name
    );
    // Three pauses: 100, 200 and 400 ms.
    let is_whole = |status: u16, text: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(&sum));
        status == 200
            && found
                .and_then(|sum| sum.parse::<f64>().ok())
                .is_some_and(|sum| sum > 0.5)
    };
    operator.wait_for_answer("/metrics", is_whole).await?;

    let mut disabled = settings(&driver, &soon());
    disabled["provisioning"]["mode"] = json!("Disabled");
    driver.configure(&disabled).await?;
    driver.wait("ProvisioningReady", "False", Some("Disabled")).await?;

    // With the AttacherConfig every series goes, whichever role ends last.
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    let deleted = configs.delete(&driver.short, &DeleteParams::default()).await;
    deleted?;
    let label = format!("driver_name=\"{}\"", driver.name);
    let is_gone = |status: u16, text: &str| status == 200 && !text.contains(&label);
    operator.wait_for_answer("/metrics", is_gone).await.map(drop)
}

/// Replicas say it in turn, some of them with the rest of the status. Of a condition with two managers the API server would keep a part
/// when one of them leaves it out, and refuse what comes of that.
#[tokio::test]
async fn how_provisioning_is_has_a_field_manager_of_its_own() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = provisioning(&world, "managers", &soon()).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    let config = configs.get(&driver.short).await;
    let config = config?;
    let conditions = |manager: &str| {
        let entries = config.metadata.managed_fields.iter().flatten();
        let mut owned: Vec<String> = entries
            .filter(|entry| entry.manager.as_deref() == Some(manager))
            .filter_map(|entry| {
                let fields = &entry.fields_v1.as_ref()?.0;
                let conditions = fields.pointer("/f:status/f:conditions")?.as_object()?;
                Some(conditions.keys().cloned().collect::<Vec<_>>())
            })
            .flatten()
            .collect();
        owned.sort();
        owned
    };
    let provisioning = ["DeletionHealthy", "ProvisioningHealthy", "ProvisioningReady"];
    let provisioning = provisioning.map(|kind| json!({ "type": kind }).to_string());
    assert_eq!(
        conditions(PROVISIONING_FIELD_MANAGER),
        provisioning.clone().map(|kind| format!("k:{kind}"))
    );
    let rest = conditions(FIELD_MANAGER);
    assert!(rest.iter().any(|kind| kind.contains("\"Ready\"")), "{rest:?}");
    for kind in &provisioning {
        assert!(!rest.iter().any(|owned| owned.contains(kind.as_str())), "{rest:?}");
    }
    Ok(())
}

/// An operator with little patience.
fn impatient() -> OperatorOptions {
    operator_options().argument("--stuck-after=4s")
}

fn findings(driver: &Driver<'_>, kind: &str, count: usize) -> String {
    let name = &driver.name;
    format!("csi_attacher_findings{{driver_name=\"{name}\",kind=\"{kind}\"}} {count}\n")
}

/// A claim that waits says why: on the AttacherConfig as well, with the oldest, until nothing is wrong any more.
pub async fn why_claims_wait(world: &World) -> Result<()> {
    const HEALTHY: &str = "ProvisioningHealthy";
    let mut patient = world.operator(operator_options()).await?;
    let driver = provisioning(world, "why", &soon()).await?;
    driver.class("Delete").await?;
    driver.wait(HEALTHY, "True", Some("NoFailures")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    let full = Rule::on(Method::CreateVolume).fail(Code::FailedPrecondition, "the pool is closed");
    driver.mock.script(full);
    driver.ask_for("data").await?;
    let parts = ["failed and will be retried: 1", "default/data", "the pool is closed"];
    told(&driver, HEALTHY, "False", "ProvisioningFailing", &parts).await?;
    // An operator with little patience might tell that it is stuck before anybody reads that it fails.
    stop(&mut patient).await?;
    let mut operator = world.operator(impatient()).await?;
    let parts = ["--stuck-after: 1", "default/data", "closed"];
    told(&driver, HEALTHY, "False", "ProvisioningStuck", &parts).await?;
    event(world, "PersistentVolumeClaim", "data", "ProvisionStuck", "default/data").await?;
    event(world, "AttacherConfig", &driver.short, "ProvisionStuck", "default/data").await?;
    let stuck = findings(&driver, "provision_stuck", 1);
    operator
        .wait_for_answer("/metrics", |_, text: &str| text.contains(&stuck))
        .await?;

    driver.mock.clear_rules();
    driver.bound("data").await?;
    driver.wait(HEALTHY, "True", Some("NoFailures")).await?;
    let none = findings(&driver, "provision_stuck", 0);
    operator
        .wait_for_answer("/metrics", |_, text: &str| text.contains(&none))
        .await?;

    let silent = Rule::on(Method::CreateVolume).fail(Code::Unavailable, "no leader");
    driver.mock.script(silent);
    driver.ask_for("unknown").await?;
    let parts = [
        "outcome of CreateVolume has been unknown",
        "default/unknown",
        "no leader",
    ];
    told(&driver, HEALTHY, "False", "ProvisioningUncertain", &parts).await?;
    driver.mock.clear_rules();
    driver.bound("unknown").await?;
    driver.wait(HEALTHY, "True", Some("NoFailures")).await?;
    stop(&mut operator).await
}

/// A first call that takes long is told, once.
#[tokio::test]
async fn a_first_call_that_takes_long_is_told() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = provisioning(&world, "slow", &soon()).await?;
    driver.class("Delete").await?;
    let slow = Rule::on(Method::CreateVolume).times(1).delay(Duration::from_secs(2));
    driver.mock.script(slow);
    driver.ask_for("slow").await?;
    driver.bound("slow").await?;
    let words = "External provisioner is provisioning volume for claim \"default/slow\"";
    let begun = event(&world, "PersistentVolumeClaim", "slow", "Provisioning", words).await?;
    assert_eq!(begun.type_.as_deref(), Some("Normal"));
    Ok(())
}

/// What keeps volumes from being deleted is told on the AttacherConfig, also while that is being deleted and waits for them.
#[tokio::test]
async fn why_volumes_stay_is_told_while_they_do() -> Result<()> {
    const HEALTHY: &str = "DeletionHealthy";
    let world = unmanaged().await?;
    let mut operator = world.operator(impatient()).await?;
    let driver = serves(&world, "stay", &json!({ "deletion": "Hold" })).await?;
    driver.wait(HEALTHY, "True", Some("NoFailures")).await?;
    driver.released("s-held", "vol-held", json!({})).await?;
    let parts = ["volume is kept: 1", "s-held", "deletion of the AttacherConfig is Hold"];
    told(&driver, HEALTHY, "True", "VolumesHeld", &parts).await?;

    let mut waiting = settings(&driver, &soon());
    waiting["deletionPolicy"] = json!("WaitForDetach");
    driver.configure(&waiting).await?;
    assert_eq!(driver.is_deleted("s-held", "vol-held").await?, 1);
    driver.wait(HEALTHY, "True", Some("NoFailures")).await?;

    let unbound = json!({ "spec": { "claimRef": null } });
    driver.saved_as("s-unbound", "vol-unbound", unbound).await?;
    driver.phase("s-unbound", "Available").await?;
    driver.delete_volume("s-unbound").await?;
    let asks = "set the annotation attacher.csi.dev/reclaim to Delete";
    told(
        &driver,
        HEALTHY,
        "False",
        "NeedsDecision",
        &["decide about: 1", "s-unbound", asks],
    )
    .await?;
    let one = findings(&driver, "needs_decision", 1);
    operator
        .wait_for_answer("/metrics", |_, text: &str| text.contains(&one))
        .await?;
    world.fixtures.delete::<AttacherConfig>(&driver.short).await?;
    let parts = ["waits until 1 PersistentVolume", "this lasts until a person acts", asks];
    told(&driver, "Reconciling", "True", "WaitingForDetach", &parts).await?;
    let decided = json!({ "metadata": { "annotations": { "attacher.csi.dev/reclaim": "Delete" } } });
    driver.change("s-unbound", decided).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    wait_for(configs, &driver.short, "gone", LIMIT, |config| config.is_none()).await?;
    assert_eq!(driver.deletions("vol-unbound"), 1);
    stop(&mut operator).await
}

/// A driver whose provisioning is Disabled, and a claim that is called after it and waits for it.
async fn waiting_while_disabled<'w>(world: &'w World, short: &str) -> Result<Driver<'w>> {
    let driver = provisioning(world, short, &soon()).await?;
    driver.class("Delete").await?;
    let mut disabled = settings(&driver, &soon());
    disabled["provisioning"]["mode"] = json!("Disabled");
    driver.configure(&disabled).await?;
    driver.wait("ProvisioningReady", "False", Some("Disabled")).await?;
    driver.ask_for(short).await?;
    Ok(driver)
}

/// What changes while the driver is away for a moment is in effect when it is back: its engine goes on.
#[tokio::test]
async fn settings_that_change_while_the_driver_is_away_are_used_when_it_is_back() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = waiting_while_disabled(&world, "settings").await?;

    driver.mock.stop().await;
    driver.wait("DriverReachable", "False", None).await?;
    driver.configure(&settings(&driver, &soon())).await?;
    let configs = Api::<AttacherConfig>::all(world.client.clone());
    let is_told = |config: Option<&AttacherConfig>| {
        config.is_some_and(|config| {
            let told = config.status.as_ref().and_then(|status| status.observed_generation);
            told == config.metadata.generation
        })
    };
    wait_for(configs, &driver.short, "the settings are told", LIMIT, is_told).await?;
    driver.start_again().await?;
    driver.bound("settings").await.map(drop)
}

/// An admission webhook that cannot be reached: the API server answers 500 for as long as that is so, and the claim says why.
#[tokio::test]
async fn a_failure_that_lasts_is_told_also_where_it_may_pass() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = waiting_while_disabled(&world, "lasting").await?;
    let is_annotated = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| {
            claim
                .annotations()
                .contains_key("volume.kubernetes.io/storage-provisioner")
        })
    };
    wait_for(driver.claims(), "lasting", "a provisioner", LIMIT, is_annotated).await?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "away.test"},
        "webhooks": [{
            "name": "away.test.example", "clientConfig": {"url": "https://127.0.0.1:1/"}, "timeoutSeconds": 1,
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "matchConditions": [{"name": "named", "expression": "object.metadata.name == 'lasting'"}],
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["persistentvolumeclaims"],
            }],
        }],
    });
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(webhook)?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(world.client.clone());
    let made = webhooks.create(&PostParams::default(), &webhook).await;
    made?;
    let probe = json!({ "metadata": { "annotations": { "example.com/probe": "webhook" } } });
    let is_refused = |answer: kube::Result<PersistentVolumeClaim>| {
        answer.is_err_and(|error| error.to_string().contains("failed calling webhook"))
    };
    wait_effective(driver.claims(), "lasting", &probe, is_refused).await?;
    driver.configure(&settings(&driver, &soon())).await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "lasting",
        "ProvisioningFailed",
        "failed calling webhook",
    )
    .await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let deleted = webhooks.delete("away.test", &DeleteParams::default()).await;
    deleted?;
    driver.bound("lasting").await.map(drop)
}
