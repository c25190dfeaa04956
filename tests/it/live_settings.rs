//! What is told of one driver, its log and its traces, changes while it works, for it alone and without a restart.

use csi_mock_driver::Method;
use serde_json::{Value, json};

use crate::rig::{Driver, World, operator_options, wait_until};
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};
use crate::support::{Operator, Result};

/// The traces of a volume of this name that have arrived.
fn roots(receiver: &OtlpReceiver, attachment: &str) -> usize {
    let about = |span: &ReceivedSpan| {
        span.name == "VolumeAttachment.attach.attempt"
            && span.attributes.get("k8s.volumeattachment.name") == Some(&Attribute::Str(attachment.to_owned()))
    };
    receiver.spans().iter().filter(|span| about(span)).count()
}

/// The records of a level about a driver and a volume.
fn records(operator: &Operator, level: &str, driver: &Driver<'_>, attachment: &str) -> usize {
    let log = operator.log_text();
    let about = |record: &Value| {
        record["level"] == level && record["driver"] == *driver.name && record["VolumeAttachment"] == attachment
    };
    let records = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    records.filter(about).count()
}

/// What is expected of a volume that is attached now: debug records, info records, traces.
type Expected = (bool, bool, bool);

/// Attaches one more volume of each driver and compares what is told of them.
async fn attach_both(
    round: &str,
    drivers: [(&Driver<'_>, Expected); 2],
    operator: &Operator,
    receiver: &OtlpReceiver,
) -> Result<()> {
    for (driver, _) in &drivers {
        let name = format!("{}-{round}", driver.short);
        driver.attach(&name).await?;
        // The attempt ends, with its last line and its span, just after its last write: so it has when the next one of the
        // same node has written its own.
        driver.attach_one_more(&format!("{name}-after")).await?;
    }
    for (driver, (debug, info, traced)) in drivers {
        let name = format!("{}-{round}", driver.short);
        if debug {
            wait_until("the debug record", || records(operator, "DEBUG", driver, &name) > 0).await?;
        }
        if info {
            wait_until("the record", || records(operator, "INFO", driver, &name) > 0).await?;
        }
        if traced {
            wait_until("the trace", || roots(receiver, &name) > 0).await?;
        }
        let told = [
            records(operator, "DEBUG", driver, &name) > 0,
            records(operator, "INFO", driver, &name) > 0,
        ];
        assert_eq!((told, roots(receiver, &name) > 0), ([debug, info], traced), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn log_level_and_samples_change_for_one_driver_while_it_works() -> Result<()> {
    let world = World::own().await?;
    let receiver = OtlpReceiver::grpc().await;
    let options = operator_options()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20");
    let operator = world.operator(options).await?;
    let pid = operator.pid()?;
    let (one, other) = (
        world.driver("told", json!({})).await?,
        world.driver("untold", json!({})).await?,
    );
    let usual = (false, true, true);
    attach_both("usual", [(&one, usual), (&other, usual)], &operator, &receiver).await?;

    let steps = [
        (
            "debug",
            json!({"logLevel": "debug", "tracing": {"samplingRatePerMillion": 0}}),
            (true, true, false),
        ),
        (
            "error",
            json!({"logLevel": "error", "tracing": {"samplingRatePerMillion": 1_000_000}}),
            (false, false, true),
        ),
        ("back", json!({}), usual),
    ];
    for (round, settings, expected) in steps {
        one.configure(&settings).await?;
        one.wait("Ready", "True", Some("Running")).await?;
        attach_both(round, [(&one, expected), (&other, usual)], &operator, &receiver).await?;
    }
    assert_eq!(operator.pid()?, pid, "without a restart");
    for driver in [&one, &other] {
        assert_eq!(
            driver.mock.calls_of(Method::Probe).len(),
            1,
            "without another connection"
        );
    }
    Ok(())
}
