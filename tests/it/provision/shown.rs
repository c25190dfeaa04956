//! What is shown of provisioning: conditions, Events, metrics.

use csi_mock_driver::{ControllerCapability, Method, Rule};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tonic::Code;

use csi_attacher_model::api::AttacherConfig;

use super::{IDENTITY, LIMIT, provisioning, serving, settings, soon};
use crate::events::event;
use crate::rig::operator_options;
use crate::support::operator::release_provisioner_lease;
use crate::support::stage::stop;
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

/// Each claim of a driver without CREATE_DELETE_VOLUME has an Event, and nothing is called.
#[tokio::test]
async fn a_driver_that_cannot_provision_is_told_on_each_claim() -> Result<()> {
    let (world, mut operator) = serving(operator_options()).await?;
    let driver = world
        .unconfigured_driver("cannot", |builder| {
            builder.without_capability(ControllerCapability::CreateDeleteVolume)
        })
        .await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    driver.class("Delete").await?;
    driver.configure(&settings(&driver, &soon())).await?;
    driver.wait("ProvisioningReady", "False", Some("NotSupported")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    for name in ["one", "two"] {
        driver.ask_for(name).await?;
        let words = "does not announce CREATE_DELETE_VOLUME";
        event(&world, "PersistentVolumeClaim", name, "ProvisioningFailed", words).await?;
    }
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    stop(&mut operator).await
}

/// The time of a deletion has all its attempts in it, also where nothing is traced. With mode Disabled the condition says so.
#[tokio::test]
async fn the_time_of_a_deletion_is_that_from_released_to_gone() -> Result<()> {
    let (world, mut operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "times", &soon()).await?;
    driver.class("Delete").await?;
    let claim = driver.ask_for("data").await?;
    driver.bound("data").await?;
    let name = driver.saved(&claim).await?.name_any();
    let busy = Rule::on(Method::DeleteVolume)
        .times(3)
        .fail(Code::FailedPrecondition, "busy");
    driver.mock.script(busy);
    let deleted = driver.claims().delete("data", &DeleteParams::default()).await;
    deleted.map_err(|error| Error::Other(error.to_string()))?;
    wait_for(driver.volumes(), &name, "gone", LIMIT, |volume| volume.is_none()).await?;
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
    deleted.map_err(|error| Error::Other(error.to_string()))?;
    let label = format!("driver_name=\"{}\"", driver.name);
    let is_gone = |status: u16, text: &str| status == 200 && !text.contains(&label);
    operator.wait_for_answer("/metrics", is_gone).await?;
    stop(&mut operator).await
}

/// What changes while the driver is away for a moment is in effect when it is back: its engine goes on.
#[tokio::test]
async fn settings_that_change_while_the_driver_is_away_are_used_when_it_is_back() -> Result<()> {
    let (world, mut operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "settings", &soon()).await?;
    driver.class("Delete").await?;
    let mut disabled = settings(&driver, &soon());
    disabled["provisioning"]["mode"] = json!("Disabled");
    driver.configure(&disabled).await?;
    driver.wait("ProvisioningReady", "False", Some("Disabled")).await?;
    driver.ask_for("data").await?;

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
    let back = driver.mock.start_again().await;
    back.map_err(|error| Error::Other(error.to_string()))?;
    driver.bound("data").await?;
    stop(&mut operator).await
}

/// An admission webhook that cannot be reached: the API server answers 500 for as long as that is so, and the claim says why.
#[tokio::test]
async fn a_failure_that_lasts_is_told_also_where_it_may_pass() -> Result<()> {
    let (world, mut operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "lasting", &soon()).await?;
    driver.class("Delete").await?;
    let mut disabled = settings(&driver, &soon());
    disabled["provisioning"]["mode"] = json!("Disabled");
    driver.configure(&disabled).await?;
    driver.wait("ProvisioningReady", "False", Some("Disabled")).await?;
    driver.ask_for("data").await?;
    let is_annotated = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| {
            claim
                .annotations()
                .contains_key("volume.kubernetes.io/storage-provisioner")
        })
    };
    wait_for(driver.claims(), "data", "a provisioner", LIMIT, is_annotated).await?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "away.test"},
        "webhooks": [{
            "name": "away.test.example", "clientConfig": {"url": "https://127.0.0.1:1/"}, "timeoutSeconds": 1,
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["persistentvolumeclaims"],
            }],
        }],
    });
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(webhook)?;
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(world.client.clone());
    let made = webhooks.create(&PostParams::default(), &webhook).await;
    made.map_err(|error| Error::Other(error.to_string()))?;
    driver.configure(&settings(&driver, &soon())).await?;
    event(
        &world,
        "PersistentVolumeClaim",
        "data",
        "ProvisioningFailed",
        "failed calling webhook",
    )
    .await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let deleted = webhooks.delete("away.test", &DeleteParams::default()).await;
    deleted.map_err(|error| Error::Other(error.to_string()))?;
    driver.bound("data").await?;
    stop(&mut operator).await
}
