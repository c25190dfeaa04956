//! Publish secrets, read under a Role that lets the operator get that one secret, and nothing else.

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use super::{attached, first_finalizer, status, uid};
use crate::events::event;
use crate::insight::told;
use crate::rig::{NOW, World, assert_steps};
use crate::support::Result;
use crate::support::operator::grant_secret;

/// Lets the operator read the secret `publish-secret` of one namespace.
async fn grant(world: &World, namespace: &str) -> Result<()> {
    grant_secret(&world.cluster, namespace, "publish-secret").await
}

#[tokio::test]
async fn the_secret_is_read_before_the_claim_and_goes_with_both_calls() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver("secret", listing(json!({}), "secret-ns", "read-secret"))
        .await?;
    let fixtures = &world.fixtures;
    grant_secret(&world.cluster, "secret-ns", "read-secret").await?;
    fixtures
        .secret(
            "secret-ns",
            "read-secret",
            &[("password", "swordfish"), ("user", "anna")],
        )
        .await?;
    let volume = driver.volume("secret-pv").publish_secret("secret-ns", "read-secret");
    fixtures.persistent_volume(&volume).await?;
    let made = uid(&driver.attachment("secret-va", "secret-pv").await?);
    fixtures.wait_for_attached("secret-va").await?;
    fixtures.delete::<VolumeAttachment>("secret-va").await?;
    fixtures.wait_for_attachment_gone("secret-va").await?;
    driver.attach_one_more("secret-more").await?;

    let names = ["secret-pv", "secret-va", "read-secret"];
    let steps = driver.steps(&names, "secret-pv")?;
    let claim = &steps[2].body;
    let note = r#"{"handle":"secret-pv","secret":{"namespace":"secret-ns","name":"read-secret"}}"#;
    let noted = claim
        .pointer("/5/value/attacher.csi.dev~1volume")
        .and_then(Value::as_str);
    let noted: Option<Value> = noted.and_then(|text| serde_json::from_str(text).ok());
    assert_eq!(noted, Some(serde_json::from_str(note)?));
    let expected = [
        (
            "patch persistentvolumes secret-pv",
            first_finalizer(&driver.finalizer()),
        ),
        ("get secrets read-secret", Value::Null),
        ("patch volumeattachments secret-va", claim.clone()),
        ("ControllerPublishVolume secret-pv secret-node-id", json!("Ok")),
        ("patch volumeattachments/status secret-va", attached(&made, 'a')),
        ("get secrets read-secret", Value::Null),
        ("ControllerUnpublishVolume secret-pv secret-node-id", json!("Ok")),
        ("patch volumeattachments secret-va", super::release(&driver, &made, 0)),
    ];
    assert_steps(&steps, &expected);
    for call in driver.calls_for("secret-pv") {
        assert_eq!(call.secret_keys, ["password", "user"], "{call:?}");
    }
    Ok(())
}

#[tokio::test]
async fn without_its_secret_an_attachment_is_not_claimed() -> Result<()> {
    let world = World::shared().await?;
    let settings = listing(patient(), "nosecret-ns", "publish-secret");
    let driver = world.driver("nosecret", settings).await?;
    let fixtures = &world.fixtures;
    grant(&world, "nosecret-ns").await?;
    let volume = driver
        .volume("nosecret-pv")
        .publish_secret("nosecret-ns", "publish-secret");
    fixtures.persistent_volume(&volume).await?;
    let made = driver.attachment("nosecret-va", "nosecret-pv").await?;
    fixtures.wait_for_attach_error("nosecret-va").await?;
    driver.attach_one_more("nosecret-more").await?;
    let stored = fixtures.get_attachment("nosecret-va").await?;
    assert!(
        stored.finalizers().is_empty() && stored.annotations().is_empty(),
        "{stored:?}"
    );
    assert!(driver.calls_for("nosecret-pv").is_empty());
    let text = "failed to load secret \"nosecret-ns/publish-secret\": secrets \"publish-secret\" not found";
    let error = json!({ "attachError": { "message": text, "time": NOW, "errorCode": null } });
    let written = world.requests(&["nosecret-va"])?;
    assert_steps(
        &written[..1],
        &[(
            "patch volumeattachments/status nosecret-va",
            status(&uid(&made), &error),
        )],
    );

    // It is tried at once, an hour before its time.
    fixtures
        .secret("nosecret-ns", "publish-secret", &[("password", "swordfish")])
        .await?;
    fixtures.wait_for_attached("nosecret-va").await?;
    let call = driver
        .call(Method::ControllerPublishVolume, "nosecret-pv", |_| true)
        .await?;
    assert_eq!(call.secret_keys, ["password"]);
    Ok(())
}

