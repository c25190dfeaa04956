//! Writes the constants of the registry.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::model::{Registry, ValueType};

const HEAD: &str = "\
//! Names of spans, events, attributes and error types.
//!
//! Written from tests/trace-registry/registry.yaml by `make generate`; do not edit.

";

/// The Rust source of the modules `span`, `event`, `attr` and `error_type`.
pub fn source(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut code = String::from(HEAD);
    writeln!(
        code,
        "/// Schema the RPC, HTTP and container attribute names belong to."
    )?;
    writeln!(code, "pub const SCHEMA_URL: &str = {:?};\n", registry.schema_url)?;
    let spans = registry.spans.iter().filter_map(|span| {
        let kind = format!("{:?}", span.kind).to_uppercase();
        Some((
            span.constant.as_deref()?,
            &*span.name,
            format!("{} ({kind})", span.brief),
        ))
    });
    module(
        &mut code,
        "Span names. API server calls are named `{METHOD} {template}`.",
        "span",
        spans,
    )?;
    let events = registry.spans.iter().flat_map(|span| &span.events);
    // Several spans may have the same event.
    let events: BTreeMap<_, _> = events
        .map(|event| (&*event.constant, (&*event.name, &event.brief)))
        .collect();
    let events = events
        .into_iter()
        .map(|(constant, (name, brief))| (constant, name, brief.clone()));
    module(&mut code, "Names of events on spans.", "event", events)?;
    let attributes = registry.attributes.iter().map(|attribute| {
        let brief = match attribute.value_type {
            ValueType::Text => attribute.brief.clone(),
            other => format!("{} ({})", attribute.brief, type_name(other)),
        };
        (&*attribute.constant, &*attribute.key, brief)
    });
    module(
        &mut code,
        "Attribute keys. The type follows the meaning where it is not a string.",
        "attr",
        attributes,
    )?;
    let kinds = registry.error_types.iter();
    let kinds = kinds.map(|kind| (&*kind.constant, &*kind.value, kind.brief.clone()));
    let about = "Values of `error.type` for failures that are neither RPC nor HTTP statuses.";
    module(&mut code, about, "error_type", kinds)?;
    code.pop();
    Ok(code)
}

fn module<'r>(
    code: &mut String,
    about: &str,
    name: &str,
    constants: impl Iterator<Item = (&'r str, &'r str, String)>,
) -> std::fmt::Result {
    writeln!(code, "/// {about}\npub mod {name} {{")?;
    for (constant, value, brief) in constants {
        // A link within docs/reference/TRACES.md leads nowhere from here.
        let brief = brief.replace("[error types](#error-types)", "[error types](super::error_type)");
        writeln!(code, "    /// {}", brief.trim())?;
        writeln!(code, "    pub const {constant}: &str = {value:?};")?;
    }
    writeln!(code, "}}\n")
}

fn type_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::Text => "string",
        ValueType::Texts => "string array",
        ValueType::Int => "int",
        ValueType::Double => "double",
        ValueType::Bool => "bool",
    }
}
