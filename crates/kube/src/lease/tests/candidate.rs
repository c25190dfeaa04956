//! Candidates against one Lease. The clock is paused: it moves on when all wait.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::coordination::v1::LeaseSpec;
pub(super) use tokio::time::sleep as pass;
use tokio::time::{Instant, timeout};
use tracing::Level;

use super::{seconds, usual};
use crate::lease::{
    CandidateStatus, LeaderElectionConfig, LeaderElectionHandle, LeaderElections, LeaderState, LeaseHealth, LeaseHolder,
};
use crate::telemetry::Metrics;
use csi_attacher_testbed::lease_server::{ApiServer, NAMESPACE, Trouble};
use csi_attacher_testbed::{Logged, ShiftedClock};

pub(super) const LEASE: &str = "external-attacher-leader-d";

/// What the log says of a release that was given up.
pub(super) const GIVEN_UP: &str = "could not release the Lease; it will expire";

/// By default without a Lease.
#[derive(Default)]
pub(super) struct World {
    pub server: ApiServer,
    pub metrics: Metrics,
    pub health: LeaseHealth,
    pub clock: ShiftedClock,
}

impl World {
    /// With Leases in these namespaces that nobody holds.
    pub fn of(namespaces: &[&str]) -> Self {
        let world = Self::default();
        for namespace in namespaces {
            world.server.release_in(namespace);
        }
        world
    }

    /// With a Lease, and a candidate that leads.
    pub async fn led() -> (Self, LeaderElectionHandle) {
        let world = Self::of(&[NAMESPACE]);
        let candidate = world.leader("a").await;
        (world, candidate)
    }

    pub fn candidate(&self, identity: &str) -> LeaderElectionHandle {
        self.start(self.election(NAMESPACE, identity))
    }

    /// A candidate that leads.
    pub async fn leader(&self, identity: &str) -> LeaderElectionHandle {
        let candidate = self.candidate(identity);
        leads(&candidate).await;
        candidate
    }

    pub fn start(&self, election: LeaderElectionConfig) -> LeaderElectionHandle {
        LeaderElectionHandle::start(election, LEASE.to_owned(), self.metrics.clone())
    }

    fn observer(&self, identity: &str) -> LeaderElectionHandle {
        let election = self.election(NAMESPACE, identity);
        LeaderElectionHandle::observe(election, LEASE.to_owned(), self.metrics.clone())
    }

    pub fn election(&self, namespace: &str, identity: &str) -> LeaderElectionConfig {
        let mut elections = LeaderElections::new(self.server.client(), identity.to_owned());
        elections.labels = BTreeMap::from([("app".to_owned(), "attacher".to_owned())]);
        elections.health = self.health.clone();
        elections.clock = self.clock.source().into();
        elections.reports = identity != "sidecar";
        elections.rules.creators_wait = elections.reports;
        elections.config_for(namespace, usual())
    }

    pub fn spec(&self) -> LeaseSpec {
        self.server.lease().unwrap().spec.unwrap()
    }

    pub fn transitions(&self) -> Option<i32> {
        self.spec().lease_transitions
    }

    /// The value of a series of the Lease; empty when there is none.
    pub fn metric(&self, name: &str) -> String {
        let (text, series) = (self.metrics.encode_prometheus(), format!("{name}{{name=\"{LEASE}\"}} "));
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap_or_default().to_owned()
    }

    fn master_status(&self) -> String {
        self.metric("leader_election_master_status")
    }
}

pub(super) async fn leads(candidate: &LeaderElectionHandle) {
    let mut follow = candidate.subscribe();
    let wait = follow.wait_for(|status| status.state.term().is_some());
    timeout(seconds(120), wait).await.expect("it leads").unwrap();
}

pub(super) fn state_of(candidate: &LeaderElectionHandle) -> LeaderState {
    candidate.status().state
}

