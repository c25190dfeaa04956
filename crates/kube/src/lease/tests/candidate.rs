//! Candidates against one Lease. The clock is paused: it moves on when all wait.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use tokio::time::{Instant, timeout};

use super::{seconds, usual};
use crate::lease::{
    HolderNote, LeaderElectionConfig, LeaderElectionHandle, LeaderElections, LeaderState, LeaseHealth, LeaseHolder,
};
use crate::telemetry::Metrics;
use csi_attacher_testbed::ShiftedClock;
use csi_attacher_testbed::lease_server::{ApiServer, NAMESPACE};

pub(super) const LEASE: &str = "external-attacher-leader-d";

pub(super) struct World {
    pub server: ApiServer,
    pub metrics: Metrics,
    pub health: LeaseHealth,
    pub clock: ShiftedClock,
}

impl World {
    /// With a Lease that nobody holds.
    pub fn new() -> Self {
        let server = ApiServer::default();
        server.release_in(NAMESPACE);
        Self::with(server)
    }

    /// The same, with a candidate that leads.
    pub async fn led() -> (Self, LeaderElectionHandle) {
        let world = Self::new();
        let candidate = world.candidate("a");
        leads(&candidate).await;
        (world, candidate)
    }

    pub fn with(server: ApiServer) -> Self {
        Self {
            server,
            metrics: Metrics::default(),
            health: LeaseHealth::default(),
            clock: ShiftedClock::default(),
        }
    }

    pub fn candidate(&self, identity: &str) -> LeaderElectionHandle {
        LeaderElectionHandle::start(self.election(identity), LEASE.to_owned(), self.metrics.clone())
    }

    fn observer(&self, identity: &str) -> LeaderElectionHandle {
        LeaderElectionHandle::observe(self.election(identity), LEASE.to_owned(), self.metrics.clone())
    }

    pub fn election(&self, identity: &str) -> LeaderElectionConfig {
        self.elections(identity).config_for(NAMESPACE, usual())
    }

    /// Those of one process.
    pub fn elections(&self, identity: &str) -> LeaderElections {
        let elections = LeaderElections {
            labels: BTreeMap::from([("app".to_owned(), "attacher".to_owned())]),
            note: if identity == "sidecar" {
                HolderNote::None
            } else {
                HolderNote::Reports
            },
            health: self.health.clone(),
            clock: self.clock.source().into(),
            ..LeaderElections::new(self.server.client(), identity.to_owned())
        };
        if elections.note == HolderNote::Reports {
            elections
        } else {
            elections.in_place_of_a_sidecar()
        }
    }

