//! The registry file in types.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// Schema that the names of the conventions belong to.
    pub schema_url: String,
    /// Every attribute.
    pub attributes: Vec<RegistryAttribute>,
    /// Attributes that several spans have.
    pub groups: BTreeMap<String, Vec<Use>>,
    /// Every span.
    pub spans: Vec<RegistrySpan>,
    /// Attributes of the resource.
    pub resource: Vec<Use>,
    /// Values of `error.type` beside the statuses of gRPC and HTTP.
    pub error_types: Vec<ErrorType>,
}

/// An attribute, wherever it is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryAttribute {
    /// Name of the Rust constant.
    #[serde(rename = "const")]
    pub constant: String,
    /// The key.
    pub key: String,
    /// Type of its values.
    #[serde(rename = "type")]
    pub value_type: ValueType,
    /// Who defines it.
    pub source: AttributeSource,
    /// How stable it is, where that is not for us to say.
    pub stability: Option<String>,
    /// All of its values, if the list is closed.
    #[serde(default)]
    pub values: Vec<String>,
    /// What it tells.
    pub brief: String,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum ValueType {
    /// Text.
    #[serde(rename = "string")]
    Text,
    /// Several texts.
    #[serde(rename = "string[]")]
    Texts,
    /// Whole number.
    #[serde(rename = "int")]
    Int,
    /// Number.
    #[serde(rename = "double")]
    Double,
    /// Truth value.
    #[serde(rename = "bool")]
    Bool,
}

/// Who defines an attribute.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AttributeSource {
    /// The OpenTelemetry semantic conventions.
    Semconv,
    /// This program.
    Own,
}

/// An attribute on a span, an event or the resource.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// Key of the attribute.
    pub key: String,
    /// Whether it has to be there.
    pub level: RequirementLevel,
    /// When it is there, if it is optional.
    pub when: Option<String>,
}

/// Whether an attribute has to be there.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum RequirementLevel {
    /// Always.
    Required,
    /// Only when the status of the span is Error.
    Failed,
    /// As `when` says.
    Optional,
}

/// A span.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrySpan {
    /// Name of the Rust constant; a span without one is named after its attributes or its method.
    #[serde(rename = "const")]
    pub constant: Option<String>,
    /// The name, in which `{key}` stands for the value of an attribute.
    pub name: String,
    /// Kind in the sense of OpenTelemetry.
    pub kind: RegistrySpanKind,
    /// Names of spans that may be its parent, `none` for the beginning of a trace.
    pub parents: Vec<String>,
    /// Whether it may be exported long after its children.
    #[serde(default)]
    pub at_end: bool,
    /// What it may be linked to.
    #[serde(default)]
    pub links: Vec<String>,
    /// What it measures, and when it is sent.
    pub brief: String,
    /// Groups of attributes.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Further attributes.
    #[serde(default)]
    pub attributes: Vec<Use>,
    /// Events on it.
    #[serde(default)]
    pub events: Vec<RegistryEvent>,
}

/// Kind of a span in the sense of OpenTelemetry.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum RegistrySpanKind {
    /// Work in this process.
    Internal,
    /// A call to another process.
    Client,
    /// Work that was handed over by a queue.
    Consumer,
}

/// An event on a span.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryEvent {
    /// Name of the Rust constant.
    #[serde(rename = "const")]
    pub constant: String,
    /// The name.
    pub name: String,
    /// What it tells.
    pub brief: String,
    /// Its attributes.
    pub attributes: Vec<Use>,
}

/// A value of `error.type`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorType {
    /// Name of the Rust constant.
    #[serde(rename = "const")]
    pub constant: String,
    /// The value.
    pub value: String,
    /// What happened.
    pub brief: String,
}

impl Registry {
    /// Reads the file; the error tells what is wrong in it.
    pub fn parse(yaml: &str) -> Result<Self, String> {
        let registry: Self = serde_yaml::from_str(yaml).map_err(|error| error.to_string())?;
        registry.check()?;
        Ok(registry)
    }

    /// The attribute of this key.
    pub fn attribute(&self, key: &str) -> Option<&RegistryAttribute> {
        self.attributes.iter().find(|attribute| attribute.key == key)
    }

    /// The attributes of a span, those of its groups first.
    pub fn uses<'r>(&'r self, span: &'r RegistrySpan) -> impl Iterator<Item = &'r Use> {
        let groups = span.groups.iter().filter_map(|group| self.groups.get(group));
        groups.flatten().chain(&span.attributes)
    }

    fn check(&self) -> Result<(), String> {
        unique("attribute", self.attributes.iter().map(|attribute| &attribute.key))?;
        unique("constant", self.attributes.iter().map(|attribute| &attribute.constant))?;
        unique("span", self.spans.iter().map(|span| &span.name))?;
        unique("constant", self.spans.iter().filter_map(|span| span.constant.as_ref()))?;
        unique("error type", self.error_types.iter().map(|kind| &kind.value))?;
        let mut used: BTreeSet<&str> = self.resource.iter().map(|one| &*one.key).collect();
        for span in &self.spans {
            for group in &span.groups {
                if !self.groups.contains_key(group) {
                    return Err(format!("{}: there is no group {group}", span.name));
                }
            }
            let needs: Vec<_> = self.uses(span).collect();
            let events = span.events.iter().flat_map(|event| &event.attributes);
            used.extend(needs.iter().copied().chain(events).map(|one| &*one.key));
            unique(&span.name, needs.iter().map(|one| &one.key))?;
            let parents = span.parents.iter().filter(|name| *name != "none");
            let links = span.links.iter().filter(|name| *name != "annotation");
            let is_unknown = |name: &&String| !self.spans.iter().any(|span| span.name == **name);
            if let Some(unknown) = parents.chain(links).find(is_unknown) {
                return Err(format!("{}: there is no span {unknown}", span.name));
            }
        }
        for key in &used {
            self.attribute(key)
                .ok_or_else(|| format!("there is no attribute {key}"))?;
        }
        for one in self.groups.values().flatten().chain(&self.resource) {
            if (one.level == RequirementLevel::Optional) != one.when.is_some() {
                return Err(format!(
                    "{}: what is optional tells when it is there, and only that",
                    one.key
                ));
            }
        }
        match self.attributes.iter().find(|attribute| !used.contains(&*attribute.key)) {
            Some(attribute) => Err(format!("no span has the attribute {}", attribute.key)),
            None => Ok(()),
        }
    }
}

fn unique<'r>(what: &str, names: impl Iterator<Item = &'r String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} {name} is there twice"));
        }
    }
    Ok(())
}
