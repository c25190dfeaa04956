//! An engine and the term of the Lease in which it was started: a driver's task against one Lease, from its own point of view.

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::context::DriverContext;
use super::{AttachRole, SharedContext};
use crate::api::condition::ConditionReason;
use crate::api::names::{NEW_LEASE_HOLDER, lease_name};
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::apiserver::{Requests, connect};
use crate::cache::Store;
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{Kind, follow_from_list};
use crate::telemetry::Metrics;
use csi_attacher_base::health::Health;
use csi_attacher_kube::lease::{LeaderElectionHandle, LeaderElections, LeaseTimings};
use csi_attacher_runtime::connect::{ConnectedDriver, Connector as _, DriverConnector};
use csi_attacher_runtime::leadership::Leadership;
use csi_attacher_runtime::reservation::Reservations;
use csi_attacher_runtime::state::{DriverPhase, DriverStateSender};
use csi_attacher_runtime::task::DriverTask;
use csi_attacher_runtime::{DriverState, Role as _};
use csi_attacher_testbed::ShiftedClock;
use csi_attacher_testbed::lease_server::ApiServer;
use csi_mock_driver::{MockDriver, MockHandle};

const NAME: &str = "a.test";
const LIMIT: Duration = Duration::from_secs(20);
/// So long something that must not happen is waited for.
const MOMENT: Duration = Duration::from_millis(300);

/// What is answered of lists of the objects.
#[derive(Clone, Copy, PartialEq)]
enum Lists {
    Nothing,
    FirstPart,
    /// Everything, but of CSINodes nothing.
    AllButNodes,
    Everything,
}

impl Lists {
    /// Whether a list of a kind comes in: its first part, or the `whole` of it.
    fn shows<K: Kind>(self, whole: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::FirstPart => !whole,
            Self::AllButNodes => K::PLURAL != CsiNodeWire::PLURAL,
            Self::Everything => true,
        }
    }
}

/// A driver's task with what it needs, and the Lease.
struct Stage {
    leases: ApiServer,
    clock: ShiftedClock,
    task: DriverTask<AttachRole>,
    access: DriverConnector,
    reached: ConnectedDriver,
    held: Leadership<DriverContext>,
    status: watch::Receiver<DriverState>,
    lists: watch::Sender<Lists>,
    _watches: AbortOnDropHandle<()>,
    settings: watch::Sender<Arc<DriverConfig>>,
    _driver: MockHandle,
    _folder: tempfile::TempDir,
}

