//! The dashboard: its queries as Grafana sends them, and whether each of them keeps the clusters of one Prometheus apart.

use std::fs;

use serde_json::Value;

use super::beside::SHARED;
use crate::support::prometheus::of_repository;

const FILE: &str = "config/grafana/csi-attacher-operator.json";
/// What holds a metric that others have as well to our targets.
pub const HELD: &str = " and on (cluster, job, instance) csi_attacher_build_info";

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(of_repository(FILE)).unwrap()).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn variables(dashboard: &Value) -> Vec<&Value> {
    let all = dashboard["templating"]["list"].as_array().unwrap().iter();
    all.filter(|variable| variable["type"] == "query").collect()
}

/// The panels' queries as they are written, each with the title of its panel and its legend.
fn targets(dashboard: &Value) -> Vec<[String; 3]> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panel = |panel: &Value| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        let told = targets.map(|target| [&panel["title"], &target["expr"], &target["legendFormat"]].map(text));
        told.collect::<Vec<_>>()
    };
    panels.flat_map(of_panel).collect()
}

/// The titles of the panels and their queries, with the variables filled in as Grafana does it when all is selected.
pub fn queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let all = variables(&dashboard)
        .into_iter()
        .map(|variable| (format!("${}", text(&variable["name"])), text(&variable["allValue"])));
    let values: Vec<(String, String)> = all.chain([("$__rate_interval".to_owned(), "10m".to_owned())]).collect();
    let filled = |[title, expression, _]: [String; 3]| {
        let fill = |query: String, (name, value): &(String, String)| query.replace(name, value);
        (title, values.iter().fold(expression, fill))
    };
    targets(&dashboard).into_iter().map(filled).collect()
}

/// What a query shows of clusters that are not selected, and where it puts the series of several clusters together.
fn problems(expression: &str) -> Vec<String> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut problems = Vec::new();
    for word in [" by (", " on ("] {
        let lists = expression.split(word).skip(1).filter_map(|rest| rest.split(')').next());
        let without = lists.filter(|labels| !labels.split(", ").any(|label| label == "cluster"));
        problems.extend(without.map(|labels| format!("{word}{labels}) has no cluster")));
    }
    let asked = expression.replace(HELD, "");
    for prefix in SHARED.iter().chain(&["csi_attacher_"]) {
        for (at, _) in asked.match_indices(prefix) {
            let selector = asked[at..].trim_start_matches(is_of_name);
            let begins = !asked[..at].ends_with(is_of_name);
            if begins && !selector.starts_with("{cluster=~\"$cluster\"") {
                problems.push(format!(
                    "{} is of any cluster",
                    &asked[at..asked.len() - selector.len()]
                ));
            }
        }
    }
    problems
}

#[test]
fn each_query_keeps_clusters_apart() {
    let dashboard = dashboard();
    let targets = targets(&dashboard);
    assert!(targets.len() > 50, "{} queries", targets.len());
    for [title, expression, legend] in targets {
        assert_eq!(problems(&expression), Vec::<String>::new(), "{title}: {expression}");
        assert!(legend.contains("{{cluster}}"), "{title}: {legend}");
    }
    let variables = variables(&dashboard);
    let cluster = variables[0];
    assert_eq!(cluster["name"], "cluster", "the others depend on it");
    // It matches a series without the label as well, which is what one cluster alone has.
    assert_eq!(cluster["allValue"], ".*");
    for variable in &variables[1..] {
        let query = text(&variable["query"]["query"]);
        assert_eq!(variable["definition"], query.as_str());
        let metric = query.strip_prefix("label_values(").unwrap();
        assert_eq!(problems(metric), Vec::<String>::new(), "{query}");
    }
}

/// A process that two jobs scrape has two series of each gauge, and counts once. Counters are told by their rate.
#[test]
fn a_gauge_of_several_replicas_counts_processes() {
    let mut count = 0;
    for [title, expression, _] in targets(&dashboard()) {
        for word in ["sum by (", "count by ("] {
            let added = expression.split(word).skip(1);
            let added = added.filter_map(|rest| Some(rest.split_once(") ")?.1));
            for added in added.filter(|added| !["(rate(", "(increase("].iter().any(|rate| added.starts_with(rate))) {
                assert!(added.starts_with("(max by ("), "{title}: {expression}");
                count += 1;
            }
        }
    }
    assert!(count >= 8, "{count} sums");
}

/// What the test above of clusters is worth.
#[test]
fn a_query_that_mixes_clusters_is_found() {
    for (expression, found) in [
        ("max by (cluster, name) (workqueue_depth{cluster=~\"$cluster\"})", 0),
        ("max by (name) (workqueue_depth{cluster=~\"$cluster\"})", 1),
        ("max by (name) (workqueue_depth{name=\"a\"})", 2),
        (
            "process_open_fds and on (cluster, job, instance) csi_attacher_build_info",
            1,
        ),
        (
            "process_open_fds{cluster=~\"$cluster\"} and on (job, instance) csi_attacher_build_info",
            2,
        ),
    ] {
        let told = problems(expression);
        assert_eq!(told.len(), found, "{expression}: {told:?}");
    }
}
