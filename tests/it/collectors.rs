//! Where spans go, and that no collector, however it behaves, has an effect on attaching.

mod bad;
mod environment;

use std::time::Duration;

use csi_attacher_operator::mock::Method;
use serde_json::{Value, json};

use crate::rig::{Driver, LIMIT, World, operator_options, wait_until, within};
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::{Operator, Result};

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
async fn spans(operator: &Operator, result: &str) -> Result<u64> {
    let metrics = operator.metrics().await?;
    let start = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// Asks again and again, as Prometheus does: counts tell nobody of news.
async fn until_spans(operator: &Operator, result: &str, enough: impl Fn(u64) -> bool) -> Result<u64> {
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

fn tracing(endpoint: &str, protocol: &str, samples: Option<u32>) -> Value {
    let mut tracing = json!({ "endpoint": endpoint, "protocol": protocol });
    if let Some(samples) = samples {
        tracing["samplesPerMillion"] = json!(samples);
    }
    json!({ "tracing": tracing })
}

async fn configure(driver: &Driver<'_>, settings: Value) -> Result<()> {
    driver.configure(&settings).await?;
    driver.wait("Ready", "True", None).await
}

#[tokio::test]
async fn collector_and_samples_of_a_driver_change_while_it_works() -> Result<()> {
    let world = World::shared().await?;
    let [one, two] = [OtlpReceiver::grpc().await, OtlpReceiver::http().await];
    let driver = world.driver("moved", tracing(&one.endpoint(), "grpc", None)).await?;
    let name = |what: &str| format!("moved-{what}");
    driver.attach(&name("one")).await?;
    arrives(&one, &name("one")).await;

    configure(&driver, tracing(&two.endpoint(), "http/protobuf", None)).await?;
    driver.attach(&name("two")).await?;
    arrives(&two, &name("two")).await;
    configure(&driver, tracing(&two.endpoint(), "http/json", Some(0))).await?;
    driver.attach(&name("unsampled")).await?;
    configure(&driver, tracing(&two.endpoint(), "http/json", Some(1_000_000))).await?;
    driver.attach(&name("sampled")).await?;
    arrives(&two, &name("sampled")).await;
    configure(&driver, json!({})).await?;
    driver.attach(&name("untraced")).await?;
    configure(&driver, tracing(&one.endpoint(), "grpc", None)).await?;
    driver.attach(&name("back")).await?;
    arrives(&one, &name("back")).await;

    let went = ["one", "two", "unsampled", "sampled", "untraced", "back"]
        .map(|what| (has(&one, &name(what)), has(&two, &name(what))));
    let (nowhere, first, second) = ((false, false), (true, false), (false, true));
    assert_eq!(went, [first, second, nowhere, second, nowhere, first]);
    let publishes = driver.mock.calls_of(Method::ControllerPublishVolume).len();
    assert_eq!(publishes, 6, "no attach was lost or made twice");
    assert_eq!(
        driver.mock.calls_of(Method::Probe).len(),
        1,
        "without another connection"
    );
    Ok(())
}

#[tokio::test]
async fn drivers_share_a_collector_and_leave_it_apart() -> Result<()> {
    let world = World::shared().await?;
    let receiver = OtlpReceiver::http().await;
    // Another spelling of the same place.
    let endpoint = format!("{}/v1/traces", receiver.endpoint());
    let (one, other) = (
        world
            .driver("sharing", tracing(&receiver.endpoint(), "http/protobuf", None))
            .await?,
        world.driver("shared", tracing(&endpoint, "http/json", None)).await?,
    );
    one.attach("sharing-1").await?;
    other.attach("shared-1").await?;
    configure(&one, json!({})).await?;
    one.attach("sharing-2").await?;
    other.attach("shared-2").await?;
    for attachment in ["sharing-1", "shared-1", "shared-2"] {
        arrives(&receiver, attachment).await;
    }
    assert!(!has(&receiver, "sharing-2"));
    Ok(())
}

/// T5 without its figures: 100 attaches while the collector holds its connections and answers nothing, then it comes back.
#[tokio::test]
async fn t5_a_collector_that_comes_back_gets_spans_again_and_every_span_is_counted() -> Result<()> {
    const VOLUMES: usize = 100;
    let world = World::own().await?;
    let (receiver, gate) = OtlpReceiver::gated().await;
    let options = operator_options()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        // Short enough for one to pass while nothing answers, and long enough that none does when everything is slow.
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "5000")
        .variable("OTEL_BSP_EXPORT_TIMEOUT", "6000")
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20")
        .variable("OTEL_BSP_MAX_QUEUE_SIZE", "32");
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
    assert_eq!(told, 1, "{}", operator.log_text());

    gate.send(true).unwrap();
    driver.attach("gated-after").await?;
    arrives(&receiver, "gated-after").await;
    let exported = until_spans(&operator, "exported", |count| count > 0).await?;
    assert_eq!(until_records(&operator, &["spans are exported again"]).await?, 1);
    assert!(exported <= receiver.spans().len() as u64);
    let publishes = driver.mock.calls_of(Method::ControllerPublishVolume).len();
    assert_eq!(publishes, VOLUMES + 1);
    Ok(())
}
