//! Which Secrets are read and sent: those that the AttacherConfig lists.

use super::*;
use crate::api::condition::ConditionReason;

#[tokio::test(start_paused = true)]
async fn a_driver_is_not_given_a_secret_that_its_attacherconfig_does_not_list() {
    let scene = Scene::new(allowing(&["of-driver-b"]));
    scene.secret("of-driver-a", "credentials");
    scene.volume("va0", Some(("of-driver-a", "credentials")));
    scene.attachment("va0", &json!({}));
    seconds(60).await;
    assert_eq!(scene.reads(), Vec::<String>::new());
    assert_eq!(*scene.driver.given.lock(), []);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_added_ends_the_wait_at_once() {
    let scene = Scene::new(|spec| retry(spec, "24h", "24h"));
    scene.secret("ns", "s");
    scene.volume("va0", Some(("ns", "s")));
    scene.attachment("va0", &json!({}));
    seconds(60).await;
    let told = scene.status.borrow().withheld.clone().expect("told");
    assert_eq!((told.reason, told.attachments), (ConditionReason::SecretNotAllowed, 1));
    let setting = "spec.publishSecrets of AttacherConfig config";
    for part in ["Secret ns/s", setting, "add {namespace: ns, names: [s]}"] {
        assert!(told.message.contains(part), "{part}: {}", told.message);
    }
    let stored = scene.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
    assert_eq!(stored["status"]["attachError"]["message"], json!(told.message));
    assert_eq!(stored["metadata"]["finalizers"], Value::Null, "it is not claimed");

    let mut spec = AttacherConfigSpec::new("unix:///model");
    allowing(&["ns"])(&mut spec);
    let config = Arc::new(DriverConfig::try_from(&spec).unwrap());
    scene.settings.send_replace(config.clone());
    scene.engine.reconfigure(&config);
    seconds(1).await;
    assert!(AttemptFixture::is_attached(&scene.api, "va0"));
    assert_eq!(*scene.driver.given.lock(), [("publish", vec!["s".to_owned()])]);
    assert_eq!(scene.waiting(), None);
}

/// The list is shorter than it was when the volume was attached.
#[tokio::test(start_paused = true)]
async fn a_detach_may_use_the_secret_that_the_claim_noted_and_no_other() {
    let secret = json!({"namespace": "ns", "name": "noted"});
    let noted = claimed_with(&json!({"handle": "va0", "secret": secret}), "id", true);
    let without = claimed_with(&json!({"handle": "va0"}), "id", true);
    let unnoted = claimed("id", true);
    let given = |name: &str| vec![("unpublish", vec![name.to_owned()])];
    let given_none = vec![("unpublish", Vec::new())];
    // What the volume names and what the claim noted | what the driver is given.
    for (named, metadata, expected) in [
        (("ns", "noted"), &noted, given("noted")),
        (("of-driver-a", "credentials"), &noted, given("noted")),
        (("allowed", "new"), &noted, given("new")),
        (("of-driver-a", "credentials"), &without, given_none),
        (("of-driver-a", "credentials"), &unnoted, Vec::new()),
    ] {
        let scene = Scene::new(allowing(&["allowed"]));
        for (namespace, name) in [("ns", "noted"), ("of-driver-a", "credentials"), ("allowed", "new")] {
            scene.secret(namespace, name);
        }
        scene.volume("va0", Some(named));
        scene.attachment("va0", metadata);
        seconds(30).await;
        assert_eq!(*scene.driver.given.lock(), expected, "{named:?} {metadata}");
        let others = scene.reads().into_iter().find(|path| path.contains("of-driver-a"));
        assert_eq!(others, None, "{named:?} {metadata}");
        assert_eq!(scene.waiting().is_some(), expected.is_empty(), "{named:?} {metadata}");
    }
}

/// What was read for a volume is not sent for another one that took its name in the middle of the attempt.
#[tokio::test(start_paused = true)]
async fn a_secret_that_was_read_goes_with_the_volume_that_names_it() {
    let scene = Scene::new(allowing(&["ns"]));
    scene.secret("ns", "first");
    scene.secret("ns", "second");
    scene.volume("va0", Some(("ns", "first")));
    // The claim waits for us: after the Secret was read.
    scene.api.hold_attachments.store(true, Ordering::SeqCst);
    scene.attachment("va0", &json!({}));
    while scene.reads().is_empty() {
        tokio::task::yield_now().await;
    }
    seconds(1).await;
    scene.volume("va0", Some(("ns", "second")));
    scene.api.hold_attachments.store(false, Ordering::SeqCst);
    seconds(10).await;
    assert_eq!(*scene.driver.given.lock(), [("publish", vec!["second".to_owned()])]);
}