/// It happens after so many milliseconds.
pub(super) async fn takes(milliseconds: RangeInclusive<u64>, what: impl Future<Output = ()>) {
    let began = Instant::now();
    what.await;
    let took = began.elapsed();
    let (least, most) = milliseconds.into_inner();
    let expected = Duration::from_millis(least)..=Duration::from_millis(most);
    assert!(expected.contains(&took), "{took:?} instead of {expected:?}");
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

#[tokio::test(start_paused = true)]
async fn the_first_takes_the_lease_and_renews_it_without_reading() {
    let (world, candidate) = World::led().await;
    assert_eq!(world.master_status(), "1");
    let lease = world.server.lease().unwrap();
    assert_eq!(lease.metadata.labels.unwrap()["app"], "attacher");
    let spec = lease.spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(15));
    assert_eq!(spec.lease_transitions, Some(1));
    let (reads, writes) = (world.server.reads(), world.server.writes());
    pass(seconds(52)).await;
    assert!(candidate.term().is_some());
    assert_eq!(world.server.reads(), reads);
    assert_eq!(world.server.writes(), writes + 10);
    let renewed = world.spec();
    assert_eq!(renewed.acquire_time, spec.acquire_time);
    assert_eq!(renewed.lease_transitions, Some(1));
    assert!(renewed.renew_time > spec.renew_time);
    assert_eq!(world.health.check(Instant::now()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_is_lost_before_another_may_take_it() {
    let (world, candidate) = World::led().await;
    let led = Instant::now();
    let term = candidate.term().unwrap();
    // The last renewal is that after 5 s.
    pass(seconds(7)).await;
    world.server.0.lock().down = true;
    not_leading(&candidate).await;
    assert_eq!(led.elapsed().as_secs(), 15);
    assert_eq!(state_of(&candidate), LeaderState::Lost);
    assert_eq!(world.master_status(), "0");
    assert!(!term.may_start() && term.may_run());
    // It stays shown as lost until then, whatever it tries.
    let lost = candidate.status();
    assert!(timeout(seconds(4), candidate.differs_from(&lost)).await.is_err());
    term.over().await;
    assert_eq!(led.elapsed().as_secs(), 20);
    // It comes back by itself.
    world.server.0.lock().down = false;
    leads(&candidate).await;
    assert_eq!(world.transitions(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_who_holds_the_lease_and_writes_nothing() {
    let world = World::of(&[NAMESPACE]);
    let observer = world.observer("b");
    assert_eq!(observer.status(), CandidateStatus::default());
    observer.differs_from(&CandidateStatus::default()).await;
    assert_eq!(state_of(&observer), LeaderState::Observing(None));
    let sees = async |identity: Option<&str>, reports| {
        let holder = identity.map(|identity| held_by(identity, NAMESPACE, reports));
        let (seen, mut follow) = (LeaderState::Observing(holder), observer.subscribe());
        let wait = follow.wait_for(|status| status.state == seen);
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
    assert_eq!(world.server.holder(), "sidecar");
    assert_eq!(world.master_status(), "", "a candidate that vanished does not lead");
}

/// Other replicas take this process for the one that writes the status of each AttacherConfig whose driver has the Lease.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_that_another_candidate_of_its_process_holds_the_lease() {
    for (row, world) in [("new", World::default()), ("old", World::of(&[NAMESPACE]))] {
        let (observer, rival) = (world.observer("a"), world.observer("b"));
        let leader = world.leader("a").await;
        pass(seconds(20)).await;
        assert_eq!(state_of(&observer), LeaderState::HeldForAnother, "{row}");
        let state = state_of(&rival);
        assert!(state.holder().is_some_and(|holder| holder.reports), "{row}: {state:?}");
        // Its time runs out, for all of them.
        drop(leader);
        pass(seconds(60)).await;
        for watching in [&observer, &rival] {
            assert_eq!(state_of(watching), LeaderState::Observing(None), "{row}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_stands_down_goes_on_watching_and_comes_back() {
    let world = World::of(&[NAMESPACE]);
    let candidate = world.observer("a");
    candidate.start_acquiring();
    leads(&candidate).await;
    assert!(candidate.release().await);
    assert_eq!(state_of(&candidate), LeaderState::Observing(None));
    assert_eq!(world.server.holder() + &world.master_status(), "");
    let other = world.leader("b").await;
    pass(seconds(20)).await;
    assert!(matches!(state_of(&candidate), LeaderState::Observing(Some(_))));
    // Another candidate of the same process is not disturbed by one that only watches, nor by its end.
    let rival = world.observer("b");
    pass(seconds(1)).await;
    assert_eq!(state_of(&rival), LeaderState::HeldForAnother);
    assert_eq!(world.master_status(), "1");
    assert!(rival.release().await);
    rival.release_and_stop().await;
    assert!(other.term().is_some() && world.server.holder() == "b");
    candidate.start_acquiring();
    pass(seconds(60)).await;
    let holder = Some(held_by("b", NAMESPACE, true));
    assert_eq!(state_of(&candidate), LeaderState::Waiting(holder));
    other.release_and_stop().await;
    assert_eq!(world.spec().lease_duration_seconds, Some(1));
    // Without a watch it looks once in a retry period.
    takes(0..=6_000, leads(&candidate)).await;
    assert_eq!(world.transitions(), Some(3));
}

/// The driver goes away while the API server hangs, before it carries requests out or after that, or while it takes none: the candidate is
/// dropped, as it cannot release the Lease in time, and nobody thinks that it is held. The term is over before.
#[tokio::test(start_paused = true)]
async fn one_that_cannot_release_the_lease_says_so_and_does_not_try_for_ever() {
    let hangs = |server: &ApiServer| server.0.lock().down = true;
    let hangs_late = |server: &ApiServer| server.0.lock().slow = seconds(3600);
    let refuses = |server: &ApiServer| server.trouble(NAMESPACE, Trouble::Unavailable);
    let faults: [fn(&ApiServer); 3] = [hangs, hangs_late, refuses];
    for (number, begins) in faults.into_iter().enumerate() {
        for stops in [false, true] {
            let row = format!("{number}, stops: {stops}");
            let logged = Logged::start();
            let (world, candidate) = World::led().await;
            begins(&world.server);
            let (began, term) = (Instant::now(), candidate.term().unwrap());
            let release = tokio::spawn(async move {
                if stops {
                    candidate.release_and_stop().await;
                } else {
                    assert!(!candidate.release().await);
                }
            });
            pass(Duration::from_millis(1)).await;
            assert!(!term.may_start() && !term.may_run(), "{row}");
            release.await.expect(&row);
            assert_eq!(began.elapsed().as_secs(), if stops { 5 } else { 10 }, "{row}");
            assert_eq!(logged.count(Level::WARN, GIVEN_UP), 1, "{row}");
            pass(seconds(60)).await;
            assert_eq!(world.health.check(Instant::now()), Ok(()), "{row}");
            assert_eq!(world.master_status(), "", "{row}");
        }
    }
}

/// As while it restarts. A standby would else wait until the Lease has run out.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_again_until_the_api_server_is_back() {
    let unknown = || Trouble::Denied(StatusCode::UNAUTHORIZED, "Unauthorized");
    for (stops, trouble) in [
        (false, Trouble::Unavailable),
        (true, Trouble::Unavailable),
        (false, unknown()),
        (true, unknown()),
    ] {
        let (world, candidate) = World::led().await;
        world.server.trouble(NAMESPACE, trouble);
        let server = world.server.clone();
        tokio::spawn(async move {
            pass(seconds(3)).await;
            server.0.lock().troubles.clear();
        });
        let release = async {
            if stops {
                candidate.release_and_stop().await;
            } else {
                assert!(candidate.release().await);
            }
        };
        // The longest pause is 1 s.
        takes(3_000..=4_100, release).await;
        assert_eq!(world.server.holder(), "", "stops: {stops}");
    }
}

/// The end of the process waits for the release.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_good_or_of_no_use_takes_no_time() {
    let forbids = |server: &ApiServer| server.trouble(NAMESPACE, Trouble::Forbidden);
    let denies = |server: &ApiServer| server.trouble(NAMESPACE, Trouble::Denied(StatusCode::BAD_REQUEST, "no"));
    let denies_late = |server: &ApiServer| {
        let words = "admission webhook \"leases.test\" denied the request: no";
        server.trouble(NAMESPACE, Trouble::Denied(StatusCode::INTERNAL_SERVER_ERROR, words));
    };
    let gives_away = |server: &ApiServer| {
        server.change(|lease| lease.spec.get_or_insert_default().holder_identity = Some("b".to_owned()));
    };
    let troubles: [fn(&ApiServer); 5] = [forbids, denies, denies_late, gives_away, ApiServer::remove];
    // How often it is told that the Lease will expire.
    for (number, (begins, told)) in troubles.into_iter().zip([1, 1, 1, 0, 0]).enumerate() {
        let logged = Logged::start();
        let (world, candidate) = World::led().await;
        begins(&world.server);
        let began = Instant::now();
        assert!(candidate.release().await, "{number}");
        assert_eq!(began.elapsed(), Duration::ZERO, "{number}");
        assert_eq!(logged.count(Level::WARN, GIVEN_UP), told, "{number}");
    }
}

/// A Role may be missing for weeks, and an API server away for hours.
#[tokio::test(start_paused = true)]
async fn what_keeps_the_lease_from_being_taken_is_told_once() {
    let logged = Logged::start();
    let told = || logged.count(Level::WARN, "cannot take the Lease");
    let worked = || logged.count(Level::INFO, "can work with the Lease again");
    let world = World::of(&[NAMESPACE]);
    world.server.trouble(NAMESPACE, Trouble::Forbidden);
    let candidate = world.candidate("a");
    pass(seconds(3600)).await;
    assert_eq!((told(), worked()), (1, 0));
    world.server.0.lock().down = true;
    pass(seconds(3600)).await;
    assert_eq!((told(), worked()), (2, 0), "it is another error");
    world.server.0.lock().down = false;
    pass(seconds(3600)).await;
    assert_eq!((told(), worked()), (2, 0), "it is the first one again");
    world.server.0.lock().troubles.clear();
    leads(&candidate).await;
    pass(seconds(60)).await;
    assert_eq!((told(), worked()), (2, 1));
    world.server.0.lock().down = true;
    pass(seconds(3600)).await;
    assert_eq!((told(), worked()), (3, 1), "it worked since");
    let renewals = logged.count(Level::WARN, "cannot renew the Lease");
    assert!((1..=8).contains(&renewals), "{renewals}");
    // The same where the Lease is another one's by then.
    world.server.0.lock().down = false;
    world.server.change(|lease| {
        let spec = lease.spec.get_or_insert_default();
        (spec.holder_identity, spec.lease_duration_seconds) = (Some("another".to_owned()), Some(3600));
    });
    pass(seconds(60)).await;
    assert_eq!((told(), worked()), (3, 2));
}

#[test]
fn health_fails_when_a_held_lease_is_long_not_renewed() {
    let (health, now) = (LeaseHealth::default(), Instant::now());
    assert_eq!(health.check(now), Ok(()));
    let (entry, other) = (health.candidate("l"), health.candidate("l"));
    entry.renewed(seconds(15), now);
    assert_eq!(health.check(now + seconds(35)), Ok(()));
    let error = health.check(now + seconds(36)).unwrap_err();
    assert!(error.to_string().contains("lease l"), "{error}");
    other.renewed(seconds(15), now + seconds(30));
    entry.remove();
    // That of another candidate is another one.
    assert_eq!(health.check(now + seconds(36)), Ok(()));
    assert!(health.check(now + seconds(66)).is_err());
    drop(other);
    assert_eq!(health.check(now + seconds(66)), Ok(()));
}
