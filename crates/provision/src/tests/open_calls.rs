//! What is known of open calls, when engines of one process follow each other: the class that a call was made with was changed since.

use super::*;
use crate::key::ClaimKey;
use crate::provision::LeakProtection;

/// A claim for which a call is open that was made with pool a; the class says b by now.
async fn changed() -> World {
    let world = World::uncertain(&json!({"pool": "a"})).await;
    world.class("good", &json!({"pool": "b"}));
    world
}

/// It is made again as it was.
async fn is_made_again(world: &World) {
    pass(3).await;
    assert_eq!(*world.driver.pools.lock(), ["a", "a"]);
    assert_eq!(world.saved(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_engine_goes_on_with_the_open_calls_of_the_one_before() {
    let mut world = changed().await;
    world.engine.take().unwrap().drain().await;
    world.start();
    is_made_again(&world).await;
}

/// The driver came back with another version. What it does not announce any more is not asked for, and what is asked for is planned anew, for
/// which the class has to be what it was, as after a restart.
#[tokio::test(start_paused = true)]
async fn a_driver_that_can_do_other_things_is_not_asked_for_what_was_planned_before() {
    let mut world = changed().await;
    let next = [
        Capabilities::default(),
        Capabilities {
            create_delete_volume: true,
            single_node_multi_writer: true,
            ..Capabilities::default()
        },
    ];
    for capabilities in next {
        world.engine.take().unwrap().drain().await;
        world.start_with(capabilities);
        pass(30).await;
        assert_eq!(world.driver.pools.lock().len(), 1);
        assert!(world.is_marked("a"));
    }
    world.class("good", &json!({"pool": "a"}));
    is_made_again(&world).await;
}

/// The Lease was lost in the first call, before a marker was due: the process that made the call goes on with it.
#[tokio::test(start_paused = true)]
async fn an_open_call_for_a_claim_without_a_marker_is_handed_on_as_well() {
    for protection in [LeakProtection::WhenUncertain, LeakProtection::Never] {
        for (is_deleted, is_bound) in [(false, false), (true, false), (false, true)] {
            let mut world = World::new();
            world.configure(|settings| settings.provisioning.as_mut().unwrap().policy.leak_protection = protection);
            world.class("good", &json!({"pool": "a"}));
            world.start();
            world.claim("a", "good");
            tokio::time::sleep(CALL / 2).await;
            drop(world.engine.take());
            assert!(!world.is_marked("a"));
            world.class("good", &json!({"pool": "b"}));
            if is_deleted {
                world.change_claim("a", |claim| claim["metadata"]["finalizers"] = json!(["a/b"]));
                world.delete_claim("a");
            }
            if is_bound {
                world.change_claim("a", |claim| claim["spec"]["volumeName"] = json!("static"));
            }
            world.start();
            pass(10).await;
            let wanted: &[&str] = if is_bound { &["a"] } else { &["a", "a"] };
            assert_eq!(
                *world.driver.pools.lock(),
                wanted,
                "{protection:?} {is_deleted} {is_bound}"
            );
            assert_eq!(world.saved(), usize::from(!is_deleted && !is_bound));
            assert_eq!(world.driver.deleted.lock().len(), usize::from(is_deleted));
        }
    }
}

/// The driver came back, and was away again at once.
#[tokio::test(start_paused = true)]
async fn an_engine_that_ends_before_its_first_call_hands_on_what_it_was_given() {
    let mut world = changed().await;
    for _ in 0..3 {
        world.engine.take().unwrap().drain().await;
        world.start();
        world.engine().pause();
    }
    pass(3).await;
    assert_eq!(world.driver.pools.lock().len(), 1);
    world.engine.take().unwrap().drain().await;
    world.start();
    is_made_again(&world).await;
}

/// Its finalizers were taken off by force while the driver was away. Another process may have worked on it, so nothing is undone.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_when_the_next_engine_starts_may_have_left_its_volume() {
    for is_saved in [false, true] {
        let mut world = changed().await;
        world.engine.take().unwrap().drain().await;
        world.lose_claim("a");
        if is_saved {
            world.volume(json!({
                "metadata": {"name": "pvc-uid-a", "uid": "pv-uid"},
                "spec": {"csi": {"driver": DRIVER, "volumeHandle": "h"}},
            }));
        }
        for _ in 0..2 {
            world.start();
            pass(10).await;
            world.engine.take().unwrap().drain().await;
        }
        let told = world.told("PersistentVolumeClaim", "a", "VolumePossiblyLeaked");
        assert_eq!(told.len(), usize::from(!is_saved), "{told:?}");
        let is_named = |note: &String| note.contains("volume pvc-uid-a may be left");
        assert!(told.iter().all(is_named), "{told:?}");
        assert_eq!(world.driver.pools.lock().len(), 1);
        assert_eq!(world.driver.deleted.lock().len(), 0);
    }
}

/// A sidecar may have called for what was there before the role began, or before it was switched on, and leaves no marker.
#[tokio::test(start_paused = true)]
async fn the_first_refusal_does_not_count_of_a_claim_that_others_may_have_called_for() {
    for (enabled, is_there_before, is_uncertain) in [(true, true, true), (true, false, false), (false, false, true)] {
        let mut world = World::new();
        world.configure(|settings| settings.provisioning.as_mut().unwrap().enabled = enabled);
        world.class("good", &json!({}));
        world.driver.failures.lock().push(tonic::Code::Internal);
        if is_there_before {
            world.claim("a", "good");
        }
        world.start();
        if !is_there_before {
            world.claim("a", "good");
        }
        if !enabled {
            pass(1).await;
            assert_eq!(world.driver.calls.lock().len(), 0);
            let enabled = world.configure(|settings| settings.provisioning.as_mut().unwrap().enabled = true);
            world.engine().reconfigure(&enabled);
        }
        tokio::time::sleep(CALL * 2).await;
        assert_eq!(world.driver.calls.lock().len(), 1);
        let open = crate::open_claims(world.engine().queue());
        assert_eq!(open, usize::from(is_uncertain), "{enabled} {is_there_before}");
        pass(10).await;
        assert_eq!(world.saved(), 1);
    }
}

/// Nobody else called for a claim that came while the role was on, whatever is set while it waits for a consumer and nothing is
/// remembered of it.
#[tokio::test(start_paused = true)]
async fn other_settings_say_nothing_of_calls_of_others_while_the_role_is_on() {
    for (enabled, is_uncertain) in [(true, false), (false, true)] {
        let mut world = World::new();
        world.configure(|settings| settings.provisioning.as_mut().unwrap().enabled = enabled);
        world.class_with("later", &json!({}), "WaitForFirstConsumer");
        world.start();
        world.claim("a", "later");
        pass(1).await;
        // Once when it is switched on, and once more.
        for fs_type in ["xfs", "ext4"] {
            let enabled = world.configure(|settings| {
                settings.default_fs_type = fs_type.to_owned();
                settings.provisioning.as_mut().unwrap().enabled = true;
            });
            world.engine().reconfigure(&enabled);
            pass(1).await;
        }
        world.driver.failures.lock().push(tonic::Code::Internal);
        select(&world, "n1");
        tokio::time::sleep(CALL * 2).await;
        assert_eq!(world.driver.calls.lock().len(), 1);
        let open = crate::open_claims(world.engine().queue());
        assert_eq!(open, usize::from(is_uncertain), "{enabled}");
    }
}

/// The role ends and cannot write: who looks for markers that are left is sent to no others.
#[tokio::test(start_paused = true)]
async fn only_a_marker_that_is_there_is_left() {
    let mut world = World::new();
    world.class("good", &json!({}));
    world.class_with("later", &json!({}), "WaitForFirstConsumer");
    world.start();
    world.driver.failures.lock().push(tonic::Code::DeadlineExceeded);
    world.claim("a", "good");
    world.claim("b", "later");
    tokio::time::sleep(CALL * 5).await;
    assert!(world.is_marked("a") && !world.is_marked("b"));
    // The watch brings the marker.
    world.change_claim("a", |_| {});
    let work = world.engine().work().clone();
    let left = |name: &str| {
        work.leaves_marker(&ClaimKey {
            uid: format!("uid-{name}").into(),
            name: format!("web/{name}").into(),
        })
    };
    assert!(!left("a"), "it is tried again");
    work.stopping.store(true, Ordering::Relaxed);
    assert_eq!(["a", "b", "gone"].map(left), [true, false, false]);
}

/// Whether each claim is shown as pending, and whether it is not known what its call did.
fn shown(world: &World) -> Vec<(bool, bool)> {
    let mut shown = Vec::new();
    world.engine().queue().remember_all(|key, memory| {
        let is_pending = key.pending(memory).since.is_some();
        shown.push((is_pending, memory.is_uncertain()));
    });
    shown
}

fn select(world: &World, node: &str) {
    world.change_claim("a", |claim| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into();
    });
}

/// That is remembered until a node is selected, which may be long after; and nobody waits for a volume until then.
#[tokio::test(start_paused = true)]
async fn calls_of_others_are_expected_also_after_a_wait_for_a_consumer() {
    let mut world = World::new();
    world.class_with("later", &json!({}), "WaitForFirstConsumer");
    world.claim("a", "later");
    world.start();
    pass(3600).await;
    assert_eq!(shown(&world), [(false, false)]);
    // Its volume exists, as it was made for another node.
    world.driver.failures.lock().push(tonic::Code::AlreadyExists);
    select(&world, "n1");
    tokio::time::sleep(CALL * 2).await;
    assert_eq!(world.driver.calls.lock().len(), 1);
    assert_eq!(shown(&world), [(true, true)]);
    world.delete_claim("a");
    pass(20).await;
    assert_eq!((world.driver.deleted.lock().len(), world.is_marked("a")), (1, false));
    assert!(shown(&world).is_empty(), "it is forgotten with the claim");
}

/// The driver lets nobody in, which says nothing of calls of others; then the node is taken off.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_node_is_taken_off_is_not_pending_any_more() {
    let mut world = World::new();
    world.class_with("later", &json!({}), "WaitForFirstConsumer");
    world.claim("a", "later");
    select(&world, "n1");
    world.driver.failures.lock().push(tonic::Code::PermissionDenied);
    world.start();
    tokio::time::sleep(CALL * 2).await;
    assert_eq!(shown(&world), [(true, false)]);
    select(&world, "");
    pass(3600).await;
    assert_eq!((shown(&world), world.is_marked("a")), (vec![(false, false)], false));
    assert_eq!(world.driver.calls.lock().len(), 1);
}

