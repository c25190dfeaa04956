//! One attachment is one trace, whatever becomes of the operator.

use jiff::SignedDuration;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

use super::{ATTEMPT, LIMIT, Names, PUBLISH, SERVICE, Scene, failing};
use crate::support::jaeger::{Trace, tree};
use crate::support::operator::{apply_config, wait_condition};
use crate::support::{Operator, Result};

/// Longer than the test: the operator that waits for it is killed in the meantime.
const NEVER: &str = "10m";
const SOON: &str = "100ms";
/// How long after the volume was attached its trace may be incomplete in Jaeger.
const T2_BAR: SignedDuration = SignedDuration::from_secs(10);

/// The settings of a driver with this back-off, of which replicas take the Lease over soon.
fn spec(socket: &str, backoff: &str) -> Value {
    json!({
        "endpoint": format!("unix://{socket}"),
        "backoff": { "initial": backoff, "max": backoff, "jitterPercent": 0 },
        "reconcileSync": { "mode": "Disabled" },
        "leaderElection": { "leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s" },
    })
}

#[tokio::test]
async fn t2_one_trace_per_attachment_in_jaeger_within_10_s() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-t2" };
    let _operator = scene.trusted_operator(scene.options()).await?;
    let driver = scene.stage.driver(failing(&names, 2), names.short).await?;
    let made = scene.run_pod(&names).await?;
    let attached = attached(&scene, &made).await?;

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

#[tokio::test]
async fn t3_kill_between_attempts_continues_the_trace() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-t3" };
    let first = scene.trusted_operator(scene.options()).await?;
    let driver = scene.stage.driver(failing(&names, 2), names.short).await?;
    apply_config(&scene.stage.client, names.short, spec(&driver.socket, NEVER)).await?;
    wait_condition(&scene.stage.client, names.short, "Ready", "True", Some("Running")).await?;
    let made = scene.run_pod(&names).await?;
    let before = one_attempt(&scene, &made).await?;

    kill(first).await?;
    apply_config(&scene.stage.client, names.short, spec(&driver.socket, SOON)).await?;
    let _second = scene.trusted_operator(scene.options()).await?;
    let attached = attached(&scene, &made).await?;
    let (trace, _) = scene.complete_trace(&attached).await?;
    println!("{}", tree::render(&trace));
    assert_eq!(
        trace.id, before.id,
        "the second process continues the trace of the first"
    );
    Ok(())
}

#[tokio::test]
async fn t4_failover_between_attempts_continues_the_trace() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-t4" };
    let replica = |identity: &str| scene.options().argument(format!("--identity={identity}"));
    let first = scene.trusted_operator(replica("one")).await?;
    let driver = scene.stage.driver(failing(&names, 2), names.short).await?;
    apply_config(&scene.stage.client, names.short, spec(&driver.socket, NEVER)).await?;
    wait_condition(&scene.stage.client, names.short, "Ready", "True", Some("Running")).await?;
    let _second = scene.trusted_operator(replica("two")).await?;
    let made = scene.run_pod(&names).await?;
    let before = one_attempt(&scene, &made).await?;

    kill(first).await?;
    // Before the Lease runs out, so that the second replica begins with this.
    apply_config(&scene.stage.client, names.short, spec(&driver.socket, SOON)).await?;
    let attached = attached(&scene, &made).await?;
    let (trace, _) = scene.complete_trace(&attached).await?;
    println!("{}", tree::render(&trace));
    assert_eq!(
        trace.id, before.id,
        "the second replica continues the trace of the first"
    );
    Ok(())
}

async fn attached(scene: &Scene, made: &VolumeAttachment) -> Result<VolumeAttachment> {
    let name = made.metadata.name.as_deref().unwrap_or_default();
    scene.fixtures().wait_for_attached(name).await
}

/// Waits until Jaeger has the first attempt, which failed, and no root; what ends now is lost otherwise.
async fn one_attempt(scene: &Scene, made: &VolumeAttachment) -> Result<Trace> {
    let uid = made.metadata.uid.as_deref().unwrap_or_default();
    let tags = [("k8s.volumeattachment.uid", uid)];
    let complete = |traces: &[Trace]| {
        traces
            .iter()
            .any(|trace| trace.named(ATTEMPT).iter().any(|span| span.failed()))
    };
    let search = scene
        .jaeger
        .wait_for_search((SERVICE, &tags), "an attempt", LIMIT, complete);
    let mut traces = search.await?;
    assert_eq!(traces.len(), 1);
    let trace = traces.remove(0);
    assert_eq!(trace.named(ATTEMPT).len(), 1, "{}", tree::render(&trace));
    assert!(trace.named(super::ROOT).is_empty(), "{}", tree::render(&trace));
    Ok(trace)
}

async fn kill(mut operator: Operator) -> Result<()> {
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await.map(drop)
}
