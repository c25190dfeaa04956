//! Tables that have a row for each name of the code, and for no other.

use std::collections::BTreeSet;

use csi_attacher_kube::events;
use csi_attacher_model::api::condition::{ConditionReason, ConditionType};
use csi_attacher_model::api::names;
use csi_attacher_model::findings;
use csi_attacher_model::provision::event::ProvisionEventReason;
use csi_attacher_telemetry::otel_env::VARIABLES;

use super::markdown::{self, Document, quoted};
use super::{Problems, compare, document, none, sources};

fn owned<'n>(names: impl IntoIterator<Item = &'n str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// The names in the first column.
fn first(rows: &[Vec<String>]) -> BTreeSet<String> {
    rows.iter().flat_map(|row| quoted(&row[0])).collect()
}

/// Reasons of events with their type, as docs/reference/EVENTS.md has them.
fn events_problems(document: &Document, reasons: &[(&str, &str)]) -> Problems {
    let rows = document.table("Reasons");
    let told: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| {
            quoted(&row[0])
                .into_iter()
                .map(|name| format!("{name} of type {}", row[1]))
        })
        .collect();
    let there = reasons
        .iter()
        .map(|(name, level)| format!("{name} of type {level}"))
        .collect();
    let mut problems = compare(&told, &there, &document.path);
    for row in rows
        .iter()
        .filter(|row| row.len() != 5 || row.iter().any(String::is_empty))
    {
        problems.push(format!("{}: a cell is empty or missing in {row:?}", document.path));
    }
    problems
}

#[test]
fn every_reason_of_events_has_its_row() {
    let attaching = events::EventReason::ALL
        .iter()
        .map(|reason| (reason.as_str(), reason.level().as_str()));
    let provisioning = ProvisionEventReason::ALL
        .iter()
        .map(|reason| (reason.as_str(), reason.level().as_str()));
    let reasons: Vec<(&str, &str)> = attaching.chain(provisioning).collect();
    assert!(reasons.len() > 40);
    none(&events_problems(
        document(&markdown::all(), "docs/reference/EVENTS.md"),
        &reasons,
    ));
}

#[test]
fn a_wrong_table_of_events_is_found() {
    let head = "## Reasons\n| a | b | c | d | e |\n|---|---|---|---|---|\n";
    let rows = "| `Attached` | Normal | x | x | x |\n| `Invented` | Normal | x | x | x |\n| `Detached` | Warning | x | | x |\n";
    let document = Document::new("E.md", &format!("{head}{rows}"));
    let found = events_problems(
        &document,
        &[("Attached", "Normal"), ("Detached", "Normal"), ("Missing", "Warning")],
    );
    assert_eq!(found.len(), 5, "{found:?}");
    for part in [
        "Missing of type Warning",
        "Invented of type Normal",
        "Detached of type Normal",
        "cell is empty",
    ] {
        assert!(found.iter().any(|line| line.contains(part)), "{part} in {found:?}");
    }
}

/// Types and reasons of conditions, as docs/reference/CONDITIONS.md has them: each reason with the types that it can be on.
fn conditions_problems(document: &Document, types: &BTreeSet<String>, reasons: &BTreeSet<String>) -> Problems {
    let mut problems = compare(
        &first(&document.table("Types")),
        types,
        &format!("{}: Types", document.path),
    );
    let rows = document.table("Reasons");
    problems.extend(compare(&first(&rows), reasons, &format!("{}: Reasons", document.path)));
    for row in rows {
        let on = quoted(row.get(1).map_or("", String::as_str));
        if on.is_empty() || on.iter().any(|name| !types.contains(name)) || row.len() != 4 || row[3].is_empty() {
            problems.push(format!("{}: {} is not told completely: {row:?}", document.path, row[0]));
        }
    }
    problems
}

#[test]
fn every_condition_and_reason_has_its_row() {
    let types = owned(ConditionType::ALL.iter().map(|kind| kind.as_str()));
    let reasons = owned(ConditionReason::ALL.iter().map(|reason| reason.as_str()));
    let documents = markdown::all();
    none(&conditions_problems(
        document(&documents, "docs/reference/CONDITIONS.md"),
        &types,
        &reasons,
    ));
    let rows = document(&documents, "docs/reference/CONDITIONS.md").table("Reasons");
    let stalled = rows
        .iter()
        .filter(|row| quoted(&row[1]).iter().any(|name| name == "Stalled"));
    let told = stalled
        .flat_map(|row| quoted(&row[0]))
        .filter(|name| name != "NotStalled");
    let there = owned(ConditionReason::STALLING.iter().map(|reason| reason.as_str()));
    none(&compare(&told.collect(), &there, "CONDITIONS.md: reasons of Stalled"));
}

