//! What comes of passes: half a listing, a listing without a volume, and none at all.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::Level;

use super::{Answer, LIMITS, Lister, Pages, expected, page};
use crate::api::names::VOLUME_ANNOTATION;
use crate::api::{AttacherConfigSpec, DriverConfig, GoDuration, PublishSecretsSpec, ReconcileSyncMode};
use crate::apiserver::{Requests, connect};
use crate::cache::Store;
use crate::decide::reconcile::Listing;
use crate::decide::{Capabilities, DriverFacts, ListedEvidence};
use crate::driver::SharedContext;
use crate::driver::engine::{self, Engine};
use crate::objects::{Attachment, CsiNode, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire};
use crate::telemetry::Metrics;
use csi_attacher_runtime::DriverState;
use csi_attacher_runtime::Start;
use csi_attacher_runtime::state::{DriverStateSender, ReconcileSyncResult};
use csi_attacher_testbed::Logged;

const DRIVER: &str = "a.test";
const FINALIZER: &str = "external-attacher/a-test";
/// Between two passes, without the share that is added at random.
const INTERVAL: Duration = Duration::from_secs(100);
/// At least this many passes begin within so many intervals: each comes a tenth of it late at most.
const fn passes(count: u32) -> Duration {
    INTERVAL
        .saturating_mul(count)
        .saturating_mul(11)
        .checked_div(10)
        .unwrap()
}

/// An engine with two volumes, "a" and "b", that are attached to the node "n", and a driver that only lists. What it is made to
/// work on again fails before the driver is called, or cannot be written down, as there is no API server.
struct Stage {
    lister: Arc<Lister>,
    store: Store,
    metrics: Metrics,
    status: watch::Receiver<DriverState>,
    settings: watch::Sender<Arc<DriverConfig>>,
    spec: AttacherConfigSpec,
    engine: Engine,
}

impl Stage {
    fn of(pages: Pages) -> Self {
        Self::over(Lister::of(pages))
    }

    fn over(lister: Lister) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let lister = Arc::new(lister);
        let metrics = Metrics::default();
        // Nobody listens there: nothing is written in these tests.
        let nowhere = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let requests = Requests::new(connect(&nowhere).unwrap(), "nowhere", INTERVAL, metrics.clone());
        let context = SharedContext::new(Store::default(), requests, metrics.clone());
        let store = context.store.clone();
        for name in ["a", "b"] {
            attach(&store, name, &Value::Null);
        }
        store.apply(CsiNode::new("node", &[(DRIVER, "n")]));
        let mut spec = AttacherConfigSpec::new("unix:///nowhere");
        spec.reconcile_sync.interval = GoDuration::from_secs(100);
        spec.timeouts.list_volumes = GoDuration::from_secs(5);
        let (settings, seen) = watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()));
        let capabilities = Capabilities {
            publish_unpublish: true,
            list_volumes: true,
            list_volumes_published_nodes: true,
            ..Capabilities::default()
        };
        let facts = DriverFacts::new(DRIVER, capabilities);
        let (sender, status) = watch::channel(DriverState::default());
        let start = Start {
            name: "config".into(),
            config: seen,
            facts,
            client: lister.client(),
            status: DriverStateSender::new(sender),
        };
        let Ok(engine) = engine::start(context, start) else {
            panic!("conflict")
        };
        Self {
            lister,
            store,
            metrics,
            status,
            settings,
            spec,
            engine,
        }
    }

    /// The tokens that the driver was asked with.
    fn tokens(&self) -> Vec<String> {
        let asked = self.lister.asked.lock();
        asked.iter().map(|(_, token)| token.clone()).collect()
    }

    fn last(&self) -> ReconcileSyncResult {
        self.status.borrow().last_reconcile.clone().expect("a pass has ended")
    }

    fn last_pass_ended(&self) -> bool {
        self.status.borrow().last_reconcile.is_some()
    }

    /// Attachments that were to be published or detached once more.
    fn forced(&self) -> [u64; 2] {
        ["attach", "detach"].map(|direction| {
            let series = format!("forced_total{{driver_name=\"{DRIVER}\",direction=\"{direction}\"}}");
            let value = self.shown(&series).expect("it is counted from the start");
            value.parse().unwrap()
        })
    }

    /// The interval that alerts go by, in seconds.
    fn shown_interval(&self) -> Option<String> {
        self.shown(&format!("interval_seconds{{driver_name=\"{DRIVER}\"}}"))
    }

    /// The value of a series.
    fn shown(&self, series: &str) -> Option<String> {
        let text = self.metrics.encode_prometheus();
        let start = format!("csi_attacher_reconcile_sync_{series} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.map(str::to_owned)
    }

    /// How many attachments are worked on only because they are to be repaired.
    fn repairs(&self) -> usize {
        let (mut repairs, queue) = (0, self.engine.queue());
        queue.remember_all(|_, memory| repairs += usize::from(memory.forced.is_some()));
        repairs
    }

    fn configure(&mut self, enabled: bool) {
        self.spec.reconcile_sync.mode = if enabled {
            ReconcileSyncMode::Auto
        } else {
            ReconcileSyncMode::Disabled
        };
        let settings = Arc::new(DriverConfig::try_from(&self.spec).unwrap());
        self.engine.reconfigure(&settings);
        self.settings.send_replace(settings);
    }
}

