//! What Argo CD, Flux, kustomize and kubectl would apply, in their order, on a real API server.

use std::fs;

use serde_json::Value;

use super::{CHART, CRD, Helm, RELEASE, beginning, configs, names};
use crate::rig::{own_control_plane, part};
use crate::support::prometheus::of_repository;
use crate::support::{ControlPlane, Error, Kubectl, Options, Result};

/// The namespace of the examples.
pub const OPERATOR: &str = "csi-attacher-operator";

fn yaml(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(of_repository(path))
        .map_err(|error| (path, error))
        .unwrap();
    documents(&text)
}

fn documents(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text).map(|one| serde::Deserialize::deserialize(one).unwrap());
    documents.filter(|one: &Value| !one.is_null()).collect()
}

/// Renders the chart of this folder with values from a manifest.
async fn rendered(helm: &Helm, folder: &str, namespace: &str, values: &Value, more: &[&str]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), values.to_string())?;
    let (chart, values) = (
        of_repository(folder).display().to_string(),
        file.path().display().to_string(),
    );
    let arguments = [&["template", RELEASE, &chart, "--values", &values], more].concat();
    let (done, said) = helm.run_in(namespace, &arguments).await?;
    if done { Ok(said) } else { Err(Error::Other(said)) }
}

/// What reaches no driver never becomes healthy: each socket that an AttacherConfig names is in a directory that the operator mounts.
fn assert_sockets_are_mounted(text: &str) {
    let objects = documents(text);
    let of_kind = |kind: &str| {
        objects
            .iter()
            .filter(move |object| object["kind"] == kind)
            .collect::<Vec<_>>()
    };
    let deployments = of_kind("Deployment");
    let pod = &deployments.first().unwrap()["spec"]["template"]["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let volumes: Vec<Value> = list(&pod["volumes"])
        .iter()
        .map(|volume| volume["name"].clone())
        .collect();
    let mounted = |container: &Value| -> Vec<(String, Value)> {
        let mounts = list(&container["volumeMounts"]);
        let mounts = mounts.iter().filter(|mount| volumes.contains(&mount["name"]));
        mounts
            .map(|mount| {
                (
                    mount["mountPath"].as_str().unwrap_or_default().to_owned(),
                    mount["name"].clone(),
                )
            })
            .collect()
    };
    let operator = mounted(&pod["containers"][0]);
    let drivers: Vec<(String, Value)> = list(&pod["initContainers"]).iter().flat_map(mounted).collect();
    let configs = of_kind("AttacherConfig");
    assert!(!configs.is_empty(), "{text}");
    for config in configs {
        let endpoint = config["spec"]["endpoint"].as_str().unwrap();
        let socket = endpoint.strip_prefix("unix://").unwrap();
        let (folder, _) = socket.rsplit_once('/').unwrap();
        let mount = operator.iter().find(|(path, _)| path == folder);
        let mount = mount.unwrap_or_else(|| panic!("the operator does not mount {folder}: {operator:?}"));
        assert!(drivers.contains(mount), "no driver makes its socket in {folder}");
    }
}

/// Applies one object, which is this text: numbers are as kubectl reads them.
async fn apply(kubectl: &Kubectl, object: &Value, text: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("object.yaml");
    fs::write(&file, text)?;
    let file = file.display().to_string();
    let flags = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--validate=strict",
        "-f",
        &file,
    ];
    kubectl.run(&flags).await?;
    if object["kind"] == "CustomResourceDefinition" {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        kubectl
            .run(&["wait", "--for=condition=Established", &format!("crd/{name}")])
            .await?;
        super::found(kubectl, name).await?;
    }
    Ok(())
}

/// The order in which Argo CD applies kinds within a wave (gitops-engine, pkg/sync/sync_tasks.go); others come behind, by name.
const ARGO: [&str; 15] = [
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "Deployment",
];

/// What a sync applies, in order: without Helm's tests, for which Argo CD has no phase.
fn argo_order(text: &str) -> Vec<(Value, String)> {
    let whole = format!("\n{text}");
    let parts = whole.split("\n---\n").filter(|part| !documents(part).is_empty());
    let mut objects: Vec<(Value, String)> = parts.map(|part| (documents(part).remove(0), part.to_owned())).collect();
    objects.retain(|(object, _)| object["metadata"]["annotations"]["helm.sh/hook"] != "test");
    for (object, _) in &objects {
        let annotations = &object["metadata"]["annotations"];
        assert!(annotations["helm.sh/hook"].is_null(), "a hook: {object}");
        assert!(
            annotations["argocd.argoproj.io/sync-wave"].is_null(),
            "a wave: {object}"
        );
    }
    let place = |object: &Value| {
        ARGO.iter()
            .position(|kind| object["kind"] == *kind)
            .unwrap_or(ARGO.len())
    };
    objects.sort_by_key(|(object, _)| {
        (
            place(object),
            object["kind"].to_string(),
            object["metadata"]["name"].to_string(),
        )
    });
    objects
}

