//! Which lane an attempt keeps busy, and for how long.

use super::*;
use csi_mock_driver::Rule;

/// Long enough for everything else, short enough to be waited for.
const DETACH_DEADLINE: &str = "5s";

/// A stage on which one call of each kind may be in flight.
async fn narrow(api: Api) -> AttemptFixture {
    AttemptFixture::with(api, DRIVER, |spec| {
        (spec.concurrency.attach, spec.concurrency.detach) = (1, 1);
        spec.timeouts.unpublish = DETACH_DEADLINE.parse().unwrap();
    })
    .await
}

impl AttemptFixture {
    /// Begins a detach of `name` from the node with the id `id`, which hangs until its deadline.
    async fn hanging_detach(&self, name: &str, id: &str) {
        self.driver.script(Rule::on(UNPUBLISH).times(1).hang());
        self.attachment(name, "gone", &claimed(id, true));
        self.detach_is_called(id).await;
    }

    async fn detach_is_called(&self, id: &str) {
        let id = id.to_owned();
        let called = self
            .driver
            .wait_for_call(move |call| call.method == UNPUBLISH && call.node.as_deref() == Some(&*id));
        tokio::time::timeout(LIMIT, called).await.expect("in time");
    }

    /// The most calls of a kind that were in flight at a time.
    fn peak(&self, call: Call) -> usize {
        self.driver.in_flight_of(call).peak
    }
}

#[tokio::test]
async fn ten_hanging_detaches_hold_up_no_attach() {
    let stage = narrow(Api::default()).await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.hanging_detach("old0", "old-id0").await;
    stage.driver.script(Rule::on(UNPUBLISH).hang());
    for number in 1..10 {
        let claim = claimed(&format!("old-id{number}"), true);
        stage.attachment(&format!("old{number}"), "gone", &claim);
    }
    stage.nodes(3);
    for number in 0..3 {
        stage.attachment(&format!("va{number}"), &format!("n{number}"), &json!({}));
    }
    for number in 0..3 {
        stage.attached(&format!("va{number}")).await;
    }
    assert_eq!(stage.peak(UNPUBLISH), 1);
    assert_eq!(stage.peak(PUBLISH), 1);
}

/// It was handed out to be attached, and deleted before the call: its detach waits for its turn among the detaches.
#[tokio::test]
async fn a_detach_never_takes_the_place_of_an_attach() {
    let stage = narrow(Api::volumes_together(2)).await;
    stage.volume(&json!({}));
    stage.nodes(2);
    stage.hanging_detach("old", "old-id").await;
    // Handed out to be attached; its first write, the finalizer of the volume, waits for us.
    stage.attachment("va0", "n0", &claimed("id0", false));
    stage.volume_is_patched().await;
    stage.attachment("va0", "n0", &claimed("id0", true));
    stage.attachment("va1", "n1", &json!({}));
    stage.api.volumes_together.as_ref().unwrap().wait().await;
    stage.attached("va1").await;
    assert_eq!(stage.calls(UNPUBLISH), 1, "the one that hangs still does");
    stage.detach_is_called("id0").await;
    assert_eq!(stage.peak(UNPUBLISH), 1);
}

/// Two calls never overlap for one volume and node. Who waits for that leaves its place in the lane to others.
#[tokio::test]
async fn who_waits_for_another_call_fills_no_lane() {
    let stage = narrow(Api::default()).await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(2);
    stage.hanging_detach("old", "id0").await;
    stage.attachment("va0", "n0", &json!({}));
    stage.is_claimed("va0", FINALIZER).await;
    stage.attachment("va1", "n1", &json!({}));
    stage.attached("va1").await;
    assert!(!AttemptFixture::is_attached(&stage.api, "va0"));
    assert_eq!(stage.calls(PUBLISH), 1, "that of va1");
    stage.attached("va0").await;
    assert_eq!(stage.peak(UNPUBLISH), 1);
}

/// `callsPerSecond` is about calls: what is refused without a call uses up none of them.
#[tokio::test]
async fn an_attempt_without_a_call_costs_no_call() {
    const COUNT: usize = 60;
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| spec.concurrency.calls_per_second = 1).await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    for number in 0..COUNT {
        stage.attachment(&format!("va{number}"), "nowhere", &json!({}));
    }
    let refused = |api: &Api| {
        (0..COUNT).all(|number| {
            let object = api.get(&format!("{ATTACHMENTS}va{number}"));
            object.is_some_and(|object| object["status"]["attachError"].is_object())
        })
    };
    // Less than a second for each.
    stage.api.until(refused).await;
    assert_eq!(stage.calls(PUBLISH), 0);
}

/// A driver that is served without calls is not held to a number of calls.
#[tokio::test]
async fn without_calls_there_is_no_rate_of_calls() {
    let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
    spec.concurrency.calls_per_second = 1;
    let config = DriverConfig::try_from(&spec).unwrap();
    let limited = |publish_unpublish| {
        let able = Capabilities {
            publish_unpublish,
            ..Capabilities::default()
        };
        let limits = crate::driver::engine::limits(&config, &DriverFacts::new(DRIVER, able));
        limits.lanes.iter().map(|lane| lane.rate_limited).collect::<Vec<_>>()
    };
    assert_eq!(limited(true), [true, true, false]);
    assert_eq!(limited(false), [false, false, false]);
}

/// Nobody waits for the notes on what a sidecar attached: an attach does not stand behind all of them at the limit of requests.
#[tokio::test]
async fn an_attach_goes_before_the_notes_on_what_is_attached() {
    const ATTACHED: usize = 400;
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| spec.kubernetes_api.qps = 4).await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(1);
    for number in 0..ATTACHED {
        let metadata = claimed(&format!("old-id{number}"), false);
        let attached = json!({"metadata": metadata, "status": {"attached": true}});
        stage.attachment_with(&format!("old{number}"), &format!("old-n{number}"), &attached);
    }
    // The burst is used up.
    stage.api.until(|api| api.patches.lock().len() > 4).await;
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    let patches = stage.patches();
    let notes = patches.iter().filter(|(path, _)| path.starts_with("old")).count();
    assert!(notes < ATTACHED / 2, "{notes} notes came first");
}

/// The limit of requests holds the attaches back until it is raised, and never the end of the driver.
#[tokio::test]
async fn requests_wait_for_the_limit_of_the_driver_but_not_at_its_end() {
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| spec.kubernetes_api.qps = 1).await;
    let limit = |qps| {
        let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
        spec.kubernetes_api.qps = qps;
        let config = DriverConfig::try_from(&spec).unwrap();
        stage.engine.reconfigure(&Arc::new(config));
    };
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(40);
    let attach = |number: usize| stage.attachment(&format!("va{number}"), &format!("n{number}"), &json!({}));
    // Two writes each: 39 seconds for these, were it not for the change.
    (0..20).for_each(attach);
    stage.api.until(|api| !api.patches.lock().is_empty()).await;
    limit(10_000);
    for number in 0..20 {
        stage.attached(&format!("va{number}")).await;
    }
    limit(1);
    (20..40).for_each(attach);
    stage.api.until(|api| api.patches.lock().len() > 40).await;
    eventually(|| stage.engine.queue().stats().lanes[0].ready == 0).await;
    let AttemptFixture { engine, api, .. } = stage;
    tokio::time::timeout(LIMIT, engine.drain()).await.expect("in time");
    assert_eq!(api.patches.lock().len(), 80, "everything that ran is on record");
}
