//! The workflows that publish a version and look for known vulnerabilities: they cannot run here, but their files are checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value};

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
    assert!(needs("plugin").contains("test") && needs("release").contains("plugin"));
    for (job, signs) in [
        ("image", "cosign sign --yes"),
        ("index", "cosign sign --yes"),
        ("charts", "cosign sign --yes"),
        ("plugin", "cosign sign-blob --yes"),
    ] {
        let only = serde_json::json!({ "jobs": { job: jobs[job].clone() } });
        let text = scripts(&only).concat();
        assert!(text.contains(signs), "{job} signs nothing");
        assert_eq!(jobs[job]["permissions"]["id-token"], "write", "{job}");
    }
    for job in ["image", "plugin"] {
        let architectures = &jobs[job]["strategy"]["matrix"];
        for wanted in ["amd64", "arm64"] {
            assert!(architectures.to_string().contains(wanted), "{architectures}");
        }
    }
}

const IMAGE: &str = "registry.example.com/csi-attacher-operator";

type Combination = Map<String, Value>;

/// What a matrix makes of a job: its axes multiplied, and each of `include` added to what it does not contradict, or to the list.
fn combinations(job: &Value) -> Vec<Combination> {
    let matrix = &job["strategy"]["matrix"];
    let mut all = vec![Combination::new()];
    let axes = matrix.as_object().expect("it is a map").iter();
    for (axis, values) in axes.filter(|(axis, _)| *axis != "include") {
        let mut more = Vec::new();
        for value in values.as_array().expect("an axis is a list") {
            more.extend(all.iter().cloned().map(|mut one| {
                one.insert(axis.clone(), value.clone());
                one
            }));
        }
        all = more;
    }
    for added in matrix["include"].as_array().into_iter().flatten() {
        let added = added.as_object().expect("it is a map");
        let mut is_alone = true;
        for one in &mut all {
            if added
                .iter()
                .all(|(name, value)| one.get(name).is_none_or(|own| own == value))
            {
                one.extend(added.clone());
                is_alone = false;
            }
        }
        if is_alone {
            all.push(added.clone());
        }
    }
    all
}

/// A text of a workflow with its expressions filled in.
fn filled(text: &Value, combination: &Combination) -> String {
    let mut rest = text.as_str().expect("it is a text");
    let mut filled = String::new();
    while let Some((before, after)) = rest.split_once("${{") {
        let (name, behind) = after.split_once("}}").expect("an expression ends");
        filled.push_str(before);
        filled.push_str(match name.trim() {
            "vars.REGISTRY" => "registry.example.com",
            "needs.version.outputs.version" => env!("CARGO_PKG_VERSION"),
            name => {
                let value = name.strip_prefix("matrix.").and_then(|name| combination.get(name));
                value.and_then(Value::as_str).unwrap_or_default()
            }
        });
        rest = behind;
    }
    filled + rest
}

/// Programs that say how they are called, and do nothing.
const PROGRAMS: &str = r#"
told() { echo "$*" >&2; }
awk() { told awk "$@"; }
cosign() { told cosign "$@"; }
docker() { told docker "$@"; }
gh() { told gh "$@"; }
jq() { echo sha256:0; }
mv() { told mv "$@"; }
"#;

/// How the script of a job calls these programs.
fn calls(job: &Value) -> Vec<String> {
    let steps = job["steps"].as_array().expect("it has steps");
    let step = steps
        .iter()
        .find(|step| step["run"].is_string())
        .expect("it has a script");
    let environment = step["env"].as_object().expect("it has variables").iter();
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let script = format!("{PROGRAMS}{}", step["run"].as_str().unwrap_or_default());
    let ended = Command::new("bash")
        .args(["-e", "-c", script.as_str()])
        .current_dir(folder.path())
        .env("REGISTRY", "registry.example.com")
        .env("GITHUB_REF_NAME", "v1")
        .envs(environment.map(|(name, value)| (name, filled(value, &Combination::new()))))
        .output()
        .expect("bash starts");
    assert!(ended.status.success(), "{}", said(&ended));
    said(&ended).lines().map(str::to_owned).collect()
}

