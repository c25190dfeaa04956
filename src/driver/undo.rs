//! A VolumeAttachment that vanished while its volume was being published.
//!
//! Our finalizer makes that impossible, unless somebody removes it by force or the API server goes back to an older state.
//! Then nobody will ever ask for the detach, and the volume would stay attached to a node that no object names. But a
//! cache can be wrong, and the volume may be in use: it is taken back only after a live read has confirmed that the object
//! is gone. Where no read can, it stays where it is, and people are told.

use std::time::Duration;

use super::announce::{self, Vanished};
use super::attempt::Attempt;
use super::fence::CallFailure;
use crate::decide::Place;
use crate::decide::patch::Target;
use crate::kubernetes::{ApiErrorKind, Returned};
use crate::store::Snapshot;

const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Takes the volume back from the node when the attachment is gone, unless another one is claimed for that very place. One
/// that came back under the same name is not: it waits for this attempt to end, and may never get as far as its claim.
pub(super) async fn if_vanished(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>) {
    let name = &*snapshot.attachment.name;
    let uid = &snapshot.attachment.uid;
    let store = &attempt.work.context.store;
    let is_wanted = || {
        let known = store.attachment(name);
        known.is_some_and(|known| known.attachment.uid == *uid)
            || store.is_claimed(&attempt.work.facts, snapshot, place)
    };
    if is_wanted() {
        return;
    }
    let driver = &*attempt.work.facts.name;
    match confirm(attempt, name, uid).await {
        Confirmed::Gone => {}
        Confirmed::There => {
            traced!(
                info,
                attempt.span,
                driver,
                VolumeAttachment = name,
                "the VolumeAttachment is there, though it was believed to be gone"
            );
            store.doubt("a VolumeAttachment that was believed to be gone is there");
            return;
        }
        Confirmed::Unknown => {
            traced!(
                error,
                attempt.span,
                driver,
                VolumeAttachment = name,
                volumeHandle = place.volume_id,
                nodeID = place.node_id,
                "the VolumeAttachment seems to be gone and the API server does not confirm it: the volume, which is attached, \
                 is left alone; if there is no such VolumeAttachment, detach the volume by hand"
            );
            announce::vanished(attempt, snapshot, Vanished::Unconfirmed);
            return;
        }
    }
    take_back(attempt, snapshot, place, is_wanted).await;
}

/// Unpublishes the volume of an object that is gone, as long as nobody wants it at that place.
async fn take_back(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>, is_wanted: impl Fn() -> bool) {
    let (name, driver) = (&*snapshot.attachment.name, &*attempt.work.facts.name);
    let deadline = attempt.timeouts().unpublish;
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        if is_wanted() {
            return;
        }
        // Not the attempt's own client: its connection may be the one whose loss started this.
        let client = attempt.work.client_for(snapshot);
        attempt.calling("ControllerUnpublishVolume", snapshot, place, deadline);
        let answer = client
            .unpublish(place, attempt.secrets.as_ref(), deadline, &attempt.span)
            .await;
        if let Err(CallFailure::Lease(_)) = answer {
            // Whoever holds the Lease next finds no object that speaks of this volume.
            break;
        }
        let Err(error) = answer else {
            traced!(
                warn,
                attempt.span,
                driver,
                VolumeAttachment = name,
                volumeHandle = place.volume_id,
                "the VolumeAttachment was deleted while its volume was being attached; detached the volume again"
            );
            announce::vanished(attempt, snapshot, Vanished::Detached);
            return;
        };
        traced!(
            warn,
            attempt.span,
            driver, VolumeAttachment = name, volumeHandle = place.volume_id, %error,
            next_try_seconds = pause.as_secs(), "cannot detach the volume of a deleted VolumeAttachment"
        );
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    traced!(
        error,
        attempt.span,
        driver,
        VolumeAttachment = name,
        volumeHandle = place.volume_id,
        nodeID = place.node_id,
        "giving up: the volume may still be attached although its VolumeAttachment was deleted; detach it by hand"
    );
    announce::vanished(attempt, snapshot, Vanished::Stays);
}

/// What a live read says of an object that the cache does not know any more.
enum Confirmed {
    Gone,
    There,
    /// There was no answer that says so.
    Unknown,
}

/// Reads the object until there is an answer that counts, but not for ever.
async fn confirm(attempt: &Attempt<'_>, name: &str, uid: &str) -> Confirmed {
    let target = Target::Attachment(name.into());
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        match attempt.work.context.requests.read(&target, &attempt.span).await {
            Ok(Returned::Attachment(record)) if *record.uid == *uid => return Confirmed::There,
            Ok(Returned::Attachment(_)) => return Confirmed::Gone,
            Err(error) if error.kind == ApiErrorKind::NotFound => return Confirmed::Gone,
            Ok(Returned::Volume(_)) => {}
            Err(error) => traced!(
                warn,
                attempt.span,
                driver = &*attempt.work.facts.name, VolumeAttachment = name, %error,
                next_try_seconds = pause.as_secs(), "cannot find out whether the VolumeAttachment was deleted"
            ),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Confirmed::Unknown
}
