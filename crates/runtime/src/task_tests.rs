//! What a driver's task shows of a driver that it does not work for.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::AttacherConfigSpec;
use crate::api::condition::ConditionReason;
use crate::api::validated::DriverConfig;
use crate::apiserver::{Requests, connect};
use crate::connect::handshake::{Handshake, HandshakeError};
use crate::connect::replacement::Replacement;
use crate::connect::{ConnectFailure, ConnectedDriver, Connector};
use crate::csi::{CapabilityReport, CsiClient, DriverConnection, PluginInfo};
use crate::decide::DriverFacts;
use crate::fence_tests::{begin_call, client_taking};
use crate::leadership::{Leadership, LeaseStatus};
use crate::lease::{
    LeaderElectionConfig, LeaderElectionHandle, LeaderElections, LeaderState, LeaseTimings, MomentSource,
};
use crate::queue::{Backoff, QueueLimits, Run, RunResult};
use crate::queue_metrics::LaneNames;
use crate::reflect::Lists;
use crate::reservation::Reservations;
use crate::task::list_again;
use crate::telemetry::Metrics;
use crate::{DriverPhase, DriverState, DriverStateSender, DriverTask, Engine, Refusal, Role, Start, Work, Workplace};
use csi_attacher_testbed::lease_server::ApiServer;

const NAME: &str = "a.test";
const UP: &str = "csi_attacher_driver_up{driver_name=\"a.test\"}";
const RECONNECTS: &str = "csi_attacher_driver_reconnects_total{driver_name=\"a.test\"}";
const LIMIT: Duration = Duration::from_secs(30);

/// A role without work, which begins only if drivers are admitted.
#[derive(Clone)]
struct Idle {
    admits: bool,
    lists: Lists,
    requests: Requests,
    metrics: Metrics,
}

/// Work that consists of nothing.
struct NoWork(Workplace<&'static str>);

impl Deref for NoWork {
    type Target = Workplace<&'static str>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Work for NoWork {
    type Key = &'static str;
    type Guards = ();

    const LANE_NAMES: LaneNames = &[];

    fn limits(_config: &DriverConfig, _facts: &DriverFacts) -> Option<(QueueLimits, Backoff)> {
        None
    }

    async fn run(&self, _run: &Run<&'static str>) -> RunResult {
        RunResult::Done
    }

    fn resume(&self, _restores: bool) {}

    fn reconfigured(&self, _config: &DriverConfig) {}
}

impl Role for Idle {
    type Work = NoWork;

    fn lists(&self, _facts: &DriverFacts) -> Lists {
        self.lists.clone()
    }

    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn needs_lists_first(&self, _facts: &DriverFacts) -> bool {
        true
    }

    async fn admit(&self, facts: &DriverFacts, _config: &DriverConfig, _name: &str) -> Result<DriverFacts, Refusal> {
        if self.admits {
            return Ok(facts.clone());
        }
        std::future::pending().await
    }

    fn start(&self, start: Start) -> Result<Engine<NoWork>, Refusal> {
        let place = Workplace::new::<NoWork>(start, &self.metrics);
        Ok(Engine::start(Arc::new(NoWork(place)), ()))
    }

    fn vacancies(&self) -> watch::Receiver<()> {
        watch::Sender::default().subscribe()
    }

    fn ended(&self, _status: &DriverStateSender) {}
}

impl Idle {
    /// No driver is ever admitted.
    fn new(lists: Lists, metrics: &Metrics) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        // Nobody listens there: nothing is written in these tests.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        Self {
            admits: false,
            lists,
            requests: Requests::new(connect(&nowhere).unwrap(), "nowhere", LIMIT, metrics.clone()),
            metrics: metrics.clone(),
        }
    }
}

/// How a driver answers.
#[derive(Clone)]
enum Answers {
    Never,
    /// As the driver that it is.
    Itself(CsiClient),
    /// With an obstacle, over a connection or without.
    Obstacle(HandshakeError, Option<CsiClient>),
}

struct Reached {
    answers: Answers,
    /// Connections that were begun.
    begun: Arc<AtomicUsize>,
    /// What takes the place of connections, the first one last.
    replacements: Mutex<Vec<Replacement>>,
}

