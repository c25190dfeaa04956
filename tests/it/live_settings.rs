//! Which attachments of one driver are traced changes while it works, for it alone and without a restart.

use csi_mock_driver::{Method, Rule};
use serde_json::json;
use tonic::Code;

use crate::collectors::sends_to;
use crate::rig::{Driver, World, wait_until};
use crate::support::Result;
use crate::support::otlp::{Attribute, OtlpReceiver, ReceivedSpan};

/// The traces of a volume of this name that have arrived.
fn roots(receiver: &OtlpReceiver, attachment: &str) -> usize {
    let about = |span: &ReceivedSpan| {
        span.name == "VolumeAttachment.attach.attempt"
            && span.attributes.get("k8s.volumeattachment.name") == Some(&Attribute::Str(attachment.to_owned()))
    };
    receiver.spans().iter().filter(|span| about(span)).count()
}

/// Attaches one more volume of each driver and compares whether it was traced with what is expected.
async fn attach_both(round: &str, drivers: [(&Driver<'_>, bool); 2], receiver: &OtlpReceiver) -> Result<()> {
    for (driver, _) in &drivers {
        let name = format!("{}-{round}", driver.short);
        driver.attach(&name).await?;
        // The attempt ends, with its span, just after its last write: so it has when the next one of the same node has
        // written its own.
        driver.attach_one_more(&format!("{name}-after")).await?;
    }
    for (driver, traced) in drivers {
        let name = format!("{}-{round}", driver.short);
        if traced {
            wait_until("the trace", || roots(receiver, &name) > 0).await?;
        }
        assert_eq!(roots(receiver, &name) > 0, traced, "{name}");
    }
    Ok(())
}

pub async fn samples_change_for_one_driver_while_it_works(world: &World) -> Result<()> {
    let receiver = OtlpReceiver::grpc().await;
    let operator = world.operator(sends_to(&receiver.endpoint(), "grpc")).await?;
    let pid = operator.pid()?;
    let (one, other) = (
        world.driver("told", json!({})).await?,
        world.driver("untold", json!({})).await?,
    );
    attach_both("usual", [(&one, true), (&other, true)], &receiver).await?;

    let steps = [
        ("none", json!({"tracing": {"samplingRatePerMillion": 0}}), false),
        ("all", json!({"tracing": {"samplingRatePerMillion": 1_000_000}}), true),
        ("back", json!({}), true),
    ];
    for (round, settings, traced) in steps {
        one.configure(&settings).await?;
        one.wait("Ready", "True", Some("Running")).await?;
        attach_both(round, [(&one, traced), (&other, true)], &receiver).await?;
    }
    // Who looks for why one fails need not wait for another attachment.
    let tracing =
        |share: u32| json!({"tracing": {"samplingRatePerMillion": share}, "backoff": {"initial": "1s", "max": "1s"}});
    one.configure(&tracing(0)).await?;
    one.wait("Ready", "True", Some("Running")).await?;
    let failing = Rule::on(Method::ControllerPublishVolume).volume("told-fails");
    one.mock.script(failing.fail(Code::Internal, "no"));
    one.claim("told-fails").await?;
    wait_until("two attempts", || one.calls_for("told-fails").len() > 1).await?;
    assert_eq!(roots(&receiver, "told-fails"), 0);
    one.configure(&tracing(1_000_000)).await?;
    wait_until("the trace of what fails", || roots(&receiver, "told-fails") > 0).await?;
    // Half a trace is of no use.
    one.configure(&tracing(0)).await?;
    one.wait("Ready", "True", Some("Running")).await?;
    let (traced, called) = (roots(&receiver, "told-fails"), one.calls_for("told-fails").len());
    wait_until("two more attempts", || one.calls_for("told-fails").len() > called + 1).await?;
    wait_until("their traces", || roots(&receiver, "told-fails") > traced + 1).await?;
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
