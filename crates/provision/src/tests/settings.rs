//! Settings that change while an attempt is under way, and classes from before a rule.

use super::*;

/// A world in which `deletion: Hold` was set during the CreateVolume of claim "a", which is deleted.
async fn held_during_the_call(change: impl FnOnce(&mut DriverConfig)) -> World {
    let world = World::calling().await;
    world.configure(change);
    world.delete_claim("a");
    pass(1).await;
    world
}

#[tokio::test(start_paused = true)]
async fn deletions_are_held_from_the_next_call_on() {
    let world = held_during_the_call(|_| {}).await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (1, 0));
    let held = |settings: &mut DriverConfig| settings.provisioning.as_mut().unwrap().policy.hold_deletions = true;
    let world = held_during_the_call(held).await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (0, 1));
}

/// Nothing says that they are not held.
#[tokio::test(start_paused = true)]
async fn without_the_section_deletions_are_held() {
    let world = held_during_the_call(|settings| settings.provisioning = None).await;
    assert_eq!(world.driver.deleted.lock().len(), 0);
}

/// As of two writers that each undo what the other wrote: the driver would be asked as often as they write.
#[tokio::test(start_paused = true)]
async fn what_no_attempt_goes_by_ends_no_wait() {
    let world = World::started(&json!({}));
    world.driver.failures.lock().extend([tonic::Code::InvalidArgument; 100]);
    world.claim("a", "good");
    pass(10).await;
    let called = || world.driver.calls.lock().len();
    let before = called();
    assert!(before > 0);
    for rate in 0..10 {
        let settings = world.configure(|settings| settings.tracing.sampling_rate_per_million = Some(rate));
        world.engine().reconfigure(&settings);
        pass(1).await;
    }
    assert_eq!(called(), before);
    let settings = world.configure(|settings| settings.timeouts.probe = Duration::from_secs(1));
    world.engine().reconfigure(&settings);
    pass(1).await;
    assert!(called() > before, "it may be the cure");
}

/// Each class once, whether it is there before the driver or comes later, however many claims name it; those of other keys not.
#[tokio::test(start_paused = true)]
async fn deprecated_parameters_are_told_once_for_each_class() {
    let mut world = World::new();
    world.class(
        "before",
        &json!({"csiNodeStageSecretName": "s", "csiNodeStageSecretNamespace": "storage"}),
    );
    world.class("current", &json!({"csi.storage.k8s.io/fstype": "xfs", "pool": "ssd"}));
    world.start();
    world.class("later", &json!({"FsType": "xfs"}));
    for name in ["a", "b"] {
        world.claim(name, "later");
    }
    pass(60).await;
    assert_eq!(world.saved(), 2);
    let told = |class: &str| world.told("StorageClass", class, "DeprecatedParameters");
    assert_eq!(
        told("before"),
        [
            "StorageClass before has keys from before the prefix csi.storage.k8s.io/. They are also sent to the driver, and the keys that \
             took their place are not: keep an old key where the driver documents it. The operator reads csiNodeStageSecretName in place of \
             csi.storage.k8s.io/node-stage-secret-name, csiNodeStageSecretNamespace in place of \
             csi.storage.k8s.io/node-stage-secret-namespace"
        ]
    );
    assert_eq!(told("later").len(), 1);
    assert!(told("later")[0].ends_with("reads FsType in place of csi.storage.k8s.io/fstype"));
    assert_eq!(told("current").len(), 0);
}

/// As at a switch from csi-provisioner: nobody waits for the finalizers of what is bound, and no claim stands behind all of them at the limit of
/// requests.
#[tokio::test(start_paused = true)]
async fn a_claim_goes_before_the_finalizers_of_what_is_bound() {
    const BOUND: usize = 200;
    let mut world = World::traced(Tracer::disabled(), |spec| spec.kubernetes_api.qps = 4);
    world.class("good", &json!({}));
    world.start();
    for number in 0..BOUND {
        world.volume(json!({
            "metadata": {
                "name": format!("pv{number}"), "uid": format!("uid of pv{number}"),
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            },
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "good",
                "csi": {"driver": DRIVER, "volumeHandle": format!("h{number}")},
                "claimRef": {"namespace": "web", "name": format!("c{number}"), "uid": format!("uid-c{number}")},
            },
            "status": {"phase": "Bound"},
        }));
    }
    // The burst is used up.
    pass(5).await;
    let finalizers = || world.api.asked("PATCH", VOLUMES);
    let before = finalizers();
    assert!((4..BOUND / 2).contains(&before), "{before} finalizers");
    world.claim("a", "good");
    let is_saved = || world.api.asked("POST", VOLUMES.trim_end_matches('/')) > 0;
    let saved = async {
        while !is_saved() {
            tokio::time::sleep(REQUEST).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), saved).await.unwrap();
    let first = finalizers() - before;
    assert!(first < 8, "{first} finalizers came first");
}