impl Stage {
    #[allow(clippy::too_many_lines, reason = "everything that a task has")]
    async fn new() -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        let driver = MockDriver::builder(NAME).start(&socket).await.unwrap();
        let spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
        let settings = Arc::new(DriverConfig::try_from(&spec).unwrap());
        let (settings, config) = watch::channel(settings);
        let metrics = Metrics::default();
        // Nobody listens there: nothing is written in these tests.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let context = SharedContext::new(
            Store::default(),
            Requests::new(connect(&nowhere).unwrap(), "nowhere", LIMIT, metrics.clone()),
            metrics.clone(),
        );
        let (leases, clock) = (ApiServer::default(), ShiftedClock::default());
        leases.release_in("default");
        let (duration, renewed) = (Duration::from_secs(15), Duration::from_secs(10));
        let timing = LeaseTimings::new(duration, renewed, Duration::from_millis(100)).unwrap();
        let election = LeaderElections {
            reports: true,
            clock: clock.source().into(),
            ..LeaderElections::new(leases.client(), "ours".to_owned())
        }
        .config_for("default", timing);
        let (sender, status) = watch::channel(DriverState::default());
        let task = DriverTask {
            role: AttachRole {
                context: context.clone(),
                queue: Arc::default(),
            },
            name: "config".into(),
            config: config.clone(),
            election: Some(election.clone()),
            reservations: Reservations::default(),
            known_as: Arc::default(),
            lease_status: Arc::default(),
            stop: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            removed: Arc::default(),
            status: DriverStateSender::new(sender),
        };
        let access = DriverConnector::new("config".into(), config, &context.requests, &context.metrics);
        let Ok(reached) = access.connect().await else {
            panic!("not reached")
        };
        let candidate = LeaderElectionHandle::observe(election, lease_name(NAME), metrics);
        let mut held = Leadership::new(task.lease_status.clone());
        held.set_candidate(candidate);
        let (lists, answered) = watch::channel(Lists::Nothing);
        let watches = AbortOnDropHandle::new(tokio::spawn(watches(context.store.clone(), answered)));
        Self {
            leases,
            clock,
            task,
            access,
            reached,
            held,
            status,
            lists,
            _watches: watches,
            settings,
            _driver: driver,
            _folder: folder,
        }
    }

    /// Waits until enough was listed to compete for the driver.
    async fn listed(&mut self, limit: Duration) -> Option<bool> {
        let facts = self.reached.facts();
        let listed = self.task.wait_for_lists(&facts, &self.reached.client);
        timeout(limit, listed).await.ok()
    }

    /// Waits for the Lease; none when it is not had within a moment.
    ///
    /// Without the Lease nothing is written to the driver, and where something would have to be, as an acknowledgement of HTTP/2 that
    /// was late, the connection ends. Then there is another one, as the task makes it.
    async fn lead(&mut self, limit: Duration) -> Option<bool> {
        loop {
            let lead = self.task.acquire_lease(&self.reached, &mut self.held);
            let leads = timeout(limit, lead).await.ok();
            if leads != Some(false) || !self.reached.client.connection().is_lost() {
                return leads;
            }
            let Ok(reached) = self.access.connect().await else {
                panic!("not reached")
            };
            self.reached = reached;
        }
    }

    /// Goes on with the engine or starts one; none when that is not done within a moment. As in the task, the role is asked before.
    async fn resume_or_start(&mut self, limit: Duration) -> Option<bool> {
        let config = self.settings.borrow().clone();
        let admitted = self.task.role.admit(&self.reached.facts(), &config, "config").await;
        let facts = admitted.expect("a driver that publishes is admitted");
        let start = self.task.resume_or_start(&mut self.held, &facts, &self.reached);
        timeout(limit, start).await.ok()
    }

    /// Leads and has an engine, as after the objects were listed.
    async fn works(&mut self) {
        assert_eq!(self.lead(LIMIT).await, Some(true));
        self.lists.send_replace(Lists::Everything);
        assert_eq!(self.resume_or_start(LIMIT).await, Some(true));
        self.lists.send_replace(Lists::Nothing);
        assert!(self.held.engine.is_some());
    }

    /// Another replica takes the Lease by force, or gives it back.
    fn holder(&self, holder: Option<&str>) {
        self.leases.change(|lease| {
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = holder.map(str::to_owned);
        });
    }

    async fn loses_the_term(&self) {
        timeout(LIMIT, self.held.loses_term()).await.expect("in time");
    }

    fn phase(&self) -> DriverPhase {
        self.status.borrow().phase.clone()
    }
}

/// Lists of one object, each as soon as lists are answered, and no news.
async fn watches(store: Store, answered: watch::Receiver<Lists>) {
    fn list<K: Kind>(
        answered: &watch::Receiver<Lists>,
    ) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + use<K> {
        let (mut first, mut rest) = (answered.clone(), answered.clone());
        let first = async move {
            let _allowed = first.wait_for(|lists| lists.shows::<K>(false)).await;
            let object = json!({"metadata": {"name": "other", "uid": "u", "resourceVersion": "1"},
                "spec": {"attacher": "other.test", "nodeName": "n", "source": {}, "drivers": []}});
            Ok(Event::InitApply(serde_json::from_value(object).unwrap()))
        };
        let rest = async move {
            let _allowed = rest.wait_for(|lists| lists.shows::<K>(true)).await;
            Ok(Event::InitDone)
        };
        stream::iter([Ok(Event::Init)])
            .chain(stream::once(first))
            .chain(stream::once(rest))
            .chain(stream::pending())
    }
    let health = Health::new();
    let check = |name: &str| health.check(name);
    futures::join!(
        follow_from_list::<VolumeAttachmentWire, _, _>(|| list(&answered), store.clone(), check("a")),
        follow_from_list::<PersistentVolumeWire, _, _>(|| list(&answered), store.clone(), check("v")),
        follow_from_list::<CsiNodeWire, _, _>(|| list(&answered), store.clone(), check("n")),
    );
}

