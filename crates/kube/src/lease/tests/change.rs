//! A change of where the Lease lives, against the model of the API server. The clock is paused: it moves on when all wait.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::seconds;
use crate::lease::{
    LeaderElectionConfig, LeaderElectionHandle, LeaderElections, LeaderState, LeaseHolder, LeaseTimings, PlaceRecord,
    ShiftedClock,
};
use crate::telemetry::Metrics;
use csi_attacher_testbed::lease_server::{ApiServer, CONFIG};

const LEASE: &str = "external-attacher-leader-d";
pub(super) const X: Place = Some("x");
pub(super) const Y: Place = Some("y");
pub(super) const Z: Place = Some("z");
/// Of a call without a Lease.
const LONGEST_CALL: Duration = seconds(40);

/// A namespace, or no Lease.
pub(super) type Place = Option<&'static str>;

fn timing() -> LeaseTimings {
    LeaseTimings::new(seconds(15), seconds(10), seconds(2)).unwrap()
}

pub(super) fn spec(place: Place) -> Value {
    place.map_or_else(
        || json!({"enabled": false}),
        |namespace| json!({"namespace": namespace}),
    )
}

/// A process: it has a task for the AttacherConfig, with one candidate.
pub(super) struct Replica {
    office: LeaderElections,
    pub candidate: Option<LeaderElectionHandle>,
    /// Namespaces in which a sidecar may hold a Lease.
    pub beside: Vec<String>,
}

impl Replica {
    pub fn new(server: &ApiServer, identity: &str) -> Self {
        let office = LeaderElections {
            reports: true,
            clock: ShiftedClock::default().into(),
            ..LeaderElections::new(server.client(), identity.to_owned())
        };
        Self {
            office,
            candidate: None,
            beside: Vec::new(),
        }
    }

    fn election(&self, place: Place) -> LeaderElectionConfig {
        let record = PlaceRecord::new(self.office.client.clone(), CONFIG.to_owned());
        LeaderElectionConfig {
            enabled: place.is_some(),
            record: Some(record),
            longest_call: place.map_or(LONGEST_CALL, |_| Duration::ZERO),
            sidecar_namespaces: self.beside.clone(),
            ..self.office.config_for(place.unwrap_or("x"), timing())
        }
    }

    /// The task starts with this place.
    pub fn start(&mut self, place: Place) {
        self.begin(place, LeaderElectionHandle::start);
    }

    /// The task starts with this place, and watches the Lease without competing for it.
    pub fn watch(&mut self, place: Place) {
        self.begin(place, LeaderElectionHandle::observe);
    }

    fn begin(&mut self, place: Place, begin: fn(LeaderElectionConfig, String, Metrics) -> LeaderElectionHandle) {
        assert!(self.candidate.is_none());
        self.candidate = Some(begin(self.election(place), LEASE.to_owned(), Metrics::default()));
    }

    /// Its last call has ended.
    pub async fn end(&mut self) {
        self.candidate.take().unwrap().release_and_stop().await;
    }

    pub fn kill(&mut self) {
        self.candidate = None;
    }

    pub fn works(&self) -> bool {
        self.candidate.as_ref().is_some_and(LeaderElectionHandle::is_leader)
    }

    pub async fn comes_to_work(&self) {
        let candidate = self.candidate.as_ref().unwrap();
        let wait = async {
            while !candidate.is_leader() {
                candidate.differs_from(&candidate.state()).await;
            }
        };
        timeout(seconds(200), wait).await.expect("it works");
    }

    pub fn waits_for(&self) -> Option<String> {
        match self.candidate.as_ref().unwrap().state() {
            LeaderState::Waiting {
                holder: Some(LeaseHolder { identity, .. }),
            } => Some(identity),
            _ => None,
        }
    }
}

/// One that works under this place, and one that waits.
pub(super) async fn two(place: Place) -> (ApiServer, Replica, Replica) {
    let server = ApiServer::default();
    server.configure(&spec(place));
    let (mut a, mut b) = (Replica::new(&server, "a"), Replica::new(&server, "b"));
    a.start(place);
    a.comes_to_work().await;
    if place.is_some() {
        b.start(place);
    }
    sleep(seconds(20)).await;
    assert!(a.works() && !b.works());
    (server, a, b)
}

