//! What becomes of an attempt whose Lease is lost: it failed at nothing, and says nothing.

use std::time::Instant;

use super::*;
use crate::cache::{AttacherKey, EnqueueCause};
use crate::driver::attempt::resume_unfinished;
use crate::driver::attempt::unfinished::UnfinishedPublish;
use csi_attacher_kube::lease::{Clock, LeaseRules, LeaseTimings};
use csi_attacher_model::attempt::Publish;
use csi_attacher_testbed::ShiftedClock;
use csi_mock_driver::{CallResult, Rule};

/// A term of 10 s until the renew deadline and 15 s in all, which nobody renews.
fn begun_by(clock: &ShiftedClock) -> Term {
    let (clock, timings) = (Clock::from(clock.source()), LeaseTimings::default());
    Term::new(LeaseRules::default(), clock.clone(), timings, clock.now())
}

/// A stage in such a term. The clock is shifted by hand, and no test takes that long.
async fn led() -> (AttemptFixture, ShiftedClock, Term) {
    let clock = ShiftedClock::default();
    let term = begun_by(&clock);
    let patient = |spec: &mut AttacherConfigSpec| retry(spec, "1h", "1h");
    let stage = AttemptFixture::in_term(Some(term.clone()), Arc::default(), DRIVER, Tracer::disabled(), patient);
    (stage.await, clock, term)
}

impl AttemptFixture {
    /// Waits until the attachment rests for as long as one whose Lease was lost, and not for its backoff.
    async fn rests_without_the_lease(&self, name: &str) {
        let key = AttacherKey::Attachment(name.into());
        let rests = || {
            let held = self.engine.queue().held().into_iter().find(|(held, _)| *held == key);
            let rest = held.map(|(_, until)| until.saturating_duration_since(Instant::now().into()));
            rest.is_some_and(|rest| rest > Duration::from_secs(30) && rest <= Duration::from_mins(1))
        };
        eventually(rests).await;
    }

    /// What was to be taken back was looked up, and nothing was: the place is free as soon as that is over.
    async fn takes_nothing_back(&self, row: &str) {
        self.place_is_free(VolumeOnNode::new("h", "id0").unwrap()).await;
        assert_eq!(self.calls(UNPUBLISH), 0, "a volume in use was detached: {row}");
    }

    fn limit_calls_to_one(&self) {
        self.settings.send_modify(|settings| {
            Arc::make_mut(settings).concurrency.total = std::num::NonZeroUsize::new(1);
        });
    }
}

/// The queue hands out what was due during the standstill, before anybody had the time to close it.
#[tokio::test]
async fn what_is_due_after_a_standstill_calls_and_writes_nothing() {
    let (stage, clock, _term) = led().await;
    let failure = Rule::on(UNPUBLISH).times(1);
    stage.driver.script(failure.fail(tonic::Code::Unavailable, "away"));
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.driver.drift_attach("h", "id0");
    stage.attachment("va0", "n0", &claimed("id0", true));
    stage.api.until(|api| !api.patches.lock().is_empty()).await;
    let noted = stage.patches();
    assert_eq!(noted, [("va0/status".to_owned(), 200)], "why it failed");

    clock.boot_jumps(Duration::from_secs(10));
    stage.engine.queue().wake_all(EnqueueCause::Retry.into());
    stage.rests_without_the_lease("va0").await;
    // What comes to it by a watch changes nothing.
    stage.attachment("va1", "n1", &json!({}));
    stage.rests_without_the_lease("va1").await;
    let metadata = json!({"finalizers": [FINALIZER], "deletionTimestamp": DELETED});
    let spec = json!({"csi": {"volumeHandle": "h2"}});
    stage.volume_with("pv2", &json!({"metadata": metadata, "spec": spec}));
    let volume = AttacherKey::Volume("pv2".into());
    eventually(|| stage.engine.queue().is_held(&volume)).await;
    assert_eq!((stage.calls(UNPUBLISH), stage.patches()), (1, noted));
    assert_eq!(stage.driver.published().len(), 1);
    // That it may not work is no failure.
    let key = AttacherKey::Attachment("va0".into());
    assert_eq!(stage.engine.queue().failures(&key), 1);
}

/// The outcome is not known, as the driver may go on: whoever leads next finds the claim without a result.
#[tokio::test]
async fn a_call_that_is_cut_off_is_told_to_nobody() {
    let (stage, clock, term) = led().await;
    stage.driver.script(Rule::on(PUBLISH).hang());
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(1);
    stage.attachment("va0", "n0", &json!({}));
    stage.called(PUBLISH).await;
    clock.boot_jumps(Duration::from_secs(10));
    assert!(term.may_run() && !term.may_start());
    tokio::task::yield_now().await;
    assert_eq!(stage.driver.in_flight().now, 1, "it may end");
    term.end();
    stage.rests_without_the_lease("va0").await;
    let cancelled = stage.driver.wait_for_call(|call| call.outcome == CallResult::Cancelled);
    tokio::time::timeout(LIMIT, cancelled).await.expect("in time");
    assert_eq!(stage.patches(), [("va0".to_owned(), 200)], "the claim and nothing else");
}

