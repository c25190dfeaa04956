//! One call at a time for each volume and node.
//!
//! The queue runs a VolumeAttachment once at a time, but two of them may mean the same volume and node: two
//! PersistentVolumes can carry one handle. The CSI spec lets a driver answer ABORTED to overlapping calls, and leaves
//! open what it makes of them.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::decide::Place;

type Key = (Box<str>, Box<str>);

/// The calls of one driver that are in flight.
#[derive(Clone, Default)]
pub(super) struct Flights(Arc<Mutex<HashMap<Key, watch::Sender<()>>>>);

/// The right to call; given up on drop.
pub(super) struct Flight {
    flights: Flights,
    key: Key,
}

/// Somebody else's call.
pub(super) struct Occupied(watch::Receiver<()>);

impl Flights {
    /// Takes the place for a call, unless another one is in flight there.
    pub fn begin(&self, place: Place<'_>) -> Result<Flight, Occupied> {
        let key = (Box::from(place.volume_id), Box::from(place.node_id));
        let mut running = self.0.lock();
        if let Some(other) = running.get(&key) {
            return Err(Occupied(other.subscribe()));
        }
        running.insert(key.clone(), watch::Sender::new(()));
        drop(running);
        Ok(Flight {
            flights: self.clone(),
            key,
        })
    }
}

impl Occupied {
    /// Waits for the end of that call.
    pub async fn ended(mut self) {
        // Nothing is ever sent; the sender goes with the flight.
        while self.0.changed().await.is_ok() {}
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