/// Each finds no CRD, and the first one nothing at all. The namespace comes with the example for kustomize.
#[tokio::test]
async fn the_crd_comes_before_the_attacherconfigs() -> Result<()> {
    let _permit = own_control_plane().await;
    let cluster = &ControlPlane::start(Options::default()).await?;
    part(
        "the example for kustomize",
        the_example_for_kustomize_is_complete(cluster),
    )
    .await?;
    part("kustomize", kustomize_needs_no_helm(cluster)).await?;
    part("Argo CD", argo_cd_applies_the_crd_before_the_attacherconfigs(cluster)).await?;
    part("kubectl", kubectl_applies_what_helm_renders(cluster)).await
}

async fn argo_cd_applies_the_crd_before_the_attacherconfigs(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let application = yaml("config/argocd/application.yaml").remove(0);
    let source = &application["spec"]["source"];
    let folder = source["path"].as_str().unwrap();
    let namespace = application["spec"]["destination"]["namespace"].as_str().unwrap();
    assert_eq!((folder, source["helm"]["releaseName"].as_str()), (CHART, Some(RELEASE)));
    let values = &source["helm"]["valuesObject"];
    // As its repo-server renders: no cluster, with the CRD, and with what the cluster has as API versions.
    let first = rendered(&helm, folder, namespace, values, &["--include-crds"]).await?;
    let known = [
        "--include-crds",
        "--api-versions=attacher.csi.dev/v1alpha1/AttacherConfig",
    ];
    let later = rendered(&helm, folder, namespace, values, &known).await?;
    assert_eq!(first, later, "a second sync would see something else");
    assert_sockets_are_mounted(&first);

    let objects = argo_order(&first);
    let at = |kind: &str| objects.iter().position(|(object, _)| object["kind"] == kind).unwrap();
    assert!(at("CustomResourceDefinition") < at("AttacherConfig"));
    let mut seen: Vec<String> = objects
        .iter()
        .map(|(object, _)| {
            format!(
                "{} {} {}",
                object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
            )
        })
        .collect();
    for (object, text) in &objects {
        apply(&kubectl, object, text).await?;
    }
    assert_eq!(names(&configs(&kubectl).await?), ["example"]);
    // Of two objects of one name Argo CD would keep the last only.
    seen.sort();
    let all = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), all, "{seen:?}");
    Ok(())
}

pub async fn flux_installs_and_upgrades_the_crd(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let release = yaml("config/flux/helmrelease.yaml").remove(1);
    let spec = &release["spec"];
    for action in ["install", "upgrade"] {
        assert_eq!(spec[action]["crds"], "CreateReplace", "{action}");
    }
    // One driver that does not answer would roll back the operator of all.
    assert_eq!(spec["waitStrategy"]["name"], "legacy");
    let folder = spec["chart"]["spec"]["chart"].as_str().unwrap();
    let namespace = spec["targetNamespace"].as_str().unwrap();
    assert_sockets_are_mounted(&rendered(&helm, folder, namespace, &spec["values"], &[]).await?);
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), spec["values"].to_string())?;
    let values = file.path().display().to_string();
    let chart = of_repository(folder).display().to_string();

    // source-controller packs what is a file, and leaves out links.
    let links = walk(&of_repository(folder))?
        .into_iter()
        .filter(|path| path.is_symlink())
        .count();
    assert_eq!(links, 0);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/timeouts/properties/listVolumes";
    for action in ["install", "upgrade"] {
        // helm-controller first makes or replaces what is in crds/, with all its annotations, then runs the action without it.
        let put = if action == "install" { "create" } else { "replace" };
        let crds = of_repository(folder).join("crds").display().to_string();
        kubectl.run(&[put, "-f", &crds]).await?;
        super::found(&kubectl, CRD).await?;
        let arguments = [action, RELEASE, &chart, "--values", &values, "--skip-crds"];
        let (done, said) = helm.run_in(namespace, &arguments).await?;
        assert!(done, "{action}: {said}");
        assert_eq!(names(&configs(&kubectl).await?), ["example"]);
        // The upgrade finds an older CRD.
        let remove = format!(r#"[{{"op": "remove", "path": "{schema}"}}]"#);
        kubectl
            .run(&["patch", "crd", CRD, "--type=json", "-p", &remove])
            .await?;
    }
    Ok(())
}