/// A volume of this name and handle, with this publish secret, and its attachment, both as the watches bring them.
fn attach(store: &Store, name: &str, secret: &Value) {
    attach_as(store, name, secret, &json!({}));
}

/// The same, with something else in the attachment.
fn attach_as(store: &Store, name: &str, secret: &Value, change: &Value) {
    let volume = json!({
        "metadata": {"name": name, "uid": format!("{name}-pv"), "resourceVersion": "1", "finalizers": [FINALIZER]},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": name, "controllerPublishSecretRef": secret},
        },
    });
    let mut attachment = json!({
        "metadata": {
            "name": name, "uid": format!("{name}-va"), "resourceVersion": "2", "finalizers": [FINALIZER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "n"},
        },
        "spec": {"attacher": DRIVER, "nodeName": "node", "source": {"persistentVolumeName": name}},
        "status": {"attached": true},
    });
    json_patch::merge(&mut attachment, change);
    store.apply::<Volume>(serde_json::from_value::<PersistentVolumeWire>(volume).unwrap().into());
    let attachment: VolumeAttachmentWire = serde_json::from_value(attachment).unwrap();
    store.apply::<Attachment>(attachment.into());
}

/// A change of an attachment: that it noted this of its volume.
fn noting(note: &Value) -> Value {
    json!({"metadata": {"annotations": {VOLUME_ANNOTATION: note.to_string()}}})
}

