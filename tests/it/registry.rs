//! Holds received spans against the registry of spans and attributes.

use std::collections::{BTreeMap, BTreeSet};

use csi_attacher_trace_registry::model::{
    Registry, RegistrySpan as Declared, RegistrySpanKind, RequirementLevel, Use, ValueType,
};
use csi_attacher_trace_registry::registry;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::support::otlp::{Attribute, ReceivedSpan};

/// Longest text that a span carries unless the environment sets another limit.
const LONGEST: usize = 4096;

/// Every way in which these spans are other than the registry says, in words.
pub fn violations(spans: &[ReceivedSpan]) -> Vec<String> {
    let registry = registry().expect("the registry can be read");
    let check = Check {
        registry: &registry,
        spans,
    };
    spans.iter().flat_map(|span| check.span(span)).collect()
}

/// Fails the test with every violation.
pub fn assert_conform(spans: &[ReceivedSpan]) {
    let violations = violations(spans);
    assert!(violations.is_empty(), "{violations:#?}");
}

/// What the registry declares and is on none of these spans: `span`, `span attribute` or `span event`.
pub fn unseen(spans: &[ReceivedSpan]) -> BTreeSet<String> {
    let registry = registry().expect("the registry can be read");
    let mut unseen = BTreeSet::new();
    for declared in &registry.spans {
        let seen: Vec<_> = spans.iter().filter(|span| is_named(span, declared)).collect();
        if seen.is_empty() {
            unseen.insert(declared.name.clone());
            continue;
        }
        for one in registry.uses(declared) {
            if !seen.iter().any(|span| span.attributes.contains_key(&one.key)) {
                unseen.insert(format!("{} {}", declared.name, one.key));
            }
        }
        for event in &declared.events {
            if !seen
                .iter()
                .any(|span| span.events.iter().any(|(name, _)| *name == event.name))
            {
                unseen.insert(format!("{} {}", declared.name, event.name));
            }
        }
    }
    unseen
}

struct Check<'r> {
    registry: &'r Registry,
    spans: &'r [ReceivedSpan],
}