impl Reached {
    fn new(answers: Answers) -> Self {
        Self {
            answers,
            begun: Arc::default(),
            replacements: Mutex::default(),
        }
    }
}

impl Connector for Reached {
    async fn connect(&self) -> Result<ConnectedDriver, ConnectFailure> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        match self.answers.clone() {
            Answers::Itself(client) if !client.connection().is_lost() => Ok(ConnectedDriver {
                client,
                handshake: Handshake {
                    plugin: PluginInfo {
                        name: NAME.to_owned(),
                        vendor_version: "1".to_owned(),
                    },
                    capabilities: CapabilityReport::default(),
                },
                revision: 0,
                socket: None,
                restores: true,
            }),
            Answers::Never | Answers::Itself(_) => std::future::pending().await,
            Answers::Obstacle(obstacle, client) => {
                let mut failure = ConnectFailure::over(&client_of_nobody(), obstacle);
                failure.client = client;
                Err(failure)
            }
        }
    }

    async fn changed(&self, _since: &ConnectFailure) {
        std::future::pending::<()>().await;
    }

    async fn replaced(&self, _current: &ConnectedDriver, _status: &DriverStateSender) -> Replacement {
        let next = self.replacements.lock().pop();
        match next {
            Some(next) => next,
            None => std::future::pending().await,
        }
    }
}

type Settings = Arc<DriverConfig>;

fn settings() -> (watch::Sender<Settings>, watch::Receiver<Settings>) {
    let mut spec = AttacherConfigSpec::new("unix:///nobody.sock".to_owned());
    spec.driver_name = Some(NAME.to_owned());
    watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()))
}

fn client_of_nobody() -> CsiClient {
    let config = DriverConfig::try_from(&AttacherConfigSpec::new("unix:///nobody.sock".to_owned())).unwrap();
    CsiClient::new(DriverConnection::new(&config.endpoint), Metrics::default())
}

/// A task without an election.
fn task_of(role: Idle, config: watch::Receiver<Settings>, status: watch::Sender<DriverState>) -> DriverTask<Idle> {
    DriverTask {
        role,
        name: "config".into(),
        config,
        election: None,
        reservations: Reservations::default(),
        known_as: Arc::default(),
        lease_status: Arc::default(),
        stop: CancellationToken::new(),
        cut_off: CancellationToken::new(),
        removed: Arc::default(),
        status: DriverStateSender::new(status),
    }
}