/// The backend goes on with a call whose deadline has passed. What it has done is not waited for until the end of a long backoff; and a
/// list that is wrong is no reason for more than one call in a pass.
#[tokio::test(start_paused = true)]
async fn a_backoff_ends_when_a_listing_shows_that_a_detach_is_done() {
    for (is_listed, expected) in [(true, 0..=2), (false, 19..=24)] {
        let pages: Pages = Box::new(move |_, _| {
            let at_node: Option<&[&str]> = Some(&["n"]);
            let volumes = ["a", "b", "c"].map(|handle| (handle, at_node));
            Ok(page(&volumes[..if is_listed { 3 } else { 2 }], ""))
        });
        let mut stage = Stage::of(pages);
        stage.spec.backoff.max = GoDuration::from_secs(3600);
        stage.configure(true);
        let mut detaching = noting(&json!({"handle": "c"}));
        detaching["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        attach_as(&stage.store, "c", &Value::Null, &detaching);
        // Until its pauses are long.
        sleep(passes(40)).await;
        let before = *stage.lister.unpublished.lock();
        assert!(before > 5, "{before} calls");
        sleep(passes(20)).await;
        let calls = *stage.lister.unpublished.lock() - before;
        assert!(expected.contains(&calls), "listed: {is_listed}, {calls} calls");
    }
}

/// Nor what a detach will take back beside the volume of today.
#[tokio::test(start_paused = true)]
async fn a_former_volume_is_not_told_as_one_that_nothing_names() {
    let pages: Pages = Box::new(|_, _| {
        let at_node: Option<&[&str]> = Some(&["n"]);
        let volumes = ["a", "b", "c", "former", "stranger"].map(|handle| (handle, at_node));
        Ok(page(&volumes, ""))
    });
    let stage = Stage::of(pages);
    let former = json!({"handle": "former", "nodeID": "n"});
    let note = json!({"handle": "c", "former": [former]});
    attach_as(&stage.store, "c", &Value::Null, &noting(&note));
    sleep(passes(4)).await;
    let found = stage.last().without_attachment.expect("two passes have ended");
    let handles: Vec<&str> = found.examples.iter().map(|listed| &*listed.handle).collect();
    assert_eq!((found.count, handles), (1, vec!["stranger"]));
}

/// Of two pages, each with one volume, the second cannot be had.
fn half() -> Pages {
    Box::new(|_, token| second_page(token, || Err(expired())))
}

fn second_page(token: &str, second: impl Fn() -> Answer) -> Answer {
    match token {
        "" => Ok(page(&[("a", Some(&["n"]))], "second")),
        _ => second(),
    }
}

fn expired() -> Status {
    Status::aborted("token expired")
}

/// A volume whose page cannot be had is no volume that is gone: "b" is not published again, nor told of.
#[tokio::test(start_paused = true)]
async fn half_a_listing_changes_nothing_however_often_it_comes() {
    let stage = Stage::of(half());
    sleep(passes(5)).await;
    let tokens = stage.tokens();
    assert!(tokens.len() >= 10, "{tokens:?}");
    for pass in tokens.chunks(2) {
        assert_eq!(pass, ["", "second"]);
    }
    assert_eq!(stage.forced(), [0, 0]);
    let last = stage.last();
    assert_eq!((last.volumes, last.mismatches, last.without_attachment), (0, 0, None));
    let error = "ListVolumes: rpc error: code = Aborted desc = token expired";
    assert_eq!(last.error.as_deref(), Some(error));
}

/// A pass that fails between two that contradict is none: the two are in a row, and only they are enough.
#[tokio::test(start_paused = true)]
async fn two_whole_listings_without_a_volume_are_enough() {
    let lists = Arc::new(Mutex::new(0));
    let begun = lists.clone();
    let pages: Pages = Box::new(move |_, token| {
        let number = {
            let mut lists = lists.lock();
            *lists += u32::from(token.is_empty());
            *lists
        };
        second_page(token, || if number == 2 { Err(expired()) } else { Ok(page(&[], "")) })
    });
    let stage = Stage::of(pages);
    loop {
        sleep(INTERVAL / 10).await;
        let lists = *begun.lock();
        if lists == 3 {
            break;
        }
        assert_eq!(stage.forced(), [0, 0], "after {lists} listings");
    }
    sleep(INTERVAL / 10).await;
    assert_eq!(stage.forced(), [1, 0]);
    let last = stage.last();
    assert_eq!((last.volumes, last.mismatches, last.error), (1, 1, None));
}

/// After an update a driver may name all of its volumes in another way, and answer each repair with OK, for weeks.
#[tokio::test(start_paused = true)]
async fn many_mismatches_are_told_in_few_lines_and_not_again_while_they_last() {
    let logged = Logged::start();
    let count = || {
        [
            (Level::ERROR, "the volume is not where the VolumeAttachment says"),
            (Level::ERROR, "more volumes than are told one by one"),
            (Level::WARN, "ListVolumes contradicts the VolumeAttachment still"),
            (Level::WARN, "ListVolumes contradicts more VolumeAttachments"),
            (Level::INFO, "ListVolumes agrees with the VolumeAttachment again"),
            (Level::INFO, "ListVolumes agrees again with more VolumeAttachments"),
        ]
        .map(|(level, words)| logged.count(level, words))
    };
    let names: Vec<String> = (0..70).map(|number| format!("v{number}")).collect();
    let is_right = Arc::new(Mutex::new(false));
    let (listed, shows) = (names.clone(), is_right.clone());
    let pages: Pages = Box::new(move |_, _| {
        let at_node: Option<&[&str]> = Some(&["n"]);
        let all = listed.iter().map(String::as_str).chain(["a", "b"]);
        let all: Vec<_> = all.map(|handle| (handle, at_node)).collect();
        let count = if *shows.lock() { all.len() } else { 0 };
        Ok(page(&all[..count], ""))
    });
    let stage = Stage::of(pages);
    for name in &names {
        attach(&stage.store, name, &Value::Null);
    }
    let go_on_to = async |passes: usize| {
        while stage.tokens().len() < passes {
            sleep(INTERVAL / 10).await;
            // The driver has answered the repairs.
            stage.engine.queue().remember_all(|_, memory| memory.forced = None);
        }
        sleep(INTERVAL / 10).await;
    };
    go_on_to(4).await;
    assert_eq!(count(), [60, 3, 0, 0, 0, 0]);
    assert_eq!(stage.forced(), [3 * 72, 0]);
    go_on_to(12).await;
    assert_eq!(count(), [60, 3, 20, 1, 0, 0]);
    assert!(stage.forced()[0] > 3 * 72, "they are repaired still");
    *is_right.lock() = true;
    go_on_to(14).await;
    assert_eq!(count(), [60, 3, 20, 1, 20, 1]);
}

/// Switched off, nothing is asked; switched on again, it goes on.
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_while_it_is_switched_off() {
    let mut stage = Stage::of(half());
    sleep(passes(2)).await;
    assert!(stage.tokens().len() >= 4);
    stage.configure(false);
    sleep(INTERVAL / 100).await;
    let before = stage.tokens().len();
    sleep(passes(1000)).await;
    assert_eq!(stage.tokens().len(), before);
    stage.configure(true);
    sleep(passes(2)).await;
    assert!(stage.tokens().len() >= before + 4, "{:?}", stage.tokens());
}

/// A driver that lists no volume at all.
fn nothing() -> Pages {
    Box::new(|_, _| Ok(page(&[], "")))
}

/// Nothing stays of the passes, whether one runs when it is switched off or not.
#[tokio::test(start_paused = true)]
async fn switched_off_at_whatever_time_it_leaves_nothing() {
    for in_a_pass in [false, true] {
        let mut stage = Stage::over(Lister::taking(Duration::from_secs(2), nothing()));
        // Two passes find both volumes missing. The third has begun.
        while stage.tokens().len() < 3 {
            sleep(Duration::from_secs(1)).await;
        }
        if !in_a_pass {
            sleep(INTERVAL / 10).await;
        }
        assert_eq!(stage.repairs(), 2, "in a pass: {in_a_pass}");
        assert_eq!(stage.shown_interval().as_deref(), Some("100.0"));
        stage.configure(false);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(stage.repairs(), 0, "in a pass: {in_a_pass}");
        assert_eq!(stage.shown_interval(), None, "in a pass: {in_a_pass}");
        assert!(!stage.last_pass_ended(), "in a pass: {in_a_pass}");
        let before = stage.tokens().len();
        sleep(passes(10)).await;
        assert_eq!(stage.tokens().len(), before);
        // Switched on again, two more passes are enough, and not one.
        stage.configure(true);
        sleep(Duration::from_secs(5)).await;
        assert_eq!((stage.tokens().len(), stage.repairs()), (before + 1, 0));
    }
}

/// An alert goes by the interval: it must not be late by the interval itself.
#[tokio::test(start_paused = true)]
async fn another_interval_is_shown_at_once() {
    for in_a_pass in [false, true] {
        let mut stage = Stage::over(Lister::taking(Duration::from_secs(2), nothing()));
        sleep(Duration::from_secs(if in_a_pass { 1 } else { 10 })).await;
        assert_eq!(stage.last_pass_ended(), !in_a_pass);
        stage.spec.reconcile_sync.interval = GoDuration::from_secs(3600);
        stage.configure(true);
        sleep(Duration::from_millis(10)).await;
        let interval = stage.shown_interval();
        assert_eq!(interval.as_deref(), Some("3600.0"), "in a pass: {in_a_pass}");
        sleep(passes(5)).await;
        assert_eq!(stage.tokens().len(), 1);
    }
}

/// 1ms is a typing mistake, and a driver that lists without a rest does nothing else.
#[tokio::test(start_paused = true)]
async fn a_driver_has_a_rest_between_two_passes_whatever_the_interval() {
    let pages: Pages = Box::new(|_, _| Ok(page(&[("a", Some(&["n"])), ("b", Some(&["n"]))], "")));
    let mut stage = Stage::of(pages);
    stage.spec.reconcile_sync.interval = GoDuration::from_nanos(1_000_000);
    stage.configure(true);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(stage.shown_interval().as_deref(), Some("0.1"));
    let passes = stage.tokens().len();
    assert!((50..=101).contains(&passes), "{passes} passes");
}

/// A pass may last for hours.
#[tokio::test(start_paused = true)]
async fn another_deadline_counts_from_the_next_page_on() {
    let pages: Pages = Box::new(|_, token| second_page(token, || Ok(page(&[("b", Some(&["n"]))], ""))));
    let mut stage = Stage::over(Lister::taking(Duration::from_secs(2), pages));
    sleep(Duration::from_secs(1)).await;
    stage.spec.timeouts.list_volumes = GoDuration::from_secs(9);
    stage.configure(true);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(*stage.lister.deadlines.lock(), [Some(5_000), Some(9_000)]);
    assert_eq!((stage.last().volumes, stage.last().error), (2, None));
}

/// An attach goes by the CSINode alone: without it a repair is refused, and none is told of.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_repaired_is_not_told_of_as_a_mismatch() {
    let stage = Stage::of(nothing());
    let node = |version, drivers: &[(&str, &str)]| {
        let mut node = CsiNode::new("node", drivers);
        node.resource_version = ResourceVersion(version);
        node
    };
    stage.store.apply(node(1, &[]));
    sleep(passes(5)).await;
    assert!(stage.tokens().len() >= 5, "{:?}", stage.tokens());
    assert_eq!((stage.forced(), stage.last().mismatches), ([0, 0], 0));
    stage.store.apply(node(2, &[(DRIVER, "n")]));
    sleep(passes(3)).await;
    let forced = stage.forced();
    assert!(forced[0] >= 2 && forced[1] == 0, "{forced:?}");
    assert_eq!(stage.last().mismatches, 2);
}

