//! The chart by the real helm and a real API server. `make chart` compares what it renders, and looks what it refuses.

mod gitops;
mod health;
mod upgrade;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kube::ResourceExt;
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::rig::{World, own_control_plane, part, within};
use crate::support::prometheus::of_repository;
use crate::support::{ControlPlane, Error, Kubectl, Options, Result};

const CHART: &str = "charts/csi-attacher-operator";
const NAMESPACE: &str = "attacher";
const RELEASE: &str = "csi-attacher-operator";
const CRD: &str = "attacherconfigs.attacher.csi.dev";
/// The sets of values whose pods do not meet the Pod Security standard "restricted", and why.
const NOT_RESTRICTED: [(&str, &str); 12] = [
    ("all-layouts", "hostPath"),
    ("configs", "hostPath"),
    ("everything-on", "hostPath"),
    ("examples-all", "hostPath"),
    ("hostpath", "hostPath"),
    ("long-name", "hostPath"),
    ("nulls", "runAsNonRoot"),
    ("nulls-inside", "unrestricted capabilities"),
    ("placement", "hostNetwork"),
    ("privileged", "privileged"),
    ("system-administrator", "unrestricted capabilities"),
    ("unusual", "privileged"),
];

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}

/// Runs a program to its end.
async fn run(mut command: Command) -> Result<Output> {
    command.stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output())
        .await?
        .map_err(Error::from)
}

/// Runs `tests/chart/check`.
async fn check(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(of_repository("tests/chart/check"));
    command.args(arguments);
    let output = run(command).await?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Other(format!("tests/chart/check: {}", said(&output))))
}

/// What the API server must have for what is rendered: the definitions, and the namespaces with the account of their pods.
async fn prepare(cluster: &ControlPlane, kubectl: &Kubectl) -> Result<()> {
    for file in [
        "crds/attacher.csi.dev_attacherconfigs.yaml",
        "tests/chart/monitoring-crds.yaml",
    ] {
        let definitions = fs::read_to_string(of_repository(file))?;
        for definition in cluster.apply_yaml(&definitions).await? {
            found(kubectl, &definition.name_any()).await?;
        }
    }
    for namespace in [
        NAMESPACE,
        "drivers",
        "grafana",
        "other",
        "storage-drivers",
        "storage",
        "vault",
        "vendor",
        "vmware-system-csi",
    ] {
        let manifest = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n  labels:\n    \
             pod-security.kubernetes.io/warn: restricted\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  \
             name: default\n  namespace: {namespace}\n"
        );
        cluster.apply_yaml(&manifest).await?;
    }
    Ok(())
}

