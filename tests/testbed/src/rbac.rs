//! The rights of the operator as helm renders them for the chart: every test runs under these.
//!
//! They come from the files in `tests/chart/golden`, which `make chart` holds equal to what helm renders.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::error::{Context, Error, Result};
use super::{AuditEvent, ControlPlane};

/// The variable that takes rights away from every operator of a run, such as `/persistentvolumes:get`, to see which tests
/// need them. Several are separated by commas.
const WITHOUT: &str = "RBAC_WITHOUT";
const GOLDEN: &str = "tests/chart/golden";
/// What the chart renders without any values.
const DEFAULTS: &str = "defaults.yaml";
/// The values with a Role for a Secret.
const WITH_SECRET: &str = "network.yaml";
/// What helm renders without values, for the release of all other sets.
const BASE: &str = "base.yaml";
/// How long the API server may take to know new rights.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// `ClusterRole` or `Role`.
    pub scope: String,
    /// Empty for the core group.
    pub group: String,
    /// With its subresource if there is one.
    pub resource: String,
    pub verb: String,
}

impl Right {
    /// Whether a request needs it.
    pub fn is_asked_by(&self, event: &AuditEvent) -> bool {
        event.api_group == self.group && event.is(&self.verb, &self.resource)
    }

    /// Whether it is called that: `group/resource:verb`.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.name()
    }

    fn name(&self) -> String {
        format!("{}/{}:{}", self.group, self.resource, self.verb)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.scope, self.name())
    }
}

/// A ServiceAccount by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// That of the operator's Leases too.
    pub namespace: String,
    /// That of its roles too.
    pub name: String,
}

