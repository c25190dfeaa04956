//! The recipes for the drivers of vendors: the page shows the files, the files have the vendors' names of values, and kustomize
//! makes of the vendors' objects what the page says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::Result;
use crate::support::controlplane::programs;
use crate::support::prometheus::of_repository;

const IMAGE: &str = "registry.example.com/csi-attacher-operator";
const VENDORS: &str = "src/sidecar_flags/tests/vendors";

fn read(path: &Path) -> String {
    fs::read_to_string(path).map_err(|error| (path, error)).unwrap()
}

/// The files below `config/drop-in/FOLDER`, by their paths in the repository.
fn files() -> BTreeMap<String, String> {
    let root = of_repository("config/drop-in");
    let folders = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>()
    });
    let name = |path: &Path| format!("config/drop-in/{}", path.strip_prefix(&root).unwrap().display());
    files.map(|path| (name(&path), read(&path))).collect()
}

#[test]
fn the_page_shows_the_files() {
    let page = read(&of_repository("docs/install/DROP-IN-RECIPES.md"));
    let mut shown = BTreeMap::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (_, text) = block.split_once('\n').unwrap();
        let Some((path, body)) = text.strip_prefix("# ").and_then(|text| text.split_once('\n')) else {
            continue;
        };
        if path.starts_with("config/") {
            shown.insert(path.to_owned(), format!("{body}\n"));
        }
    }
    assert_eq!(shown, files());
    assert!(shown.len() >= 10, "{}", shown.len());
}

/// A vendor: its name, the lines `# KEY: VALUE` of its file, and the arguments.
struct Vendor {
    name: String,
    head: Vec<(String, String)>,
    arguments: Vec<String>,
}

impl Vendor {
    fn all() -> Vec<Self> {
        let entries = fs::read_dir(of_repository(VENDORS)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let vendors = paths.map(|path| {
            let text = read(&path);
            let (head, arguments): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("# "));
            let pair = |line: &&str| {
                line[2..]
                    .split_once(": ")
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
            };
            Self {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                head: head.iter().filter_map(pair).collect(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
            }
        });
        vendors.collect()
    }

    fn said(&self, key: &str) -> BTreeSet<&str> {
        let pairs = self.head.iter().filter(|(found, _)| found == key);
        pairs.map(|(_, value)| value.as_str()).collect()
    }

    /// The image that the vendor's chart makes of the values. Where its head does not say how, it only adds the tag.
    fn image(&self, values: &Value) -> String {
        let names = self.said("value");
        let join = self.said("image").into_iter().next();
        let mut image = join.unwrap_or("{repository}:{tag}").to_owned();
        for part in ["registry", "repository", "tag"] {
            let name = names.iter().find(|name| name.ends_with(&format!(".{part}")));
            let path = name.map(|name| format!("/{}", name.replace('.', "/")));
            let value = path.and_then(|path| values.pointer(&path)?.as_str());
            image = image.replace(&format!("{{{part}}}"), value.unwrap_or_default());
        }
        image
    }
}

/// The paths of what is set: of a map that is not one of the vendor's own names, as it stands in the list of names.
fn set(path: &str, value: &Value, names: &BTreeSet<&str>, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(fields) if !names.contains(path) => {
            for (name, field) in fields {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                set(&below, field, names, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn values_have_the_vendors_names_and_our_image() {
    let files = files();
    let mut count = 0;
    for vendor in Vendor::all() {
        let names = vendor.said("value");
        let file = files.get(&format!("config/drop-in/{}/values.yaml", vendor.name));
        assert_eq!(file.is_some(), !names.is_empty(), "{}", vendor.name);
        let Some(text) = file else { continue };
        assert!((2..=10).contains(&text.lines().count()), "{}", vendor.name);
        let values: Value = serde_yaml::from_str(text).unwrap();
        let mut found = BTreeSet::new();
        set("", &values, &names, &mut found);
        assert_eq!(
            found,
            names.iter().map(ToString::to_string).collect(),
            "{}",
            vendor.name
        );
        // The pod of EBS sets a user, those of the others leave it to the image.
        let root = if vendor.name == "aws-ebs" { "" } else { "-root" };
        let image = format!("{IMAGE}:{}{root}", env!("CARGO_PKG_VERSION"));
        assert_eq!(vendor.image(&values), image, "{}", vendor.name);
        count += 1;
    }
    assert_eq!(count, 5);
}

/// An object like the vendor's: the driver, and the attacher with the vendor's arguments.
fn stand_in(object: &str, arguments: &[String]) -> Value {
    let (kind, place) = object.split_once(' ').unwrap();
    let (namespace, name) = place.split_once('/').unwrap();
    let mounts = json!([{"name": "socket-dir", "mountPath": "/csi"}]);
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [
                {"name": "driver", "image": "driver:1", "volumeMounts": mounts},
                {"name": "csi-attacher", "image": "registry.k8s.io/sig-storage/csi-attacher:v4.12.0",
                    "args": arguments, "volumeMounts": mounts, "securityContext": {"privileged": true}},
            ]},
        }},
    })
}

/// What kubectl makes of an object and one of the files.
async fn patched(text: &str, object: &Value) -> Result<Value> {
    let [kubectl] = programs::locate(["kubectl"]).await?;
    let kustomization: Value = serde_yaml::from_str(text).unwrap();
    let resource = kustomization["resources"][0].as_str().unwrap();
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("kustomization.yaml"), text)?;
    fs::write(folder.path().join(resource), object.to_string())?;
    let mut command = Command::new(&kubectl);
    let output = command.arg("kustomize").arg(folder.path()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}: {said}");
    let mut made: Value = serde_yaml::from_slice(&output.stdout).unwrap();
    // kustomize puts what it patched first.
    let containers = made.pointer_mut("/spec/template/spec/containers").unwrap();
    let by_name = |container: &Value| container["name"].as_str().map(|name| name != "driver");
    containers.as_array_mut().unwrap().sort_by_key(by_name);
    Ok(made)
}

