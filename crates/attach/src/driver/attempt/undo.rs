//! A VolumeAttachment that vanished while its volume was being published.
//!
//! Our finalizer makes that impossible, unless somebody removes it by force or the API server goes back to an older state.
//! Then nobody will ever ask for the detach, and the volume would stay attached to a node that no object names. But a
//! cache can be wrong, and the volume may be in use: it is taken back only after a live read has confirmed that the object
//! is gone, and not if a write that records it as attached may have been taken in. Else it stays where it is, and an Event
//! says so. What ends before that is known is kept for the driver's next engine (`unfinished.rs`).

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};

use super::super::context::DriverContext;
use super::events::{self, Vanished};
use super::in_flight::InFlightGuard;
use super::publish_guard::PublishGuard;
use super::state::LIST_REST;
use super::unfinished::UnfinishedPublish;
use crate::apiserver::{ApiErrorKind, Returned};
use crate::cache::{AttacherKey, DETACH, Snapshot};
use crate::csi::ControllerUnpublishVolume;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, VolumeOnNode};
use crate::objects::Attachment;
use crate::queue::Place;
use crate::telemetry::Span;
use csi_attacher_runtime::fence::CallFailure;

const TRIES: u32 = 6;
const TRIES_WHILE_BELIEVED: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How many of the kept ones are checked in parallel.
const AT_ONCE: usize = 10;

/// A Publish whose VolumeAttachment may be gone, with what is needed to take its volume back.
struct Undo<'a> {
    work: &'a DriverContext,
    publish: &'a UnfinishedPublish,
    span: &'a Span,
    /// Calls to the driver that were made.
    calls: &'a AtomicU32,
    run: UndoRun,
}

/// Within what a volume is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver) enum UndoRun {
    /// Within a run of the queue, which counts among the calls at once.
    OfQueue,
    Beside,
}

/// Looks again at what the former engine of the driver left unfinished. Their places are taken at once, so that nobody calls for
/// these places before.
pub(in crate::driver) fn resume_unfinished(work: Arc<DriverContext>) -> impl Future<Output = ()> {
    let left = work.context.unfinished.take(&work.facts.name);
    let begun: Vec<(UnfinishedPublish, InFlightGuard)> = left
        .into_iter()
        .filter_map(|publish| {
            let name = &publish.snapshot.attachment.name;
            // There is one for each place.
            let guard = work.in_flight.begin_publish(publish.place(), name, false).ok()?;
            Some((publish, guard))
        })
        .collect();
    async move {
        let guards: Vec<_> = begun
            .into_iter()
            .map(|(publish, guard)| PublishGuard::of(&work, guard, publish))
            .collect();
        if guards.is_empty() {
            return;
        }
        while !work.context.store.lists().is_of_one_state() {
            tokio::time::sleep(LIST_REST).await;
        }
        let (span, calls) = (Span::disabled(), AtomicU32::new(0));
        let total = work.config.borrow().concurrency.total.map_or(AT_ONCE, NonZero::get);
        stream::iter(guards)
            .for_each_concurrent(AT_ONCE.min(total), |guard| {
                unpublish_if_deleted(guard, &span, &calls, false, UndoRun::Beside)
            })
            .await;
    }
}

/// Takes the volume back from the node when the attachment is gone, or was brought back to before its claim, unless another
/// one is claimed for the place. One that came back under the same name is not: it waits for this attempt to end, and may never get
/// as far as its claim.
///
/// `is_known` says that no answer to a write of what the call came to is missing. If one is, the attachment may have ended
/// without a word that has come in yet.
pub(in crate::driver) async fn unpublish_if_deleted(
    mut guard: PublishGuard<'_>,
    span: &Span,
    calls: &AtomicU32,
    is_known: bool,
    run: UndoRun,
) {
    let undo = Undo {
        work: guard.work(),
        publish: guard.publish(),
        span,
        calls,
        run,
    };
    if undo.is_wanted_by_another() || (is_known && undo.is_believed()) {
        return guard.finished();
    }
    guard.missed();
    let undo = Undo {
        work: guard.work(),
        publish: guard.publish(),
        span,
        calls,
        run,
    };
    if undo.confirm_and_take_back().await == UndoResult::Finished {
        guard.finished();
    }
}

