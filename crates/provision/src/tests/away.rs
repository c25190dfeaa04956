//! A driver that is away, where nobody else could work for it: what needs no call goes on.

use super::*;

/// A world whose driver answers, with a claim that was called for and whose outcome is not known.
async fn uncertain() -> World {
    let world = World::uncertain(&json!({})).await;
    world.engine().pause();
    world
}

/// Also a claim that comes meanwhile, and without another time to wait once it is back.
#[tokio::test(start_paused = true)]
async fn nothing_is_called_before_the_driver_is_back() {
    let world = uncertain().await;
    world.claim("b", "good");
    pass(3600).await;
    assert_eq!(world.driver.calls.lock().len(), 1);
    assert!(world.is_marked("a") && !world.is_marked("b"));
    let mut pending = Vec::new();
    world.engine().queue().remember_all(|key, memory| {
        let since = key.pending(memory).since.map(crate::clock::since);
        pending.push((key.name().to_string(), since.map(|since| since.as_secs())));
    });
    pending.sort();
    assert_eq!(
        pending,
        [("web/a".to_owned(), Some(3600)), ("web/b".to_owned(), Some(3600))]
    );
    let since = Instant::now();
    world.engine().resume(world.client(), true);
    pass(1).await;
    assert_eq!((world.calls("", since).len(), world.saved()), (2, 2));
}

/// Or what is stuck would not be told for as long as the clock was ahead.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_makes_no_wait_longer() {
    let world = uncertain().await;
    crate::clock::set_source(|| "2020-01-01T00:00:00Z".parse().ok());
    pass(3600).await;
    let mut waits = Vec::new();
    world.engine().queue().remember_all(|key, memory| {
        let object = key.pending(memory);
        waits.push([object.since, object.uncertain_since]);
    });
    assert_eq!(waits, [[Some(crate::clock::now()); 2]]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_let_go_though_the_driver_is_away() {
    let world = uncertain().await;
    pass(3600).await;
    let now = crate::clock::now();
    world.change_claim("a", |claim| {
        let (uid, deleted) = (claim["metadata"]["uid"].clone(), now.to_string());
        claim["metadata"]["deletionTimestamp"] = deleted.clone().into();
        let request = json!({"uid": uid, "deleted": deleted, "at": deleted, "by": "ann", "reason": "gone"});
        claim["metadata"]["annotations"]["attacher.csi.dev/release"] = request.to_string().into();
        // Older than what a person has to wait for.
        let marker = &mut claim["metadata"]["annotations"][MARKER];
        let mut said: Value = serde_json::from_str(marker.as_str().unwrap()).unwrap();
        said["since"] = "2020-01-01T00:00:00Z".into();
        *marker = said.to_string().into();
    });
    pass(1).await;
    assert!(!world.is_marked("a"));
    assert_eq!(world.driver.calls.lock().len(), 1);
}

/// The answer had come, and the API server did not take it yet.
#[tokio::test(start_paused = true)]
async fn what_was_answered_is_saved_though_the_driver_is_away() {
    let world = World::calling().await;
    world.engine().pause();
    pass(1).await;
    assert_eq!(world.saved(), 1);
    // Bound: the marker goes.
    world.change_claim("a", |claim| {
        claim["spec"]["volumeName"] = "pvc-uid-a".into();
        claim["status"]["phase"] = "Bound".into();
    });
    pass(1).await;
    assert!(!world.is_marked("a"));
}

/// A person has set the policy to Retain.
#[tokio::test(start_paused = true)]
async fn a_persistent_volume_is_let_go_though_the_driver_is_away() {
    const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    let world = uncertain().await;
    world.released("good", "Retain", &[FINALIZER]);
    pass(1).await;
    let volume = world.api.objects.lock()[&format!("{VOLUMES}pv")].clone();
    assert!(
        !volume["metadata"]["finalizers"].to_string().contains(FINALIZER),
        "{volume}"
    );
}