/// The AttacherConfig says whether a repair may give the driver the Secret of the volume.
#[tokio::test(start_paused = true)]
async fn a_volume_with_a_secret_is_compared_if_the_driver_may_be_given_it() {
    let pages: Pages = Box::new(|_, _| Ok(page(&[("a", Some(&["n"])), ("b", Some(&["n"]))], "")));
    let mut stage = Stage::of(pages);
    attach(&stage.store, "c", &json!({"namespace": "secrets", "name": "secret"}));
    sleep(passes(4)).await;
    assert_eq!((stage.forced(), stage.last().mismatches), ([0, 0], 0));
    stage.spec.publish_secrets = vec![PublishSecretsSpec {
        namespace: "secrets".to_owned(),
        names: None,
    }];
    stage.configure(true);
    sleep(passes(3)).await;
    let forced = stage.forced();
    assert!(forced[0] >= 1 && forced[1] == 0, "{forced:?}");
    assert_eq!(stage.last().mismatches, 1);
}

/// A pass may last for hours, and a request has a place among the detaches meanwhile.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_the_end_of_a_pass() {
    let takes = Duration::from_secs(4);
    let stage = Stage::over(Lister::taking(takes, nothing()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.tokens().len(), 1, "the pass has begun");
    let work = stage.engine.work();
    let asked = Instant::now();
    let listing = Listing::about(vec![expected("a")]);
    let page_call = || work.page_call();
    let evidence = work.list_turns.evidence(listing, page_call, LIMITS, &**work).await;
    assert_eq!(evidence, Ok(ListedEvidence::Silent));
    let took = asked.elapsed();
    assert!(took < takes + Duration::from_secs(1), "{took:?}");
}
