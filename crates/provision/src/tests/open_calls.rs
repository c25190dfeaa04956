//! What is known of open calls, when engines of one process follow each other: the class that a call was made with was changed since.

use super::*;
use crate::provision::LeakProtection;

/// A claim for which a call is open that was made with pool a; the class says b by now.
async fn changed() -> World {
    let mut world = World::new();
    world.class("good", &json!({"pool": "a"}));
    world.start();
    world.driver.failures.lock().push(tonic::Code::DeadlineExceeded);
    world.claim("a", "good");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.is_marked("a"));
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

/// A sidecar may have called for what was there before the role began, or before it was switched on, and leaves no marker.
#[tokio::test(start_paused = true)]
async fn the_first_refusal_does_not_count_of_a_claim_that_others_may_have_called_for() {
    for (enabled, is_there_before, is_uncertain) in [(true, true, true), (true, false, false), (false, false, true)] {
        let mut world = World::new();
        let mut settings = DriverConfig::clone(&world.settings.borrow());
        settings.provisioning.as_mut().unwrap().enabled = enabled;
        world.settings.send_replace(Arc::new(settings.clone()));
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
            settings.provisioning.as_mut().unwrap().enabled = true;
            world.settings.send_replace(Arc::new(settings.clone()));
            world.engine().reconfigure(&settings);
        }
        tokio::time::sleep(CALL * 2).await;
        assert_eq!(world.driver.calls.lock().len(), 1);
        let open = crate::open_claims(world.engine().queue());
        assert_eq!(open, usize::from(is_uncertain), "{enabled} {is_there_before}");
        pass(10).await;
        assert_eq!(world.saved(), 1);
    }
}

/// The Lease has run out, or the task panicked: nobody waits for its calls.
#[tokio::test(start_paused = true)]
async fn an_engine_that_is_cut_off_hands_on_what_it_knew() {
    let mut world = World::new();
    world.class("good", &json!({"pool": "a"}));
    world.start();
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    assert!(world.is_marked("a") && world.driver.pools.lock().len() == 1);
    world.engine = None;
    world.class("good", &json!({"pool": "b"}));
    world.start();
    is_made_again(&world).await;
}

/// The process may be killed before the call ends.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_marker_gets_one_as_soon_as_the_role_ends() {
    for (code, is_marked) in [(None, false), (Some(tonic::Code::DeadlineExceeded), true)] {
        let mut world = World::new();
        let mut settings = DriverConfig::clone(&world.settings.borrow());
        settings.provisioning.as_mut().unwrap().policy.leak_protection = LeakProtection::WhenUncertain;
        world.settings.send_replace(Arc::new(settings));
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
