//! The series of other programs beside ours: each alert fires in its case and in no other, and the dashboard does not show them.

use std::fs;

use serde_json::{Value, json};

use super::dashboard::{HELD, queries};
use super::{ALERTS, CASES, names, parsed, read};
use crate::support::Result;
use crate::support::prometheus::promtool;

const FOREIGN: &str = "tests/prometheus/foreign_series.yaml";

/// What the names of metrics begin with that other programs have as well.
pub const SHARED: [&str; 6] = [
    "csi_sidecar_",
    "leader_election_",
    "process_",
    "rest_client_",
    "trace_context_",
    "workqueue_",
];

fn foreign() -> Vec<Value> {
    parsed(FOREIGN).as_array().unwrap().clone()
}

/// What promtool says of these tests about the alerts in `rules`, which is the text of a rule file.
pub async fn told(rules: &str, tests: &[Value]) -> Result<(bool, String)> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("alerts.yaml"), rules)?;
    let file = folder.path().join("cases.yaml");
    let cases = json!({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests});
    fs::write(&file, cases.to_string())?;
    promtool(&["test", "rules", &file.display().to_string()], "").await
}

/// The cases, each with these series beside its own, and at each of its times with all other alerts quiet.
fn cases_beside(series: &[Value]) -> Vec<Value> {
    let mut cases = parsed(CASES)["tests"].as_array().unwrap().clone();
    for case in &mut cases {
        let ours = case["input_series"].as_array_mut().unwrap();
        let has_build = ours
            .iter()
            .any(|one| one["series"].as_str().unwrap().starts_with("csi_attacher_build_info"));
        if !has_build {
            ours.push(
                json!({"series": "csi_attacher_build_info{job=\"attacher\",instance=\"a:8080\"}", "values": "1x90"}),
            );
        }
        ours.extend_from_slice(series);
        let expected = case["alert_rule_test"].as_array_mut().unwrap();
        let times: Vec<Value> = expected.iter().map(|one| one["eval_time"].clone()).collect();
        for time in times {
            for name in names() {
                let told = expected
                    .iter()
                    .any(|one| one["eval_time"] == time && one["alertname"] == name.as_str());
                if !told {
                    expected.push(json!({"eval_time": time, "alertname": name, "exp_alerts": []}));
                }
            }
        }
    }
    cases
}

#[tokio::test]
async fn each_alert_fires_in_its_case_and_in_no_other() -> Result<()> {
    let series = foreign();
    assert!(series.len() > 25, "{}", series.len());
    let (content, said) = told(&read(ALERTS), &cases_beside(&series)).await?;
    assert!(content, "{said}");
    Ok(())
}

/// What the test above is worth: without what tells our series from others, it fails at those of the others.
#[tokio::test]
async fn a_foreign_series_that_counts_is_noticed() -> Result<()> {
    let alerts = read(ALERTS);
    let cases = cases_beside(&foreign());
    for (ours, all, complaint) in [
        (
            "\n          and on (cluster, job, instance) csi_attacher_build_info",
            "",
            "external-attacher-leader-idle.csi.example",
        ),
        (
            "and on (cluster, job, instance)",
            "and on (job)",
            "external-attacher-leader-none.csi.example",
        ),
        ("count by (cluster, name)", "count by (name)", "2 processes say"),
    ] {
        assert!(alerts.contains(ours), "{ours}");
        let (content, said) = told(&alerts.replace(ours, all), &cases).await?;
        assert!(!content && said.contains(complaint), "{ours}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn the_dashboard_shows_no_foreign_series() -> Result<()> {
    const BUILD: &str = "csi_attacher_build_info{instance=\"a:8080\",job=\"attacher\",version=\"0.1.0\"}";
    let mut series = foreign();
    series.push(json!({"series": BUILD, "values": "1x90"}));
    let (shown, asked): (Vec<String>, Vec<String>) = queries()
        .into_iter()
        .map(|(_, query)| query)
        .partition(|query| query.starts_with("count by (cluster, version) (max by (cluster, version, instance) ("));
    assert!(shown.len() == 1 && asked.len() > 50, "{} queries", asked.len());
    let nothing = |query: &String| json!({"expr": query, "eval_time": "60m", "exp_samples": []});
    let test = |queries: &[String]| {
        let asked: Vec<Value> = queries.iter().map(nothing).collect();
        json!({"name": "dashboard", "interval": "1m", "input_series": series, "promql_expr_test": asked})
    };
    let (content, said) = told(&read(ALERTS), &[test(&asked)]).await?;
    assert!(content, "{said}");

    // What this is worth: each query of a metric that others have as well shows theirs when nothing holds it to our targets.
    let loose: Vec<String> = asked
        .iter()
        .filter(|query| query.contains(HELD))
        .map(|query| query.replace(HELD, ""))
        .collect();
    let (content, said) = told(&read(ALERTS), &[test(&loose)]).await?;
    assert!(!content && loose.len() > 15, "{} queries: {said}", loose.len());
    for query in &loose {
        assert!(
            said.contains(&format!("expr: {query:?}")),
            "{query} shows nothing of the foreign series: {said}"
        );
    }
    Ok(())
}

/// Metrics whose names others have as well count only from a target that shows `csi_attacher_build_info`.
#[test]
fn a_metric_that_others_have_is_held_to_our_targets() {
    let rules = super::rules();
    let alerts = rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
    for query in alerts.chain(queries().into_iter().map(|(_, query)| query)) {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let shared = words.filter(|word| SHARED.iter().any(|prefix| word.starts_with(prefix)));
        let held = query.matches("instance) csi_attacher_build_info").count();
        assert_eq!(shared.count(), held, "{query}");
    }
}