    fn master_status(&self) -> Option<String> {
        let text = self.metrics.encode_prometheus();
        let name = format!("leader_election_master_status{{name=\"{LEASE}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name).map(str::to_owned))
    }
}

pub(super) async fn leads(candidate: &LeaderElectionHandle) {
    let wait = async {
        while !candidate.is_leader() {
            candidate.differs_from(&candidate.state()).await;
        }
    };
    timeout(seconds(120), wait).await.expect("it leads");
}

/// One that reports, or not, and is no namesake.
pub(super) fn held_by(identity: &str, namespace: &str, reports: bool) -> LeaseHolder {
    LeaseHolder {
        identity: identity.to_owned(),
        namespace: namespace.to_owned(),
        reports,
        namesake: false,
    }
}

/// Resolves when the Lease is not held, or not surely.
pub(super) async fn not_leading(candidate: &LeaderElectionHandle) {
    if let Some(term) = candidate.term() {
        candidate.loses(&term).await;
    }
}

/// Lets everything happen that needs no time, and so much time.
pub(super) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_takes_the_lease_and_renews_it_without_reading() {
    let (world, candidate) = World::led().await;
    assert_eq!(world.master_status().as_deref(), Some("1"));
    let lease = world.server.lease().unwrap();
    assert_eq!(lease.metadata.labels.unwrap()["app"], "attacher");
    let spec = lease.spec.unwrap();
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(15), Some(1))
    );
    let (reads, writes) = (world.server.reads(), world.server.writes());
    pass(seconds(52)).await;
    assert!(candidate.is_leader());
    assert_eq!((world.server.reads() - reads, world.server.writes() - writes), (0, 10));
    let renewed = world.server.lease().unwrap().spec.unwrap();
    assert_eq!(
        (&renewed.acquire_time, renewed.lease_transitions),
        (&spec.acquire_time, Some(1))
    );
    assert!(renewed.renew_time > spec.renew_time);
    assert_eq!(world.health.check(Instant::now()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn one_that_resigns_is_succeeded_by_the_next_look_of_another() {
    let (world, first) = World::led().await;
    let second = world.candidate("b");
    pass(seconds(60)).await;
    let holder = Some(held_by("a", NAMESPACE, true));
    assert_eq!(second.state(), LeaderState::Waiting { holder });
    first.release_and_stop().await;
    let spec = world.server.lease().unwrap().spec.unwrap();
    assert_eq!(
        (
            spec.holder_identity,
            spec.lease_duration_seconds,
            spec.lease_transitions
        ),
        (None, Some(1), Some(1))
    );
    let resigned = Instant::now();
    leads(&second).await;
    // Without a watch it looks once in a retry period.
    assert!(resigned.elapsed() <= seconds(6), "{:?}", resigned.elapsed());
    assert_eq!(world.server.lease().unwrap().spec.unwrap().lease_transitions, Some(2));
}

#[tokio::test(start_paused = true)]
async fn one_that_vanishes_is_succeeded_when_its_time_is_over_and_not_before() {
    let (world, first) = World::led().await;
    let second = world.candidate("b");
    pass(seconds(33)).await;
    drop(first);
    let vanished = Instant::now();
    leads(&second).await;
    // The last renewal was seen up to a retry period and its spread late, and renewed up to a retry period before.
    let took = vanished.elapsed();
    assert!(took > seconds(10) && took <= seconds(22), "{took:?}");
    assert_eq!(world.server.holder().as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_again_under_its_name_leads_at_once() {
    let (world, first) = World::led().await;
    drop(first);
    let again = Instant::now();
    leads(&world.candidate("a")).await;
    assert!(again.elapsed() < seconds(1), "{:?}", again.elapsed());
    assert_eq!(world.server.lease().unwrap().spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_before_another_may_take_it() {
    let (world, candidate) = World::led().await;
    let led = Instant::now();
    let term = candidate.term().unwrap();
    // The last renewal is that after 5 s.
    pass(seconds(7)).await;
    world.server.set_down(true);
    not_leading(&candidate).await;
    assert_eq!(led.elapsed().as_secs(), 15);
    let LeaderState::Lost { until } = candidate.state() else {
        panic!("{:?}", candidate.state());
    };
    assert_eq!(until.duration_since(led).as_secs(), 20);
    assert_eq!(world.master_status().as_deref(), Some("0"));
    assert!(!term.may_start() && term.may_run());
    term.over().await;
    assert_eq!(led.elapsed().as_secs(), 20);
    // It comes back by itself.
    world.server.set_down(false);
    leads(&candidate).await;
    assert_eq!(world.server.lease().unwrap().spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_nothing() {
    let (world, candidate) = World::led().await;
    pass(seconds(7)).await;
    world.server.set_down(true);
    let deposed = not_leading(&candidate);
    assert!(timeout(seconds(7), deposed).await.is_err());
    world.server.set_down(false);
    assert!(timeout(seconds(60), not_leading(&candidate)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_took_is_lost_at_the_next_renewal() {
    let (world, candidate) = World::led().await;
    world.server.change(|lease| {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some("sidecar".to_owned());
    });
    let (taken, term) = (Instant::now(), candidate.term().unwrap());
    not_leading(&candidate).await;
    assert!(taken.elapsed() <= seconds(5), "{:?}", taken.elapsed());
    term.over().await;
    assert!(taken.elapsed() <= seconds(5), "{:?}", taken.elapsed());
    // A resignation does not take it from them.
    candidate.release_and_stop().await;
    assert_eq!(world.server.holder().as_deref(), Some("sidecar"));
    assert_eq!(world.master_status(), None);
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_who_holds_the_lease_and_writes_nothing() {
    let world = World::new();
    let observer = world.observer("b");
    assert_eq!(observer.state(), LeaderState::Unknown);
    observer.differs_from(&LeaderState::Unknown).await;
    assert_eq!(observer.state(), LeaderState::Observing { holder: None });
    let sees = async |identity: Option<&str>, reports| {
        let holder = identity.map(|identity| held_by(identity, NAMESPACE, reports));
        let mut follow = observer.subscribe();
        let wait = follow.wait_for(|lease_state| *lease_state == LeaderState::Observing { holder: holder.clone() });
        timeout(seconds(60), wait).await.expect("it sees that").unwrap();
    };
    let first = world.candidate("a");
    sees(Some("a"), true).await;
    let writes = world.server.writes();
    first.release_and_stop().await;
    assert_eq!(world.server.writes(), writes + 1);
    sees(None, false).await;
    // A sidecar leaves the note of the last holder on the Lease.
    let sidecar = world.candidate("sidecar");
    sees(Some("sidecar"), false).await;
    drop(sidecar);
    sees(None, false).await;
    assert_eq!(world.server.holder().as_deref(), Some("sidecar"));
    assert_eq!(
        world.master_status(),
        None,
        "a candidate that vanished does not lead any more"
    );
}

/// Other replicas take this process for the one that writes the status of each AttacherConfig whose driver has the Lease.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_that_another_candidate_of_its_process_holds_the_lease() {
    for is_new in [false, true] {
        let world = if is_new {
            World::with(ApiServer::default())
        } else {
            World::new()
        };
        let observer = world.observer("a");
        let (rival, leader) = (world.observer("b"), world.candidate("a"));
        leads(&leader).await;
        pass(seconds(20)).await;
        assert_eq!(observer.state(), LeaderState::HeldForAnother, "new: {is_new}");
        assert!(
            rival.state().holder().is_some_and(|holder| holder.reports),
            "{:?}",
            rival.state()
        );
        // Its time runs out, for all of them.
        drop(leader);
        pass(seconds(60)).await;
        for watching in [&observer, &rival] {
            assert_eq!(
                watching.state(),
                LeaderState::Observing { holder: None },
                "new: {is_new}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_stands_down_goes_on_watching_and_comes_back() {
    let world = World::new();
    let candidate = world.observer("a");
    candidate.start_acquiring();
    leads(&candidate).await;
    assert!(candidate.release().await);
    assert_eq!(candidate.state(), LeaderState::Observing { holder: None });
    assert_eq!((world.server.holder(), world.master_status()), (None, None));
    let other = world.candidate("b");
    leads(&other).await;
    pass(seconds(20)).await;
    assert!(matches!(candidate.state(), LeaderState::Observing { holder: Some(_) }));
    // Another candidate of the same process is not disturbed by one that only watches, nor by its end.
    let rival = world.observer("b");
    pass(seconds(1)).await;
    assert_eq!(rival.state(), LeaderState::HeldForAnother);
    assert_eq!(world.master_status().as_deref(), Some("1"));
    assert!(rival.release().await);
    rival.release_and_stop().await;
    assert!(other.is_leader() && world.server.holder().as_deref() == Some("b"));
    candidate.start_acquiring();
    other.release_and_stop().await;
    leads(&candidate).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_release_the_lease_says_so_and_does_not_try_for_ever() {
    for stops in [false, true] {
        let (world, candidate) = World::led().await;
        world.server.set_down(true);
        let began = Instant::now();
        if stops {
            candidate.release_and_stop().await;
        } else {
            assert!(!candidate.release().await);
        }
        assert!(began.elapsed() <= seconds(10), "{stops}: {:?}", began.elapsed());
    }
}

#[test]
fn health_fails_when_a_held_lease_is_long_not_renewed() {
    let health = LeaseHealth::default();
    let now = Instant::now();
    assert_eq!(health.check(now), Ok(()));
    let (entry, other) = (health.candidate("l"), health.candidate("l"));
    entry.renewed(seconds(15), now);
    assert_eq!(health.check(now + seconds(35)), Ok(()));
    assert!(
        health
            .check(now + seconds(36))
            .unwrap_err()
            .to_string()
            .contains("lease l")
    );
    other.renewed(seconds(15), now + seconds(30));
    entry.remove();
    assert_eq!(
        health.check(now + seconds(36)),
        Ok(()),
        "that of another candidate is another one"
    );
    assert!(health.check(now + seconds(66)).is_err());
    drop(other);
    assert_eq!(health.check(now + seconds(66)), Ok(()));
}

/// The driver goes away while the API server hangs: the candidate is dropped, as it cannot release the Lease in time.
#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_released_in_time_is_not_thought_to_be_held() {
    let (world, candidate) = World::led().await;
    world.server.set_slow(seconds(3600));
    assert!(!candidate.release().await);
    drop(candidate);
    pass(seconds(60)).await;
    assert_eq!(world.health.check(Instant::now()), Ok(()));
    let metrics = world.metrics.encode_prometheus();
    assert!(!metrics.contains("leader_election_master_status{"), "{metrics}");
}
