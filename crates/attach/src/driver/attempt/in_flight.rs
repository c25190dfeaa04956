//! One call at a time for each volume and node (invariant 5 of ARCHITECTURE): two VolumeAttachments may mean the same, as two
//! PersistentVolumes can carry one handle. The CSI spec lets a driver answer ABORTED to overlapping calls, and leaves open what it makes of
//! them.
//!
//! A Publish also lasts until its volume has been taken back, where its VolumeAttachment vanished meanwhile. No object shows that, so a
//! Publish of the same volume at another node asks here.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::decide::{CallAt, VolumeOnNode, is_in_the_way};

/// Volume handle and node ID.
type CallKey = (Box<str>, Box<str>);

/// The calls of one driver that are in flight.
#[derive(Clone, Default)]
pub(in crate::driver) struct InFlightCalls(Arc<Mutex<BTreeMap<CallKey, Call>>>);

struct Call {
    ended: watch::Sender<()>,
    /// The VolumeAttachment, when it is a Publish.
    publish_of: Option<Arc<str>>,
}

/// The permission to call the driver; given up on drop.
pub(in crate::driver) struct InFlightGuard {
    calls: InFlightCalls,
    key: CallKey,
}

pub(in crate::driver) struct CallInFlight {
    ended: watch::Receiver<()>,
    /// The VolumeAttachment whose volume is being published at another node, when that is in the way.
    pub elsewhere: Option<Arc<str>>,
}

impl InFlightCalls {
    /// Takes the place for ControllerUnpublishVolume, unless another call is in flight there.
    pub fn acquire(&self, place: VolumeOnNode<'_>) -> Result<InFlightGuard, CallInFlight> {
        self.take(place, None, false)
    }

    /// Takes the place for ControllerPublishVolume for a VolumeAttachment, unless another call is in flight there, or, when
    /// the volume is to be `alone` at its node, another Publish of it at any node.
    pub fn begin_publish(
        &self,
        place: VolumeOnNode<'_>,
        name: &Arc<str>,
        alone: bool,
    ) -> Result<InFlightGuard, CallInFlight> {
        self.take(place, Some(name.clone()), alone)
    }

    fn take(
        &self,
        place: VolumeOnNode<'_>,
        publish_of: Option<Arc<str>>,
        alone: bool,
    ) -> Result<InFlightGuard, CallInFlight> {
        let key: CallKey = (place.volume_id.into(), place.node_id.into());
        let mut running = self.0.lock();
        // That at the place itself first: it is waited for however long it takes.
        if let Some(other) = running.get(&key) {
            return Err(other.occupies(None));
        }
        let first: CallKey = (place.volume_id.into(), Box::default());
        let of_volume = running.range(first..).take_while(|(other, _)| other.0 == key.0);
        let mut in_the_way = of_volume.filter(|((volume_id, node_id), call)| {
            let publishes = call.publish_of.is_some();
            let other = VolumeOnNode::new(volume_id, node_id);
            other.is_some_and(|at| is_in_the_way(CallAt { place: at, publishes }, place, alone))
        });
        if let Some((_, other)) = in_the_way.next() {
            return Err(other.occupies(other.publish_of.clone()));
        }
        let ended = watch::Sender::new(());
        running.insert(key.clone(), Call { ended, publish_of });
        drop(running);
        Ok(InFlightGuard {
            calls: self.clone(),
            key,
        })
    }
}

impl Call {
    fn occupies(&self, elsewhere: Option<Arc<str>>) -> CallInFlight {
        CallInFlight {
            ended: self.ended.subscribe(),
            elsewhere,
        }
    }
}

impl CallInFlight {
    pub async fn wait_finished(mut self) {
        // Nothing is ever sent; the sender is dropped with the call.
        while self.ended.changed().await.is_ok() {}
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.calls.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(volume_id: &'static str, node_id: &'static str) -> VolumeOnNode<'static> {
        VolumeOnNode::new(volume_id, node_id).unwrap()
    }

    fn here() -> VolumeOnNode<'static> {
        at("volume", "node")
    }

    #[tokio::test]
    async fn a_second_call_waits_for_the_first() {
        let calls = InFlightCalls::default();
        let first = calls.acquire(here()).ok().unwrap();
        let second = calls.acquire(here()).err().unwrap();
        let third = calls.acquire(here()).err().unwrap();
        let waiting = tokio::spawn(async move { tokio::join!(second.wait_finished(), third.wait_finished()) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert!(calls.acquire(here()).is_ok());
        assert!(calls.0.lock().is_empty(), "nothing stays behind");
    }

    #[tokio::test]
    async fn a_volume_for_one_node_waits_for_its_publish_at_another() {
        let calls = InFlightCalls::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let elsewhere = at("volume", "elsewhere");
        // Other volumes, and a detach, whose VolumeAttachment shows it.
        let _others =
            ["volum", "volume-2"].map(|volume| calls.begin_publish(at(volume, "z"), &one, true).ok().unwrap());
        let _detach = calls.acquire(at("volume", "detached")).ok().unwrap();
        let first = calls.begin_publish(here(), &one, true).ok().unwrap();
        let second = calls.begin_publish(elsewhere, &other, true).err().unwrap();
        assert_eq!(second.elsewhere.as_deref(), Some("one"));
        let shared = calls.begin_publish(elsewhere, &other, false).ok().unwrap();
        let third = calls.begin_publish(here(), &one, true).err().unwrap();
        assert_eq!(
            third.elsewhere, None,
            "it waits for its own place, however long that takes"
        );
        drop((first, shared));
        second.wait_finished().await;
        third.wait_finished().await;
        assert!(calls.begin_publish(elsewhere, &other, true).is_ok());
    }

    #[test]
    fn other_places_are_free() {
        let calls = InFlightCalls::default();
        let _here = calls.acquire(here()).ok().unwrap();
        assert!(calls.acquire(at("volume", "other")).is_ok());
        assert!(calls.acquire(at("other", "node")).is_ok());
    }
}
