//! One call at a time for each volume and node.
//!
//! The queue runs a VolumeAttachment once at a time, but two of them may mean the same volume and node: two
//! PersistentVolumes can carry one handle. The CSI spec lets a driver answer ABORTED to overlapping calls, and leaves
//! open what it makes of them.
//!
//! A Publish also lasts until its volume has been taken back, where its VolumeAttachment vanished meanwhile. No object
//! tells of that, so that a Publish of the same volume at another node asks here.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::decide::Place;

/// Volume handle and node ID.
type Key = (Box<str>, Box<str>);

/// The calls of one driver that are in flight.
#[derive(Clone, Default)]
pub(super) struct Flights(Arc<Mutex<BTreeMap<Key, Call>>>);

/// A call in flight.
struct Call {
    ended: watch::Sender<()>,
    /// The VolumeAttachment, when it is a Publish.
    publish_of: Option<Arc<str>>,
}

/// The right to call; given up on drop.
pub(super) struct Flight {
    flights: Flights,
    key: Key,
}

/// Somebody else's call.
pub(super) struct Occupied {
    ended: watch::Receiver<()>,
    /// The VolumeAttachment whose volume is being published at another node, when that is in the way.
    pub elsewhere: Option<Arc<str>>,
}

impl Flights {
    /// Takes the place for ControllerUnpublishVolume, unless another call is in flight there.
    pub fn begin(&self, place: Place<'_>) -> Result<Flight, Occupied> {
        self.take(place, None, false)
    }

    /// Takes the place for ControllerPublishVolume for a VolumeAttachment, unless another call is in flight there, or, when
    /// the volume is to be `alone` at its node, another Publish of it at any node.
    pub fn begin_publish(&self, place: Place<'_>, name: &Arc<str>, alone: bool) -> Result<Flight, Occupied> {
        self.take(place, Some(name.clone()), alone)
    }

    fn take(&self, place: Place<'_>, publish_of: Option<Arc<str>>, alone: bool) -> Result<Flight, Occupied> {
        let key: Key = (place.volume_id.into(), place.node_id.into());
        let mut running = self.0.lock();
        if let Some(other) = running.get(&key) {
            return Err(other.occupies(None));
        }
        if alone {
            let first: Key = (place.volume_id.into(), Box::default());
            let of_volume = running.range(first..).take_while(|(other, _)| other.0 == key.0);
            let mut published = of_volume.filter_map(|(_, call)| Some((call, call.publish_of.clone()?)));
            if let Some((other, name)) = published.next() {
                return Err(other.occupies(Some(name)));
            }
        }
        let ended = watch::Sender::new(());
        running.insert(key.clone(), Call { ended, publish_of });
        drop(running);
        Ok(Flight {
            flights: self.clone(),
            key,
        })
    }
}

impl Call {
    fn occupies(&self, elsewhere: Option<Arc<str>>) -> Occupied {
        Occupied {
            ended: self.ended.subscribe(),
            elsewhere,
        }
    }
}

impl Occupied {
    /// Waits for the end of that call.
    pub async fn ended(mut self) {
        // Nothing is ever sent; the sender goes with the flight.
        while self.ended.changed().await.is_ok() {}
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place<'_> = Place {
        volume_id: "volume",
        node_id: "node",
    };

    #[tokio::test]
    async fn a_second_call_waits_for_the_first() {
        let flights = Flights::default();
        let first = flights.begin(HERE).ok().unwrap();
        let second = flights.begin(HERE).err().unwrap();
        let third = flights.begin(HERE).err().unwrap();
        let waiting = tokio::spawn(async move { tokio::join!(second.ended(), third.ended()) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert!(flights.begin(HERE).is_ok());
        assert!(flights.0.lock().is_empty(), "nothing stays behind");
    }

    #[tokio::test]
    async fn a_volume_for_one_node_waits_for_its_publish_at_another() {
        let flights = Flights::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let elsewhere = Place {
            node_id: "elsewhere",
            ..HERE
        };
        let at = |volume_id, node_id| Place { volume_id, node_id };
        // Other volumes, and a detach, whose VolumeAttachment tells of it.
        let _others =
            ["volum", "volume-2"].map(|volume| flights.begin_publish(at(volume, "z"), &one, true).ok().unwrap());
        let _detach = flights.begin(at("volume", "detached")).ok().unwrap();
        let first = flights.begin_publish(HERE, &one, true).ok().unwrap();
        let second = flights.begin_publish(elsewhere, &other, true).err().unwrap();
        assert_eq!(second.elsewhere.as_deref(), Some("one"));
        let shared = flights.begin_publish(elsewhere, &other, false).ok().unwrap();
        let third = flights.begin_publish(HERE, &one, true).err().unwrap();
        assert_eq!(
            third.elsewhere, None,
            "it waits for its own place, however long that takes"
        );
        drop((first, shared));
        second.ended().await;
        third.ended().await;
        assert!(flights.begin_publish(elsewhere, &other, true).is_ok());
    }

    #[test]
    fn other_places_are_free() {
        let flights = Flights::default();
        let _here = flights.begin(HERE).ok().unwrap();
        assert!(
            flights
                .begin(Place {
                    node_id: "other",
                    ..HERE
                })
                .is_ok()
        );
        assert!(
            flights
                .begin(Place {
                    volume_id: "other",
                    ..HERE
                })
                .is_ok()
        );
    }
}