/// The Lease has run out, or the task panicked: nobody waits for its calls.
#[tokio::test(start_paused = true)]
async fn an_engine_that_is_cut_off_hands_on_what_it_knew() {
    let mut world = World::started(&json!({"pool": "a"}));
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    assert!(world.is_marked("a") && world.driver.pools.lock().len() == 1);
    world.engine = None;
    world.class("good", &json!({"pool": "b"}));
    world.start();
    is_made_again(&world).await;
}

/// A world in which a call for claim "a" is under way that has no marker, and is answered with this code or carried out.
async fn calling_unmarked(code: Option<tonic::Code>) -> World {
    let mut world = World::new();
    world.configure(|settings| {
        settings.provisioning.as_mut().unwrap().policy.leak_protection = LeakProtection::WhenUncertain;
    });
    world.class("good", &json!({"pool": "a"}));
    world.start();
    world.driver.failures.lock().extend(code);
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    assert!(!world.is_marked("a") && world.driver.pools.lock().len() == 1);
    assert_eq!(
        crate::open_claims(world.engine().queue()),
        1,
        "the AttacherConfig waits for it"
    );
    world
}

/// The process may be killed before the call ends.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_marker_gets_one_as_soon_as_the_role_ends() {
    for (code, is_marked) in [(None, false), (Some(tonic::Code::DeadlineExceeded), true)] {
        let mut world = calling_unmarked(code).await;
        let drain = tokio::spawn(world.engine.take().unwrap().drain());
        tokio::time::sleep(CALL / 4).await;
        assert!(world.is_marked("a"));
        drain.await.unwrap();
        assert_eq!(
            (world.is_marked("a"), world.saved()),
            (is_marked, usize::from(!is_marked))
        );
    }
}

