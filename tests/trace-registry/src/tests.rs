//! The registry file itself, and what is written from it.

use std::path::Path;

use super::constants::source;
use super::document::document;
use super::{YAML, registry};

/// Fails if a file of the repository has another text; with `UPDATE=1` it is written. A file that is as it should be is not
/// touched: cargo would build all crates above it again.
fn assert_is_written(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::fs::read_to_string(&path).is_ok_and(|written| written == wanted) {
        return;
    }
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    assert!(update, "{name} is not that of the registry: run `make generate`");
    std::fs::write(&path, wanted).unwrap();
}

#[test]
fn the_constants_are_those_of_the_registry() {
    assert_is_written(
        "crates/telemetry/src/names/registry.rs",
        &source(&registry().unwrap()).unwrap(),
    );
}

#[test]
fn the_document_is_made_from_the_registry() {
    assert_is_written("docs/reference/TRACES.md", &document(&registry().unwrap()).unwrap());
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
            "links: [VolumeAttachment.detach]",
            "links: [VolumeAttachment.leave]",
            "there is no span VolumeAttachment.leave",
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
