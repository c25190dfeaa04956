//! The alerts that ship: promtool accepts them, each fires and keeps quiet when it should, and each has its runbook.

mod beside;
mod clusters;
pub mod dashboard;
mod runbooks;

use std::collections::BTreeSet;
use std::fs;

use csi_attacher_model::findings::FindingKind;
use serde_json::Value;

use crate::documents::METRIC_PREFIXES;
use crate::support::Result;
use crate::support::prometheus::{of_repository, promtool};

const ALERTS: &str = "config/prometheus/alerts.yaml";
const MANIFEST: &str = "config/prometheus/prometheusrule.yaml";
const CASES: &str = "tests/prometheus/alerts_test.yaml";

fn read(path: &str) -> String {
    fs::read_to_string(of_repository(path))
        .map_err(|error| (path, error))
        .unwrap()
}

fn parsed(path: &str) -> Value {
    serde_yaml::from_str(&read(path))
        .map_err(|error| (path, error))
        .unwrap()
}

fn rules() -> Vec<Value> {
    let groups = parsed(ALERTS)["groups"].as_array().unwrap().clone();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn names() -> BTreeSet<String> {
    rules()
        .iter()
        .map(|rule| rule["alert"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn promtool_accepts_the_alerts() -> Result<()> {
    let (content, said) = promtool(&["check", "rules", &of_repository(ALERTS).display().to_string()], "").await?;
    assert!(content, "{said}");
    assert!(said.contains(&format!("{} rules found", rules().len())), "{said}");
    Ok(())
}

/// That each alert does as its cases say, `beside` shows.
#[test]
fn each_alert_has_a_firing_and_a_quiet_case() {
    let cases = parsed(CASES)["tests"].as_array().unwrap().clone();
    for name in names() {
        let of_alert = cases
            .iter()
            .flat_map(|case| case["alert_rule_test"].as_array().unwrap());
        let expected: Vec<usize> = of_alert
            .filter(|case| case["alertname"] == name.as_str())
            .map(|case| case["exp_alerts"].as_array().unwrap().len())
            .collect();
        assert!(expected.contains(&0), "{name} has no quiet case");
        assert!(expected.iter().any(|alerts| *alerts > 0), "{name} has no firing case");
    }
}

/// The expression with another number in place of its bound of this number, counted from 0; none if it has no such bound. One
/// without any, as that about what is absent, counts as one that is compared.
fn with_bound(expression: &str, number: usize, wrong: &str) -> Option<String> {
    let mut words: Vec<&str> = expression.split_whitespace().collect();
    let is_bound = |at: &usize| {
        let compared = words[*at] == ">" || words[*at] == "==";
        compared && words.get(at + 1).is_some_and(|bound| bound.parse::<f64>().is_ok())
    };
    let bounds: Vec<usize> = (0..words.len()).filter(is_bound).collect();
    if bounds.is_empty() {
        let bounded = format!("(({expression}) or vector(0)) > {wrong}");
        return (number == 0).then_some(bounded);
    }
    let at = *bounds.get(number)?;
    (words[at], words[at + 1]) = (">", wrong);
    Some(words.join(" "))
}

/// What promtool says of the cases when the bound of this number of each alert is that one, and the alerts that have such a bound.
async fn with_bounds(number: usize, wrong: &str) -> Result<(String, Vec<String>)> {
    let (mut alerts, mut changed) = (parsed(ALERTS), Vec::new());
    let groups = alerts["groups"].as_array_mut().unwrap().iter_mut();
    for rule in groups.flat_map(|group| group["rules"].as_array_mut().unwrap()) {
        if let Some(expression) = with_bound(rule["expr"].as_str().unwrap(), number, wrong) {
            rule["expr"] = expression.into();
            changed.push(rule["alert"].as_str().unwrap().to_owned());
        }
    }
    if changed.is_empty() {
        return Ok((String::new(), changed));
    }
    let folder = tempfile::tempdir()?;
    // JSON is YAML.
    fs::write(folder.path().join("alerts.yaml"), alerts.to_string())?;
    let cases = read(CASES).replace("../../config/prometheus/alerts.yaml", "alerts.yaml");
    let file = folder.path().join("cases.yaml");
    fs::write(&file, cases)?;
    let (_, said) = promtool(&["test", "rules", &file.display().to_string()], "").await?;
    Ok((said, changed))
}

/// What the cases are worth: with a bound that nothing reaches, the firing cases of each alert fail, and with one that
/// everything reaches the quiet ones.
#[tokio::test]
async fn the_cases_notice_a_wrong_bound_of_each_alert() -> Result<()> {
    for (wrong, complaint) in [("1e300", "fires"), ("-1e300", "is quiet")] {
        for number in 0.. {
            let (said, changed) = with_bounds(number, wrong).await?;
            if changed.is_empty() {
                assert!(number >= 2, "some alerts have two bounds");
                break;
            }
            if number == 0 {
                assert_eq!(changed.iter().cloned().collect::<BTreeSet<_>>(), names());
            }
            let unnoticed: Vec<_> = changed
                .iter()
                .filter(|alert| !said.contains(&format!("{alert} {complaint}")))
                .collect();
            assert!(
                unnoticed.is_empty(),
                "bound {number} may be {wrong} of {unnoticed:?}: {said}"
            );
        }
    }
    Ok(())
}

/// A driver that works as meant may have it for ever: no alert is for it.
const NO_ALERT: &str = "attached_without_call";

/// A kind of findings has one alert: that of what is stuck looks at the oldest operation, every other one at the findings.
#[test]
fn each_kind_of_finding_has_one_alert() {
    let stuck = ["attach_stuck", "detach_stuck", "provision_stuck", "delete_stuck"];
    let mut told: Vec<(String, String)> = stuck
        .iter()
        .map(|kind| ((*kind).to_owned(), "the oldest operation".to_owned()))
        .collect();
    told.push((NO_ALERT.to_owned(), "none".to_owned()));
    for rule in rules() {
        let (name, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        let selectors = expression.split("csi_attacher_findings{kind").skip(1);
        for selector in selectors {
            let kinds = selector.split('"').nth(1).unwrap();
            told.extend(kinds.split('|').map(|kind| (kind.to_owned(), name.to_owned())));
        }
    }
    let kinds: BTreeSet<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.len(), told.len(), "a kind has two alerts: {told:?}");
    assert_eq!(kinds, FindingKind::ALL.iter().map(|kind| kind.as_str()).collect());
    for kind in FindingKind::of_role(false) {
        assert!(
            !told.contains(&(
                kind.as_str().to_owned(),
                "CsiAttacherAttachmentsInconsistent".to_owned()
            )),
            "{}",
            kind.as_str()
        );
    }
    for operation in stuck.map(|kind| kind.trim_end_matches("_stuck")) {
        let selector = format!("csi_attacher_oldest_pending_seconds{{operation=\"{operation}\"}}");
        assert!(read(ALERTS).contains(&selector), "{operation}");
    }
}

#[test]
fn the_manifest_has_the_same_alerts() {
    let alerts = read(ALERTS);
    let groups = &alerts[alerts.find("groups:").unwrap()..];
    let old = read(MANIFEST);
    let head = &old[..old.find("spec:\n").unwrap() + "spec:\n".len()];
    let indented = |line: &str| {
        if line.is_empty() {
            "\n".to_owned()
        } else {
            format!("  {line}\n")
        }
    };
    let new = format!("{head}{}", groups.lines().map(indented).collect::<String>());
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(of_repository(MANIFEST), &new).unwrap();
    } else {
        assert!(old == new, "{MANIFEST} is out of date; run `make prometheus-rule`");
    }
    let manifest = parsed(MANIFEST);
    assert_eq!(manifest["kind"], "PrometheusRule");
    assert_eq!(manifest["spec"]["groups"], parsed(ALERTS)["groups"]);
}

#[test]
fn each_alert_has_its_runbook_and_the_reverse() {
    let folder = fs::read_dir(of_repository("docs/runbooks")).unwrap();
    let pages = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = pages
        .filter(|page| page != "README.md")
        .map(|page| page.strip_suffix(".md").unwrap().to_owned())
        .collect();
    assert_eq!(pages, names());
    let index = read("docs/runbooks/README.md");
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap();
        let notes = &rule["annotations"];
        assert_eq!(notes["runbook_url"], format!("docs/runbooks/{name}.md"));
        for note in ["summary", "description"] {
            assert!(
                notes[note].as_str().is_some_and(|text| !text.is_empty()),
                "{name} has no {note}"
            );
        }
        // On a pager stands nothing but the name.
        assert!(name.starts_with("CsiAttacher"), "{name}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}: {severity}"
        );
        assert!(index.contains(&format!("({name}.md)")), "{name} is not in the index");
        let page = read(&format!("docs/runbooks/{name}.md"));
        for heading in [
            "## Symptom",
            "## Meaning",
            "## What to check",
            "## Fix",
            "## When not to worry",
        ] {
            assert!(page.contains(&format!("\n{heading}\n")), "{name}.md has no {heading}");
        }
    }
}

/// A metric that an alert or a panel asks for, or a runbook speaks of, is one that there is.
#[test]
fn what_is_asked_for_is_documented() {
    let documented = read("docs/reference/METRICS.md");
    let mut texts = vec![read(ALERTS), read("config/grafana/csi-attacher-operator.json")];
    texts.extend(names().iter().map(|name| read(&format!("docs/runbooks/{name}.md"))));
    let mut count = 0;
    for text in &texts {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(|word| METRIC_PREFIXES.iter().any(|prefix| word.starts_with(prefix))) {
            let suffixes = ["_bucket", "_count", "_sum"];
            let family = suffixes
                .iter()
                .find_map(|suffix| word.strip_suffix(suffix))
                .unwrap_or(word);
            let known = [family, word]
                .iter()
                .any(|name| documented.contains(&format!("| `{name}` |")));
            assert!(known, "{word} is not in docs/reference/METRICS.md");
            count += 1;
        }
    }
    assert!(count > 100, "only {count} names were found");
}
