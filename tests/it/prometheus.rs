//! A real Prometheus scrapes the real operator: both expositions are well formed and documented, every query of the
//! dashboard returns data, and exemplars lead to the spans that were exported.

mod docs;
mod scene;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::prometheus_rules::dashboard::queries;
use crate::support::otlp::{OtlpReceiver, ReceivedSpan};
use crate::support::prometheus::{Prometheus, get, promtool};
use crate::support::stage::{Stage, stop};
use crate::support::{Operator, OperatorOptions, Result};
use scene::Scene;

const CLASSIC: &str = "text/plain;version=0.0.4";
const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0";

#[tokio::test]
async fn a_real_prometheus_reads_a_running_operator() -> Result<()> {
    let stage = Stage::enter().await?;
    let receiver = OtlpReceiver::grpc().await;
    let options = OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
        .argument("--inspection-interval=1s")
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .variable("OTEL_BSP_SCHEDULE_DELAY", "20");
    let mut operator = stage.operator(options).await?;
    let scene = Scene::begin(&stage).await?;
    let prometheus = Prometheus::start(operator.http()).await?;
    counters_begin_at_zero(&prometheus).await?;

    scene.play().await?;
    dashboard_has_data(&prometheus).await?;
    rules_are_evaluated(&prometheus).await?;
    let exemplars = exemplars(&prometheus).await?;
    expositions_are_well_formed(&operator, &prometheus).await?;
    docs::match_the_exposition(&get(operator.http(), "/metrics", CLASSIC).await?);

    drop(scene);
    stop(&mut operator).await?;
    let spans = receiver.spans();
    for (trace_id, span_id) in &exemplars {
        let exported = |span: &ReceivedSpan| span.trace_id == *trace_id && span.span_id == *span_id;
        assert!(
            spans.iter().any(exported),
            "no span {span_id} of trace {trace_id} was exported"
        );
    }
    Ok(())
}

/// A counter of something that never happened is there, so that `increase()` sees the first time.
async fn counters_begin_at_zero(prometheus: &Prometheus) -> Result<()> {
    let zeros = [
        format!(
            "csi_attacher_attempt_failures_total{{driver_name=\"{}\",reason=\"Internal\"}}",
            scene::DRIVER
        ),
        format!(
            "csi_attacher_operation_e2e_seconds_count{{driver_name=\"{}\"}}",
            scene::DRIVER
        ),
        format!(
            "csi_attacher_events_total{{driver_name=\"{}\",reason=\"AttachFailed\"}}",
            scene::DRIVER
        ),
        format!(
            "csi_attacher_reconcile_panics_total{{driver_name=\"{}\"}}",
            scene::DRIVER
        ),
    ];
    for expression in zeros {
        let found = prometheus
            .wait_for(&expression, async || {
                let found = prometheus.query(&expression).await?;
                Ok((!found.is_empty()).then_some(found))
            })
            .await?;
        assert!(found.iter().all(|sample| sample["value"][1] == "0"), "{found:?}");
    }
    Ok(())
}

/// Every query of the dashboard, as Grafana would send it.
async fn dashboard_has_data(prometheus: &Prometheus) -> Result<()> {
    let queries = queries();
    assert!(queries.len() > 50, "only {} queries were found", queries.len());
    for (title, asked) in queries {
        assert!(!asked.contains('$'), "{asked} has a variable that is not filled in");
        let what = format!("{title}: {asked}");
        let has_data = async || Ok((!prometheus.query(&asked).await?.is_empty()).then_some(()));
        prometheus.wait_for(&what, has_data).await?;
    }
    Ok(())
}

/// The alerts that ship are loaded and evaluated without an error.
async fn rules_are_evaluated(prometheus: &Prometheus) -> Result<()> {
    let groups = prometheus
        .wait_for("all rules to be evaluated", async || {
            let data = prometheus.api("rules", &[]).await?;
            let rules = data["groups"].as_array().into_iter().flatten();
            let rules: Vec<Value> = rules
                .flat_map(|group| group["rules"].as_array().cloned().unwrap())
                .collect();
            let done = !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown");
            Ok(done.then_some(rules))
        })
        .await?;
    for rule in &groups {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    Ok(())
}

/// Trace and span ids of the exemplars that Prometheus keeps; each of the three families has some.
async fn exemplars(prometheus: &Prometheus) -> Result<BTreeSet<(String, String)>> {
    let mut all = BTreeSet::new();
    for family in [
        "csi_sidecar_operations_seconds_bucket",
        "csi_attacher_operation_e2e_seconds_bucket",
        "rest_client_request_duration_seconds_bucket",
    ] {
        let span = [("query", family), ("start", "0"), ("end", "9999999999")];
        let found = prometheus
            .wait_for(family, async || {
                let series = prometheus.api("query_exemplars", &span).await?;
                let series = series.as_array().into_iter().flatten();
                let found: Vec<Value> = series
                    .flat_map(|one| one["exemplars"].as_array().cloned().unwrap_or_default())
                    .collect();
                Ok((!found.is_empty()).then_some(found))
            })
            .await?;
        for exemplar in found {
            let id = |name: &str| exemplar["labels"][name].as_str().unwrap().to_owned();
            all.insert((id("trace_id"), id("span_id")));
        }
    }
    Ok(all)
}

/// promtool 2.42 reads the classic format only, and has nothing to say about it. The other one is what Prometheus scraped: it
/// drops a scrape of which it does not understand a line, and then says that the target is not up.
async fn expositions_are_well_formed(operator: &Operator, prometheus: &Prometheus) -> Result<()> {
    let classic = get(operator.http(), "/metrics", CLASSIC).await?;
    assert!(!classic.contains(" # {") && !classic.contains("# EOF"), "{classic}");
    let (content, said) = promtool(&["check", "metrics"], &classic).await?;
    assert!(content && said.is_empty(), "{said}");

    let openmetrics = get(operator.http(), "/metrics", OPENMETRICS).await?;
    assert!(openmetrics.contains(" # {trace_id=\"") && openmetrics.ends_with("# EOF\n"));
    // What was shown once is shown ever after: a line that is not understood fails each scrape from then on. A single one also
    // fails when the machine is so busy that it takes more than a second.
    let from_now = format!("up == 1 and timestamp(up) > {}", jiff::Timestamp::now().as_second() + 1);
    let scrape = async || Ok((!prometheus.query(&from_now).await?.is_empty()).then_some(()));
    prometheus.wait_for("another scrape that succeeds", scrape).await?;
    let scraped = prometheus.query("max_over_time(scrape_samples_scraped[1h])").await?;
    let scraped: f64 = scraped[0]["value"][1].as_str().unwrap().parse().unwrap();
    let shown = openmetrics.lines().filter(|line| !line.starts_with('#')).count();
    assert!(
        scraped > 0.5 * f64::from(u32::try_from(shown).unwrap()),
        "{scraped} of {shown}"
    );
    Ok(())
}