impl Check<'_> {
    fn span(&self, span: &ReceivedSpan) -> Vec<String> {
        let Some(declared) = self.declared(span) else {
            return vec![format!("{}: unknown span", span.name)];
        };
        let mut found = Vec::new();
        if kind_of(span.kind) != Some(declared.kind) {
            found.push(format!("is of kind {:?}", span.kind));
        }
        found.extend(self.parent(span, declared));
        found.extend(self.links(span, declared));
        let uses: Vec<_> = self.registry.uses(declared).collect();
        found.extend(self.attributes(&span.attributes, &uses, span.failed));
        for (name, attributes) in &span.events {
            match declared.events.iter().find(|event| event.name == *name) {
                Some(event) => {
                    let uses: Vec<_> = event.attributes.iter().collect();
                    found.extend(self.attributes(attributes, &uses, span.failed));
                }
                None => found.push(format!("unknown event {name}")),
            }
        }
        found.extend(self.resource(span));
        found.extend(self.status(span));
        if span.start_unix_nano > span.end_unix_nano {
            found.push("ends before it begins".to_owned());
        }
        found
            .into_iter()
            .map(|words| format!("{}: {words}", span.name))
            .collect()
    }

    fn declared(&self, span: &ReceivedSpan) -> Option<&Declared> {
        self.registry.spans.iter().find(|declared| is_named(span, declared))
    }

    fn parent(&self, span: &ReceivedSpan, declared: &Declared) -> Option<String> {
        let allows = |name: &str| declared.parents.iter().any(|parent| parent == name);
        let Some(id) = &span.parent_span_id else {
            return (!allows("none")).then(|| "has no parent".to_owned());
        };
        let is_parent = |other: &&ReceivedSpan| other.span_id == *id && other.trace_id == span.trace_id;
        let Some(parent) = self.spans.iter().find(is_parent) else {
            let late = |name: &String| self.registry.spans.iter().any(|span| span.name == *name && span.at_end);
            let may_miss = declared.parents.iter().any(late);
            return (!may_miss).then(|| "the parent is missing".to_owned());
        };
        let name = self.name_of(parent);
        (!allows(name)).then(|| format!("is a child of {name}"))
    }

    /// Links to what is not among these spans may be to what somebody else made, or is exported later.
    fn links(&self, span: &ReceivedSpan, declared: &Declared) -> Vec<String> {
        let linked = self
            .spans
            .iter()
            .filter(|other| span.links.contains(&(other.trace_id.clone(), other.span_id.clone())));
        let names = linked.map(|other| self.name_of(other));
        let forbidden = names.filter(|name| !declared.links.iter().any(|allowed| allowed == name));
        forbidden.map(|name| format!("is linked to {name}")).collect()
    }

    /// The name as the registry has it, if it does.
    fn name_of<'s>(&'s self, span: &'s ReceivedSpan) -> &'s str {
        self.declared(span)
            .map_or(span.name.as_str(), |declared| declared.name.as_str())
    }

    fn attributes(&self, attributes: &BTreeMap<String, Attribute>, uses: &[&Use], failed: bool) -> Vec<String> {
        let mut found = Vec::new();
        for (key, value) in attributes {
            let Some(one) = uses.iter().find(|one| one.key == *key) else {
                found.push(format!("unknown attribute {key}"));
                continue;
            };
            if one.level == RequirementLevel::Failed && !failed {
                found.push(format!("{key} though it did not fail"));
            }
            found.extend(self.value(key, value));
        }
        let required = uses.iter().filter(|one| one.level == RequirementLevel::Required);
        let missing = required.filter(|one| !attributes.contains_key(&one.key));
        found.extend(missing.map(|one| format!("{} is missing", one.key)));
        found
    }

    fn value(&self, key: &str, value: &Attribute) -> Vec<String> {
        let Some(declared) = self.registry.attribute(key) else {
            return vec![format!("{key} is not in the registry")];
        };
        let (value_type, texts) = match value {
            Attribute::Str(text) => (ValueType::Text, vec![text]),
            Attribute::StrArray(texts) => (ValueType::Texts, texts.iter().collect()),
            Attribute::I64(_) => (ValueType::Int, Vec::new()),
            Attribute::F64(_) => (ValueType::Double, Vec::new()),
            Attribute::Bool(_) => (ValueType::Bool, Vec::new()),
        };
        let mut found = Vec::new();
        if value_type != declared.value_type {
            found.push(format!("{key} is {value:?}, which is no {:?}", declared.value_type));
        }
        for text in texts {
            if !declared.values.is_empty() && !declared.values.contains(text) {
                found.push(format!("{key} is {text:?}, which is not among its values"));
            }
            found.extend(unclean(text).map(|fault| format!("{key} {fault}")));
        }
        if matches!(value, Attribute::F64(number) if !number.is_finite() || *number < 0.0) {
            found.push(format!("{key} is {value:?}"));
        }
        found
    }

    fn resource(&self, span: &ReceivedSpan) -> Vec<String> {
        let required = self
            .registry
            .resource
            .iter()
            .filter(|one| one.level == RequirementLevel::Required);
        let missing = required.filter(|one| !span.resource.contains_key(&one.key));
        missing.map(|one| format!("the resource has no {}", one.key)).collect()
    }

    fn status(&self, span: &ReceivedSpan) -> Vec<String> {
        let mut found: Vec<_> = unclean(&span.status_message)
            .map(|fault| format!("the description of the status {fault}"))
            .into_iter()
            .collect();
        match (span.failed, span.attributes.get("error.type")) {
            (false, None) if span.status_message.is_empty() => {}
            (false, None) => found.push("a description without an error".to_owned()),
            (true, Some(Attribute::Str(kind))) if self.is_error_type(kind) => {
                if span.status_message.contains(&format!("code = {kind}")) {
                    found.push("the description repeats the error type".to_owned());
                }
            }
            (failed, kind) => found.push(format!("failed is {failed}, but error.type is {kind:?}")),
        }
        found
    }

    fn is_error_type(&self, kind: &str) -> bool {
        let is_http = kind.len() == 3 && kind.parse().is_ok_and(|status: u16| (300..600).contains(&status));
        let is_grpc = (1..=16).any(|code| {
            let code = tonic::Code::from_i32(code);
            csi_attacher_telemetry::names::code_upper_snake(code) == kind
        });
        is_http || is_grpc || self.registry.error_types.iter().any(|known| known.value == kind)
    }
}

fn is_named(span: &ReceivedSpan, declared: &Declared) -> bool {
    if !declared.name.contains('{') {
        return span.name == declared.name;
    }
    let mut name = declared.name.clone();
    for (key, value) in &span.attributes {
        if let Attribute::Str(text) = value {
            name = name.replace(&format!("{{{key}}}"), text);
        }
    }
    span.name == name
}

fn kind_of(kind: SpanKind) -> Option<RegistrySpanKind> {
    match kind {
        SpanKind::Internal => Some(RegistrySpanKind::Internal),
        SpanKind::Client => Some(RegistrySpanKind::Client),
        SpanKind::Consumer => Some(RegistrySpanKind::Consumer),
        _ => None,
    }
}

/// What is wrong with a text that may come from anywhere.
fn unclean(text: &str) -> Option<String> {
    if text.chars().any(char::is_control) {
        return Some("has control characters".to_owned());
    }
    (text.len() > LONGEST).then(|| format!("has {} bytes", text.len()))
}
