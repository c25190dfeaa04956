//! A CreateVolume that was certainly not sent, as its connection took no more: no volume can have come of it.

use super::*;
use tonic::ConnectError;
use tonic::body::Body as GrpcBody;

/// A connection that takes no call.
fn taking_no_call(world: &World) -> FencedClient {
    let refusing = tower::service_fn(|_: Request<GrpcBody>| {
        let error = ConnectError("the connection to the driver was lost".into());
        std::future::ready(Err::<Response<GrpcBody>, _>(error))
    });
    let connection = DriverConnection::in_process(refusing);
    FencedClient::new(CsiClient::new(connection, world.context.metrics.clone()), None)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_sent_is_no_failure_and_leaves_no_doubt() {
    for is_deleted in [false, true] {
        let world = World::started(&json!({}));
        world.engine().resume(taking_no_call(&world), true);
        world.claim("a", "good");
        pass(1).await;
        assert!(world.is_marked("a"), "it was to be called for");
        if is_deleted {
            world.delete_claim("a");
            pass(1).await;
            assert!(!world.is_marked("a"), "nothing is to be found out");
        }
        world.engine().resume(world.client(), true);
        pass(20).await;
        let wanted = usize::from(!is_deleted);
        assert_eq!((world.driver.calls.lock().len(), world.saved()), (wanted, wanted));
        let failed = world.told("PersistentVolumeClaim", "a", "ProvisioningFailed");
        assert!(failed.is_empty(), "{failed:?}");
    }
}

/// As behind a proxy that refuses each stream.
#[tokio::test(start_paused = true)]
async fn a_connection_that_stands_and_takes_no_call_is_told_from_the_third_one_on() {
    let world = World::started(&json!({}));
    world.engine().resume(taking_no_call(&world), true);
    world.claim("a", "good");
    world.released(
        "good",
        "Delete",
        &["external-provisioner.volume.kubernetes.io/finalizer"],
    );
    let told = || {
        [
            world.told("PersistentVolumeClaim", "a", "ProvisioningFailed"),
            world.told("PersistentVolume", "pv", "VolumeFailedDelete"),
        ]
    };
    pass(1).await;
    assert!(told().iter().all(Vec::is_empty), "{:?}", told());
    pass(4).await;
    for told in told() {
        let is_told = |note: &String| note.contains("took none of the last 3 calls");
        assert!(told.len() == 1 && told.iter().all(is_told), "{told:?}");
    }
    world.engine().resume(world.client(), true);
    pass(20).await;
    assert_eq!(world.driver.calls.lock().len(), 1);
    assert_eq!(*world.driver.deleted.lock(), ["h"]);
}