/// Waits until kubectl finds the kind of a definition: what it discovers follows an established definition with a delay.
async fn found(kubectl: &Kubectl, definition: &str) -> Result<()> {
    let asking = async {
        // Nobody tells when a kind can be discovered.
        while kubectl.run(&["get", definition]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(&format!("kubectl finds {definition}"), asking).await
}

#[tokio::test]
async fn an_api_server_takes_what_it_renders() -> Result<()> {
    let folder = tempfile::tempdir()?;
    check(&["--render", &folder.path().display().to_string()]).await?;
    let _permit = own_control_plane().await;
    let cluster = ControlPlane::start(Options::default()).await?;
    let kubectl = Kubectl::of(&cluster).await?;
    prepare(&cluster, &kubectl).await?;
    let mut rendered: Vec<PathBuf> = fs::read_dir(folder.path())?
        .map(|entry| entry.map(|entry| entry.path()).map_err(Error::from))
        .collect::<Result<_>>()?;
    rendered.sort();
    assert!(rendered.len() >= 8, "{rendered:?}");
    for manifest in &rendered {
        let name = manifest.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = manifest.display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        // Pod Security says for a Deployment, in a warning, what it would refuse its pods for.
        let strict = [&apply[..], &["--warnings-as-errors"]].concat();
        if let Some((_, why)) = NOT_RESTRICTED.iter().find(|(set, _)| *set == name) {
            kubectl.run(&apply).await?;
            let warning = kubectl.refused(&strict, "").await?;
            assert!(
                warning.contains("would violate PodSecurity") && warning.contains(why),
                "{name}: {warning}"
            );
        } else {
            kubectl.run(&strict).await?;
        }
    }
    Ok(())
}

/// Helm with a cluster.
struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// In place of the user's settings.
    home: tempfile::TempDir,
}

impl Helm {
    async fn of(cluster: &ControlPlane) -> Result<Self> {
        let mut build = Command::new(of_repository("tests/controlplane/build"));
        build.args(["--path", "helm"]);
        let output = run(build).await?;
        if !output.status.success() {
            return Err(Error::Other(said(&output)));
        }
        Ok(Self {
            program: Path::new(String::from_utf8_lossy(&output.stdout).trim()).to_owned(),
            kubeconfig: cluster.admin_kubeconfig(),
            home: tempfile::tempdir()?,
        })
    }

    /// Runs a command for the release; whether it succeeded, and what it said.
    async fn run(&self, arguments: &[&str]) -> Result<(bool, String)> {
        self.run_in(NAMESPACE, arguments).await
    }

    /// The same in another namespace.
    async fn run_in(&self, namespace: &str, arguments: &[&str]) -> Result<(bool, String)> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--namespace", namespace]);
        command.env("KUBECONFIG", &self.kubeconfig);
        // What it is told of the kinds of an API server it keeps in the home of the user.
        for folder in ["HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(folder, self.home.path());
        }
        let output = run(command).await?;
        Ok((output.status.success(), said(&output)))
    }

    /// `install` or `upgrade` with one of config/examples and further settings.
    async fn put(&self, verb: &str, example: &str, settings: &[&str]) -> Result<(bool, String)> {
        let chart = of_repository(CHART).display().to_string();
        let values = of_repository("config/examples").join(example).display().to_string();
        let arguments = [&[verb, RELEASE, &chart, "--values", &values][..], settings].concat();
        self.run(&arguments).await
    }
}

