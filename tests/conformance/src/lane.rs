//! One control plane on which setups take turns.

use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;

use crate::support::{ControlPlane, Options, Result};

/// Namespace and name of the attacher's ServiceAccount.
const IDENTITY: (&str, &str) = ("conformance", "attacher");

/// What an attacher may do: what the Go sidecar's manifest grants, the publish secrets of one namespace, and events.
const RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: conformance-attacher}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch, update]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: conformance-attacher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: conformance-attacher}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: conformance, name: publish-secrets}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: conformance, name: publish-secrets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: publish-secrets}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
"#;

/// A control plane with what all setups on it share.
pub struct Lane {
    /// The control plane.
    pub cluster: Arc<ControlPlane>,
    /// A client for a member of `system:masters`.
    pub client: Client,
    /// The attacher's kubeconfig.
    pub kubeconfig: PathBuf,
    logs: Option<PathBuf>,
}

impl Lane {
    /// Starts a control plane. Logs of attachers go to the folder `logs`, without it where they vanish at the end.
    pub async fn start(logs: Option<PathBuf>) -> Result<Self> {
        let options = Options {
            audit: true,
            // There is no kube-controller-manager which would take its finalizer away again.
            apiserver_args: vec!["--disable-admission-plugins=StorageObjectInUseProtection".to_owned()],
            ..Options::default()
        };
        let cluster = Arc::new(ControlPlane::start(options).await?);
        let (namespace, name) = IDENTITY;
        let kubeconfig = cluster.kubeconfig_for_service_account(namespace, name).await?;
        cluster.apply_yaml(RBAC).await?;
        let client = cluster.admin_client().await?;
        Ok(Self {
            cluster,
            client,
            kubeconfig,
            logs,
        })
    }

    /// The file for the log of an attacher.
    pub fn log(&self, name: &str) -> PathBuf {
        let folder = self.logs.as_deref().unwrap_or_else(|| self.cluster.folder());
        folder.join(format!("{name}.log"))
    }
}
