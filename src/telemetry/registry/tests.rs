//! The registry file itself, and the document made from it.

use std::path::Path;

use super::document::document;
use super::{YAML, registry};
use crate::telemetry::names::{SCHEMA_URL, attr, event, span};

#[test]
fn the_constants_are_those_of_the_registry() {
    let registry = registry().unwrap();
    assert_eq!(registry.schema_url, SCHEMA_URL);
    assert_eq!(registry.attribute(attr::QUEUE_WAIT).unwrap().constant, "QUEUE_WAIT");
    for name in [span::ATTACH, span::VOLUME_RELEASE, span::CONTROLLER_PUBLISH_VOLUME] {
        assert!(registry.spans.iter().any(|span| span.name == name), "{name}");
    }
    assert_eq!(
        registry.spans.iter().flat_map(|span| &span.events).next().unwrap().name,
        event::MISMATCH
    );
}

#[test]
fn the_document_is_made_from_the_registry() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/TRACES.md");
    let wanted = document(&registry().unwrap()).unwrap();
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == wanted,
        "docs/reference/TRACES.md is not that of the registry: run `make generate`"
    );
}

#[test]
fn a_mistake_in_the_file_is_told() {
    let cases = [
        (
            "key: rpc.method,",
            "key: rpc.system.name,",
            "attribute rpc.system.name is there twice",
        ),
        (
            "groups: [attachment, life]",
            "groups: [attachment, live]",
            "there is no group live",
        ),
        (
            "{key: attacher.sync.pages, level",
            "{key: attacher.sync.leaves, level",
            "there is no attribute attacher.sync.leaves",
        ),
        (
            "level: optional, when: inline}",
            "level: optional}",
            "what is optional tells when",
        ),
        (
            "parents: [VolumeAttachment.attach.attempt]",
            "parents: [VolumeAttachment.try]",
            "there is no span VolumeAttachment.try",
        ),
        (
            "      - {key: attacher.sync.pages, level: required}\n",
            "",
            "no span has the attribute attacher.sync.pages",
        ),
        ("level: failed}", "level: faild}", "unknown variant"),
    ];
    for (text, other, told) in cases {
        assert!(YAML.contains(text), "{text}");
        let error = super::model::Registry::parse(&YAML.replacen(text, other, 1)).unwrap_err();
        assert!(error.contains(told), "{other}: {error}");
    }
}
