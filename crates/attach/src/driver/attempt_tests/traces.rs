//! The traces of lifecycles: what comes out, exactly once, whatever happens on the way.

mod comparisons;
mod context;
mod details;
mod endings;
mod lives;
mod quiet;

use super::*;
use crate::trace_pipeline::pipeline;
use csi_attacher_testbed::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use csi_mock_driver::Rule;

use crate::telemetry::{TelemetryGuard, TraceIdentity};

const ATTACH: &str = "VolumeAttachment.attach";
const ATTEMPT: &str = "VolumeAttachment.attach.attempt";
const DETACH: &str = "VolumeAttachment.detach";
const DETACH_ATTEMPT: &str = "VolumeAttachment.detach.attempt";

const OWN: &str = "attacher.csi.dev/traceparent";
const SHARED: &str = "tracing.k8s.io/traceparent";

/// Where spans go, and the tracer of one process.
struct Told {
    receiver: OtlpReceiver,
    tracer: Tracer,
    guard: TelemetryGuard,
}

impl Told {
    async fn sampled(sampler: &str) -> Self {
        let receiver = OtlpReceiver::http().await;
        let endpoint = receiver.endpoint();
        let (tracer, guard) = pipeline(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100000"),
            ("OTEL_BSP_SCHEDULE_DELAY", "1"),
        ]);
        Self {
            receiver,
            tracer,
            guard,
        }
    }

    async fn always() -> Self {
        Self::sampled("always_on").await
    }

    /// Everything that has ended by now.
    async fn spans(&self) -> Vec<ReceivedSpan> {
        while self.guard.open_spans() > 0 {
            tokio::task::yield_now().await;
        }
        self.receiver.spans()
    }

    /// All, once one of this name has ended.
    async fn ended(&self, name: &str) -> Vec<ReceivedSpan> {
        self.until(|spans| !named(spans, name).is_empty()).await
    }

    async fn until(&self, enough: impl Fn(&[ReceivedSpan]) -> bool) -> Vec<ReceivedSpan> {
        let wait = async {
            loop {
                let spans = self.spans().await;
                if enough(&spans) {
                    return spans;
                }
                tokio::task::yield_now().await;
            }
        };
        let Ok(spans) = tokio::time::timeout(LIMIT, wait).await else {
            panic!("only these spans came: {:#?}", self.receiver.spans())
        };
        spans
    }
}

/// What failed once is not tried again by its engine.
fn patient(spec: &mut AttacherConfigSpec) {
    retry(spec, "1h", "1h");
}

/// A stage that tells, with failures that are tried again at once and other settings.
async fn stage(told: &Told, edit: impl FnOnce(&mut AttacherConfigSpec)) -> AttemptFixture {
    joined(Arc::default(), told, edit).await
}

/// The same, over the objects of another one: as another replica sees them, or the next process.
async fn joined(api: Arc<Api>, told: &Told, edit: impl FnOnce(&mut AttacherConfigSpec)) -> AttemptFixture {
    let stage = AttemptFixture::in_term(None, api, DRIVER, told.tracer.clone(), |spec| {
        retry(spec, "1ms", "2ms");
        edit(spec);
    })
    .await;
    stage.store.apply(CsiNode::new("n1", &[(DRIVER, "id1")]));
    stage
}

impl AttemptFixture {
    /// Shows the cache what the API server has.
    fn watch(&self) {
        let objects: Vec<(String, Value)> = self.api.objects.lock().clone().into_iter().collect();
        for (path, object) in objects {
            if path.starts_with(VOLUMES) {
                let wire: PersistentVolumeWire = serde_json::from_value(object).unwrap();
                self.store.apply::<Volume>(wire.into());
            } else {
                self.sees(object);
            }
        }
    }

    /// Changes an attachment as somebody else would, and shows the cache.
    fn change(&self, name: &str, change: &Value) {
        let path = format!("{ATTACHMENTS}{name}");
        let mut object = self.api.get(&path).unwrap();
        json_patch::merge(&mut object, change);
        self.api.put(path, object);
        self.watch();
    }

    /// Attaches pv1 to n1 by an attachment "va", and makes both.
    async fn attach(&self) {
        self.volume(&json!({}));
        self.attachment("va", "n1", &json!({}));
        self.attached("va").await;
    }

    fn delete(&self, name: &str) {
        self.change(name, &json!({"metadata": {"deletionTimestamp": whole_second()}}));
    }

    fn annotation(&self, name: &str, key: &str) -> Option<String> {
        let object = self.api.get(&format!("{ATTACHMENTS}{name}"))?;
        object["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    /// The end of the process, without a word.
    fn kill(self) -> Arc<Api> {
        self.api.clone()
    }
}

/// The time stamp that the API server would put on an object now.
fn whole_second() -> String {
    let now = crate::clock::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap().to_string()
}

fn named<'s>(spans: &'s [ReceivedSpan], name: &str) -> Vec<&'s ReceivedSpan> {
    let mut found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    found.sort_by_key(|span| span.start_unix_nano);
    found
}

fn only<'s>(spans: &'s [ReceivedSpan], name: &str) -> &'s ReceivedSpan {
    match named(spans, name).as_slice() {
        [span] => span,
        other => panic!("not exactly one {name}: {other:#?}"),
    }
}

fn ids(span: &ReceivedSpan) -> (String, String) {
    (span.trace_id.clone(), span.span_id.clone())
}

fn derived_root(operation: &str, name: &str, epoch: u32) -> (String, String) {
    let own = TraceIdentity::derive(operation, &format!("{name}-uid"), epoch);
    (format!("{:032x}", own.trace_id), format!("{:016x}", own.root_id))
}

fn traceparent(span: &ReceivedSpan) -> String {
    format!("00-{}-{}-01", span.trace_id, span.span_id)
}
