//! The chart says the same as the files it repeats.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart(path: &str) -> PathBuf {
    root().join("charts/csi-attacher-operator").join(path)
}

fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).map_err(|error| (path, error));
    text.expect("the file can be read")
}

/// That copies are those of their sources, `tests/chart/copies` looks.
#[test]
fn the_template_of_the_crd_finds_its_place() {
    let generated = read(&root().join("crds/attacher.csi.dev_attacherconfigs.yaml"));
    // The template of the other chart puts labels and annotations behind this line.
    let name = "\n  name: attacherconfigs.attacher.csi.dev\n";
    assert_eq!(generated.matches(name).count(), 1);
}

#[test]
fn versions_are_those_of_the_program() {
    for name in ["csi-attacher-operator", "csi-attacher-operator-crds"] {
        let about = read(&root().join("charts").join(name).join("Chart.yaml"));
        let about: Value = serde_yaml::from_str(&about).expect("Chart.yaml is YAML");
        assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(about["appVersion"], env!("CARGO_PKG_VERSION"));
    }
}

/// Helm treats a value that is not there as empty, so a mistyped name would go unnoticed.
#[test]
fn every_value_that_a_template_uses_has_a_default_and_is_used() {
    let values: Value = serde_yaml::from_str(&read(&chart("values.yaml"))).expect("values.yaml is YAML");
    let templates = fs::read_dir(chart("templates")).expect("the folder is there");
    let text: String = templates
        .map(|template| read(&template.expect("the folder can be read").path()))
        .collect();
    let mut used = Vec::new();
    for rest in text.split(".Values.").skip(1) {
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '.')
            .unwrap_or(rest.len());
        let path = &rest[..end];
        let pointer = format!("/{}", path.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "values.yaml has no {path}");
        used.push(path.split('.').next().unwrap_or_default());
    }
    for key in values.as_object().expect("values.yaml is a map").keys() {
        assert!(used.contains(&key.as_str()), "no template uses {key}");
    }
}
