//! The Secret of an open call, which is gone since, as with its namespace.

use super::*;
use crate::objects::SecretReference;

const SECRET: &str = "/api/v1/namespaces/storage/secrets/key";
/// What is in it.
const KEY: &str = "hunter2";

/// A claim for which a call is under way that is made with a Secret. It fails with this code, if it does.
async fn calling(code: Option<tonic::Code>) -> World {
    let mut world = World::new();
    let object = json!({
        "metadata": {"name": "key", "namespace": "storage", "uid": "s"}, "data": {"key": "aHVudGVyMg=="},
    });
    world.api.put(SECRET, object);
    world.class("good", &secret("storage"));
    world.start();
    world.driver.failures.lock().extend(code);
    world.claim("a", "good");
    tokio::time::sleep(CALL / 2).await;
    assert_eq!(*world.driver.keys.lock(), [KEY]);
    world
}

/// As [`calling`], and nobody knows what the call did.
async fn uncertain() -> World {
    let world = calling(Some(tonic::Code::DeadlineExceeded)).await;
    tokio::time::sleep(CALL).await;
    world
}

/// The Secret goes, and somebody changes the claim.
fn without_secret(world: &World, change: fn(&mut Value)) {
    world.api.objects.lock().remove(SECRET);
    world.change_claim("a", change);
}

fn delete(claim: &mut Value) {
    claim["metadata"]["deletionTimestamp"] = crate::clock::now().to_string().into();
}

/// The call is repeated with what it was made with, its volume is deleted with that as well, and the marker goes.
async fn is_undone(world: &World) {
    pass(5).await;
    assert_eq!(*world.driver.keys.lock(), [KEY; 3]);
    assert_eq!(world.driver.deleted.lock().len(), 1);
    assert!(!world.is_marked("a") && world.saved() == 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_call_is_repeated_with_it_once_nobody_wants_the_volume() {
    let unwanted: [fn(&mut Value); 3] = [
        delete,
        |claim| claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = "other.test".into(),
        |claim| {
            claim["spec"]["volumeName"] = "static".into();
            claim["status"]["phase"] = "Bound".into();
        },
    ];
    for change in unwanted {
        let world = uncertain().await;
        without_secret(&world, change);
        is_undone(&world).await;
    }
}

/// The driver came back, and was away again at once.
#[tokio::test(start_paused = true)]
async fn the_next_engine_goes_on_with_it() {
    let mut world = uncertain().await;
    world.engine.take().unwrap().drain().await;
    let printed = format!("{:?}", world.open_calls);
    assert!(printed.contains("uid-a") && !printed.contains(KEY), "{printed}");
    without_secret(&world, delete);
    world.start();
    world.engine().pause();
    world.engine.take().unwrap().drain().await;
    world.start();
    is_undone(&world).await;
}

/// Its run has not come to its end.
#[tokio::test(start_paused = true)]
async fn the_engine_after_one_that_is_cut_off_in_a_call_goes_on_with_it() {
    let mut world = calling(None).await;
    world.engine = None;
    without_secret(&world, delete);
    world.start();
    is_undone(&world).await;
}

#[tokio::test(start_paused = true)]
async fn it_is_kept_only_while_the_volume_of_its_call_may_be_there() {
    let secret = SecretReference {
        namespace: "storage".into(),
        name: "key".into(),
    };
    for (code, is_kept) in [
        (tonic::Code::DeadlineExceeded, true),
        (tonic::Code::InvalidArgument, false),
    ] {
        let world = calling(Some(code)).await;
        tokio::time::sleep(CALL).await;
        let mut kept = Vec::new();
        world.engine().queue().remember_all(|_, memory| {
            kept.push(memory.claim.secret_of_call(&secret).is_some());
        });
        assert_eq!(kept, [is_kept], "{code:?}");
    }
}
