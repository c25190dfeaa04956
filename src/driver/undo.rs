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
use crate::decide::patch::Target;
use crate::decide::{DriverFacts, Place};
use crate::kubernetes::{ApiErrorKind, Returned};
use crate::objects::Attachment;
use crate::store::Snapshot;

const TRIES: u32 = 6;
const TRIES_WHILE_BELIEVED: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Takes the volume back from the node when the attachment is gone, or was brought back to before its claim, unless another
/// one is claimed for the place. One that came back under the same name is not: it waits for this attempt to end, and may never get
/// as far as its claim.
///
/// `is_known` says whether the API server has taken in what the call came to. If not, the attachment may have ended without
/// a word that has come in yet.
pub(super) async fn if_vanished(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>, is_known: bool) {
    let name = &*snapshot.attachment.name;
    let uid = &snapshot.attachment.uid;
    let (store, facts) = (&attempt.work.context.store, &*attempt.work.facts);
    let is_claimed = |known: &Attachment| *known.uid == **uid && may_be_in_use(known, facts);
    let is_believed = || {
        store
            .attachment(name)
            .is_some_and(|known| is_claimed(&known.attachment))
    };
    if store.is_claimed(facts, snapshot, place) || (is_known && is_believed()) {
        return;
    }
    let driver = &*facts.name;
    match confirm(attempt, snapshot, is_claimed, is_believed).await {
        Confirmed::Gone => {}
        // Or nothing says that it is gone.
        Confirmed::Claimed | Confirmed::Unknown if is_believed() => return,
        Confirmed::Claimed => {
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
    take_back(attempt, snapshot, place).await;
}

/// Whether a pod may use the volume by this attachment, or its detach will ask for the place. Only one that a restore of the
/// API server brought back to before its claim is neither: what is recorded as attached is never taken back, and what carries
/// our finalizer is detached in its turn.
fn may_be_in_use(known: &Attachment, facts: &DriverFacts) -> bool {
    known.attached || known.finalizers.contains(&facts.finalizer)
}

/// Unpublishes the volume of an object that is gone, as long as nobody wants it at that place.
async fn take_back(attempt: &Attempt<'_>, snapshot: &Snapshot, place: Place<'_>) {
    let (name, driver) = (&*snapshot.attachment.name, &*attempt.work.facts.name);
    let deadline = attempt.timeouts().unpublish;
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        if attempt
            .work
            .context
            .store
            .is_claimed(&attempt.work.facts, snapshot, place)
        {
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

/// What a live read says of an attachment.
enum Confirmed {
    /// It is gone, or back at the state before its claim.
    Gone,
    Claimed,
    /// There was no answer that says so.
    Unknown,
}

/// Reads the attachment until there is an answer that counts, but not for ever; and not for long while the cache believes that
/// it is there.
async fn confirm(
    attempt: &Attempt<'_>,
    snapshot: &Snapshot,
    is_claimed: impl Fn(&Attachment) -> bool,
    is_believed: impl Fn() -> bool,
) -> Confirmed {
    let (name, uid) = (&snapshot.attachment.name, &snapshot.attachment.uid);
    let target = Target::Attachment(name.clone());
    let mut pause = FIRST_PAUSE;
    for tried in 0..TRIES {
        match attempt.work.context.requests.read(&target, &attempt.span).await {
            Ok(Returned::Attachment(record)) if record.name == *name && is_claimed(&record) => {
                return Confirmed::Claimed;
            }
            Ok(Returned::Attachment(record)) if record.name == *name => return Confirmed::Gone,
            Err(error) if error.kind == ApiErrorKind::NotFound => {
                attempt.work.context.store.bury(&target, uid);
                return Confirmed::Gone;
            }
            // The answer to another request.
            Ok(_) => {}
            Err(error) => traced!(
                warn,
                attempt.span,
                driver = &*attempt.work.facts.name, VolumeAttachment = &**name, %error,
                next_try_seconds = pause.as_secs(), "cannot find out whether the VolumeAttachment was deleted"
            ),
        }
        if tried + 1 >= TRIES_WHILE_BELIEVED && is_believed() {
            break;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Confirmed::Unknown
}
