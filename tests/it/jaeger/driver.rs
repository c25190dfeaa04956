//! Drivers that trace: what they do with the context that the operator sends is up to them.

use std::path::Path;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use super::{ATTEMPT, LIMIT, Names, PUBLISH, SERVICE, Scene};
use crate::support::controlplane::programs;
use crate::support::controlplane::watchdog::{Output, Watched};
use crate::support::jaeger::{Trace, tree};
use crate::support::operator::{apply_config, wait_condition};
use crate::support::{Result, Volume};

/// Starts the Go driver of this repository and has the operator attach a volume with it: the trace of that.
async fn attach(scene: &Scene, names: &Names, folder: &Path, arguments: &[&str]) -> Result<Trace> {
    let [program] = programs::locate(["csi-traced-driver"]).await?;
    let socket = folder.join("csi.sock");
    let mut all = vec![
        format!("--socket={}", socket.display()),
        format!("--name={}", names.driver()),
        format!("--collector={}", scene.jaeger.otlp_grpc()),
    ];
    all.extend(arguments.iter().map(ToString::to_string));
    let log = folder.join("driver.log");
    let _driver = Watched::spawn("csi-traced-driver", &program, &all, &log, Output::Log)?;
    let _operator = scene.trusted_operator(scene.options()).await?;
    let spec = json!({
        "endpoint": format!("unix://{}", socket.display()), "reconcileSync": { "mode": "Disabled" },
    });
    apply_config(&scene.stage.client, names.short, spec).await?;
    wait_condition(&scene.stage.client, names.short, "Ready", "True", Some("Running")).await?;

    let (fixtures, driver, volume, node) = (scene.fixtures(), names.driver(), names.volume(), names.node());
    fixtures.csi_node(&node, &driver, &names.of("node-id")).await?;
    fixtures
        .persistent_volume(&Volume::new(&volume, &driver, &volume))
        .await?;
    let name = names.of("va");
    fixtures.volume_attachment(&name, &driver, &volume, &node).await?;
    let attached = fixtures.wait_for_attached(&name).await?;
    // Each exports its spans soon after the call; neither must be ended before.
    let answered = |traces: &[Trace]| traces.iter().any(|trace| !server_spans(trace, names).is_empty());
    let search = scene.jaeger.wait_for_search((&driver, &[]), PUBLISH, LIMIT, answered);
    search.await?;
    own_trace(scene, &attached).await
}

/// The spans with which the driver answered the call.
fn server_spans<'t>(trace: &'t Trace, names: &Names) -> Vec<&'t crate::support::jaeger::Span> {
    let of_driver = trace.of_service(&names.driver());
    of_driver.into_iter().filter(|span| span.name == PUBLISH).collect()
}

/// The trace of the attach, once the operator has exported the call.
async fn own_trace(scene: &Scene, attachment: &VolumeAttachment) -> Result<Trace> {
    let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
    let tags = [("k8s.volumeattachment.uid", uid)];
    let called = |traces: &[Trace]| {
        let called = |trace: &Trace| !trace.named(PUBLISH).is_empty() && !trace.named(ATTEMPT).is_empty();
        traces.iter().any(called)
    };
    let mut traces = scene
        .jaeger
        .wait_for_search((SERVICE, &tags), "the attempt", LIMIT, called)
        .await?;
    assert_eq!(traces.len(), 1);
    Ok(traces.remove(0))
}

#[tokio::test]
async fn t7_a_driver_with_a_propagator_has_its_span_below_the_call() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names {
        short: "jaeger-t7-joins",
    };
    let folder = tempfile::tempdir().unwrap();
    let trace = attach(&scene, &names, folder.path(), &["--propagate"]).await?;
    let text = tree::render(&trace);
    println!("{text}");

    let served = server_spans(&trace, &names);
    assert_eq!(served.len(), 1, "{text}");
    assert_eq!(served[0].text("span.kind"), "server");
    let parent = trace.parent_of(served[0]).unwrap_or_else(|| panic!("{text}"));
    assert_eq!((parent.service.as_str(), parent.name.as_str()), (SERVICE, PUBLISH));
    assert_eq!(parent.text("span.kind"), "client");
    Ok(())
}

#[tokio::test]
async fn t7_a_driver_without_a_propagator_has_a_trace_of_its_own() -> Result<()> {
    let scene = Scene::enter().await?;
    let names = Names {
        short: "jaeger-t7-alone",
    };
    let folder = tempfile::tempdir().unwrap();
    let trace = attach(&scene, &names, folder.path(), &[]).await?;
    assert!(server_spans(&trace, &names).is_empty(), "{}", tree::render(&trace));

    let service = names.driver();
    let theirs = scene.jaeger.find(&service, &[]).await?;
    let served: Vec<_> = theirs.iter().flat_map(|trace| server_spans(trace, &names)).collect();
    assert_eq!(served.len(), 1);
    assert_eq!(served[0].references, [], "neither a parent nor a link");
    Ok(())
}