/// The API server restarts at that moment, or cannot take the write now. What it means to refuse it refuses again.
#[tokio::test(start_paused = true)]
async fn a_marker_that_cannot_be_written_when_the_role_ends_is_tried_again_during_the_call() {
    for (status, tries) in [(503, 2), (429, 2), (409, 2), (401, 2), (403, 1), (413, 1)] {
        let mut world = calling_unmarked(None).await;
        world.driver.is_slow.store(true, Ordering::Relaxed);
        *world.api.refusals.lock() = vec![status; 100];
        let drain = tokio::spawn(world.engine.take().unwrap().drain());
        let tried = || world.api.asked("PATCH", &claim_path("a"));
        tokio::time::sleep(CALL * 9).await;
        assert_eq!((tried(), world.is_marked("a")), (1, false), "{status}");
        world.api.refusals.lock().clear();
        tokio::time::sleep(CALL * 9).await;
        assert_eq!((tried(), world.is_marked("a")), (tries, tries == 2), "{status}");
        drain.await.unwrap();
        assert_eq!((world.is_marked("a"), world.saved()), (false, 1), "{status}");
    }
}

/// Another replica may lead attaching. It lets the AttacherConfig go when no claim is marked, and knows no calls of others.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_marker_gets_one_as_soon_as_the_attacherconfig_is_deleted() {
    let world = calling_unmarked(None).await;
    let leaving = world.configure(|settings| settings.leaving = true);
    world.engine().reconfigure(&leaving);
    // The write is begun, and no time goes by in which it would be answered.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((world.is_marked("a"), world.state.borrow().claims), (false, 1));
    tokio::time::sleep(CALL / 4).await;
    assert_eq!((world.is_marked("a"), world.state.borrow().claims), (true, 0));
    pass(5).await;
    assert_eq!((world.driver.pools.lock().len(), world.saved()), (1, 1));
}

/// Who deletes a PersistentVolume before it is bound is told what it waits for, also while the claim is marked.
#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_volume_that_is_saved_does_not_wait_for_its_call() {
    let world = World::calling().await;
    pass(1).await;
    assert!(world.is_marked("a") && world.saved() == 1);
    let mut volume = world.api.objects.lock()[&format!("{VOLUMES}pvc-uid-a")].clone();
    volume["metadata"]["deletionTimestamp"] = crate::clock::now().to_string().into();
    volume["metadata"]["annotations"]["attacher.csi.dev/reclaim"] = "Delete".into();
    world.volume(volume);
    pass(10).await;
    assert!(world.is_marked("a"));
    let mut waits = Vec::new();
    world
        .engine()
        .queue()
        .remember_all(|_, memory| waits.extend(memory.waits()));
    assert_eq!(waits, [crate::provision::VolumeReason::ReleasedWhileBound]);
    assert_eq!(world.driver.deleted.lock().len(), 0);
}