/// A Publish that is under way when its attachment vanishes. The API server can lose our finalizer, when it is added while the object is
/// being deleted.
pub(super) async fn vanished(stage: &AttemptFixture) {
    let publish = Rule::on(PUBLISH).times(1);
    stage.driver.script(publish.delay(Duration::from_secs(1)));
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(2);
    stage.attachment("va0", "n0", &json!({}));
    stage.called(PUBLISH).await;
    stage.vanishes();
}

/// Nothing names a volume whose attachment vanished, and this process alone knows of it. To take it back is a call like those of the queue,
/// and counts with them.
#[tokio::test]
async fn what_vanished_before_the_engine_ended_is_taken_back_by_the_next_one() {
    let (stage, _clock, term) = led().await;
    stage.limit_calls_to_one();
    vanished(&stage).await;
    for method in [PUBLISH, UNPUBLISH] {
        stage.driver.script(Rule::on(method).delay(Duration::from_secs(1)));
    }
    let stage = stage.after_a_cut_off(Some(term)).await;
    stage.attachment("va1", "n1", &json!({}));
    let calls = || [UNPUBLISH, PUBLISH].map(|method| stage.calls(method));
    eventually(|| calls() == [1, 2] && stage.driver.in_flight().now == 0).await;
    assert_eq!(stage.driver.in_flight().peak, 1);
}

/// Another replica led, attached the volume at the same node for another attachment, and a pod uses it; then the API server went back to
/// before that one, or to before the claim of the first one. Nothing shows it.
#[tokio::test]
async fn what_was_called_in_another_term_is_left_alone() {
    for (is_back, is_cut_off) in [(false, false), (true, false), (false, true), (true, true)] {
        let (stage, clock, term) = led().await;
        vanished(&stage).await;
        if is_cut_off {
            term.end();
        } else {
            clock.boot_jumps(Duration::from_secs(10));
            assert!(term.may_run() && !term.may_start());
        }
        stage.attempts_end().await;
        assert_eq!(stage.calls(UNPUBLISH), 0, "without the Lease");
        stage.driver.drift_attach("h", "id0");
        if is_back {
            stage.attachment("va0", "n0", &json!({}));
        }
        let stage = stage.in_another_term(Some(begun_by(&clock))).await;
        stage.attachment("va1", "n1", &json!({}));
        let later = stage.driver.wait_for_call(|call| call.node.as_deref() == Some("id1"));
        tokio::time::timeout(LIMIT, later).await.expect("in time");
        stage.takes_nothing_back(&format!("{is_back}, {is_cut_off}")).await;
    }
}

/// Only this process knows of them.
#[tokio::test]
async fn what_a_former_engine_left_is_kept_by_an_engine_that_ends_at_once() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.engine.queue().pause();
    stage.limit_calls_to_one();
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let work = stage.engine.work().clone();
    let unfinished = &work.context.unfinished;
    for number in 0..3 {
        let (name, id) = (format!("va{number}"), format!("id{number}"));
        stage.attachment(&name, "n0", &json!({}));
        let left = UnfinishedPublish {
            publish: Publish {
                snapshot: stage.store.attachment(&name).unwrap(),
                place: VolumeOnNode::new("h", &id).unwrap().into(),
                secret: None,
            },
            secrets: None,
            term: None,
        };
        unfinished.keep(&DRIVER.into(), left);
    }
    for polled in [false, true] {
        let mut resumed = Box::pin(resume_unfinished(work.clone()));
        if polled {
            assert!(futures::poll!(&mut resumed).is_pending());
        }
        drop(resumed);
        let kept = unfinished.take(DRIVER, None);
        assert_eq!(kept.len(), 3, "{polled}");
        for publish in kept {
            unfinished.keep(&DRIVER.into(), publish);
        }
    }
}

/// The API server went back to an earlier attachment of the same name, which has the volume at the place. It writes no note of the volume.
#[tokio::test]
async fn what_an_earlier_attachment_of_the_name_has_is_not_detached() {
    for watch_is_behind in [false, true] {
        let (stage, _clock, term) = led().await;
        vanished(&stage).await;
        let mut metadata = claimed("id0", false);
        (metadata["name"], metadata["uid"]) = ("va0".into(), "second".into());
        let object = json!({
            "metadata": metadata, "status": {"attached": true},
            "spec": {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
        });
        if watch_is_behind {
            stage.api.put(format!("{ATTACHMENTS}va0"), object);
        } else {
            stage.put_attachment("va0", object);
        }
        let stage = stage.after_a_cut_off(Some(term)).await;
        stage.takes_nothing_back(&format!("{watch_is_behind}")).await;
    }
}
