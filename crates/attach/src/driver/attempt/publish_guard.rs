//! Watches over a Publish until its outcome is recorded.

use super::super::context::DriverContext;
use super::in_flight::InFlightGuard;
use super::unfinished::UnfinishedPublish;
use crate::apiserver::SecretData;
use crate::cache::Snapshot;
use crate::decide::VolumeOnNode;

/// Watches over one Publish: dropped before [`PublishGuard::finished`], the Publish is kept for the next engine of the driver.
pub(in crate::driver) struct PublishGuard<'w> {
    work: &'w DriverContext,
    publish: UnfinishedPublish,
    is_finished: bool,
    /// Whether the cache did not show the VolumeAttachment.
    is_missed: bool,
    /// Held as long as the Publish is watched over.
    _in_flight: InFlightGuard,
}

impl<'w> PublishGuard<'w> {
    /// Watches over the Publish of a volume at a place, where the call is registered as in flight.
    pub fn new(
        work: &'w DriverContext,
        in_flight: InFlightGuard,
        snapshot: &Snapshot,
        place: VolumeOnNode<'_>,
        secrets: Option<SecretData>,
    ) -> Self {
        let publish = UnfinishedPublish {
            snapshot: snapshot.clone(),
            published_at: place.into(),
            secrets,
        };
        Self::of(work, in_flight, publish)
    }

    /// Watches over one that was kept.
    pub fn of(work: &'w DriverContext, in_flight: InFlightGuard, publish: UnfinishedPublish) -> Self {
        Self {
            work,
            publish,
            is_finished: false,
            is_missed: false,
            _in_flight: in_flight,
        }
    }

    pub fn work(&self) -> &'w DriverContext {
        self.work
    }

    pub fn publish(&self) -> &UnfinishedPublish {
        &self.publish
    }

    /// Notes that the cache does not show the VolumeAttachment: from here on an Event is written when the Publish is kept.
    pub fn missed(&mut self) {
        self.is_missed = true;
    }

    /// The outcome is recorded, or the volume was taken back, or an Event says that it was not.
    pub fn finished(mut self) {
        self.is_finished = true;
    }
}

impl Drop for PublishGuard<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let driver = &self.work.facts.name;
        let is_kept = self.work.context.unfinished.keep(driver, self.publish.clone());
        if self.is_missed || !is_kept {
            let next = if is_kept {
                "this process looks again when it serves the driver next"
            } else {
                "this process keeps no more of these"
            };
            tracing::error!(
                driver = &**driver,
                VolumeAttachment = &*self.publish.snapshot.attachment.name,
                volumeHandle = self.publish.place().volume_id,
                nodeID = self.publish.place().node_id,
                "the volume may be attached although its VolumeAttachment is gone; {next}; if another replica serves the driver, \
                 detach the volume by hand"
            );
        }
    }
}
