//! One id leads from each place where an attachment is told of to its trace, and from the API server's trace to ours.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::MockDriver;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use serde_json::Value;

use super::{APISERVER, ATTEMPT, LIMIT, Names, PUBLISH, ROOT, SERVICE, Scene, TRACEPARENT, failing, told_context};
use crate::support::http::get_as;
use crate::support::jaeger::{Trace, tree};
use crate::support::wait::{wait_for, wait_for_any};
use crate::support::{Operator, Result};

#[tokio::test]
async fn t9_log_annotation_status_event_and_exemplar_name_the_trace_in_jaeger() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-t9" };
    let operator = Operator::start(scene.stage.cluster, scene.options()).await?;
    operator.wait_ready().await?;
    let driver = scene.stage.driver(failing(&names, 1), names.short).await?;
    let made = scene.run_pod(&names).await?;
    let name = made.metadata.name.clone().unwrap_or_default();
    let attached = scene.fixtures().wait_for_attached(&name).await?;
    let (id, root) = told_context(&attached);
    let ended = |trace: &Trace| !trace.named(ROOT).is_empty() && trace.named(ATTEMPT).len() == 2;
    let trace = scene.jaeger.wait_for_trace(&id, "its end", LIMIT, ended).await?;
    println!("{}", tree::render(&trace));
    assert_eq!(trace.roots()[0].id, root);

    check_log(&operator, &name, &trace);
    check_exemplar(&operator, &names, &trace).await?;
    let configs = Api::<AttacherConfig>::all(scene.stage.client.clone());
    let told = |config: Option<&AttacherConfig>| {
        let json = serde_json::to_value(config).unwrap_or_default();
        json.pointer("/status/lastFailure/traceID").and_then(Value::as_str) == Some(&id)
    };
    wait_for(configs, names.short, "lastFailure.traceID", LIMIT, told).await?;
    let events = Api::<Event>::all(scene.stage.client.clone());
    wait_for_any(events, "names the trace", LIMIT, |event| {
        let annotations = event.metadata.annotations.iter().flatten();
        let mut traceparents = annotations.filter(|(key, _)| *key == "traceparent" || *key == TRACEPARENT);
        event.involved_object.name.as_deref() == Some(&name) && traceparents.any(|(_, value)| value.contains(&id))
    })
    .await?;
    drop(driver);
    Ok(())
}

/// Every line of the attachment names the trace and one of its spans; the failure is told once, with its attempt.
fn check_log(operator: &Operator, attachment: &str, trace: &Trace) {
    let log = operator.log_text();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |line: &&Value| line["VolumeAttachment"] == attachment;
    let of_attempts: Vec<&Value> = lines.iter().filter(about).collect();
    assert!(!of_attempts.is_empty(), "{log}");
    for line in &of_attempts {
        assert_eq!(line["trace_id"], trace.id.as_str(), "{line}");
        assert_eq!(line["trace_flags"], "01", "{line}");
    }
    let failures: Vec<_> = of_attempts.iter().filter(|line| line["level"] == "WARN").collect();
    let [failure] = failures.as_slice() else {
        panic!("{failures:?}")
    };
    // With all that one has to know.
    for field in ["driver", "volumeHandle", "node", "nodeID", "code", "error"] {
        assert!(failure[field].is_string(), "{field} is missing in {failure}");
    }
    assert!(
        failure["attempt"].is_u64() && failure["next_try_seconds"].is_f64(),
        "{failure}"
    );
    assert_eq!(failure["event.name"], "rpc.client.call.exception");
    let failed: Vec<_> = trace.named(ATTEMPT).into_iter().filter(|span| span.failed()).collect();
    assert_eq!(failed.len(), 1);
    let spans = trace.children(failed[0]);
    let ids = spans.iter().chain([&failed[0]]).map(|span| span.id.as_str());
    let told = failure["span_id"].as_str().unwrap_or_default();
    assert!(
        ids.into_iter().any(|id| id == told),
        "{}: {}",
        failure,
        tree::render(trace)
    );
}

/// The duration of a call has the call as its example.
async fn check_exemplar(operator: &Operator, names: &Names, trace: &Trace) -> Result<()> {
    let url = format!("http://{}/metrics", operator.http());
    let (_, metrics) = get_as(&url, "application/openmetrics-text; version=1.0.0").await?;
    let driver = format!("driver_name=\"{}\"", names.driver());
    let id = format!("trace_id=\"{}\"", trace.id);
    let calls = metrics.lines().filter(|line| {
        line.starts_with("csi_sidecar_operations_seconds_bucket")
            && line.contains(&driver)
            && line.contains("/csi.v1.Controller/ControllerPublishVolume")
    });
    let examples: Vec<&str> = calls.filter(|line| line.contains(&id)).collect();
    assert!(!examples.is_empty(), "{metrics}");
    let calls = trace.named(PUBLISH);
    let is_example = |line: &&str| {
        calls
            .iter()
            .any(|call| line.contains(&format!("span_id=\"{}\"", call.id)))
    };
    assert!(examples.iter().all(is_example), "{examples:#?} {}", tree::render(trace));
    Ok(())
}

#[tokio::test]
async fn the_api_server_links_the_traces_of_a_caller_whom_it_does_not_trust() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names { short: "jaeger-link" };
    let operator = Operator::start(scene.stage.cluster, scene.options()).await?;
    operator.wait_ready().await?;
    let builder = MockDriver::builder(names.driver()).accept_any_volume();
    let _driver = scene.stage.driver(builder, names.short).await?;
    let made = scene.run_pod(&names).await?;
    let name = made.metadata.name.clone().unwrap_or_default();
    let attached = scene.fixtures().wait_for_attached(&name).await?;

    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}/status");
    let uid = attached.metadata.uid.unwrap_or_default();
    let tags = [("k8s.volumeattachment.uid", uid.as_str())];
    let written = |traces: &[Trace]| {
        traces
            .iter()
            .any(|trace| !trace.named(ATTEMPT).is_empty() && !writes(trace).is_empty())
    };
    let ours = scene
        .jaeger
        .wait_for_search((SERVICE, &tags), "the write", LIMIT, written)
        .await?;
    let write = writes(&ours[0])[0];

    let tags = [("url.path", path.as_str()), ("http.request.method", "PATCH")];
    let theirs = scene
        .jaeger
        .wait_for_search((APISERVER, &tags), "the write", LIMIT, |traces| !traces.is_empty());
    let theirs = theirs.await?;
    assert_eq!(theirs.len(), 1);
    assert_ne!(theirs[0].id, ours[0].id);
    let roots = theirs[0].roots();
    assert_eq!(
        roots[0].links(),
        [(ours[0].id.as_str(), write.id.as_str())],
        "{}",
        tree::render(&theirs[0])
    );
    Ok(())
}

/// The requests with which the status was written.
fn writes(trace: &Trace) -> Vec<&crate::support::jaeger::Span> {
    let own = trace.of_service(SERVICE).into_iter();
    own.filter(|span| span.name.starts_with("PATCH ") && span.name.ends_with("/status"))
        .collect()
}
