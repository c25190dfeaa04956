//! Where spans go, and that no collector, however it behaves, has an effect on attaching.

mod bad;
mod environment;

use std::time::{Duration, Instant};

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::Method;
use kube::Api;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject};
use serde_json::json;

use crate::hanging_collector::t5_no_attach_waits_for_a_hanging_collector;
use crate::live_settings::samples_change_for_one_driver_while_it_works;
use crate::rig::{LIMIT, World, operator_options, part, wait_until, within};
use crate::support::operator::install;
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::{Operator, OperatorOptions, Result};

/// Whether a span is about this attachment.
fn is_about(span: &ReceivedSpan, attachment: &str) -> bool {
    span.attributes.get("k8s.volumeattachment.name") == Some(&Attribute::Str(attachment.to_owned()))
}

/// Whether a span about this attachment has arrived.
fn has(receiver: &OtlpReceiver, attachment: &str) -> bool {
    receiver.spans().iter().any(|span| is_about(span, attachment))
}

async fn arrives(receiver: &OtlpReceiver, attachment: &str) {
    receiver
        .wait_until(LIMIT, |spans| spans.iter().any(|span| is_about(span, attachment)))
        .await;
}

/// Spans by what became of them, as the operator counts them.
pub async fn spans(operator: &Operator, result: &str) -> Result<u64> {
    let metrics = operator.metrics().await?;
    let start = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// Asks again and again, as Prometheus does: counts tell nobody of news.
pub async fn until_spans(operator: &Operator, result: &str, enough: impl Fn(u64) -> bool) -> Result<u64> {
    let asking = async {
        loop {
            let count = spans(operator, result).await?;
            if enough(count) {
                return Ok(count);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(&format!("spans {result}"), asking).await?
}

/// Waits until there is a record with these words, and tells how many there are: what is logged may be counted a moment before.
async fn until_records(operator: &Operator, words: &[&str]) -> Result<usize> {
    let told = || records(operator, words);
    wait_until(&format!("records {words:?}"), || told() > 0).await?;
    Ok(told())
}

/// The records of the log that hold all of these words.
fn records(operator: &Operator, words: &[&str]) -> usize {
    let log = operator.log_text();
    log.lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}

/// An operator whose spans go to this endpoint, by this protocol.
pub fn sends_to(endpoint: &str, protocol: &str) -> OperatorOptions {
    operator_options()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// Operators whose spans go to collectors of their own, one after another. Each part has a driver of its own, which is served until its end.
#[tokio::test]
async fn t5_no_collector_has_an_effect_on_attaching() -> Result<()> {
    let world = &World::own().await?;
    install(&world.cluster).await?;
    part("it hangs", t5_no_attach_waits_for_a_hanging_collector(world)).await?;
    let comes_back = t5_a_collector_that_comes_back_gets_spans_again_and_every_span_is_counted(world);
    part("it comes back", comes_back).await?;
    part("it is bad", bad::no_attach_is_affected_by_what_a_collector_does(world)).await?;
    let unusable = environment::what_cannot_be_used_is_said_once_and_no_attach_is_affected(world);
    part("it is named wrongly", unusable).await?;
    part("samples", samples_change_for_one_driver_while_it_works(world)).await
}

/// The fields by which an AttacherConfig could name a collector are gone: nobody is shown credentials of the environment's. So is
/// that of its log level.
#[tokio::test]
async fn an_attacherconfig_that_names_a_collector_is_served_without_it() -> Result<()> {
    let world = World::shared().await?;
    let receiver = OtlpReceiver::http().await;
    let driver = world.unconfigured_driver("former", |builder| builder).await?;
    let tracing =
        json!({"endpoint": receiver.endpoint(), "protocol": "http/json", "samplingRatePerMillion": 1_000_000});
    let spec = world.spec(
        &driver.short,
        &json!({"timeouts": {"publish": "7s"}, "tracing": tracing, "logLevel": "debug"}),
    );
    let resource = ApiResource::erase::<AttacherConfig>(&());
    let configs = Api::<DynamicObject>::all_with(world.client.clone(), &resource);
    let object = DynamicObject::new(&driver.short, &resource).data(json!({ "spec": spec }));
    let stored = configs.create(&PostParams::default(), &object).await?;
    let stored = &stored.data["spec"];
    for gone in ["/tracing/endpoint", "/tracing/protocol", "/logLevel"] {
        assert_eq!(stored.pointer(gone), None, "{gone}");
    }
    assert_eq!(
        (
            &stored["tracing"]["samplingRatePerMillion"],
            &stored["timeouts"]["publish"]
        ),
        (&json!(1_000_000), &json!("7s"))
    );
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("former-1").await?;
    assert!(receiver.requests().is_empty());
    Ok(())
}

/// T5 without its figures: 100 attaches while the collector holds its connections and answers nothing, then it comes back.
async fn t5_a_collector_that_comes_back_gets_spans_again_and_every_span_is_counted(world: &World) -> Result<()> {
    const VOLUMES: usize = 100;
    let (receiver, gate) = OtlpReceiver::gated().await;
    let options = sends_to(&receiver.endpoint(), "grpc")
        // Short enough for one to pass while nothing answers, and long enough that none does when everything is slow.
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "5000")
        .variable("OTEL_BSP_EXPORT_TIMEOUT", "6000")
        .variable("OTEL_BSP_MAX_QUEUE_SIZE", "32");
    let began = Instant::now();
    let operator = world.operator(options).await?;
    let driver = world.driver("gated", json!({})).await?;
    for index in 0..VOLUMES {
        driver.claim(&format!("gated-{index}")).await?;
    }
    for index in 0..VOLUMES {
        world.fixtures.wait_for_attached(&format!("gated-{index}")).await?;
    }
    until_spans(&operator, "queue_full", |count| count > 0).await?;
    until_spans(&operator, "export_failed", |count| count > 0).await?;
    assert_eq!(spans(&operator, "exported").await?, 0);
    let told = until_records(&operator, &["spans could not be exported"]).await?;
    // It is told again each minute.
    let most = 1 + began.elapsed().as_secs() / 60;
    assert!((1..=most).contains(&(told as u64)), "{}", operator.log_text());

    gate.send(true).unwrap();
    driver.attach("gated-after").await?;
    arrives(&receiver, "gated-after").await;
    let exported = until_spans(&operator, "exported", |count| count > 0).await?;
    assert_eq!(until_records(&operator, &["spans are exported again"]).await?, 1);
    assert!(exported <= receiver.spans().len() as u64);
    let publishes = driver.mock.calls_of(Method::ControllerPublishVolume).len();
    assert_eq!(publishes, VOLUMES + 1);
    world.fixtures.delete::<AttacherConfig>("gated").await
}
