//! One trace for one life, whoever works on it.

use csi_mock_driver::{Method, Rule};
use serde_json::{Value, json};
use tonic::Code;

use super::{named, short};
use crate::rig::{LIMIT, World};
use crate::support::otlp::{OtlpReceiver, ReceivedSpan};
use crate::support::{Operator, Result};

const ATTACH: &str = "VolumeAttachment.attach";
const ATTEMPT: &str = "VolumeAttachment.attach.attempt";

impl World {
    /// A replica that tells this receiver at once.
    async fn traced(&self, identity: &str, receiver: &OtlpReceiver) -> Result<Operator> {
        let options = named(identity)
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            .variable("OTEL_BSP_SCHEDULE_DELAY", "20");
        self.operator(options).await
    }
}

fn named_so<'s>(spans: &'s [ReceivedSpan], name: &str) -> Vec<&'s ReceivedSpan> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// Waits until a replica has told of an attempt that failed.
async fn failed(receiver: &OtlpReceiver) {
    let enough = |spans: &[ReceivedSpan]| !named_so(spans, ATTEMPT).is_empty();
    receiver.wait_until(LIMIT, enough).await;
}

/// T3 and T4: the first is killed between two attempts, its successor is killed too, and one that starts anew comes to the
/// end: all that came out of them is one trace with one root.
#[tokio::test]
async fn t3_t4_kill_9_and_failover_leave_one_trace_with_one_root() -> Result<()> {
    let world = World::own().await?;
    let [one, two, three] = [
        OtlpReceiver::grpc().await,
        OtlpReceiver::grpc().await,
        OtlpReceiver::grpc().await,
    ];
    let mut first = world.traced("first", &one).await?;
    let mut settings = short();
    settings["backoff"] = json!({"initial": "50ms", "max": "100ms"});
    settings["tracing"] = json!({"errorSuffix": true});
    let driver = world.driver("told", settings).await?;
    let never = Rule::on(Method::ControllerPublishVolume).fail(Code::Internal, "the array is being mended");
    driver.mock.script(never);
    let made = driver.claim("told-1").await?;
    failed(&one).await;
    let mut second = world.traced("second", &two).await?;
    first.signal("KILL")?;
    first.wait_ended(LIMIT).await?;
    failed(&two).await;
    second.signal("KILL")?;
    second.wait_ended(LIMIT).await?;
    // It has the Lease back under its old name.
    let third = world.traced("second", &three).await?;
    failed(&three).await;
    driver.mock.clear_rules();
    let attached = world.fixtures.wait_for_attached("told-1").await?;
    three
        .wait_until(LIMIT, |spans| !named_so(spans, ATTACH).is_empty())
        .await;

    let spans: Vec<ReceivedSpan> = [&one, &two, &three]
        .iter()
        .flat_map(|receiver| receiver.spans())
        .collect();
    let roots = named_so(&spans, ATTACH);
    let [root] = roots.as_slice() else { panic!("{roots:#?}") };
    assert_eq!((root.text("attacher.outcome"), root.failed), ("succeeded", false));
    let uid = made.metadata.uid.unwrap_or_default();
    assert_eq!(root.text("k8s.volumeattachment.uid"), uid);
    for attempt in named_so(&spans, ATTEMPT) {
        assert_eq!(
            (&attempt.trace_id, attempt.parent_span_id.as_ref()),
            (&root.trace_id, Some(&root.span_id))
        );
        assert!(root.start_unix_nano <= attempt.start_unix_nano && attempt.end_unix_nano <= root.end_unix_nano);
    }
    // The attachment, its events and the lines of all three name that trace.
    let annotations = attached.metadata.annotations.unwrap_or_default();
    let noted = format!("00-{}-{}-01", root.trace_id, root.span_id);
    assert_eq!(annotations.get("attacher.csi.dev/traceparent"), Some(&noted));
    for operator in [&first, &second, &third] {
        assert_lines_tell(operator, &root.trace_id);
    }
    Ok(())
}

/// Each line about the attachment names the trace, and each failure is told once, with all that one has to know.
fn assert_lines_tell(operator: &Operator, trace_id: &str) {
    let log = operator.log_text();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about: Vec<_> = lines
        .iter()
        .filter(|line| line["VolumeAttachment"] == "told-1")
        .collect();
    assert!(!about.is_empty(), "{log}");
    for line in &about {
        assert_eq!(line["trace_id"], *trace_id, "{line}");
        assert_eq!(line["span_id"].as_str().map(str::len), Some(16), "{line}");
        assert_eq!(line["trace_flags"], "01", "{line}");
    }
    let failures: Vec<_> = about.iter().filter(|line| line["level"] == "WARN").collect();
    assert!(!failures.is_empty());
    for line in failures {
        for field in ["driver", "volumeHandle", "node", "nodeID", "code", "error"] {
            assert!(line[field].is_string(), "{field} is missing in {line}");
        }
        assert!(line["attempt"].is_u64() && line["next_try_seconds"].is_f64(), "{line}");
        assert_eq!(line["event.name"], "rpc.client.call.exception");
    }
}
