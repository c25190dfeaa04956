//! Several clusters in one Prometheus: what is wrong in one of them is told of that one, whatever the others show.

use serde_json::{Value, json};

use super::beside::told;
use super::{ALERTS, CASES, names, parsed, read};
use crate::support::Result;

/// A cluster in which nothing is wrong.
fn sound() -> [Value; 3] {
    [
        "csi_attacher_build_info{cluster=\"west\",job=\"attacher\",instance=\"w:8080\"}",
        "csi_attacher_driver_up{cluster=\"west\",driver_name=\"d.csi.example\"}",
        "leader_election_master_status{cluster=\"west\",name=\"external-attacher-leader-d.csi.example\",\
         job=\"attacher\",instance=\"w:8080\"}",
    ]
    .map(|series| json!({"series": series, "values": "1x90"}))
}

/// The cases as one of two clusters, the other of which is sound. Those that have clusters of their own are left out.
fn cases_of_one_cluster() -> Vec<Value> {
    let mut cases = parsed(CASES)["tests"].as_array().unwrap().clone();
    let has_clusters = |case: &Value| case["input_series"].to_string().contains("{cluster=");
    cases.retain(|case| !has_clusters(case));
    for case in &mut cases {
        let series = case["input_series"].as_array_mut().unwrap();
        for one in &mut *series {
            let name = one["series"].as_str().unwrap();
            assert!(name.contains('{'), "{name} has no place for a label");
            one["series"] = name.replacen('{', "{cluster=\"east\",", 1).into();
        }
        series.extend(sound());
        let expected = case["alert_rule_test"].as_array_mut().unwrap().iter_mut();
        for alert in expected.flat_map(|one| one["exp_alerts"].as_array_mut().unwrap()) {
            alert["exp_labels"]["cluster"] = "east".into();
        }
    }
    cases
}

#[tokio::test]
async fn each_alert_names_its_cluster_and_is_not_hidden_by_another() -> Result<()> {
    let cases = cases_of_one_cluster();
    assert!(cases.len() >= 2 * names().len(), "{} cases", cases.len());
    let (content, said) = told(&read(ALERTS), &cases).await?;
    assert!(content, "{said}");
    Ok(())
}

/// What the test above is worth: of each alert that puts the clusters together, a firing case fails.
#[tokio::test]
async fn an_alert_that_mixes_clusters_is_noticed() -> Result<()> {
    let mixing = read(ALERTS).replace("cluster, ", "").replace("(cluster)", "()");
    let (_, said) = told(&mixing, &cases_of_one_cluster()).await?;
    let unnoticed: Vec<String> = names()
        .into_iter()
        .filter(|alert| !said.contains(&format!("{alert} fires")))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?} may mix clusters: {said}");
    Ok(())
}
