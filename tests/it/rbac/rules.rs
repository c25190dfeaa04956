//! What the roles say, in the chart, in the plain manifest and in the samples.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::other;
use crate::support::Result;
use crate::support::prometheus::of_repository;
use crate::support::rbac::{Account, Grants, Right, rules, sets_of_values};

fn read(path: &Path) -> Result<Grants> {
    let text = std::fs::read_to_string(path).map_err(|error| other(format!("{}: {error}", path.display())))?;
    Grants::of_manifest(&text)
}

/// All that a rule can say, each verb for itself, with the Secrets that it names.
fn said(grants: &Grants) -> Vec<(Right, Value)> {
    let secrets_of = |role: &Value| -> Vec<Value> { rules(role).map(|rule| rule["resourceNames"].clone()).collect() };
    let names: Vec<Value> = grants
        .roles()
        .flat_map(secrets_of)
        .filter(|names| !names.is_null())
        .collect();
    grants.rights().into_iter().map(|right| (right, json!(names))).collect()
}

#[test]
fn the_plain_manifest_grants_what_the_chart_does_by_default() -> Result<()> {
    let plain = read(&of_repository("config/rbac.yaml"))?;
    let chart = Grants::defaults(&Account::new("csi-attacher-operator"))?;
    assert_eq!(said(&plain), said(&chart));
    let names = |grants: &Grants| -> Vec<(Value, Value, Value)> {
        let of = |role: &Value| {
            (
                role["kind"].clone(),
                role["metadata"]["name"].clone(),
                role["metadata"]["namespace"].clone(),
            )
        };
        grants.roles().map(of).collect()
    };
    assert_eq!(names(&plain), names(&chart));
    Ok(())
}

#[test]
fn the_sample_grants_what_the_chart_does_for_provisioning() -> Result<()> {
    let of_cluster = |grants: &Grants| -> BTreeSet<String> {
        let rights = grants.rights().into_iter().map(|right| right.to_string());
        rights.filter(|right| right.starts_with("ClusterRole ")).collect()
    };
    let read = |file: &str| read(&of_repository(file));
    let both = read("config/rbac.yaml")?.and(read("config/samples/rbac-provisioning.yaml")?);
    let wanted = of_cluster(&Grants::of_values("provisioning.yaml")?);
    assert!(wanted.contains("ClusterRole /persistentvolumes:delete"), "{wanted:?}");
    assert_eq!(of_cluster(&both), wanted);
    Ok(())
}

#[test]
fn the_samples_grant_what_the_chart_does_for_a_secret() -> Result<()> {
    let account = Account::new("csi-attacher-operator");
    for (sample, name) in [
        ("secret-access", "publish-secret"),
        ("attacherconfig-tls", "driver-certificates"),
    ] {
        let sample = read(&of_repository(&format!("config/samples/{sample}.yaml")))?;
        let chart = Grants::to_secret(&account, "storage", name)?;
        assert_eq!(said(&sample), said(&chart));
        let namespace = |grants: &Grants| grants.roles().next().map(|role| role["metadata"]["namespace"].clone());
        assert_eq!(namespace(&sample), namespace(&chart));
    }
    Ok(())
}

/// In everything that is rendered: no wildcard, no right to get more rights, Secrets by name, where the values have names, and to be
/// read only.
#[test]
fn no_values_make_the_chart_grant_more_than_is_needed() -> Result<()> {
    let sets = sets_of_values()?;
    assert!(sets.len() >= 8, "{sets:?}");
    let (mut secrets, mut deletes) = (0, BTreeSet::new());
    for file in &sets {
        for role in Grants::of_values(file)?.roles() {
            for rule in rules(role) {
                let shown = format!("{file}: {} {rule}", role["metadata"]["name"]);
                let has = |key: &str, word: &str| {
                    let list = rule[key].as_array();
                    list.is_some_and(|list| list.iter().any(|text| text.as_str() == Some(word)))
                };
                for key in ["apiGroups", "resources", "verbs", "resourceNames", "nonResourceURLs"] {
                    assert!(!rule[key].to_string().contains('*'), "a wildcard in {shown}");
                }
                for verb in ["escalate", "bind", "impersonate", "deletecollection", "approve", "sign"] {
                    assert!(!has("verbs", verb), "{shown}");
                }
                if has("verbs", "delete") {
                    assert_eq!(rule["resources"], json!(["persistentvolumes"]), "{shown}");
                    deletes.insert(file.as_str());
                }
                assert!(!has("apiGroups", "rbac.authorization.k8s.io"), "{shown}");
                if rule["resources"].to_string().contains("secret") {
                    secrets += 1;
                    assert_eq!(role["kind"], "Role", "{shown}");
                    assert_eq!(rule["verbs"], json!(["get"]), "{shown}");
                    assert_eq!(
                        (&rule["apiGroups"], &rule["resources"]),
                        (&json!([""]), &json!(["secrets"])),
                        "{shown}"
                    );
                    let list = rule["resourceNames"].as_array();
                    let are_named =
                        list.is_some_and(|list| !list.is_empty() && list.iter().all(|name| name.as_str() != Some("")));
                    // One set of values leaves the names out for one namespace, which asks for all of it.
                    let is_whole = file == "configs.yaml" && role["metadata"]["namespace"] == "vault";
                    assert!(
                        are_named || (is_whole && rule["resourceNames"].is_null()),
                        "no Secret is named in {shown}"
                    );
                }
            }
        }
    }
    assert!(secrets >= 2, "no set of values has a Secret");
    // Where volumes are deleted, and in no other set.
    assert_eq!(deletes, BTreeSet::from(["everything-on.yaml", "provisioning.yaml"]));
    Ok(())
}

/// No Secret is granted that the values do not name.
#[test]
fn without_values_no_secret_may_be_read() -> Result<()> {
    let rights = Grants::of_values("defaults.yaml")?.rights();
    assert!(
        !rights.is_empty() && rights.iter().all(|right| right.resource != "secrets"),
        "{rights:?}"
    );
    Ok(())
}

/// `RBAC_WITHOUT` takes away what it names, and nothing else.
#[test]
fn a_single_right_is_taken_away() -> Result<()> {
    let all = Grants::defaults(&Account::new("csi-attacher-operator"))?;
    let taken = |right: &Right| right.is_called("storage.k8s.io/volumeattachments/status:patch");
    let rest = all.clone().without(taken).rights();
    let difference: Vec<_> = all.rights().difference(&rest).cloned().collect();
    assert!(difference.len() == 1 && taken(&difference[0]), "{difference:?}");
    Ok(())
}
