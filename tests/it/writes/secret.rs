//! Publish secrets, read under a Role that lets the operator get that one secret, and nothing else.

use csi_mock_driver::Method;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::error_texts::attachments::{SECRET_FORBIDDEN, SECRET_NOT_ALLOWED};
use crate::error_texts::index::assert_indexed;
use crate::events::event;
use crate::insight::told;
use crate::rig::{World, detach};
use crate::support::Result;
use crate::support::operator::grant_secret;

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
    assert_indexed(SECRET_FORBIDDEN, &message);
    let parts = [
        "has no permission to get Secret default/denied",
        rule,
        value,
        "1 attachment waits",
    ];
    told(&driver, "AttachmentsHealthy", "False", "SecretForbidden", &parts).await?;
    event(&world, "VolumeAttachment", "denied-va", "AttachFailed", rule).await?;
    event(&world, "PersistentVolume", "denied-pv", "AttachFailed", value).await?;
    let log = world.shared_operator().log_text();
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
    let log = world.shared_operator().log_text();
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
    grant_secret(&world.cluster, "unlisted-ns", "publish-secret").await?;
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
    assert_indexed(SECRET_NOT_ALLOWED, text);
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
    detach(fixtures, "unlisted-va").await?;
    let unpublished = driver
        .call(Method::ControllerUnpublishVolume, "unlisted-pv", |_| true)
        .await?;
    assert_eq!(unpublished.secret_keys, ["password"]);
    Ok(())
}