/// All files and links below a folder.
fn walk(folder: &std::path::Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

async fn kustomize_needs_no_helm(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, _helm) = beginning(cluster).await?;
    let base = of_repository("config/default").display().to_string();
    let flags = ["apply", "--server-side", "--validate=strict", "-k", &base];
    let said = kubectl.run(&flags).await?;
    for object in [
        "namespace/csi-attacher-operator",
        CRD,
        "deployment.apps/csi-attacher-operator",
    ] {
        assert!(said.contains(object), "{object}: {said}");
    }
    let built = kubectl.run(&["kustomize", &base]).await?;
    // Without it an upgrade of a release that has the CRD would delete it.
    let built = built.replace("helm.sh/resource-policy: keep", "");
    assert!(!built.contains("Helm") && !built.contains("helm.sh"), "{built}");
    Ok(())
}

/// The values of the README as the file `my-values.yaml`.
fn values_of_the_readme() -> Value {
    let readme = fs::read_to_string(of_repository("README.md")).unwrap();
    let (_, text) = readme.split_once("```yaml\n# my-values.yaml\n").unwrap();
    documents(text.split_once("```").unwrap().0).remove(0)
}

/// The example for kustomize makes the pods that the chart makes for the same driver, and its commands work as the README has them.
async fn the_example_for_kustomize_is_complete(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let folder = of_repository("config/examples/kustomize");
    let (example, config) = (
        folder.display().to_string(),
        folder.join("attacherconfig.yaml").display().to_string(),
    );
    let built = kubectl.run(&["kustomize", &example]).await?;
    let with_config = format!("{built}\n---\n{}", fs::read_to_string(&config)?);
    assert_sockets_are_mounted(&with_config);
    let chart = rendered(&helm, CHART, OPERATOR, &values_of_the_readme(), &["--no-hooks"]).await?;
    let pods = |text: &str| {
        let mut deployment = documents(text)
            .into_iter()
            .find(|object| object["kind"] == "Deployment")
            .unwrap();
        let mut pods = deployment["spec"]["template"]["spec"].take();
        // The order of a patch is not that of the chart.
        for path in ["/volumes", "/containers/0/volumeMounts"] {
            let list = pods.pointer_mut(path).and_then(Value::as_array_mut).unwrap();
            list.sort_by_key(|item| item["name"].to_string());
            // An octal number of YAML 1.1, which kustomize writes as a decimal one.
            for item in list.iter_mut().filter_map(|item| item.pointer_mut("/projected")) {
                item.as_object_mut().unwrap().remove("defaultMode");
            }
        }
        pods
    };
    assert_eq!(pods(&built), pods(&chart));

    let readme = fs::read_to_string(of_repository("README.md"))?;
    for command in [
        "$ kubectl apply --server-side -k config/examples/kustomize\n",
        "$ kubectl apply --server-side -f config/examples/kustomize/attacherconfig.yaml\n",
    ] {
        assert!(readme.contains(command), "{command}");
    }
    kubectl
        .run(&["apply", "--server-side", "--validate=strict", "-k", &example])
        .await?;
    kubectl
        .run(&["wait", "--for=condition=Established", &format!("crd/{CRD}")])
        .await?;
    super::found(&kubectl, CRD).await?;
    kubectl
        .run(&["apply", "--server-side", "--validate=strict", "-f", &config])
        .await?;
    assert_eq!(names(&configs(&kubectl).await?), ["mock"]);
    Ok(())
}

/// By the commands of the chart's README. The first run of `kubectl apply` installs the CRD and cannot know its
/// kind yet; the second has everything. Both are one command.
async fn kubectl_applies_what_helm_renders(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let readme = fs::read_to_string(of_repository(CHART).join("README.md"))?;
    let mut creating = readme
        .lines()
        .filter_map(|line| line.trim().strip_prefix("kubectl create namespace "));
    let namespace = creating.next().expect("the README creates the namespace");
    assert!(readme.contains(&format!(
        "helm template {RELEASE} {CHART} --namespace {namespace} --include-crds --no-hooks"
    )));
    assert_eq!(namespace, OPERATOR);
    let values = &yaml("config/argocd/application.yaml")[0]["spec"]["source"]["helm"]["valuesObject"];
    let text = rendered(&helm, CHART, namespace, values, &["--include-crds", "--no-hooks"]).await?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), &text)?;
    let file = file.path().display().to_string();
    let flags = ["apply", "--server-side", "-f", &file];
    let said = kubectl.refused(&flags, "").await?;
    assert!(
        said.contains(r#"no matches for kind "AttacherConfig""#) && said.contains("ensure CRDs are installed first"),
        "{said}"
    );
    kubectl
        .run(&["wait", "--for=condition=Established", &format!("crd/{CRD}")])
        .await?;
    super::found(&kubectl, CRD).await?;
    kubectl.run(&flags).await?;
    assert_eq!(names(&configs(&kubectl).await?), ["example"]);
    kubectl
        .run(&["get", "deployment", "--namespace", namespace, OPERATOR])
        .await?;
    Ok(())
}
