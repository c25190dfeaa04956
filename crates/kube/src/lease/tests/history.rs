//! Random histories of changes of where the Lease lives. The clock is paused: it moves on when all wait.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::change::{Place, Replica, X, Y, Z, spec};
use super::seconds;
use csi_attacher_testbed::lease_server::ApiServer;

/// A process in a random history: the place that it goes by, and when its last call ends after it saw another.
struct Actor {
    replica: Replica,
    place: Place,
    ends: Option<Instant>,
}

impl Actor {
    fn new(server: &ApiServer, name: &str, place: Place) -> Self {
        Self {
            replica: Replica::new(server, name),
            place,
            ends: None,
        }
    }

    /// Sees another place sooner or later, ends, and starts with the place as it is by then.
    async fn step(&mut self, wanted: Place) {
        if self.place != wanted && self.ends.is_none() && fastrand::u8(0..3) == 0 {
            self.ends = Some(Instant::now() + seconds(fastrand::u64(0..30)));
        }
        let ended = self
            .ends
            .is_some_and(|end| !self.replica.works() || end <= Instant::now());
        if ended && self.replica.candidate.is_some() {
            self.replica.end().await;
        }
        if self.replica.candidate.is_none() {
            (self.place, self.ends) = (wanted, None);
            self.replica.start(wanted);
        }
    }
}

/// Replicas that see changes late, end slowly, are killed and come back, while the place changes again and again: whoever
/// works under a Lease works alone.
#[tokio::test(start_paused = true)]
async fn nobody_works_beside_another_whatever_changes() {
    const PLACES: [Place; 4] = [X, Y, Z, None];
    let (mut worked, mut changes) = (0, 0);
    for seed in 0..100 {
        fastrand::seed(seed);
        // With the AttacherConfig the record is gone: a process that starts after that cannot know what was before.
        let deletes = seed % 2 == 0;
        let server = ApiServer::default();
        server.configure(&spec(X));
        let (mut wanted, mut history) = (X, Vec::new());
        let mut actors: Vec<_> = (0..3)
            .map(|number| Actor::new(&server, &format!("r{number}"), X))
            .collect();
        for step in 0..120 {
            match fastrand::u8(0..12) {
                0 => {
                    wanted = PLACES[fastrand::usize(0..PLACES.len())];
                    server.configure(&spec(wanted));
                    changes += 1;
                }
                1 if !deletes && fastrand::bool() => {
                    let number = fastrand::usize(0..actors.len());
                    actors[number] = Actor::new(&server, &format!("r{number}-{step}"), wanted);
                }
                // Of who works without a Lease nothing is left then.
                2 if deletes && actors.iter().all(|actor| actor.place.is_some()) => {
                    server.0.lock().config = None;
                    sleep(seconds(1)).await;
                    server.configure(&spec(wanted));
                }
                _ => {}
            }
            for actor in &mut actors {
                actor.step(wanted).await;
            }
            sleep(Duration::from_millis(fastrand::u64(1..3000))).await;
            let at_work = actors.iter().filter(|actor| actor.replica.works());
            let at_work: Vec<_> = at_work.map(|actor| actor.place).collect();
            history.push(format!("{step}: {wanted:?} {} {at_work:?}", server.recorded()));
            worked += at_work.len().min(1);
            let without = at_work.iter().all(Option::is_none);
            assert!(at_work.len() <= 1 || without, "seed {seed}: {history:#?}");
        }
    }
    assert!(changes > 600 && worked > 4000, "{changes} {worked}");
}
