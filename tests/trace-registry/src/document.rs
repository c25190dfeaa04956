//! Writes docs/reference/TRACES.md.

use std::fmt::Write as _;

use super::model::{AttributeSource, Registry, RegistrySpan, RequirementLevel, Use, ValueType};

const HEAD: &str = "\
# Spans and attributes

<!-- Generated from tests/trace-registry/registry.yaml by `make generate`; do not edit. -->

This page lists all spans and attributes that the operator sends. A test receives them from a real operator and compares them with the
same registry. [TRACING](../operate/TRACING.md) explains how to enable traces and how to find one.

Strings are free of control characters and at most 4096 bytes long (`OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` and
`OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT` change that). Secrets, their key names, volume contexts and the values of publish
contexts are on no span. The status of a span is Error with `error.type` and the driver's message, or unset.

";

/// The document.
pub fn document(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::from(HEAD);
    writeln!(
        text,
        "Names follow the OpenTelemetry semantic conventions, schema <{}>.\n",
        registry.schema_url
    )?;
    writeln!(text, "## Spans\n\n| Span | Kind | Child of |\n|---|---|---|")?;
    for span in &registry.spans {
        let parents: Vec<_> = span.parents.iter().map(|parent| parent_text(parent)).collect();
        let kind = kind(span);
        writeln!(
            text,
            "| [`{}`](#{}) | {kind} | {} |",
            span.name,
            anchor(&span.name),
            parents.join(", ")
        )?;
    }
    for span in &registry.spans {
        self::span(&mut text, registry, span)?;
    }
    writeln!(text, "\n## Resource\n")?;
    table(&mut text, registry, registry.resource.iter())?;
    writeln!(
        text,
        "\n## Attributes\n\n| Key | Type | From | Meaning |\n|---|---|---|---|"
    )?;
    for attribute in &registry.attributes {
        let from = match (attribute.source, &attribute.stability) {
            (AttributeSource::Own, _) => "this program".to_owned(),
            (AttributeSource::Semconv, Some(stability)) => format!("conventions, {}", stability.replace('_', " ")),
            (AttributeSource::Semconv, None) => "conventions".to_owned(),
        };
        let mut brief = attribute.brief.clone();
        if !attribute.values.is_empty() {
            write!(brief, " One of `{}`.", attribute.values.join("`, `"))?;
        }
        let value_type = type_name(attribute.value_type);
        writeln!(text, "| `{}` | {value_type} | {from} | {brief} |", attribute.key)?;
    }
    writeln!(text, "\n## Error types\n")?;
    writeln!(
        text,
        "`error.type` is the status of the call (`UNAVAILABLE`, `409`), or one of:\n\n| Value | Meaning |\n|---|---|"
    )?;
    for kind in &registry.error_types {
        writeln!(text, "| `{}` | {} |", kind.value, kind.brief)?;
    }
    Ok(text)
}

fn span(text: &mut String, registry: &Registry, span: &RegistrySpan) -> std::fmt::Result {
    writeln!(text, "\n### {}\n\n{}", span.name, span.brief.trim())?;
    if span.at_end {
        writeln!(text, "Exported when it ends, hence after all of its children.")?;
    }
    if !span.links.is_empty() {
        let links: Vec<_> = span.links.iter().map(|link| link_text(link)).collect();
        writeln!(text, "Linked to {}, where there is one.", links.join(", "))?;
    }
    writeln!(text)?;
    table(text, registry, registry.uses(span))?;
    for event in &span.events {
        writeln!(text, "\nEvent `{}`: {}\n", event.name, event.brief)?;
        table(text, registry, event.attributes.iter())?;
    }
    Ok(())
}

fn table<'r>(text: &mut String, registry: &Registry, uses: impl Iterator<Item = &'r Use>) -> std::fmt::Result {
    writeln!(text, "| Attribute | Type | When |\n|---|---|---|")?;
    for one in uses {
        let value_type = registry
            .attribute(&one.key)
            .map_or("", |attribute| type_name(attribute.value_type));
        let when = match (one.level, &one.when) {
            (RequirementLevel::Required, _) => "always".to_owned(),
            (RequirementLevel::Failed, _) => "it failed".to_owned(),
            (RequirementLevel::Optional, when) => when.clone().unwrap_or_default(),
        };
        writeln!(text, "| `{}` | {value_type} | {when} |", one.key)?;
    }
    Ok(())
}

fn kind(span: &RegistrySpan) -> String {
    format!("{:?}", span.kind).to_uppercase()
}

fn parent_text(parent: &str) -> String {
    match parent {
        "none" => "nothing: it begins a trace".to_owned(),
        span => format!("`{span}`"),
    }
}

fn link_text(link: &str) -> String {
    match link {
        "annotation" => "the context that an annotation names".to_owned(),
        span => format!("`{span}`"),
    }
}

/// The anchor that a heading gets: small letters, no punctuation, hyphens for blanks.
fn anchor(heading: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    let small = heading.to_lowercase();
    small
        .chars()
        .filter(kept)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

fn type_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::Text => "string",
        ValueType::Texts => "string[]",
        ValueType::Int => "int",
        ValueType::Double => "double",
        ValueType::Bool => "bool",
    }
}
