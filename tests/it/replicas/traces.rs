//! Replicas that are killed: when the next one works, and one trace for one life, whoever works on it.

use csi_mock_driver::{Method, Rule};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use serde_json::{Value, json};
use tonic::Code;

use super::{moves, named};
use crate::hostile_api::pauses::look_during;
use crate::rig::{Driver, LIMIT, World, stands_by};
use crate::support::otlp::{OtlpReceiver, ReceivedSpan};
use crate::support::{Operator, Result};

const ATTACH: &str = "VolumeAttachment.attach";
const ATTEMPT: &str = "VolumeAttachment.attach.attempt";
/// Of a Lease whose end is waited for. It outlives a machine that stands still for some seconds.
const LEASE_DURATION: SignedDuration = SignedDuration::from_secs(8);
/// How long after its last renewal such a Lease must be taken, by the times in it: five tries after it is over.
const TAKEN_WITHIN: SignedDuration = SignedDuration::from_secs(8 + 5);

fn settings() -> Value {
    json!({
        "leaderElection": {"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s"},
        "backoff": {"initial": "50ms", "max": "100ms"},
        "tracing": {"errorSuffix": true},
    })
}

impl World {
    /// A replica that tells a receiver of its own at once.
    async fn traced(&self, identity: &str) -> Result<(Operator, OtlpReceiver)> {
        let receiver = OtlpReceiver::grpc().await;
        let options = named(identity)
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            .variable("OTEL_BSP_SCHEDULE_DELAY", "20");
        Ok((self.operator(options).await?, receiver))
    }
}

async fn kill(operator: &mut Operator) -> Result<()> {
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await.map(drop)
}

fn named_so<'s>(spans: &'s [ReceivedSpan], name: &str) -> Vec<&'s ReceivedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// Waits until a replica has told of a span of this name.
async fn tells(receiver: &OtlpReceiver, name: &str) {
    let enough = |spans: &[ReceivedSpan]| !named_so(spans, name).is_empty();
    receiver.wait_until(LIMIT, enough).await;
}

/// T3 and T4: the first is killed between two attempts, its successor is killed too, and one that starts anew comes to the
/// end: all that came out of them is one trace with one root.
pub async fn t3_t4_kill_9_and_failover_leave_one_trace_with_one_root(world: &World) -> Result<()> {
    let (mut first, one) = world.traced("first").await?;
    let driver = world.driver("told", settings()).await?;
    let never = Rule::on(Method::ControllerPublishVolume).fail(Code::Internal, "the array is being mended");
    driver.mock.script(never);
    let made = driver.claim("told-1").await?;
    tells(&one, ATTEMPT).await;
    let (mut second, two) = world.traced("second").await?;
    let taken = taken_when_it_is_over(&driver, &mut first, &second).await?;
    tells(&two, ATTEMPT).await;
    world.reported_holder("told", Some("second")).await?;
    kill(&mut second).await?;
    // It has the Lease back under its old name. One that it had waited for would have been acquired anew.
    let (third, three) = world.traced("second").await?;
    tells(&three, ATTEMPT).await;
    let kept = world.holder(&driver.name, Some("second")).await?;
    assert_eq!(kept.acquire_time, taken.acquire_time);
    driver.mock.clear_rules();
    let attached = world.fixtures.wait_for_attached("told-1").await?;
    tells(&three, ATTACH).await;
    let calls = moves(&driver.mock);
    assert!(calls.iter().all(|call| !call.overlap), "{calls:#?}");

    let spans = [one.spans(), two.spans(), three.spans()].concat();
    let root = the_only_root(&spans);
    let uid = made.metadata.uid.unwrap_or_default();
    assert_eq!(root.text("k8s.volumeattachment.uid"), uid);
    // The attachment, its events and the lines of all three name that trace.
    let annotations = attached.metadata.annotations.unwrap_or_default();
    let noted = format!("00-{}-{}-01", root.trace_id, root.span_id);
    assert_eq!(annotations.get("attacher.csi.dev/traceparent"), Some(&noted));
    for operator in [&first, &second, &third] {
        assert_lines_tell(operator, &root.trace_id);
    }
    Ok(())
}

/// The first is killed, and the second, which competes for the Lease, takes it: not before it is over, and soon afterwards.
async fn taken_when_it_is_over(driver: &Driver<'_>, first: &mut Operator, second: &Operator) -> Result<LeaseSpec> {
    let world = driver.world;
    stands_by(second, &driver.name).await?;
    let work = async {
        kill(first).await?;
        let left = world.holder(&driver.name, Some("first")).await?;
        Ok((left, world.holder(&driver.name, Some("second")).await?))
    };
    let ((left, taken), looks) = look_during(world, Box::pin(work)).await?;
    let acquired = taken.acquire_time.as_ref().unwrap().0;
    // Not from when it was killed: the last renewal was before that.
    let rested = acquired.duration_since(left.renew_time.unwrap().0);
    println!("{rested:#} from the last renewal until the Lease was taken, of {LEASE_DURATION:#}");
    // While another process stands still, the second replica waits for that process.
    let stood_still = SignedDuration::from_millis(looks.stood_still());
    assert!(rested >= LEASE_DURATION, "{rested:#}");
    assert!(rested <= TAKEN_WITHIN + stood_still, "{rested:#}");
    Ok(taken)
}

/// All attempts were within it.
fn the_only_root(spans: &[ReceivedSpan]) -> &ReceivedSpan {
    let roots = named_so(spans, ATTACH);
    let [root] = roots[..] else { panic!("{roots:#?}") };
    assert_eq!((root.text("attacher.outcome"), root.failed), ("succeeded", false));
    for attempt in named_so(spans, ATTEMPT) {
        let (parent, own) = (attempt.parent_span_id.as_ref(), Some(&root.span_id));
        assert_eq!((&attempt.trace_id, parent), (&root.trace_id, own));
        assert!(root.start_unix_nano <= attempt.start_unix_nano && attempt.end_unix_nano <= root.end_unix_nano);
    }
    root
}

/// Each line about the attachment names the trace.
fn assert_lines_tell(operator: &Operator, trace_id: &str) {
    let log = operator.log_text();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let about: Vec<_> = lines.filter(|line| line["VolumeAttachment"] == "told-1").collect();
    let is_told = !about.is_empty() && about.iter().all(|line| line["trace_id"] == *trace_id);
    assert!(is_told, "{trace_id} in {about:#?}, of {log}");
}