/// Names and UIDs of all AttacherConfigs.
async fn configs(kubectl: &Kubectl) -> Result<Vec<String>> {
    let path = "-o=jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
    let listed = kubectl.run(&["get", "attacherconfigs", path]).await?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn names(configs: &[String]) -> Vec<&str> {
    configs
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// One history after another, each of which finds neither a release nor the CRD.
#[tokio::test]
async fn releases_come_and_go() -> Result<()> {
    let world = &World::own().await?;
    let cluster = &*world.cluster;
    let kubectl = Kubectl::of(cluster).await?;
    for namespace in [NAMESPACE, "storage-drivers", gitops::OPERATOR] {
        kubectl.run(&["create", "namespace", namespace]).await?;
    }
    part("AttacherConfigs", attacherconfigs_live_with_the_release(cluster)).await?;
    part("Flux", gitops::flux_installs_and_upgrades_the_crd(cluster)).await?;
    upgrade::histories(cluster).await
}

/// A control plane that has never had the kind, and the programs for it. The earlier chart makes its CRD and, in a hook, an AttacherConfig: its
/// install fails now and then where the API server forgets a former definition of that kind at the same time.
async fn fresh() -> Result<(SemaphorePermit<'static>, ControlPlane, Kubectl, Helm)> {
    let permit = own_control_plane().await;
    let cluster = ControlPlane::start(Options::default()).await?;
    let (kubectl, helm) = (Kubectl::of(&cluster).await?, Helm::of(&cluster).await?);
    kubectl.run(&["create", "namespace", NAMESPACE]).await?;
    Ok((permit, cluster, kubectl, helm))
}

/// The programs for a cluster in which nothing of an earlier history is left. Both begin anew, as they remember the kinds of an API server.
async fn beginning(cluster: &ControlPlane) -> Result<(Kubectl, Helm)> {
    let (kubectl, helm) = (Kubectl::of(cluster).await?, Helm::of(cluster).await?);
    for namespace in [NAMESPACE, gitops::OPERATOR] {
        for release in [RELEASE, "csi-attacher-operator-crds"] {
            let (gone, said) = helm
                .run_in(namespace, &["uninstall", release, "--ignore-not-found"])
                .await?;
            assert!(gone, "{said}");
        }
    }
    kubectl.run(&["delete", "crd", CRD, "--ignore-not-found"]).await?;
    // kubectl applied it, of which Helm knows nothing.
    let applied = [
        "delete",
        "deployment",
        "--all",
        "--namespace",
        gitops::OPERATOR,
        "--ignore-not-found",
    ];
    kubectl.run(&applied).await?;
    let kinds = ["api-resources", "--api-group=attacher.csi.dev", "-o=name"];
    let asking = async {
        // What can be discovered follows the end of a definition with a delay, of which nobody tells.
        loop {
            let known = Kubectl::of(cluster).await?.run(&kinds).await;
            if known.is_ok_and(|known| !known.contains("attacherconfigs")) {
                return Ok::<_, Error>(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within("the end of the kind", asking).await??;
    Ok((Kubectl::of(cluster).await?, Helm::of(cluster).await?))
}

/// The CRD comes before the AttacherConfigs of the first revision; later ones keep them, and no way back loses one.
async fn attacherconfigs_live_with_the_release(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let foreign = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1",
        "kind": "AttacherConfig",
        "metadata": {"name": "foreign"},
        "spec": {"endpoint": "unix:///foreign.sock"},
    });

    let (installed, said) = helm.put("install", "network.yaml", &[]).await?;
    assert!(installed && said.contains("Drivers: bulk, fast."), "{said}");
    let first = configs(&kubectl).await?;
    assert_eq!(names(&first), ["bulk", "fast"]);

    let (upgraded, said) = helm.put("upgrade", "network.yaml", &[]).await?;
    assert!(upgraded, "{said}");
    assert_eq!(configs(&kubectl).await?, first, "they were made anew");

    // What the schema of the values cannot say, the API server does.
    let longer = "--set=drivers.fast.config.backoff.initial=2h";
    let (upgraded, said) = helm.put("upgrade", "network.yaml", &[longer]).await?;
    assert!(!upgraded && said.contains("spec.backoff.initial"), "{said}");

    cluster.apply_yaml(&foreign.to_string()).await?;
    let (upgraded, said) = helm.put("upgrade", "ebs.yaml", &[]).await?;
    assert!(upgraded, "{said}");
    assert_eq!(names(&configs(&kubectl).await?), ["ebs", "foreign"]);
    kubectl.run(&["delete", "attacherconfig", "foreign"]).await?;

    for revision in ["2", "1"] {
        let (back, said) = helm.run(&["rollback", RELEASE, revision]).await?;
        assert!(back, "{said}");
        assert_eq!(
            names(&configs(&kubectl).await?),
            ["bulk", "fast"],
            "revision {revision}"
        );
    }

    // The CRD stays, and nothing else does; the next release begins with it.
    uninstall(&helm, &kubectl).await?;
    kubectl.run(&["get", "crd", CRD]).await?;
    let (installed, said) = helm.put("install", "ebs.yaml", &[]).await?;
    assert!(installed, "{said}");
    assert_eq!(names(&configs(&kubectl).await?), ["ebs"]);

    // Helm applies on the server's side: nothing of a rolling update is left in the way.
    let recreate = "--set=strategy.type=Recreate";
    let (upgraded, said) = helm.put("upgrade", "ebs.yaml", &[recreate]).await?;
    assert!(upgraded, "{said}");
    uninstall(&helm, &kubectl).await
}

async fn uninstall(helm: &Helm, kubectl: &Kubectl) -> Result<()> {
    let (gone, said) = helm.run(&["uninstall", RELEASE]).await?;
    assert!(gone, "{said}");
    assert_eq!(configs(kubectl).await?, Vec::<String>::new());
    Ok(())
}