/// A task at work, and what it is given.
struct Stage {
    settings: watch::Sender<Settings>,
    state: watch::Receiver<DriverState>,
    metrics: Metrics,
    reservations: Reservations,
    begun: Arc<AtomicUsize>,
    stop: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl Stage {
    /// With lists that never come in.
    fn new(answers: Answers) -> Self {
        Self::listed(answers, Lists::new(&["never"], false))
    }

    fn listed(answers: Answers, lists: Lists) -> Self {
        let (settings, config) = settings();
        let metrics = Metrics::default();
        let (sender, state) = watch::channel(DriverState::default());
        let (reservations, stop) = (Reservations::default(), CancellationToken::new());
        let task = DriverTask {
            reservations: reservations.clone(),
            stop: stop.clone(),
            ..task_of(Idle::new(lists, &metrics), config, sender)
        };
        let access = Reached::new(answers);
        let begun = access.begun.clone();
        Self {
            settings,
            state,
            metrics,
            reservations,
            begun,
            stop,
            _task: AbortOnDropHandle::new(tokio::spawn(task.run_over(access))),
        }
    }

    async fn until(&mut self, what: impl Fn(&DriverState) -> bool) -> DriverState {
        let reached = timeout(LIMIT, self.state.wait_for(what)).await;
        reached.expect("in time").unwrap().clone()
    }

    fn edit(&self, edit: impl FnOnce(&mut DriverConfig)) {
        self.settings.send_modify(|settings| edit(Arc::make_mut(settings)));
    }

    async fn suspend(&mut self) {
        self.edit(|settings| settings.suspend = true);
        self.until(|state| state.phase == DriverPhase::Suspended).await;
    }

    async fn until_begun(&self, count: usize) {
        let begun = async {
            while self.begun.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, begun).await.expect("in time");
    }

    fn is_shown(&self) -> bool {
        self.metrics.encode_prometheus().contains(UP)
    }
}

fn obstacle(is_stalled: bool, reason: ConditionReason) -> HandshakeError {
    HandshakeError {
        is_stalled,
        reason,
        message: "what is wrong".to_owned(),
    }
}

/// An alert about a driver that is down would else last as long as the suspension, or as another AttacherConfig that names the driver and is
/// suspended.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_not_looked_for_is_not_in_the_metrics_though_nothing_ran_for_it() {
    for is_suspended in [true, false] {
        let away = obstacle(false, ConditionReason::SocketMissing);
        let mut stage = Stage::new(Answers::Obstacle(away, None));
        stage
            .until(|state| matches!(state.phase, DriverPhase::Unreachable { .. }))
            .await;
        stage.until_begun(2).await;
        assert!(stage.is_shown());
        if is_suspended {
            stage.suspend().await;
        } else {
            stage.stop.cancel();
            stage.until(|state| state.phase == DriverPhase::Stopped).await;
        }
        assert!(!stage.is_shown(), "suspended: {is_suspended}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_driver_stays_in_the_metrics_of_another_that_serves_it() {
    let mut stage = Stage::new(Answers::Never);
    let other = stage.reservations.reserve(&"other".into(), &NAME.into());
    other.activate();
    stage.metrics.driver_up(NAME, true);
    stage.suspend().await;
    assert!(stage.is_shown());
}

/// Its deadlines may add up to hours.
#[tokio::test(start_paused = true)]
async fn a_driver_is_suspended_while_a_connection_is_made() {
    let mut stage = Stage::new(Answers::Never);
    stage.until_begun(1).await;
    stage.suspend().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_made_outlasts_edits_other_than_its_deadlines() {
    let stage = Stage::new(Answers::Never);
    stage.until_begun(1).await;
    stage.edit(|settings| settings.timeouts.publish = Duration::from_secs(3));
    tokio::time::sleep(LIMIT).await;
    assert_eq!(stage.begun.load(Ordering::SeqCst), 1);
    stage.edit(|settings| settings.timeouts.probe = Duration::from_secs(3));
    stage.until_begun(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_is_told_as_such() {
    let client = client_of_nobody();
    let mut stage = Stage::new(Answers::Itself(client.clone()));
    let shown = stage.until(|state| state.phase == DriverPhase::Syncing).await;
    assert!(shown.is_connected);
    client.connection().lose();
    let shown = stage.until(|state| state.phase == DriverPhase::Connecting).await;
    assert!(!shown.is_connected);
}

/// What the role asks before it admits a driver may be answered late.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_stopped_waits_for_no_admission() {
    let mut stage = Stage::listed(Answers::Itself(client_of_nobody()), Lists::new(&[], true));
    stage.until(|state| state.is_connected).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.stop.cancel();
    stage.until(|state| state.phase == DriverPhase::Stopped).await;
}

/// Settings or certificates can be of no use, so that nothing is dialled.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_stalled_is_connected_only_if_it_answered() {
    let rows = [
        (None, ConditionReason::InvalidSpec, false),
        (None, ConditionReason::SecretMissing, false),
        (Some(client_of_nobody()), ConditionReason::DriverNameMismatch, true),
    ];
    for (client, reason, is_connected) in rows {
        let mut stage = Stage::new(Answers::Obstacle(obstacle(true, reason), client));
        let shown = stage
            .until(|state| matches!(state.phase, DriverPhase::Stalled { .. }))
            .await;
        assert_eq!(shown.is_connected, is_connected, "{reason:?}");
    }
}

/// A proof may rest on what another role watches. What may not be listed proves nothing, and does not hold up the driver.
#[tokio::test(start_paused = true)]
async fn a_new_term_waits_for_all_lists_but_those_that_are_forbidden() {
    let rows = [
        (None, false),
        (Some("timed out"), false),
        (
            Some("forbidden; the operator's ServiceAccount needs, by a ClusterRole, resources [persistentvolumes]"),
            true,
        ),
    ];
    for (failure, ends) in rows {
        let (own, other) = (Lists::new(&[], true), Lists::new(&["persistentvolumes"], true));
        other.set_failure("persistentvolumes", failure.map(str::to_owned));
        let listed = timeout(LIMIT, list_again(&own, vec![other.clone()])).await;
        assert_eq!(listed.is_ok(), ends, "{failure:?}");
        assert_eq!((own.round(), other.round()), (1, 1), "each of them is listed");
        // It may be found while the lists are waited for.
        other.set_failure("persistentvolumes", None);
        let fail = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            other.set_failure("persistentvolumes", failure.map(str::to_owned));
        };
        let (listed, ()) = tokio::join!(timeout(LIMIT, list_again(&own, vec![other.clone()])), fail);
        assert_eq!(listed.is_ok(), ends, "{failure:?}");
        let listed = timeout(LIMIT, list_again(&other, vec![own])).await;
        assert!(listed.is_err(), "the own lists are needed");
    }
}

/// An election for a Lease that nobody holds.
fn election(edit: impl FnOnce(&mut LeaderElections)) -> LeaderElectionConfig {
    let (duration, renewed) = (Duration::from_secs(15), Duration::from_secs(10));
    let timing = LeaseTimings::new(duration, renewed, Duration::from_secs(2)).unwrap();
    let mut elections = LeaderElections::new(ApiServer::default().client(), "ours".to_owned());
    edit(&mut elections);
    elections.config_for("default", timing)
}

/// An engine whose calls take so long, with a candidate for the Lease of its driver.
fn at_work(takes: Duration) -> Leadership<NoWork> {
    let metrics = Metrics::default();
    let started = Idle::new(Lists::new(&[], true), &metrics).start(Start {
        name: "config".into(),
        config: settings().1,
        facts: DriverFacts::new(NAME, CapabilityReport::default().bits),
        client: client_taking(takes),
        status: DriverStateSender::new(watch::Sender::default()),
    });
    let election = election(|_| {});
    let mut held = Leadership::new(LeaseStatus::default());
    held.engine = started.ok();
    held.candidate = Some(LeaderElectionHandle::observe(election, "lease".to_owned(), metrics));
    held
}

/// That what is held is given up 5 s from now: a driver that restarts is mostly back by then. Each try to connect asks anew, and begins no
/// new time.
async fn is_given_up_in_5_s(held: &Leadership<NoWork>, row: &str) {
    for _ in 0..4 {
        let given_up = timeout(Duration::from_secs(1), held.engine_must_stop()).await;
        assert!(given_up.is_err(), "{row}: the driver may be back at once");
    }
    let given_up = timeout(Duration::from_secs(2), held.engine_must_stop()).await;
    given_up.unwrap_or_else(|_| panic!("{row}: another replica may reach it"));
}

/// Its Lease cannot be given up before the end of a call that is open, and a driver that is back meanwhile is not to wait for that call: the
/// one that answers it may be another process. It is open still when the next connection is lost. With its answer a driver that does one
/// thing at a time is as good as back.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_away_is_kept_while_a_call_is_open() {
    for comes_back in [false, true] {
        let mut held = at_work(20 * LIMIT);
        let engine = held.engine.as_ref().expect("nothing is in the way");
        let call = begin_call(&engine.work().client());
        tokio::time::sleep(Duration::from_secs(1)).await;
        held.connection_lost().await;
        if comes_back {
            assert!(held.connection_restored());
            let engine = held.engine.as_ref().expect("it goes on");
            engine.resume(client_taking(Duration::ZERO), true);
            held.connection_lost().await;
        }
        let given_up = timeout(10 * LIMIT, held.engine_must_stop()).await;
        assert!(given_up.is_err(), "back: {comes_back}");
        assert_eq!(call.await.unwrap(), Ok(()));
        is_given_up_in_5_s(&held, &format!("back: {comes_back}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_away_without_an_open_call_is_given_up_in_5_s() {
    let mut held = at_work(Duration::ZERO);
    held.connection_lost().await;
    is_given_up_in_5_s(&held, "no call").await;
}

/// Between two scrapes a counter that is made anew could reach the same number again.
#[tokio::test(start_paused = true)]
async fn returns_of_a_driver_are_counted_on_though_its_engine_ended_meanwhile() {
    for is_away in [true, false] {
        let metrics = Metrics::default();
        let (_settings, config) = settings();
        let task = task_of(
            Idle::new(Lists::new(&[], true), &metrics),
            config,
            watch::Sender::default(),
        );
        let mut held = at_work(Duration::ZERO);
        metrics.driver_up(NAME, !is_away);
        metrics.driver_reconnected(NAME);
        if is_away {
            held.connection_lost().await;
        }
        task.finish(&mut held).await;
        let text = metrics.encode_prometheus();
        assert_eq!(text.contains(&format!("{RECONNECTS} 1\n")), is_away, "{text}");
        assert_eq!(text.contains(&format!("{UP} 0\n")), is_away, "{text}");
    }
}

/// Each role has its connection to the driver; who shows the driver counts.
#[tokio::test(start_paused = true)]
async fn a_connection_that_replaces_a_lost_one_is_counted_by_the_task() {
    for count in [1, 0] {
        let driver = Reached::new(Answers::Itself(client_of_nobody()));
        let Ok(next) = driver.connect().await else {
            panic!("it answers")
        };
        let next = Box::new(next);
        let replacement = match count {
            1 => Replacement::Reconnected(next),
            _ => Replacement::Ready(next),
        };
        driver.replacements.lock().push(replacement);
        let (metrics, (sender, mut state)) = (Metrics::default(), watch::channel(DriverState::default()));
        let (_settings, config) = settings();
        let role = Idle {
            admits: true,
            ..Idle::new(Lists::new(&[], true), &metrics)
        };
        let task = task_of(role, config, sender).run_over(driver);
        let _task = AbortOnDropHandle::new(tokio::spawn(task));
        let runs = state.wait_for(|state| state.phase == DriverPhase::Running);
        assert!(timeout(LIMIT, runs).await.expect("in time").is_ok());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let text = metrics.encode_prometheus();
        assert!(text.contains(&format!("{RECONNECTS} {count}\n")), "{text}");
    }
}

/// It neither renews nor tells anything any more.
#[tokio::test(start_paused = true)]
async fn a_candidate_that_has_ended_is_given_up() {
    let election = election(|elections| {
        let clocks: MomentSource = Arc::new(|| -> (Instant, Duration) { panic!("a bug") });
        elections.clock = clocks.into();
    });
    let (_settings, config) = settings();
    let (metrics, (sender, _state)) = (Metrics::default(), watch::channel(DriverState::default()));
    let mut task = DriverTask {
        election: Some(election.clone()),
        ..task_of(Idle::new(Lists::new(&[], true), &metrics), config, sender)
    };
    let driver = Reached::new(Answers::Itself(client_of_nobody()));
    let Ok(reached) = driver.connect().await else {
        panic!("it answers")
    };
    let mut held = Leadership::new(task.lease_status.clone());
    held.set_candidate(LeaderElectionHandle::observe(election, "lease".to_owned(), metrics));
    let leads = timeout(LIMIT, task.acquire_lease(&reached, &mut held)).await;
    assert_eq!(leads, Ok(false));
    assert!(held.candidate.is_none(), "there is to be another one");
    assert!(task.lease_status.lock().is_none());
}

/// Another replica has the Lease when it has run out, and writes the status.
#[tokio::test(start_paused = true)]
async fn a_candidate_that_could_not_release_the_lease_is_not_shown_to_lead() {
    let server = ApiServer::default();
    server.release_in("default");
    let election = election(|elections| elections.client = server.client());
    let (status, metrics) = (LeaseStatus::default(), Metrics::default());
    let mut held = Leadership::<NoWork>::new(status.clone());
    held.set_candidate(LeaderElectionHandle::start(election, "lease".to_owned(), metrics));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let shown = || status.lock().as_ref().map(|status| status.borrow().state.clone());
    assert!(matches!(shown(), Some(LeaderState::Leading(_))), "{:?}", shown());
    server.0.lock().down = true;
    held.release_lease().await;
    assert!(held.candidate.is_none());
    assert_eq!(shown(), None);
}