/// A list may be forbidden for days. Whoever suspends the driver meanwhile, or loses it, is answered.
#[tokio::test]
async fn a_wait_for_lists_ends_when_the_driver_is_suspended_or_lost() {
    let suspend = |settings: &mut Arc<DriverConfig>| Arc::make_mut(settings).suspend = true;
    let suspended = |stage: &Stage| stage.settings.send_modify(suspend);
    let lost = |stage: &Stage| stage.reached.client.connection().lose();
    let causes = [("suspended", &suspended as &dyn Fn(&Stage)), ("lost", &lost)];
    for (what, cause) in causes {
        let mut stage = Stage::new().await;
        assert_eq!(stage.listed(MOMENT).await, None, "nothing is listed");
        cause(&stage);
        assert_eq!(stage.listed(LIMIT).await, Some(false), "{what} before the first list");

        let mut stage = Stage::new().await;
        assert_eq!(stage.lead(LIMIT).await, Some(true));
        assert_eq!(stage.resume_or_start(MOMENT).await, None, "nothing is listed anew");
        cause(&stage);
        assert_eq!(stage.resume_or_start(LIMIT).await, Some(false), "{what} with the Lease");
    }
}

/// Other settings are no reason to end a wait.
#[tokio::test]
async fn a_wait_for_lists_outlasts_a_change_of_settings() {
    let mut stage = Stage::new().await;
    let others = |settings: &mut Arc<DriverConfig>| Arc::make_mut(settings).concurrency.attach = None;
    stage.settings.send_modify(others);
    assert_eq!(stage.listed(MOMENT).await, None);
    stage.lists.send_replace(Lists::FirstPart);
    assert_eq!(stage.listed(LIMIT).await, Some(true));
}

/// Its first holder had other settings, or had them wrong: how long it is waited for says the Lease.
#[tokio::test]
async fn who_waits_for_a_new_lease_says_until_when() {
    let mut stage = Stage::new().await;
    stage.holder(Some(NEW_LEASE_HOLDER));
    stage.leases.change(|lease| {
        lease.spec.get_or_insert_default().lease_duration_seconds = Some(900);
    });
    assert_eq!(stage.lead(MOMENT).await, None);
    let DriverPhase::Standby {
        holder: None,
        new_lease: Some(told),
        ..
    } = stage.phase()
    else {
        panic!("{:?}", stage.phase());
    };
    let lease = format!("Lease default/{} is new: ", lease_name(NAME));
    assert!(told.starts_with(&lease), "{told}");
    let (_, until) = told.split_once("(900 s) are over, at ").expect(&told);
    let until: jiff::Timestamp = until.parse().expect(&told);
    let left = until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((890..=900).contains(&left), "{told}");
}

/// F13: the connection comes back at the moment when the Lease is lost.
#[tokio::test]
async fn an_engine_does_not_outlive_the_lease_that_was_lost_while_the_driver_was_away() {
    let mut stage = Stage::new().await;
    stage.works().await;
    stage.held.connection_lost().await;
    stage.holder(Some("another"));
    stage.loses_the_term().await;

    assert_eq!(stage.lead(MOMENT).await, None, "another has it");
    assert!(stage.held.engine.is_none(), "what ran has ended");
    let phase = stage.phase();
    assert!(matches!(phase, DriverPhase::Standby { .. }), "{phase:?}");

    // It worked meanwhile, so that nothing is begun before the objects are listed anew.
    stage.holder(None);
    assert_eq!(stage.lead(LIMIT).await, Some(true));
    assert_eq!(stage.resume_or_start(MOMENT).await, None);
    assert_eq!(stage.phase(), DriverPhase::Syncing);
    stage.works().await;
}