impl Account {
    /// An account in the namespace of the same name.
    pub fn new(name: &str) -> Self {
        Self {
            namespace: name.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The name under which the API server knows it.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// The sets of values of which it is known what helm renders, by file name.
pub fn sets_of_values() -> Result<Vec<String>> {
    let folder = crate::of_repository(GOLDEN);
    let listed = std::fs::read_dir(&folder).while_trying(|| format!("list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "diff"));
    files.sort();
    let names = files.iter().filter_map(|file| file.file_stem()?.to_str());
    Ok(names.map(|name| format!("{name}.yaml")).collect())
}

/// A text after a unified difference from it.
fn patched(base: &str, difference: &str) -> Result<String> {
    let wrong = |line: &str| Error::Other(format!("a difference of {GOLDEN} does not fit: {line}"));
    let base: Vec<&str> = base.split_inclusive('\n').collect();
    let (mut at, mut text) = (0, String::new());
    for line in difference.split_inclusive('\n').skip(2) {
        let (kind, rest) = line.split_at(1);
        if kind == "@" {
            let range = line.split(['-', ' ']).nth(2).ok_or_else(|| wrong(line))?;
            let (begin, count) = range.split_once(',').unwrap_or((range, "1"));
            let begin: usize = begin.parse().map_err(|_| wrong(line))?;
            // Of nothing, the line before it is named.
            let begin = if count == "0" { begin } else { begin.saturating_sub(1) };
            text.extend(base.get(at..begin).ok_or_else(|| wrong(line))?.iter().copied());
            at = begin;
            continue;
        }
        if kind != "+" {
            base.get(at)
                .filter(|known| **known == rest)
                .ok_or_else(|| wrong(line))?;
            at += 1;
        }
        if kind != "-" {
            text.push_str(rest);
        }
    }
    text.extend(base[at..].iter().copied());
    Ok(text)
}

/// Roles and their bindings.
#[derive(Clone, Debug)]
pub struct Grants(Vec<Value>);

pub fn rules(role: &Value) -> impl Iterator<Item = &Value> {
    role["rules"].as_array().into_iter().flatten()
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn is_about(role: &Value, resource: &str) -> bool {
    rules(role).any(|rule| texts(&rule["resources"]).any(|it| it == resource))
}

fn is_role(document: &Value) -> bool {
    matches!(document["kind"].as_str(), Some("ClusterRole" | "Role"))
}

impl Grants {
    /// The roles and bindings of a manifest. What else is rendered may be shortened, hence no YAML.
    pub fn of_manifest(text: &str) -> Result<Self> {
        let whole = format!("\n{text}");
        let parts = whole.split("\n---\n");
        let about_rights = parts.filter(|part| part.contains("apiVersion: rbac.authorization.k8s.io/"));
        let document = |part: &str| -> Result<Value> { Ok(serde_yaml::from_str(part)?) };
        about_rights.map(document).collect::<Result<_>>().map(Self)
    }

    pub fn of_documents(documents: Vec<Value>) -> Self {
        Self(documents)
    }

    /// What helm renders for the set of values in this file.
    pub fn of_values(file: &str) -> Result<Self> {
        let read = |name: &str| {
            let path = crate::of_repository(GOLDEN).join(name);
            std::fs::read_to_string(&path).while_trying(|| format!("read {}", path.display()))
        };
        let difference = read(&file.replace(".yaml", ".diff"))?;
        Self::of_manifest(&patched(&read(BASE)?, &difference)?)
    }

    /// What helm renders without any values, for this account.
    pub fn defaults(account: &Account) -> Result<Self> {
        Self::of_values(DEFAULTS)?.given_to(account)
    }

    /// What helm renders for `publishSecrets` or a Secret with certificates, for this account and one Secret.
    pub fn to_secret(account: &Account, namespace: &str, name: &str) -> Result<Self> {
        let Self(rendered) = Self::of_values(WITH_SECRET)?;
        let mut roles = rendered.iter().filter(|document| is_role(document));
        let role = roles.find(|role| is_about(role, "secrets"));
        let role = role.ok_or_else(|| Error::Other(format!("{WITH_SECRET} has no role for Secrets")))?;
        let bound = |document: &&Value| document["roleRef"]["name"] == role["metadata"]["name"];
        let mut pair = vec![role.clone()];
        pair.extend(rendered.iter().filter(bound).cloned());
        for document in &mut pair {
            let own = format!("{}-secret-{name}", account.name);
            document["metadata"]["namespace"] = namespace.into();
            document["metadata"]["name"] = own.clone().into();
            if is_role(document) {
                document["rules"][0]["resourceNames"] = json!([name]);
            } else {
                document["roleRef"]["name"] = own.into();
                document["subjects"] = subjects(account);
            }
        }
        Ok(Self(pair))
    }

    /// These and others.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The same with the names and the namespace of another account than that of the release.
    pub fn given_to(self, account: &Account) -> Result<Self> {
        let binding = self.0.iter().find(|document| document["kind"] == "ClusterRoleBinding");
        let binding = binding.ok_or_else(|| Error::Other("there is no ClusterRoleBinding".to_owned()))?;
        let release = text(&binding["subjects"][0]["namespace"]);
        let full_name = text(&binding["roleRef"]["name"]);
        let mut documents = self.0;
        for document in &mut documents {
            for pointer in ["/metadata/name", "/roleRef/name"] {
                if let Some(name) = document.pointer_mut(pointer) {
                    *name = text(name).replacen(&full_name, &account.name, 1).into();
                }
            }
            if document["metadata"]["namespace"] == release.as_str() {
                document["metadata"]["namespace"] = account.namespace.clone().into();
            }
            if !is_role(document) {
                document["subjects"] = subjects(account);
            }
        }
        Ok(Self(documents))
    }

    /// All rights of the operator, each verb for itself. A role that is bound to somebody else, or to nobody, is not its own.
    pub fn rights(&self) -> BTreeSet<Right> {
        let attaches = self.roles().find(|role| is_about(role, "volumeattachments"));
        let operator = attaches.and_then(|role| self.bindings_of(role).next());
        let is_own = |binding: &Value| operator.is_none_or(|operator| operator["subjects"] == binding["subjects"]);
        let bound = self.roles().filter(|role| self.bindings_of(role).any(is_own));
        let single = bound.flat_map(singles);
        single.map(|(right, _)| right).collect()
    }

    fn bindings_of<'s>(&'s self, role: &'s Value) -> impl Iterator<Item = &'s Value> {
        self.0.iter().filter(move |document| is_bound_by(role, document))
    }

    pub fn roles(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(|document| is_role(document))
    }

    /// The same without the rights of which this says so.
    #[must_use]
    pub fn without(mut self, taken: impl Fn(&Right) -> bool) -> Self {
        for role in self.0.iter_mut().filter(|document| is_role(document)) {
            let mut kept = singles(role);
            kept.retain(|(right, _)| !taken(right));
            role["rules"] = kept.into_iter().map(|(_, rule)| rule).collect();
        }
        self
    }

    /// Takes away what [`WITHOUT`] names.
    #[must_use]
    pub fn without_what_is_asked(self) -> Self {
        let asked = std::env::var(WITHOUT).unwrap_or_default();
        let asked: Vec<&str> = asked.split(',').filter(|name| !name.is_empty()).collect();
        if asked.is_empty() {
            return self;
        }
        self.without(|right| asked.iter().any(|name| right.is_called(name)))
    }

    /// Applies them, and waits until the API server goes by them.
    pub async fn apply(&self, cluster: &ControlPlane) -> Result<()> {
        let client = cluster.admin_client().await?;
        for document in &self.0 {
            super::apply::apply_object(&client, serde_json::from_value(document.clone())?).await?;
        }
        let reviews: Api<SubjectAccessReview> = Api::all(client);
        for binding in self.0.iter().filter(|document| !is_role(document)) {
            let role = self.roles().find(|role| is_bound_by(role, binding));
            if let Some(review) = role.and_then(|role| last_right(role, binding)) {
                wait_until_allowed(&reviews, &review).await?;
            }
        }
        Ok(())
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn subjects(account: &Account) -> Value {
    json!([{ "kind": "ServiceAccount", "name": account.name, "namespace": account.namespace }])
}

/// The rules of a role, taken apart into rules with one verb on one resource each.
fn singles(role: &Value) -> Vec<(Right, Value)> {
    let right = |group: &str, resource: &str, verb: &str| Right {
        scope: text(&role["kind"]),
        group: group.to_owned(),
        resource: resource.to_owned(),
        verb: verb.to_owned(),
    };
    let mut found = Vec::new();
    for rule in rules(role) {
        for verb in texts(&rule["verbs"]) {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let mut single = rule.clone();
                    single["apiGroups"] = json!([group]);
                    single["resources"] = json!([resource]);
                    single["verbs"] = json!([verb]);
                    found.push((right(group, resource, verb), single));
                }
            }
            for path in texts(&rule["nonResourceURLs"]) {
                let single = json!({ "nonResourceURLs": [path], "verbs": [verb] });
                found.push((right("a path", path, verb), single));
            }
        }
    }
    found
}

fn is_bound_by(role: &Value, binding: &Value) -> bool {
    let reference = &binding["roleRef"];
    reference["name"] == role["metadata"]["name"] && reference["kind"] == role["kind"]
}

/// A question about the last right of a role, which the API server knows no sooner than the others.
fn last_right(role: &Value, binding: &Value) -> Option<SubjectAccessReview> {
    let (right, last) = singles(role).pop()?;
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let subject = &binding["subjects"][0];
    let account = Account {
        namespace: text(&subject["namespace"]),
        name: text(&subject["name"]),
    };
    Some(SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(account.user()),
            resource_attributes: Some(ResourceAttributes {
                group: some(&right.group),
                resource: some(resource),
                subresource: some(subresource),
                verb: some(&right.verb),
                namespace: some(&text(&role["metadata"]["namespace"])),
                name: texts(&last["resourceNames"]).next().map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    })
}

async fn wait_until_allowed(reviews: &Api<SubjectAccessReview>, review: &SubjectAccessReview) -> Result<()> {
    let ask = async {
        loop {
            let answer = reviews.create(&PostParams::default(), review).await;
            let answer = answer.while_trying(|| "ask for a right".to_owned())?;
            if answer.status.is_some_and(|status| status.allowed) {
                return Ok(());
            }
            // The API server tells nobody when its authorizer has taken in a role.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let asked = tokio::time::timeout(KNOWN_WITHIN, ask).await;
    asked.map_err(|_| Error::Other(format!("the API server does not know of {review:?}")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "a\nb\nc\nd\ne\nf\n";

    #[test]
    fn a_text_is_read_from_its_difference() {
        for (difference, expected) in [
            ("", BASE),
            (
                "--- x\n+++ y\n@@ -2,2 +2 @@\n b\n-c\n@@ -5 +4,2 @@\n e\n+new\n",
                "a\nb\nd\ne\nnew\nf\n",
            ),
            ("--- x\n+++ y\n@@ -0,0 +1 @@\n+first\n", "first\na\nb\nc\nd\ne\nf\n"),
            ("--- x\n+++ y\n@@ -6,0 +7 @@\n+last\n", "a\nb\nc\nd\ne\nf\nlast\n"),
        ] {
            assert_eq!(patched(BASE, difference).unwrap(), expected, "{difference}");
        }
    }

    #[test]
    fn a_difference_from_another_text_is_refused() {
        for difference in [
            "--- x\n+++ y\n@@ -2,2 +2 @@\n b\n-d\n",
            "--- x\n+++ y\n@@ -9,1 +9 @@\n-x\n",
            "--- x\n+++ y\n@@ what @@\n",
        ] {
            assert!(patched(BASE, difference).is_err(), "{difference}");
        }
    }
}
