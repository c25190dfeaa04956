//! The Go sidecars external-attacher and external-provisioner, which the operator replaces: the real binaries, built on first use, each as a
//! process of its own under the RBAC rules that its deployments use.

use std::path::{Path, PathBuf};

use super::controlplane::programs;
use super::controlplane::watchdog::{Output, Watched};
use super::{ControlPlane, Error, Result};

/// Which of them.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    name: &'static str,
    /// Namespace and name of its ServiceAccount, and the name of its role.
    identity: &'static str,
    /// What it may do. Its deployments grant the Leases in one namespace only.
    rules: &'static str,
}

/// external-attacher.
pub const ATTACHER: Program = Program {
    name: "csi-attacher",
    identity: "go-sidecar",
    rules: r"
- {apiGroups: [''], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [''], resources: [secrets], verbs: [get, list]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, list, delete, update, create]}
",
};

/// external-provisioner.
pub const PROVISIONER: Program = Program {
    name: "csi-provisioner",
    identity: "go-provisioner",
    rules: r"
- {apiGroups: [''], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [''], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
- {apiGroups: [''], resources: [secrets], verbs: [get, list]}
- {apiGroups: [''], resources: [events], verbs: [list, watch, create, update, patch]}
- {apiGroups: [''], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, csinodes, volumeattachments], verbs: [get, list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, list, delete, update, create]}
",
};

/// What [`Program::rules`] and the account are put into.
const GRANT: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME}
rules:RULES
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects:
- {kind: ServiceAccount, name: NAME, namespace: NAME}
";

/// A running sidecar. Dropping it kills it, which is also how it ends in a cluster: it handles no signal.
pub struct Sidecar {
    program: Program,
    process: Watched,
    log: PathBuf,
}

impl Sidecar {
    /// Starts it for the driver behind this socket, with these further arguments; does not wait for anything. The sidecar
    /// itself waits for the driver, and retries fast here unless told otherwise.
    pub async fn start(cluster: &ControlPlane, socket: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_program(ATTACHER, cluster, socket, arguments).await
    }

    /// As [`Sidecar::start`], for one of the sidecars.
    pub async fn start_program(
        program: Program,
        cluster: &ControlPlane,
        socket: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let [path] = programs::locate([program.name]).await?;
        let identity = program.identity;
        let grant = GRANT.replace("NAME", identity).replace("RULES", program.rules);
        cluster.apply_yaml(&grant).await?;
        let kubeconfig = cluster.kubeconfig_for_service_account(identity, identity).await?;
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
        let process = Watched::spawn(program.name, &path, &all, &log, Output::Log)?;
        Ok(Self { program, process, log })
    }

    /// Fails with the end of its log when it does not run any more.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.process.ended()? else {
            return Ok(());
        };
        let log = self.process.log_tail();
        Err(Error::Other(format!("the sidecar ended ({status}):\n{log}")))
    }

    /// Process ID of the sidecar itself, not of its watchdog.
    pub fn pid(&self) -> Result<u32> {
        self.process.child(self.program.name)
    }

    /// Everything it logged so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