/// The Lease was lost and is held again before anybody looked: all that can be seen is that the term is another one.
#[tokio::test]
async fn an_engine_does_not_go_on_in_another_term() {
    let mut stage = Stage::new().await;
    stage.works().await;
    let term = stage.held.term.clone();
    stage.held.connection_lost().await;
    stage.clock.boot_jumps(Duration::from_secs(11));
    stage.loses_the_term().await;
    let candidate = stage.held.candidate.as_ref().unwrap();
    timeout(LIMIT, async {
        while candidate.term().is_none() {
            candidate.differs_from(&candidate.status()).await;
        }
    })
    .await
    .expect("in time");

    assert_eq!(stage.lead(LIMIT).await, Some(true));
    assert!(stage.held.engine.is_none() && stage.held.term != term);
    assert_eq!(stage.resume_or_start(MOMENT).await, None);
    assert_eq!(stage.phase(), DriverPhase::Syncing);
}

/// A driver that hangs in a call answers nothing: that it is reached is not said while the call is waited for.
#[tokio::test]
async fn a_driver_that_is_not_reached_stays_that_while_its_calls_end() {
    let away = DriverPhase::Unreachable {
        reason: ConditionReason::Timeout,
        message: "slow".to_owned(),
    };
    for (before, meanwhile) in [(DriverPhase::Running, DriverPhase::Draining), (away.clone(), away)] {
        let mut stage = Stage::new().await;
        stage.works().await;
        stage.task.status.phase(before);
        stage.task.finish(&mut stage.held).await;
        assert!(stage.held.engine.is_none());
        assert_eq!(stage.phase(), meanwhile);
    }
}

/// The Lease was held all the while: there is nothing to list anew.
#[tokio::test]
async fn an_engine_goes_on_in_its_term() {
    let mut stage = Stage::new().await;
    stage.works().await;
    stage.held.connection_lost().await;
    assert_eq!(stage.lead(LIMIT).await, Some(true));
    let term = stage.held.term.clone();
    assert!(stage.held.engine.as_ref().is_some_and(|engine| engine.term() == term));
    assert_eq!(stage.resume_or_start(LIMIT).await, Some(true));
}

/// Whatever the lists of the start show, those that follow the Lease show it better.
#[tokio::test]
async fn a_driver_that_publishes_is_competed_for_as_soon_as_lists_come_in() {
    let mut stage = Stage::new().await;
    assert_eq!(stage.listed(MOMENT).await, None, "nothing shows that it may list");
    assert_eq!(stage.phase(), DriverPhase::Syncing);
    stage.lists.send_replace(Lists::FirstPart);
    assert_eq!(stage.listed(LIMIT).await, Some(true));
    assert_eq!(stage.lead(LIMIT).await, Some(true));
    // Not before everything was listed.
    assert_eq!(stage.resume_or_start(MOMENT).await, None);
    stage.works().await;
}

/// Nothing shows yet whether it published earlier, and nobody else lists everything anew.
#[tokio::test]
async fn a_driver_that_does_not_publish_and_one_without_an_election_wait_for_the_whole_list() {
    for is_elected in [true, false] {
        let mut stage = Stage::new().await;
        if is_elected {
            stage.reached.handshake.capabilities.bits.publish_unpublish = false;
        } else {
            stage.task.election = None;
        }
        stage.lists.send_replace(Lists::FirstPart);
        assert_eq!(stage.listed(MOMENT).await, None, "elected: {is_elected}");
        stage.lists.send_replace(Lists::Everything);
        assert_eq!(stage.listed(LIMIT).await, Some(true), "elected: {is_elected}");
    }
}

/// Its sidecar lists none, and may have no permission for it. It has no calls, and nothing else asks for the ID of a node.
#[tokio::test]
async fn a_driver_that_does_not_publish_needs_no_csi_nodes() {
    for (publishes, expected) in [(false, Some(true)), (true, None)] {
        let mut stage = Stage::new().await;
        stage.reached.handshake.capabilities.bits.publish_unpublish = publishes;
        stage.lists.send_replace(Lists::AllButNodes);
        let limit = if publishes { MOMENT } else { LIMIT };
        assert_eq!(stage.listed(limit).await, expected, "before the Lease: {publishes}");
        assert_eq!(stage.lead(LIMIT).await, Some(true));
        assert_eq!(
            stage.resume_or_start(limit).await,
            expected,
            "with the Lease: {publishes}"
        );
    }
}