#[test]
fn a_wrong_table_of_conditions_is_found() {
    let text = "## Types\n| a | b |\n|---|---|\n| `Ready` | x |\n| `Great` | x |\n## Reasons\n| a | b | c | d |\n|---|---|---|---|\n\
                | `Running` | `Ready` | x | x |\n| `Walking` | `Readyy` | x | x |\n";
    let found = conditions_problems(
        &Document::new("C.md", text),
        &owned(["Ready", "Stalled"]),
        &owned(["Running", "Sitting"]),
    );
    assert_eq!(found.len(), 5, "{found:?}");
    for part in ["Stalled", "Great", "Sitting", "Walking, which", "Readyy"] {
        assert!(found.iter().any(|line| line.contains(part)), "{part} in {found:?}");
    }
}

/// What is read by libraries, or by a name that is looked up, as those of proxies.
const READ_OTHERWISE: [&str; 11] = [
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

#[test]
fn every_variable_of_the_environment_has_its_row() {
    let documents = markdown::all();
    let mut told = first(&document(&documents, "docs/reference/FLAGS.md").table("Environment"));
    told.extend(first(
        &document(&documents, "docs/reference/TELEMETRY-ENVIRONMENT.md").table("Variables"),
    ));
    let mut there = sources::variables(&sources::operator());
    assert!(there.contains("POD_NAME") && there.contains("LOG_LEVEL"), "{there:?}");
    there.extend(owned(VARIABLES.iter().copied().chain(READ_OTHERWISE)));
    none(&compare(
        &told,
        &there,
        "docs/reference/FLAGS.md (Environment) or docs/reference/TELEMETRY-ENVIRONMENT.md",
    ));
}

/// Names that other programs read or write.
#[test]
fn every_name_on_objects_is_told() {
    let documents = markdown::all();
    let concepts = document(&documents, "docs/operate/CONCEPTS.md");
    let told = first(&concepts.table("Names on objects"));
    let there = owned([
        names::NODE_ID_ANNOTATION,
        names::VOLUME_ANNOTATION,
        names::TRACEPARENT_ANNOTATION,
        names::RETRY_NOW_ANNOTATION,
        names::NOT_ATTACHED_AT_ANNOTATION,
        names::RELEASE_ANNOTATION,
        names::RELEASE_REFUSED_ANNOTATION,
        names::CONFIRM_CAPABILITY_LOST_ANNOTATION,
        names::EVENT_TRACE_ANNOTATION,
        names::LEASE_HOLDER_ANNOTATION,
        names::LEASE_DROP_IN_ANNOTATION,
        names::NEW_LEASE_HOLDER,
        names::WAIT_FOR_DETACH_FINALIZER,
        names::PROVISIONING_MARKER,
        names::RECLAIM_ANNOTATION,
        &names::finalizer_name("<driver>").replace("-driver-X", "<driver>"),
        &names::lease_name("<driver>").replace("-driver-X", "<driver>"),
    ]);
    none(&compare(&told, &there, "docs/operate/CONCEPTS.md: Names on objects"));
    // A constant more in that module is a row more here.
    let keys = include_str!("../../../crates/model/src/api/names.rs")
        .matches("\"attacher.csi.dev/")
        .count();
    assert_eq!(
        keys,
        there
            .iter()
            .filter(|name| name.starts_with("attacher.csi.dev/"))
            .count()
    );
}

/// What `csi_attacher_findings` has in its label `kind`.
#[test]
fn every_kind_of_finding_is_told() {
    let documents = markdown::all();
    let metrics = document(&documents, "docs/reference/METRICS.md");
    let row = metrics
        .text
        .lines()
        .find(|line| line.starts_with("| `csi_attacher_findings`"));
    let told: BTreeSet<String> = quoted(row.expect("it has a row")).into_iter().skip(3).collect();
    let there = owned(findings::FindingKind::ALL.iter().map(|kind| kind.as_str()));
    none(&compare(
        &told,
        &there,
        "docs/reference/METRICS.md: csi_attacher_findings",
    ));
}

/// Every alert has its runbook and the reverse (`prometheus_rules`); here, that people find it by the symptom.
#[test]
fn troubleshooting_leads_to_every_runbook() {
    let documents = markdown::all();
    let links: Vec<String> = document(&documents, "docs/operate/TROUBLESHOOTING.md")
        .links()
        .into_iter()
        .map(|(_, link)| link)
        .collect();
    for runbook in documents
        .iter()
        .filter(|document| document.path.starts_with("docs/runbooks/"))
    {
        let link = runbook.path.replacen("docs/", "../", 1);
        assert!(
            links.contains(&link),
            "docs/operate/TROUBLESHOOTING.md has no link to {link}"
        );
    }
}