/// The images that each job `image` pushes.
fn pushed(release: &Value) -> BTreeSet<String> {
    let job = &release["jobs"]["image"];
    let steps = job["steps"].as_array().expect("it has steps");
    let step = steps.iter().find(|step| step["id"] == "push").expect("it pushes");
    let name = |one: &Combination| {
        let name = filled(&step["env"]["NAME"], one);
        let user = one["user"].as_str().expect("a user is a text");
        assert_eq!(name.contains("-root-"), user.starts_with("0:"), "{name} of user {user}");
        name
    };
    combinations(job).iter().map(name).collect()
}

/// The tags of the recipes of drop-in mode that the workflow does not make of images that it pushed, and signs.
fn unpublished(release: &Value) -> Vec<String> {
    let (pushed, calls) = (pushed(release), calls(&release["jobs"]["index"]));
    let mut made = BTreeSet::new();
    for call in &calls {
        let Some(images) = call.strip_prefix("docker buildx imagetools create --tag ") else {
            continue;
        };
        let images: Vec<&str> = images.split(' ').collect();
        if images.len() == 3 && images[1..].iter().all(|image| pushed.contains(*image)) {
            made.insert(images[0]);
        }
    }
    let signed = calls
        .iter()
        .filter(|call| call.starts_with("cosign sign --yes"))
        .count();
    assert!(signed >= made.len(), "{calls:?}");
    let page = std::fs::read_to_string(root().join("docs/install/DROP-IN-RECIPES.md")).expect("it can be read");
    let mut tags = BTreeSet::new();
    for before in ["csi-attacher-operator:", " tag: "] {
        for rest in page.split(before).skip(1) {
            let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || ".-".contains(letter)));
            tags.insert(format!("{IMAGE}:{}", &rest[..end.unwrap_or(rest.len())]));
        }
    }
    assert!(tags.len() >= 2, "{tags:?}");
    tags.retain(|tag| !made.contains(&**tag));
    tags.into_iter().collect()
}

#[test]
fn each_image_of_the_recipes_is_published() {
    let release = parsed("release.yaml");
    assert_eq!(unpublished(&release), Vec::<String>::new());
    // What this is worth: without the image of root, or without its index, its tag is missing.
    let root_tag = format!("{IMAGE}:{}-root", env!("CARGO_PKG_VERSION"));
    let mut without = release.clone();
    without["jobs"]["image"]["strategy"]["matrix"]["user"] = serde_json::json!(["65532:65532"]);
    assert_eq!(unpublished(&without), [root_tag.as_str()]);
    let text = release.to_string().replace(" \\\"$VERSION-root\\\"", "");
    let without: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(unpublished(&without), [root_tag.as_str()]);
}

/// The release has a bill of materials of each image, by the names under which the jobs left them.
#[test]
fn each_bill_of_materials_is_in_the_release() {
    let release = parsed("release.yaml");
    let jobs = &release["jobs"];
    let steps = jobs["image"]["steps"].as_array().expect("it has steps");
    let left = steps
        .iter()
        .find(|step| step["with"]["path"].is_string())
        .expect("it leaves a file");
    let place = |one: &Combination| {
        let [name, path] = ["name", "path"].map(|what| filled(&left["with"][what], one));
        let file = Path::new(&path)
            .file_name()
            .expect("it is a file")
            .to_string_lossy()
            .into_owned();
        format!("mv artifacts/{name}/{file} ")
    };
    let places: Vec<String> = combinations(&jobs["image"]).iter().map(place).collect();
    let calls = calls(&jobs["release"]);
    assert_eq!(places.len(), 4, "{places:?}");
    for place in &places {
        assert!(
            calls.iter().any(|call| call.starts_with(place.as_str())),
            "{place}: {calls:?}"
        );
    }
    assert_eq!(
        calls.iter().filter(|call| call.starts_with("mv ")).count(),
        places.len()
    );
    let published = calls.iter().find(|call| call.starts_with("gh release create"));
    for part in ["artifacts/plugin-", "artifacts/charts/"] {
        assert!(published.is_some_and(|call| call.contains(part)), "{part}: {calls:?}");
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
