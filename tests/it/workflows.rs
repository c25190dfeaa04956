//! The workflows that publish a version and look for known vulnerabilities: they cannot run here, but their files are checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

/// What actionlint complains about in these files; nothing when they are good.
fn complaints(files: &[PathBuf]) -> String {
    let build = Command::new(root().join("tests/controlplane/build"))
        .args(["--path", "actionlint"])
        .output()
        .expect("the script starts");
    assert!(build.status.success(), "{}", said(&build));
    let program = String::from_utf8_lossy(&build.stdout).trim().to_owned();
    let ended = Command::new(program)
        // Its checks of shell scripts depend on what the machine has.
        .args(["-no-color", "-shellcheck=", "-pyflakes="])
        .args(files)
        .output()
        .expect("actionlint starts");
    assert_eq!(ended.status.success(), ended.stdout.is_empty(), "{}", said(&ended));
    said(&ended)
}

fn workflows() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join(".github/workflows")).expect("the folder is there");
    folder.map(|entry| entry.expect("readable").path()).collect()
}

#[test]
fn the_workflows_are_valid() {
    let files = workflows();
    assert!(files.len() >= 2, "{files:?}");
    assert_eq!(complaints(&files), "");
}

#[test]
fn a_workflow_with_mistakes_is_refused() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let file = folder.path().join("wrong.yaml");
    let text = "on: {push: {tags: [v1]}}\njobs:\n  one:\n    runs-on: ubuntu-24.04\n    need: two\n    steps: [{run: \"echo ${{ \
                github.nothing }}\"}]\n";
    std::fs::write(&file, text).expect("it can be written");
    let found = complaints(&[file]);
    for part in ["unexpected key \"need\"", "property \"nothing\" is not defined"] {
        assert!(found.contains(part), "{part}: {found}");
    }
}

/// All shell scripts of a workflow.
fn scripts(workflow: &Value) -> Vec<String> {
    let jobs = workflow["jobs"].as_object().expect("it has jobs");
    let steps = jobs.values().filter_map(|job| job["steps"].as_array()).flatten();
    steps
        .filter_map(|step| step["run"].as_str().map(str::to_owned))
        .collect()
}

/// Targets of make and scripts that a workflow names and that there are not.
fn missing(scripts: &[String], makefile: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for line in scripts.iter().flat_map(|script| script.lines()) {
        let words: Vec<&str> = line
            .split(|letter: char| letter.is_whitespace() || "()\"".contains(letter))
            .collect();
        for (at, word) in words.iter().enumerate() {
            let is_path = [".ci/", ".github/", "tests/", "image/"]
                .iter()
                .any(|folder| word.starts_with(folder));
            if is_path && !root().join(word).exists() {
                missing.push((*word).to_owned());
            }
            let target = words.get(at + 1).filter(|_| *word == "make");
            missing.extend(
                target
                    .filter(|name| !makefile.contains(&format!("\n{name}:")))
                    .map(|name| format!("make {name}")),
            );
        }
    }
    missing
}

fn parsed(name: &str) -> Value {
    let text = std::fs::read_to_string(root().join(".github/workflows").join(name)).expect("it can be read");
    serde_yaml::from_str(&text).expect("it is YAML")
}

#[test]
fn what_the_workflows_call_is_there() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("it can be read");
    for name in ["release.yaml", "audit.yaml", "simulation.yaml"] {
        let scripts = scripts(&parsed(name));
        assert!(scripts.len() >= 2, "{name}");
        assert_eq!(missing(&scripts, &makefile), Vec::<String>::new(), "{name}");
    }
    let wrong = ["PATH=\"$(.ci/no-tool x):$PATH\" make nothing".to_owned()];
    assert_eq!(missing(&wrong, &makefile), [".ci/no-tool", "make nothing"]);
}

/// Nothing is published without a test before it, and what is published is signed.
#[test]
fn what_is_published_is_tested_and_signed() {
    let release = parsed("release.yaml");
    assert_eq!(release["permissions"], serde_json::json!({ "contents": "read" }));
    let jobs = &release["jobs"];
    let needs = |job: &str| jobs[job]["needs"].to_string();
    assert!(needs("image").contains("test") && needs("index").contains("image") && needs("charts").contains("index"));
    for job in ["image", "index", "charts"] {
        let only = serde_json::json!({ "jobs": { job: jobs[job].clone() } });
        let text = scripts(&only).concat();
        assert!(text.contains("cosign sign --yes"), "{job} signs nothing");
        assert_eq!(jobs[job]["permissions"]["id-token"], "write", "{job}");
    }
    let architectures = &jobs["image"]["strategy"]["matrix"]["include"];
    for wanted in ["amd64", "arm64"] {
        assert!(architectures.to_string().contains(wanted), "{architectures}");
    }
}

#[test]
fn a_tag_that_is_not_the_version_of_everything_is_refused() {
    let agrees = |version: &str| {
        Command::new(root().join(".github/version-agrees"))
            .arg(version)
            .output()
            .expect("it starts")
    };
    let refused = agrees("9.9.9");
    assert!(!refused.status.success());
    for part in [
        "Cargo.toml has version '0.1.0'",
        "charts/csi-attacher-operator/Chart.yaml has version '0.1.0'",
        "charts/csi-attacher-operator-crds/Chart.yaml (appVersion)",
        "CHANGELOG.md has no heading '## 9.9.9'",
    ] {
        assert!(said(&refused).contains(part), "{part}: {}", said(&refused));
    }
    // Of what is released next only the heading is missing.
    let version = env!("CARGO_PKG_VERSION");
    let complaints = said(&agrees(version));
    assert!(!complaints.contains("has version"), "{complaints}");
}
