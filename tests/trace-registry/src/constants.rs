//! Writes the constants of the registry.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::model::Registry;

const HEAD: &str = "\
//! Names of spans, events, attributes and error types.
//!
//! Written from tests/trace-registry/registry.yaml by `make generate`; do not edit. docs/reference/TRACES.md, written from the
//! same file, says what each name means.

#![allow(missing_docs, reason = \"see docs/reference/TRACES.md\")]

";

/// The Rust source of the modules `span`, `event`, `attr` and `error_type`.
pub fn source(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut code = String::from(HEAD);
    writeln!(
        code,
        "/// Schema the RPC, HTTP and container attribute names belong to."
    )?;
    writeln!(code, "pub const SCHEMA_URL: &str = {:?};\n", registry.schema_url)?;
    let spans = registry.spans.iter();
    let spans = spans.filter_map(|span| Some((span.constant.as_deref()?, &*span.name)));
    module(
        &mut code,
        "Span names. API server calls are named `{METHOD} {template}`, calls of a driver as their method.",
        "span",
        spans,
    )?;
    let events = registry.spans.iter().flat_map(|span| &span.events);
    // Several spans may have the same event.
    let events: BTreeMap<_, _> = events.map(|event| (&*event.constant, &*event.name)).collect();
    module(&mut code, "Names of events on spans.", "event", events.into_iter())?;
    let attributes = registry.attributes.iter();
    let attributes = attributes.map(|attribute| (&*attribute.constant, &*attribute.key));
    module(&mut code, "Attribute keys.", "attr", attributes)?;
    let kinds = registry.error_types.iter().map(|kind| (&*kind.constant, &*kind.value));
    let about = "Values of `error.type` for failures that are neither RPC nor HTTP statuses.";
    module(&mut code, about, "error_type", kinds)?;
    code.pop();
    Ok(code)
}

fn module<'r>(
    code: &mut String,
    about: &str,
    name: &str,
    constants: impl Iterator<Item = (&'r str, &'r str)>,
) -> std::fmt::Result {
    writeln!(code, "/// {about}\npub mod {name} {{")?;
    for (constant, value) in constants {
        writeln!(code, "    pub const {constant}: &str = {value:?};")?;
    }
    writeln!(code, "}}\n")
}
