//! The slow attach in docs/operate/TRACING.md is a real one, read back from Jaeger, where it is one trace. With `UPDATE=1` it is written there anew.

use std::path::PathBuf;
use std::time::Duration;

use csi_mock_driver::{Method, MockDriver, Rule};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tonic::Code;

use super::{APISERVER, ATTEMPT, ETCD, LIMIT, ROOT, SERVICE, Scene, told_context};
use crate::support::jaeger::{Trace, tree};
use crate::support::operator::{apply_config, wait_condition};
use crate::support::{Result, Volume};

const DRIVER: &str = "ssd.example.com";
const NODE: &str = "worker-3";
const CLAIM: &str = "data-postgres-0";
const POD: &str = "postgres-0";
const VOLUME: &str = "pvc-5d0c1b7e";
const HANDLE: &str = "vol-0a1b2c3d";
/// How long after the volume was attached its trace may be incomplete in Jaeger.
const T2_BAR: SignedDuration = SignedDuration::from_secs(10);
/// Between these lines of the document the trace stands.
const BEGIN: &str = "<!-- The next block is written by `make trace-docs`. -->\n```text\n";
const END: &str = "```\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/operate/TRACING.md")
}

/// The document before, in and after the block.
fn split(document: &str) -> (&str, &str, &str) {
    let (before, rest) = document.split_once(BEGIN).expect("there is a block");
    let (block, after) = rest.split_once(END).expect("the block ends");
    (before, block, after)
}

/// What is the same each time: names and order of the operator's spans and what is told of them, without figures. What
/// the API server does inside is its own affair.
fn shape(rendered: &str) -> Vec<String> {
    let lines = rendered
        .lines()
        .filter(|line| !line.contains("[apiserver]") && !line.contains("[etcd]"));
    // The first line has the id, the second the scale.
    let lines = lines.skip(2).map(|line| {
        let words = line.split_whitespace().filter(|word| !word.starts_with(['█', '▏']));
        let words = words.map(|word| {
            if ["wait=", "delay=", "trigger="].iter().any(|key| word.contains(key)) {
                "VARIES"
            } else {
                word
            }
        });
        let words = words.filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()) && !["s", "ms"].contains(word));
        words.collect::<Vec<_>>().join(" ")
    });
    lines.collect()
}

/// A volume that is attached at the third attempt: the driver's backend is away, then it does not answer, then it is slow.
async fn slow_attach(scene: &Scene) -> Result<Trace> {
    let _operator = scene.trusted_operator(scene.options()).await?;
    let publish = || Rule::on(Method::ControllerPublishVolume).times(1);
    let away = publish().delay(Duration::from_millis(800));
    let builder = MockDriver::builder(DRIVER)
        .accept_any_volume()
        .rule(away.fail(Code::Unavailable, "storage backend 10.0.7.4 does not answer"))
        .rule(publish().hang())
        .rule(publish().delay(Duration::from_millis(600)));
    let driver = scene.stage.driver(builder, "ssd").await?;
    let spec = json!({
        "endpoint": format!("unix://{}", driver.socket),
        "timeouts": { "publish": "5s" },
        "backoff": { "initial": "500ms", "jitterPercent": 0 },
        "reconcileSync": { "mode": "Disabled" },
    });
    apply_config(&scene.stage.client, "ssd", spec).await?;
    wait_condition(&scene.stage.client, "ssd", "Ready", "True", Some("Running")).await?;

    let volume = Volume::new(VOLUME, DRIVER, HANDLE);
    let made = scene.run_pod_with(&volume, NODE, CLAIM, POD).await?;
    let name = made.metadata.name.as_deref().unwrap_or_default();
    let stored = scene.fixtures().wait_for_attached(name).await?;
    let attached = Timestamp::now();
    let (id, root) = told_context(&stored);
    let own = |trace: &Trace| !trace.named(ROOT).is_empty() && trace.named(ATTEMPT).len() == 3;
    let (_, in_vain) = scene.jaeger.wait_for_arrival(&id, "its own spans", LIMIT, own).await?;
    let missing = in_vain.map_or(SignedDuration::ZERO, |asked| asked.duration_since(attached));
    println!("T2: {missing:#} after the volume was attached the trace was not whole yet; the bar is 10 s");
    assert!(missing < T2_BAR, "not whole {missing:#} after the volume was attached");
    // The last write is the last of which the API server exports its part.
    let complete = |trace: &Trace| {
        let own = trace.of_service(SERVICE).into_iter();
        let mut requests = own.filter(|span| span.name.starts_with("PATCH "));
        let answered = |span| trace.children(span).iter().any(|child| child.service == APISERVER);
        requests.all(answered) && trace.of_service(ETCD).len() >= 3
    };
    let parts = "those of the API server and of etcd";
    let trace = scene.jaeger.wait_for_trace(&id, parts, LIMIT, complete).await?;
    let roots: Vec<&str> = trace.roots().iter().map(|root| root.id.as_str()).collect();
    assert_eq!(roots, [root]);
    let warned = |span: &&crate::support::jaeger::Span| !span.warnings.is_empty();
    assert!(!trace.of_service(SERVICE).iter().any(warned), "{trace:#?}");
    // No other trace knows of attaching this.
    let uid = stored.metadata.uid.unwrap_or_default();
    let all = scene
        .jaeger
        .find(SERVICE, &[("k8s.volumeattachment.uid", &uid)])
        .await?;
    assert!(all.iter().all(|found| found.id == id) && all.len() == 1, "{all:?}");
    Ok(trace)
}

#[tokio::test]
async fn t2_the_document_shows_a_slow_attach_as_jaeger_has_it_within_10_s() -> Result<()> {
    let scene = Scene::enter().await?;
    let trace = Box::pin(slow_attach(&scene)).await?;
    let rendered = tree::render(&trace);
    let document = std::fs::read_to_string(path()).unwrap();
    let (before, block, after) = split(&document);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(path(), format!("{before}{BEGIN}{rendered}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            shape(block),
            shape(&rendered),
            "`make trace-docs` writes it anew:\n{rendered}"
        );
    }
    assert_found(&scene, &document, &trace).await
}

/// Each search that the document names in its table, as `key=value`, finds the trace.
async fn assert_found(scene: &Scene, document: &str, trace: &Trace) -> Result<()> {
    let rows = document
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('='))
        .map(|line| {
            let quoted = line.split('`').skip(1).step_by(2);
            let tags: Vec<(&str, &str)> = quoted.filter_map(|text| text.split_once('=')).collect();
            tags
        });
    let rows: Vec<_> = rows
        .filter(|tags| tags.iter().any(|(key, _)| key.contains('.')))
        .collect();
    assert!(rows.len() >= 5, "{rows:?}");
    for tags in rows {
        let found = scene.jaeger.find(SERVICE, &tags).await?;
        assert!(found.iter().any(|found| found.id == trace.id), "{tags:?}");
    }
    Ok(())
}

#[test]
fn figures_are_no_part_of_the_shape() {
    let one = "trace a  2 spans\n  0  1 s\n└─ call FAILED   2.00 s  ███\n   └─ [etcd]  1 ms  █\n   attacher.queue.wait=0.1  x=1\n";
    let other = "trace b  3 spans\n  0  2 s\n└─ call FAILED   9.5 ms   ▏\n   attacher.queue.wait=0.22  x=1\n";
    assert_eq!(shape(one), shape(other));
    assert_eq!(shape(one), ["└─ call FAILED", "VARIES x=1"]);
    assert_ne!(shape(one), shape(&other.replace("FAILED", "")));
}
