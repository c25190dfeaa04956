//! Settings that change while an attempt is under way.

use super::*;

/// A world in which `deletion: Hold` was set during the CreateVolume of claim "a", which is deleted.
async fn held_during_the_call(change: impl FnOnce(&mut DriverConfig)) -> World {
    let world = World::calling().await;
    let mut settings = DriverConfig::clone(&world.settings.borrow());
    change(&mut settings);
    world.settings.send_replace(Arc::new(settings));
    let now = crate::clock::now().to_string();
    world.change_claim("a", |claim| claim["metadata"]["deletionTimestamp"] = now.into());
    pass(1).await;
    world
}

#[tokio::test(start_paused = true)]
async fn deletions_are_held_from_the_next_call_on() {
    let world = held_during_the_call(|_| {}).await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (1, 0));
    let held = |settings: &mut DriverConfig| settings.provisioning.as_mut().unwrap().hold_deletions = true;
    let world = held_during_the_call(held).await;
    assert_eq!((world.driver.deleted.lock().len(), world.saved()), (0, 1));
}

/// Nothing says that they are not held.
#[tokio::test(start_paused = true)]
async fn without_the_section_deletions_are_held() {
    let world = held_during_the_call(|settings| settings.provisioning = None).await;
    assert_eq!(world.driver.deleted.lock().len(), 0);
}
