//! The Go sidecar external-attacher, which the operator replaces: the real binary, built on first use, as a process of its
//! own under the RBAC rules that its deployments use.

use std::path::{Path, PathBuf};

use super::controlplane::programs;
use super::controlplane::watchdog::{Output, Watched};
use super::{ControlPlane, Error, Result};

/// Namespace and name of its ServiceAccount.
const IDENTITY: &str = "go-sidecar";
/// What it may do. Its deployments grant the Leases in one namespace only.
const RBAC: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: go-sidecar}
rules:
- {apiGroups: [''], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [''], resources: [secrets], verbs: [get, list]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, list, delete, update, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: go-sidecar}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: go-sidecar}
subjects:
- {kind: ServiceAccount, name: go-sidecar, namespace: go-sidecar}
";

/// A running sidecar. Dropping it kills it, which is also how it ends in a cluster: it handles no signal.
pub struct Sidecar {
    process: Watched,
    log: PathBuf,
}

impl Sidecar {
    /// Starts it for the driver behind this socket, with these further arguments; does not wait for anything. The sidecar
    /// itself waits for the driver, and retries fast here unless told otherwise.
    pub async fn start(cluster: &ControlPlane, socket: &Path, arguments: &[&str]) -> Result<Self> {
        let [program] = programs::locate(["csi-attacher"]).await?;
        cluster.apply_yaml(RBAC).await?;
        let kubeconfig = cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        // Named after the kubeconfig, which is new each time.
        let log = kubeconfig.with_extension("sidecar.log");
        let mut all = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--csi-address={}", socket.display()),
            "--retry-interval-start=100ms".to_owned(),
            "--retry-interval-max=1s".to_owned(),
            "--kube-api-qps=50".to_owned(),
            "--kube-api-burst=100".to_owned(),
            "--v=4".to_owned(),
        ];
        all.extend(arguments.iter().map(ToString::to_string));
        let process = Watched::spawn("csi-attacher", &program, &all, &log, Output::Log)?;
        Ok(Self { process, log })
    }

    /// Fails with the end of its log when it does not run any more.
    pub fn check(&mut self) -> Result<()> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::Other(format!(
                "the sidecar ended ({status}):\n{}",
                self.process.log_tail()
            ))),
        }
    }

    /// Process ID of the sidecar itself, not of its watchdog.
    pub fn pid(&self) -> Result<u32> {
        self.process.child("csi-attacher")
    }

    /// Everything it logged so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
