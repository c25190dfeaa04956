//! One attachment is one trace in Jaeger. That it is one whatever becomes of the operator, `replicas::traces` shows.

use jiff::SignedDuration;

use super::{ATTEMPT, Names, PUBLISH, Scene, failing};
use crate::support::Result;
use crate::support::jaeger::tree;

/// How long after the volume was attached its trace may be incomplete in Jaeger.
const T2_BAR: SignedDuration = SignedDuration::from_secs(10);

#[tokio::test]
async fn t2_one_trace_per_attachment_in_jaeger_within_10_s() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-t2" };
    let _operator = scene.trusted_operator(scene.options()).await?;
    let driver = scene.stage.driver(failing(&names, 2), names.short).await?;
    let made = scene.run_pod(&names).await?;
    let name = made.metadata.name.as_deref().unwrap_or_default();
    let attached = scene.fixtures().wait_for_attached(name).await?;

    let (trace, missing) = scene.complete_trace(&attached).await?;
    println!("{}", tree::render(&trace));
    println!("T2: {missing:#} after the volume was attached the trace was not whole yet; the bar is 10 s");
    assert!(missing < T2_BAR, "not whole {missing:#} after the volume was attached");
    let attempts = trace.named(ATTEMPT);
    for (attempt, number) in attempts.iter().zip(1..) {
        assert_eq!(attempt.text("attacher.attempt"), number.to_string());
    }
    for (before, after) in attempts.iter().zip(&attempts[1..]) {
        assert_eq!(
            after.links(),
            [(trace.id.as_str(), before.id.as_str())],
            "to the attempt before"
        );
    }
    assert_eq!(trace.roots()[0].text("attacher.attempts"), "3");
    // The mock driver was sent the context of the call that is in the trace.
    let calls = driver.handle.calls_of(csi_mock_driver::Method::ControllerPublishVolume);
    let sent: Vec<String> = calls.into_iter().filter_map(|call| call.traceparent).collect();
    let spans = trace.named(PUBLISH);
    let wanted: Vec<String> = spans
        .iter()
        .map(|span| format!("00-{}-{}-01", trace.id, span.id))
        .collect();
    assert_eq!(sent, wanted);
    Ok(())
}