#[tokio::test]
async fn a_patch_changes_the_image_and_nothing_else() -> Result<()> {
    let files = files();
    let mut count = 0;
    for vendor in Vendor::all() {
        let file = files.get(&format!("config/drop-in/{}/kustomization.yaml", vendor.name));
        let object = vendor.said("patch").into_iter().next();
        assert_eq!(file.is_some(), object.is_some(), "{}", vendor.name);
        let (Some(text), Some(object)) = (file, object) else {
            continue;
        };
        let before = stand_in(object, &vendor.arguments);
        let mut after = patched(text, &before).await?;

        let attacher = after.pointer_mut("/spec/template/spec/containers/1").unwrap();
        // The image of the sidecar runs as root, and so do the drivers of all but one.
        let root = if vendor.name == "vsphere" { "" } else { "-root" };
        let image = format!("{IMAGE}:{}{root}", env!("CARGO_PKG_VERSION"));
        assert_eq!(attacher["image"], image, "{}", vendor.name);
        attacher["image"] = before
            .pointer("/spec/template/spec/containers/1/image")
            .cloned()
            .unwrap();
        assert_eq!(after, before, "{}", vendor.name);
        count += 1;
    }
    assert_eq!(count, 4);
    Ok(())
}

#[tokio::test]
async fn without_the_attacher_all_else_stays() -> Result<()> {
    let files = files();
    let text = &files["config/drop-in/without-attacher/kustomization.yaml"];
    let mut before = stand_in("Deployment kube-system/ebs-csi-controller", &[]);
    let after = patched(text, &before).await?;
    let containers = before.pointer_mut("/spec/template/spec/containers").unwrap();
    containers.as_array_mut().unwrap().pop();
    assert_eq!(after, before);
    Ok(())
}

/// The chart of EBS leaves out its limit when one of the three flags is given; the README shows the same values.
#[test]
fn the_recipe_of_ebs_lifts_the_limit_of_requests() {
    let vendors = Vendor::all();
    let ebs = vendors.iter().find(|vendor| vendor.name == "aws-ebs").unwrap();
    let of_chart = ["--kube-api-qps=20", "--kube-api-burst=100", "--worker-threads=100"];
    assert!(
        of_chart
            .iter()
            .all(|flag| ebs.arguments.iter().any(|given| given == flag))
    );
    let text = &files()["config/drop-in/aws-ebs/values.yaml"];
    let values: Value = serde_yaml::from_str(text).unwrap();
    let given = values.pointer("/sidecars/attacher/additionalArgs").unwrap();
    assert_eq!(*given, json!(["--worker-threads=100"]));
    let readme = read(&of_repository("README.md"));
    assert!(readme.contains(&format!("# config/drop-in/aws-ebs/values.yaml\n{text}```")));
}

/// The rows of the table of drivers.
fn rows(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.starts_with("| [")).collect()
}

/// Whoever reads the page knows which recipe keeps a vendor's limit.
#[test]
fn the_page_says_what_limits_the_vendors_set() {
    let page = read(&of_repository("docs/install/DROP-IN-RECIPES.md"));
    let mut limits = BTreeMap::new();
    for vendor in Vendor::all() {
        let limit = vendor
            .arguments
            .iter()
            .find_map(|flag| flag.split_once("-kube-api-qps="));
        limits.insert(vendor.name, limit.map(|(_, limit)| limit.to_owned()));
    }
    let rows = rows(&page);
    assert_eq!(rows.len(), limits.len());
    for limit in limits.into_values() {
        let words = limit.map_or("| no limit |".to_owned(), |limit| format!("| {limit} a second"));
        assert!(rows.iter().any(|row| row.contains(&words)), "{words}");
    }
    for number in ["20", "50", "100"] {
        let said = rows
            .iter()
            .filter(|row| row.contains(&format!("| {number} a second")))
            .count();
        assert_eq!(said, if number == "50" { 2 } else { 1 }, "{number}");
    }
}

/// A second `--http-endpoint` takes the place of the vendor's, and whatever asks that port fails.
#[test]
fn the_page_says_which_vendors_have_a_port_for_metrics() {
    let page = read(&of_repository("docs/install/DROP-IN-RECIPES.md"));
    let port = |vendor: &Vendor| {
        let mut flags = vendor.arguments.iter();
        let port = flags.find_map(|flag| flag.strip_prefix("--http-endpoint=:"));
        port.unwrap_or("none").to_owned()
    };
    let mut given: Vec<String> = Vendor::all().iter().map(port).collect();
    let in_row = |row: &str| {
        let cell = row.rsplit("| ").next()?;
        cell.split([';', ',', ' ']).next().map(str::to_owned)
    };
    let mut told: Vec<String> = rows(&page).into_iter().filter_map(in_row).collect();
    given.sort();
    told.sort();
    assert_eq!(told, given);
    assert!(given.iter().any(|port| port != "none"));
}

#[test]
fn events_are_all_that_is_granted() {
    let text = read(&of_repository("config/drop-in/events.yaml"));
    let role: Value = serde_yaml::from_str(text.split("\n---\n").next().unwrap()).unwrap();
    let rules = json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]);
    assert_eq!(role["rules"], rules);
    let ebs: Value = serde_yaml::from_str(&files()["config/drop-in/aws-ebs/values.yaml"]).unwrap();
    assert_eq!(
        ebs.pointer("/sidecars/attacher/additionalClusterRoleRules"),
        Some(&rules)
    );
}