/// These settings, and the one Secret that the driver may be given.
fn listing(mut settings: Value, namespace: &str, name: &str) -> Value {
    settings["publishSecrets"] = json!([{ "namespace": namespace, "names": [name] }]);
    settings
}

/// Settings with which only an event can bring about a second try.
fn patient() -> Value {
    json!({ "backoff": { "initial": "1h", "max": "1h" } })
}

#[tokio::test]
async fn a_secret_that_is_mended_ends_the_backoff() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver("wrong", listing(patient(), "wrong-ns", "publish-secret"))
        .await?;
    let fixtures = &world.fixtures;
    grant(&world, "wrong-ns").await?;
    fixtures
        .secret("wrong-ns", "publish-secret", &[("password", "sardine")])
        .await?;
    let rule = Rule::on(Method::ControllerPublishVolume).volume("wrong-pv").times(1);
    driver.mock.script(rule.fail(Code::Unauthenticated, "wrong password"));
    let volume = driver.volume("wrong-pv").publish_secret("wrong-ns", "publish-secret");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment("wrong-va", "wrong-pv").await?;
    fixtures.wait_for_attach_error("wrong-va").await?;
    let api: Api<Secret> = Api::namespaced(world.client.clone(), "wrong-ns");
    let mended = json!({ "stringData": { "password": "swordfish" } });
    let patched = api
        .patch("publish-secret", &PatchParams::default(), &Patch::Merge(mended))
        .await;
    patched.expect("the secret can be changed");
    fixtures.wait_for_attached("wrong-va").await?;
    assert_eq!(driver.calls_for("wrong-pv").len(), 2);
    Ok(())
}

#[tokio::test]
async fn the_right_that_is_missing_for_a_secret_is_named_and_ends_the_wait_when_it_is_given() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("denied", listing(patient(), "default", "denied")).await?;
    let fixtures = &world.fixtures;
    let content = "swordfish-of-the-denied";
    fixtures.secret("default", "denied", &[("password", content)]).await?;
    let volume = driver.volume("denied-pv").publish_secret("default", "denied");
    fixtures.persistent_volume(&volume).await?;
    driver.attachment("denied-va", "denied-pv").await?;
    let rule = "Role in namespace default, apiGroups [\"\"], resources [secrets], resourceNames [denied], verbs [get]";
    let value = "publishSecrets: [{namespace: default, names: [denied]}]";
    let error = fixtures.wait_for_attach_error("denied-va").await?;
    let message = error.message.unwrap_or_default();
    assert!(
        message.starts_with("failed to load secret \"default/denied\": secrets \"denied\" is forbidden:")
            && message.contains(rule)
            && message.contains(value),
        "{message}"
    );
    let parts = [
        "has no permission to get Secret default/denied",
        rule,
        value,
        "1 attachment waits",
    ];
    told(&driver, "AttachmentsHealthy", "False", "SecretForbidden", &parts).await?;
    event(&world, "VolumeAttachment", "denied-va", "AttachFailed", rule).await?;
    event(&world, "PersistentVolume", "denied-pv", "AttachFailed", value).await?;
    let log = world.log_text();
    let line = log
        .lines()
        .find(|line| line.contains("\"denied-va\"") && line.contains("attach failed"));
    // In JSON the quotation marks are escaped.
    let rule = rule.replace('"', "\\\"");
    let is_told = line.is_some_and(|line| line.contains(&rule) && line.contains(value) && line.contains("WARN"));
    assert!(is_told, "{line:?}");
    assert!(driver.calls_for("denied-pv").is_empty());

    // It is tried at once, an hour before its time.
    grant_secret(&world.cluster, "default", "denied").await?;
    fixtures.wait_for_attached("denied-va").await?;
    told(&driver, "AttachmentsHealthy", "True", "NoFailures", &[]).await?;
    let log = world.log_text();
    assert!(!log.contains(content), "the content of a Secret is in the log");
    Ok(())
}

