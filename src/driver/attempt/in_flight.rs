//! One call at a time for each volume and node.
//!
//! The queue runs a VolumeAttachment once at a time, but two of them may mean the same volume and node: two
//! PersistentVolumes can carry one handle. The CSI spec lets a driver answer ABORTED to overlapping calls, and leaves
//! open what it makes of them.
//!
//! A Publish also lasts until its volume has been taken back, where its VolumeAttachment vanished meanwhile. No object
//! tells of that, so that a Publish of the same volume at another node asks here.
//!
//! An answer of the driver that could not be recorded is kept for the place too. Whoever takes the place next gets it, so that it is void
//! as soon as another call may be made there; the same attachment records it without a second call.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::decide::{CallAt, VolumeOnNode, is_in_the_way};
use crate::objects::StringMap;

/// Volume handle and node ID.
type CallKey = (Box<str>, Box<str>);

/// The calls of one driver that are in flight.
#[derive(Clone, Default)]
pub(in crate::driver) struct InFlightCalls(Arc<Mutex<Places>>);

/// More answers than these are not kept.
const MAX_ANSWERS: usize = 10_000;

/// What is known of places.
#[derive(Default)]
struct Places {
    running: BTreeMap<CallKey, Call>,
    /// What the driver answered last there, where it could not be recorded.
    answers: BTreeMap<CallKey, UnrecordedAnswer>,
    /// How often they were forgotten. What was answered before is not kept after that.
    generation: u64,
}

/// OK of the driver, for one attachment as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::driver) struct UnrecordedAnswer {
    /// UID of the VolumeAttachment.
    pub uid: Box<str>,
    /// Fingerprint of what was decided by.
    pub fingerprint: u64,
    /// What was answered.
    pub answer: CallAnswer,
}

/// What the driver answered to a call that moves a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::driver) enum CallAnswer {
    /// The publish context.
    Published(StringMap),
    /// The volume is not at the node any more.
    Unpublished,
}

/// A call in flight.
struct Call {
    ended: watch::Sender<()>,
    /// The VolumeAttachment, when it is a Publish.
    publish_of: Option<Arc<str>>,
}

/// The right to call; given up on drop.
pub(in crate::driver) struct InFlightGuard {
    flights: InFlightCalls,
    key: CallKey,
    generation: u64,
    /// What was kept for the place.
    former: Option<UnrecordedAnswer>,
    /// What is kept when the call ends.
    answer: Option<UnrecordedAnswer>,
}

/// Somebody else's call.
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
        let mut places = self.0.lock();
        let Places { running, answers, .. } = &mut *places;
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
        let former = answers.remove(&key);
        let generation = places.generation;
        drop(places);
        Ok(InFlightGuard {
            flights: self.clone(),
            key,
            generation,
            former,
            answer: None,
        })
    }

    /// Forgets what was kept for a place.
    pub fn forget_answer(&self, place: VolumeOnNode<'_>) {
        let key: CallKey = (place.volume_id.into(), place.node_id.into());
        self.0.lock().answers.remove(&key);
    }

    /// Forgets all that was kept: another process may answer from now on.
    pub fn forget_answers(&self) {
        let mut places = self.0.lock();
        places.answers.clear();
        places.generation += 1;
    }
}

impl InFlightGuard {
    /// What the driver answered before at the place, if it was for this attachment as it is. It is void otherwise.
    pub fn take_answer(&mut self, uid: &str, fingerprint: u64) -> Option<CallAnswer> {
        let kept = self.former.take()?;
        (*kept.uid == *uid && kept.fingerprint == fingerprint).then_some(kept.answer)
    }

    /// Has an answer kept when the call ends, or nothing.
    pub fn keep_answer(&mut self, answer: Option<UnrecordedAnswer>) {
        self.answer = answer;
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
    /// Waits for the end of that call.
    pub async fn wait_finished(mut self) {
        // Nothing is ever sent; the sender goes with the flight.
        while self.ended.changed().await.is_ok() {}
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut places = self.flights.0.lock();
        places.running.remove(&self.key);
        if let Some(answer) = self.answer.take()
            && places.answers.len() < MAX_ANSWERS
            && places.generation == self.generation
        {
            places.answers.insert(self.key.clone(), answer);
        }
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
        let flights = InFlightCalls::default();
        let first = flights.acquire(here()).ok().unwrap();
        let second = flights.acquire(here()).err().unwrap();
        let third = flights.acquire(here()).err().unwrap();
        let waiting = tokio::spawn(async move { tokio::join!(second.wait_finished(), third.wait_finished()) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert!(flights.acquire(here()).is_ok());
        assert!(flights.0.lock().running.is_empty(), "nothing stays behind");
    }

    #[tokio::test]
    async fn a_volume_for_one_node_waits_for_its_publish_at_another() {
        let flights = InFlightCalls::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let elsewhere = at("volume", "elsewhere");
        // Other volumes, and a detach, whose VolumeAttachment tells of it.
        let _others =
            ["volum", "volume-2"].map(|volume| flights.begin_publish(at(volume, "z"), &one, true).ok().unwrap());
        let _detach = flights.acquire(at("volume", "detached")).ok().unwrap();
        let first = flights.begin_publish(here(), &one, true).ok().unwrap();
        let second = flights.begin_publish(elsewhere, &other, true).err().unwrap();
        assert_eq!(second.elsewhere.as_deref(), Some("one"));
        let shared = flights.begin_publish(elsewhere, &other, false).ok().unwrap();
        let third = flights.begin_publish(here(), &one, true).err().unwrap();
        assert_eq!(
            third.elsewhere, None,
            "it waits for its own place, however long that takes"
        );
        drop((first, shared));
        second.wait_finished().await;
        third.wait_finished().await;
        assert!(flights.begin_publish(elsewhere, &other, true).is_ok());
    }

    #[test]
    fn an_answer_is_kept_for_the_same_attachment_and_for_who_takes_the_place_next_only() {
        let flights = InFlightCalls::default();
        let kept = UnrecordedAnswer {
            uid: "a".into(),
            fingerprint: 1,
            answer: CallAnswer::Unpublished,
        };
        let keep = || {
            let mut flight = flights.acquire(here()).ok().unwrap();
            flight.keep_answer(Some(kept.clone()));
        };
        let taken = |uid, fingerprint| flights.acquire(here()).ok().unwrap().take_answer(uid, fingerprint);
        keep();
        assert_eq!(taken("a", 1), Some(CallAnswer::Unpublished));
        assert_eq!(taken("a", 1), None, "it is kept again or not at all");
        for (uid, fingerprint) in [("b", 1), ("a", 2)] {
            keep();
            assert_eq!(taken(uid, fingerprint), None);
            assert_eq!(taken("a", 1), None);
        }
        keep();
        drop(flights.acquire(here()).ok().unwrap());
        assert_eq!(taken("a", 1), None, "another call may have been made");
        keep();
        flights.forget_answer(here());
        keep();
        flights.forget_answers();
        assert_eq!(taken("a", 1), None);
        let mut flight = flights.acquire(here()).ok().unwrap();
        flights.forget_answers();
        flight.keep_answer(Some(kept.clone()));
        drop(flight);
        assert_eq!(taken("a", 1), None, "it was answered before");
    }

    #[test]
    fn other_places_are_free() {
        let flights = InFlightCalls::default();
        let _here = flights.acquire(here()).ok().unwrap();
        assert!(flights.acquire(at("volume", "other")).is_ok());
        assert!(flights.acquire(at("other", "node")).is_ok());
    }
}
