//! A thousand claims that only wait, and one that does not.

use super::*;
use crate::provision::TroubleKind;

const MANY: usize = 1000;
/// What counts as at once: a run, and the requests before a call.
const MOMENT: Duration = Duration::from_millis(200);

/// A world with very many claims of a class, if there is one, which were all told of what they wait for.
async fn waiting(parameters: Option<&Value>) -> World {
    let mut world = World::new();
    if let Some(parameters) = parameters {
        world.class("many", parameters);
    }
    world.start();
    for number in 0..MANY {
        world.claim(&format!("many-{number}"), "many");
    }
    pass(100).await;
    assert!(world.driver.calls.lock().is_empty());
    world
}

/// A claim of another class is called for at once, also again after its driver has failed.
async fn another_goes_on(world: &World) {
    world.class("good", &json!({}));
    let since = Instant::now();
    world.driver.failures.lock().push(tonic::Code::Unavailable);
    world.claim("good", "good");
    pass(3).await;
    let calls = world.calls("good", since);
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(
        calls[0] < MOMENT && calls[1] < CALL + Duration::from_millis(1300),
        "{calls:?}"
    );
    assert_eq!(world.saved(), 1);
}

/// All go on, as many at once as the settings allow, and none waits for another time.
async fn all_go_on(world: &World, since: Instant, late: Duration) {
    let took = (CALL + REQUEST * 4) * u32::try_from(MANY / AT_ONCE).unwrap();
    tokio::time::sleep(late + took + MOMENT).await;
    let calls = world.calls("many-", since);
    assert_eq!(calls.len(), MANY, "each was called for once");
    assert!(calls.iter().any(|at| *at < late + MOMENT));
    assert_eq!(world.driver.most.load(Ordering::Relaxed), AT_ONCE);
    assert_eq!(world.saved(), MANY + 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_class_is_waited_for_and_holds_up_no_other() {
    let world = waiting(None).await;
    another_goes_on(&world).await;
    let since = Instant::now();
    world.class("many", &json!({}));
    all_go_on(&world, since, Duration::ZERO).await;
}

/// The settings do not list its namespace; the class is made anew without it.
#[tokio::test(start_paused = true)]
async fn a_secret_that_is_not_allowed_is_waited_for_and_holds_up_no_other() {
    let world = waiting(Some(&secret("other"))).await;
    another_goes_on(&world).await;
    let since = Instant::now();
    world.class("many", &json!({}));
    all_go_on(&world, since, Duration::ZERO).await;
}

/// It is asked for now and then, for all of them together; that it is there is seen 5 seconds later at most.
#[tokio::test(start_paused = true)]
async fn a_missing_secret_is_waited_for_and_holds_up_no_other() {
    let world = waiting(Some(&secret("storage"))).await;
    let path = "/api/v1/namespaces/storage/secrets/key";
    let reads = world.api.asked("GET", path);
    assert!(reads < 100, "{reads} reads of one Secret");
    another_goes_on(&world).await;
    let since = Instant::now();
    let object = json!({"metadata": {"name": "key", "namespace": "storage", "uid": "s"}, "data": {}});
    world.api.put(path, object);
    all_go_on(&world, since, Duration::from_secs(6)).await;
}

/// kube-controller-manager asks nobody for its volume, whatever provisioner a restore has written on it; and it may give it a class later.
#[tokio::test(start_paused = true)]
async fn a_claim_without_a_class_is_left_alone_until_it_has_one() {
    let world = World::started(&json!({}));
    world.claim("a", "");
    pass(60).await;
    let failed = world.told("PersistentVolumeClaim", "a", "ProvisioningFailed");
    assert!(failed.is_empty(), "{failed:?}");
    assert!(world.state.borrow().last_failure.is_none());
    assert_eq!(world.saved(), 0);
    world.change_claim("a", |claim| claim["spec"]["storageClassName"] = "good".into());
    pass(1).await;
    assert_eq!(world.saved(), 1);
}

/// The status of the AttacherConfig shows what failed last, and is not written again for what waits as before.
#[tokio::test(start_paused = true)]
async fn a_wait_that_goes_on_is_no_news() {
    let mut world = World::new();
    world.start();
    world.claim("a", "missing");
    pass(20).await;
    let failure = || world.state.borrow().last_failure.clone();
    let first = failure().unwrap();
    assert_eq!((&*first.attachment, &*first.code), ("web/a", "ClassMissing"));
    pass(3600).await;
    assert_eq!(failure(), Some(first.clone()));
    world.class("missing", &secret("other"));
    pass(20).await;
    let second = failure().unwrap();
    assert_eq!(second.code, "SecretNotAllowed");
    pass(3600).await;
    assert_eq!(failure(), Some(second));
}

/// It waits as before, and for another reason.
#[tokio::test(start_paused = true)]
async fn a_wait_for_another_reason_is_shown() {
    let mut world = World::new();
    world.class("many", &secret("storage"));
    world.start();
    world.claim("a", "many");
    let code = || world.state.borrow().last_failure.clone().map(|failure| failure.code);
    pass(600).await;
    assert_eq!(code().as_deref(), Some("SecretMissing"));
    world.api.forbids_secrets.store(true, Ordering::Relaxed);
    pass(600).await;
    assert_eq!(code().as_deref(), Some("SecretForbidden"));
}

/// What is wrong with claim "a", and whether it has been pending for too long.
fn trouble(world: &World) -> Option<(TroubleKind, bool)> {
    let (stuck_after, now) = (world.context.stuck_after, crate::clock::now());
    let mut trouble = None;
    world.engine().queue().remember_all(|key, memory| {
        trouble = key.pending(memory).trouble(stuck_after, now);
    });
    trouble
}

/// Whether claim "a" fails, and has been pending for too long.
fn is_stuck(world: &World) -> bool {
    let (_, is_old) = trouble(world).unwrap();
    is_old
}

/// Its class was missing when the engine started. From then on that it is there the populator is waited for, and not the driver.
#[tokio::test(start_paused = true)]
async fn a_claim_of_a_volume_populator_is_never_stuck() {
    let mut world = World::new();
    world.start();
    world.claim("a", "many");
    let source = json!({"apiGroup": "x.io", "kind": "Foo", "name": "x"});
    world.change_claim("a", |claim| claim["spec"]["dataSourceRef"] = source);
    pass(20).await;
    assert_eq!(trouble(&world), Some((TroubleKind::ClassMissing, false)));
    world.class("many", &json!({}));
    for seconds in [20, 3600] {
        pass(seconds).await;
        assert_eq!(trouble(&world), None, "{seconds}");
    }
    assert_eq!(world.told("PersistentVolumeClaim", "a", "Provisioning").len(), 1);
}

/// It had none, or one that was not there: kube-controller-manager asks for the volume when there is a class, and the driver has not failed
/// before. The next engine goes by the same.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_class_comes_late_is_stuck_by_the_time_from_then_on() {
    for has_name in [false, true] {
        let mut world = World::started(&json!({}));
        let created = crate::clock::now().to_string();
        world.claim("a", "");
        world.change_claim("a", |claim| {
            claim["metadata"]["creationTimestamp"] = created.into();
            if has_name {
                claim["metadata"]["annotations"] = json!({});
                claim["spec"]["storageClassName"] = "good".into();
            }
        });
        pass(3600).await;
        world.driver.failures.lock().extend([tonic::Code::Internal; 100]);
        world.change_claim("a", |claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = DRIVER.into();
            claim["spec"]["storageClassName"] = "good".into();
        });
        pass(10).await;
        assert!(!is_stuck(&world), "{has_name}");
        world.engine.take().unwrap().drain().await;
        world.start();
        pass(500).await;
        assert!(!is_stuck(&world), "{has_name}");
        pass(150).await;
        assert!(is_stuck(&world), "{has_name}");
    }
}

/// As of a driver that nobody worked for until now.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_asked_for_from_the_start_is_stuck_by_its_creation() {
    let mut world = World::new();
    world.class("good", &json!({}));
    let created = crate::clock::now().to_string();
    world.claim("a", "good");
    world.change_claim("a", |claim| claim["metadata"]["creationTimestamp"] = created.into());
    pass(3600).await;
    world.driver.failures.lock().extend([tonic::Code::Internal; 100]);
    world.start();
    pass(10).await;
    assert!(is_stuck(&world));
}