/// Driver B and a volume that names the Secret of driver A: nobody reads it, until an entry allows it.
#[tokio::test]
async fn a_driver_is_not_given_the_secret_of_another_driver() -> Result<()> {
    let world = World::shared().await?;
    let fixtures = &world.fixtures;
    let of_a = listing(patient(), "unlisted-ns", "publish-secret");
    let driver_a = world.driver("unlisted-a", of_a).await?;
    let of_b = listing(patient(), "unlisted-ns", "another");
    let driver = world.driver("unlisted-b", of_b).await?;
    grant(&world, "unlisted-ns").await?;
    let data = [("password", "swordfish-of-a")];
    fixtures.secret("unlisted-ns", "publish-secret", &data).await?;
    let stolen = driver
        .volume("unlisted-pv")
        .publish_secret("unlisted-ns", "publish-secret");
    fixtures.persistent_volume(&stolen).await?;
    driver.attachment("unlisted-va", "unlisted-pv").await?;
    let message = fixtures
        .wait_for_attach_error("unlisted-va")
        .await?
        .message
        .unwrap_or_default();
    let text = "the volume names Secret unlisted-ns/publish-secret, which spec.publishSecrets of AttacherConfig unlisted-b does \
                not list; if driver unlisted-b.csi.test may receive this Secret, add {namespace: unlisted-ns, names: \
                [publish-secret]}";
    assert_eq!(message, text);
    let parts = [text, "1 attachment waits"];
    told(&driver, "AttachmentsHealthy", "False", "SecretNotAllowed", &parts).await?;
    event(&world, "VolumeAttachment", "unlisted-va", "AttachFailed", text).await?;
    // Longer than the pause between two looks at a Secret.
    driver.attach_one_more("unlisted-more").await?;
    let reads = || -> Result<Vec<String>> {
        let events = world.cluster.audit_events()?;
        let of_operator = events
            .iter()
            .filter(|event| event.user_agent.starts_with("csi-attacher-operator/"));
        let reads = of_operator.filter(|event| event.resource == "secrets" && event.namespace == "unlisted-ns");
        Ok(reads.map(|event| event.uri.clone()).collect())
    };
    assert_eq!(reads()?, Vec::<String>::new());
    assert!(driver.calls_for("unlisted-pv").is_empty());
    let stored = fixtures.get_attachment("unlisted-va").await?;
    assert!(stored.finalizers().is_empty(), "{stored:?}");

    // The owner of the Secret is given it meanwhile.
    let owned = driver_a
        .volume("unlisted-own")
        .publish_secret("unlisted-ns", "publish-secret");
    fixtures.persistent_volume(&owned).await?;
    driver_a.attachment("unlisted-own", "unlisted-own").await?;
    fixtures.wait_for_attached("unlisted-own").await?;

    // It is tried at once, an hour before its time.
    let listed = listing(patient(), "unlisted-ns", "publish-secret");
    driver.configure(&listed).await?;
    fixtures.wait_for_attached("unlisted-va").await?;
    told(&driver, "AttachmentsHealthy", "True", "NoFailures", &[]).await?;
    assert_eq!(driver.calls_for("unlisted-pv")[0].secret_keys, ["password"]);

    // The list is shorter than when it was attached; the claim has noted the Secret.
    driver.configure(&patient()).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    fixtures.delete::<VolumeAttachment>("unlisted-va").await?;
    fixtures.wait_for_attachment_gone("unlisted-va").await?;
    let unpublished = driver
        .call(Method::ControllerUnpublishVolume, "unlisted-pv", |_| true)
        .await?;
    assert_eq!(unpublished.secret_keys, ["password"]);
    Ok(())
}

/// Attachments that failed for missing Secrets and were deleted: nobody reads a Secret any more.
#[tokio::test]
async fn looks_at_missing_secrets_end_with_the_attachments() -> Result<()> {
    const COUNT: usize = 40;
    let world = World::shared().await?;
    let fixtures = &world.fixtures;
    let mut settings = patient();
    settings["publishSecrets"] = json!([{ "namespace": "looks-ns" }]);
    let driver = world.driver("looks", settings).await?;
    grant(&world, "looks-ns").await?;
    let names: Vec<String> = (0..COUNT).map(|number| format!("looks-{number}")).collect();
    for name in &names {
        let volume = driver.volume(name).publish_secret("looks-ns", "publish-secret");
        fixtures.persistent_volume(&volume).await?;
        driver.attachment(name, name).await?;
    }
    for name in &names {
        fixtures.wait_for_attach_error(name).await?;
    }
    for name in &names {
        fixtures.delete::<VolumeAttachment>(name).await?;
        fixtures.wait_for_attachment_gone(name).await?;
    }
    // The watch has told of all that was deleted before.
    driver.attach_one_more("looks-more").await?;
    told(&driver, "AttachmentsHealthy", "True", "NoFailures", &[]).await?;
    let reads = || -> Result<usize> {
        let events = world.cluster.audit_events()?;
        let of_namespace = events.iter().filter(|event| event.namespace == "looks-ns");
        Ok(of_namespace
            .filter(|event| event.verb == "get" && event.resource == "secrets")
            .count())
    };
    let before = reads()?;
    assert!(before > 0, "they were looked for");
    // Twice the longest pause between two looks.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(reads()?, before, "reads of Secrets that nobody waits for");
    Ok(())
}