#[tokio::test(start_paused = true)]
async fn of_two_that_see_the_change_the_other_waits_for_the_end_of_the_last_call() {
    let (server, mut a, mut b) = two(X).await;
    assert_eq!(server.recorded(), json!({"namespace": "x", "runsOutAfterSeconds": 15}));
    server.configure(&spec(Y));
    b.end().await;
    b.start(Y);
    for _ in 0..120 {
        sleep(seconds(1)).await;
        assert!(a.works() && !b.works(), "the call of a still runs");
    }
    assert_eq!(b.waits_for().as_deref(), Some("a"), "and shows for whom");
    assert_eq!(server.recorded()["namespace"], "x");
    a.end().await;
    a.start(Y);
    let released = Instant::now();
    b.comes_to_work().await;
    assert!(released.elapsed() <= seconds(2), "{:?}", released.elapsed());
    assert_eq!(server.recorded(), json!({"namespace": "y", "runsOutAfterSeconds": 15}));
    sleep(seconds(60)).await;
    assert!(b.works() && !a.works());
    // What follows is a usual failover.
    b.kill();
    a.comes_to_work().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_killed_meanwhile_has_to_run_out() {
    let (server, mut a, mut b) = two(X).await;
    server.configure(&spec(Y));
    b.end().await;
    b.start(Y);
    sleep(seconds(5)).await;
    a.kill();
    let killed = Instant::now();
    b.comes_to_work().await;
    let took = killed.elapsed();
    assert!(took > seconds(10) && took <= seconds(19), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_after_the_change_knows_the_former_place_from_the_status() {
    let (server, mut a, mut b) = two(X).await;
    b.end().await;
    server.configure(&spec(Y));
    let mut c = Replica::new(&server, "c");
    c.start(Y);
    sleep(seconds(60)).await;
    assert!(a.works() && !c.works());
    a.end().await;
    c.comes_to_work().await;
    // One that was killed is waited for as long as its Lease lasts, by the clock of who waits.
    c.kill();
    server.configure(&spec(Z));
    let mut d = Replica::new(&server, "d");
    let began = Instant::now();
    d.start(Z);
    d.comes_to_work().await;
    assert!(
        began.elapsed() >= seconds(15) && began.elapsed() <= seconds(17),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn without_an_election_from_now_on_the_other_waits_for_the_lease() {
    let (server, mut a, mut b) = two(X).await;
    server.configure(&spec(None));
    b.end().await;
    b.start(None);
    sleep(seconds(60)).await;
    assert!(a.works() && !b.works());
    a.end().await;
    a.start(None);
    for replica in [&a, &b] {
        replica.comes_to_work().await;
    }
    let recorded = server.recorded();
    assert_eq!(recorded["namespace"], Value::Null);
    assert_eq!(recorded["withoutLease"].as_array().map(Vec::len), Some(2), "{recorded}");
    assert_eq!(server.holder_in("x"), None);
}

#[tokio::test(start_paused = true)]
async fn with_an_election_from_now_on_all_that_work_without_are_waited_for() {
    let (server, mut a, mut b) = two(None).await;
    assert_eq!(
        server.recorded(),
        json!({"runsOutAfterSeconds": 40, "withoutLease": ["a"]})
    );
    server.configure(&spec(Y));
    b.start(Y);
    sleep(seconds(30)).await;
    assert!(a.works() && !b.works());
    assert_eq!(b.waits_for().as_deref(), Some("a"));
    a.end().await;
    b.comes_to_work().await;
    assert_eq!(server.recorded(), json!({"namespace": "y", "runsOutAfterSeconds": 15}));

    // One that was killed has no call any more after the longest one.
    let (server, mut a, mut b) = two(None).await;
    a.kill();
    server.configure(&spec(Y));
    let began = Instant::now();
    b.start(Y);
    b.comes_to_work().await;
    let took = began.elapsed();
    assert!(took >= LONGEST_CALL && took <= LONGEST_CALL + seconds(2), "{took:?}");

    // A single one has nobody to wait for, nor has one that starts again under its name.
    for killed in [false, true] {
        let (server, mut a, _) = two(None).await;
        server.configure(&spec(Y));
        if killed {
            a.kill();
        } else {
            a.end().await;
        }
        let began = Instant::now();
        a.start(Y);
        a.comes_to_work().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn several_changes_in_a_row_wait_for_what_is_in_use_and_for_nothing_else() {
    // To a third place while the first is in use.
    let (server, mut a, mut b) = two(X).await;
    server.configure(&spec(Y));
    b.end().await;
    b.start(Y);
    sleep(seconds(20)).await;
    server.configure(&spec(Z));
    b.end().await;
    b.start(Z);
    sleep(seconds(20)).await;
    assert!(a.works() && !b.works());
    a.end().await;
    b.comes_to_work().await;
    assert_eq!(server.recorded()["namespace"], "z");

    // And back, while the first is in use: it is its Lease that is waited for.
    let (server, mut a, mut b) = two(X).await;
    for place in [Y, X] {
        server.configure(&spec(place));
        b.end().await;
        b.start(place);
        sleep(seconds(20)).await;
        assert!(a.works() && !b.works());
    }
    a.end().await;
    b.comes_to_work().await;
    assert_eq!(server.recorded()["namespace"], "x");
    assert_eq!(server.holder_in("x").as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn a_config_that_is_deleted_and_made_again_elsewhere_waits_too() {
    let (server, mut a, mut b) = two(X).await;
    b.end().await;
    server.0.lock().config = None;
    server.configure(&spec(Y));
    assert_eq!(server.recorded(), Value::Null);
    b.start(Y);
    sleep(seconds(60)).await;
    assert!(a.works() && !b.works(), "it saw who held the Lease");
    a.end().await;
    b.comes_to_work().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_did_not_see_the_change_takes_the_old_lease_in_vain() {
    let (server, mut a, mut b) = two(X).await;
    server.configure(&spec(Y));
    // b goes by the old spec.
    a.end().await;
    sleep(seconds(10)).await;
    assert_eq!(server.holder_in("x").as_deref(), Some("b"));
    assert!(!b.works());
    a.start(Y);
    sleep(seconds(60)).await;
    assert!(!a.works(), "b could work by what is known");
    b.end().await;
    b.start(Y);
    a.comes_to_work().await;
    assert!(!b.works());
}

#[tokio::test(start_paused = true)]
async fn an_old_place_that_may_no_longer_be_read_has_run_out_one_lease_duration_later() {
    let (server, mut a, mut b) = two(X).await;
    // One upgrade: the Role of the old namespace goes with the change.
    server.0.lock().forbidden.insert("x".to_owned());
    server.configure(&spec(Y));
    let began = Instant::now();
    b.end().await;
    b.start(Y);
    a.candidate.as_ref().unwrap().term().unwrap().over().await;
    assert!(!b.works(), "the call of a runs until its Lease is over");
    a.kill();
    b.comes_to_work().await;
    assert!(
        began.elapsed() >= seconds(15) && began.elapsed() <= seconds(17),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_404_of_a_proxy_does_not_say_that_the_old_lease_is_gone() {
    let (server, mut a, mut b) = two(X).await;
    b.end().await;
    server.configure(&spec(None));
    server.0.lock().proxy_lost_its_way = true;
    b.start(None);
    sleep(seconds(5)).await;
    assert!(a.works() && !b.works());
    server.0.lock().proxy_lost_its_way = false;
    sleep(seconds(60)).await;
    assert!(a.works() && !b.works());
    a.end().await;
    b.comes_to_work().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_may_not_be_written_keeps_nobody_from_work() {
    let server = ApiServer::default();
    server.0.lock().status_forbidden = true;
    server.configure(&spec(X));
    let mut a = Replica::new(&server, "a");
    a.start(X);
    a.comes_to_work().await;
    // Those that were there know the former place all the same.
    let mut b = Replica::new(&server, "b");
    b.start(X);
    sleep(seconds(10)).await;
    server.configure(&spec(Y));
    b.end().await;
    b.start(Y);
    sleep(seconds(60)).await;
    assert!(a.works() && !b.works());
    a.end().await;
    b.comes_to_work().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_may_not_be_written_for_a_moment_is_written_before_work_begins() {
    let server = ApiServer::default();
    server.0.lock().status_forbidden = true;
    server.configure(&spec(X));
    let mut a = Replica::new(&server, "a");
    let began = Instant::now();
    a.start(X);
    sleep(seconds(1)).await;
    assert!(!a.works(), "no other would know");
    server.0.lock().status_forbidden = false;
    a.comes_to_work().await;
    assert!(began.elapsed() <= seconds(3), "{:?}", began.elapsed());
    assert_eq!(server.recorded(), json!({"namespace": "x", "runsOutAfterSeconds": 15}));
}