/// Whether there is anything left to do.
#[derive(PartialEq, Eq)]
enum UndoResult {
    Finished,
    Unfinished,
}

/// What a live read says of an attachment.
enum LiveRead {
    /// It is gone, or back at the state before its claim.
    Gone,
    Claimed,
    /// Another one under its name has the volume at the place.
    Replaced,
    /// There was no answer that says so.
    Unknown,
}

impl Undo<'_> {
    fn snapshot(&self) -> &Snapshot {
        &self.publish.snapshot
    }

    fn driver(&self) -> &str {
        &self.work.facts.name
    }

    /// Whether another attachment is claimed for the place.
    fn is_wanted_by_another(&self) -> bool {
        let store = &self.work.context.store;
        store.is_claimed(&self.work.facts, self.snapshot(), self.publish.place())
    }

    fn is_claimed(&self, known: &Attachment) -> bool {
        *known.uid == *self.snapshot().attachment.uid && decide::may_be_in_use(known, &self.work.facts)
    }

    /// What an object of the attachment's name says, which was read from the API server. Another one under the name may have been
    /// attached by an attacher that led meanwhile, and the watch may be behind with it.
    fn judge(&self, record: &Attachment) -> LiveRead {
        let (facts, former) = (&self.work.facts, &self.snapshot().attachment);
        let is_another = *record.uid != *former.uid && record.attacher == facts.name;
        let keeps_place = is_another
            && decide::holds_its_place(record, &facts.finalizer)
            && decide::is_claimed_for(record, None, None, self.publish.place(), former);
        if keeps_place {
            LiveRead::Replaced
        } else if self.is_claimed(record) {
            LiveRead::Claimed
        } else {
            LiveRead::Gone
        }
    }

    /// Whether the cache shows that the attachment is there.
    fn is_believed(&self) -> bool {
        let known = self.work.context.store.attachment(&self.snapshot().attachment.name);
        known.is_some_and(|known| self.is_claimed(&known.attachment))
    }

    /// Whether a write that records the attachment as attached may have been taken in, as its answer did not come.
    fn may_be_recorded(&self) -> bool {
        let unfinished = &self.work.context.unfinished;
        unfinished.may_be_recorded(&self.snapshot().attachment)
    }

    async fn confirm_and_take_back(&self) -> UndoResult {
        let name = &*self.snapshot().attachment.name;
        let driver = self.driver();
        let place = self.publish.place();
        match self.confirm().await {
            LiveRead::Gone if self.may_be_recorded() => self.leave(
                Vanished::MaybeInUse,
                "the VolumeAttachment is gone and may have been recorded as attached: the volume, which a pod may use, is \
                 left alone; if no pod of that node uses it, detach the volume by hand",
            ),
            LiveRead::Gone => return self.take_back(place).await,
            LiveRead::Replaced => traced!(
                info,
                self.span,
                driver,
                VolumeAttachment = name,
                "the VolumeAttachment was created again, and its volume is attached for it"
            ),
            // Or nothing says that it is gone.
            LiveRead::Claimed | LiveRead::Unknown if self.is_believed() => {}
            LiveRead::Claimed => {
                traced!(
                    info,
                    self.span,
                    driver,
                    VolumeAttachment = name,
                    "the VolumeAttachment is there, though it was believed to be gone"
                );
                let store = &self.work.context.store;
                store.lists().doubt("a VolumeAttachment that was believed to be gone is there");
            }
            LiveRead::Unknown => self.leave(
                Vanished::Unconfirmed,
                "the VolumeAttachment seems to be gone and the API server does not confirm it: the volume, which is \
                 attached, is left alone; if there is no such VolumeAttachment, detach the volume by hand",
            ),
        }
        UndoResult::Finished
    }

    fn report(&self, what: Vanished) {
        events::deleted_event(self.work, self.snapshot(), self.span.traceparent(), what);
    }

    /// Says in the log and in an event that the volume stays where it is.
    fn leave(&self, what: Vanished, why: &str) {
        let place = self.publish.place();
        traced!(
            error,
            self.span,
            driver = self.driver(),
            VolumeAttachment = &*self.snapshot().attachment.name,
            volumeHandle = place.volume_id,
            nodeID = place.node_id,
            "{why}"
        );
        self.report(what);
    }

    /// Unpublishes the volume of an object that is gone, as long as nobody wants it at that place.
    async fn take_back(&self, place: VolumeOnNode<'_>) -> UndoResult {
        let (name, driver) = (&*self.snapshot().attachment.name, self.driver());
        let mut pause = FIRST_PAUSE;
        for _ in 0..TRIES {
            let among_calls = self.place_among_calls().await;
            if self.is_wanted_by_another() {
                return UndoResult::Finished;
            }
            let answer = self.unpublish(place).await;
            drop(among_calls);
            let Err(error) = answer else {
                traced!(
                    warn,
                    self.span,
                    driver,
                    VolumeAttachment = name,
                    volumeHandle = place.volume_id,
                    "the VolumeAttachment was deleted while its volume was being attached; detached the volume again"
                );
                self.report(Vanished::Detached);
                return UndoResult::Finished;
            };
            let CallFailure::Driver(error) = error else {
                // Whoever holds the Lease next finds no object that speaks of this volume.
                self.report(Vanished::LeaseLost);
                return UndoResult::Unfinished;
            };
            traced!(
                warn,
                self.span,
                driver, VolumeAttachment = name, volumeHandle = place.volume_id, %error,
                next_try_seconds = pause.as_secs(), "cannot detach the volume of a deleted VolumeAttachment"
            );
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.leave(
            Vanished::Stays,
            "giving up: the volume may still be attached although its VolumeAttachment was deleted; detach it by hand",
        );
        UndoResult::Finished
    }

    /// Waits until the limits of calls at once allow one more; a run of the queue has its place.
    async fn place_among_calls(&self) -> Option<Place<AttacherKey>> {
        match self.run {
            UndoRun::OfQueue => None,
            UndoRun::Beside => Some(self.work.queue.place(DETACH).await),
        }
    }

    /// One call. Not with the attempt's own client: its connection may be the one whose loss started this.
    async fn unpublish(&self, place: VolumeOnNode<'_>) -> Result<(), CallFailure> {
        let client = self.work.client_for(self.snapshot());
        let deadline = self.work.config.borrow().timeouts.unpublish;
        self.calls.fetch_add(1, Ordering::Relaxed);
        traced!(
            debug,
            self.span,
            driver = self.driver(),
            VolumeAttachment = &*self.snapshot().attachment.name,
            volumeHandle = place.volume_id,
            nodeID = place.node_id,
            timeout_seconds = deadline.as_secs_f64(),
            "calling ControllerUnpublishVolume"
        );
        let call = ControllerUnpublishVolume {
            place,
            secrets: self.publish.secrets.as_ref(),
        };
        client.call(&call, deadline, self.span).await
    }

    /// Reads the attachment until there is an answer that counts, but not for ever; and not for long while the cache believes
    /// that it is there.
    async fn confirm(&self) -> LiveRead {
        let attachment = &self.snapshot().attachment;
        let (name, uid, node) = (&attachment.name, &attachment.uid, &attachment.node);
        let context = &self.work.context;
        let target = WriteTarget::Attachment(name.clone());
        let mut pause = FIRST_PAUSE;
        for tried in 0..TRIES {
            match context.requests.read(&target, Some(node), self.span).await {
                Ok(Returned::Attachment(record)) if record.name == *name => return self.judge(&record),
                Err(error) if error.kind == ApiErrorKind::NotFound => {
                    context.store.mark_deleted(&target, uid);
                    return LiveRead::Gone;
                }
                // The answer to another request.
                Ok(_) => {}
                Err(error) => traced!(
                    warn,
                    self.span,
                    driver = self.driver(), VolumeAttachment = &**name, %error,
                    next_try_seconds = pause.as_secs(), "cannot find out whether the VolumeAttachment was deleted"
                ),
            }
            if tried + 1 >= TRIES_WHILE_BELIEVED && self.is_believed() {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        LiveRead::Unknown
    }
}
