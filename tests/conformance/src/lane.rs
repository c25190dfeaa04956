//! One control plane on which setups take turns.

use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;

use crate::role::{Role, SHARED_RBAC};
use crate::support::{ControlPlane, Result};

/// Namespace and name of the attacher's ServiceAccount.
const IDENTITY: (&str, &str) = ("conformance", "attacher");

/// A control plane with what all setups on it share.
pub struct Lane {
    pub role: Role,
    pub cluster: Arc<ControlPlane>,
    /// A client for a member of `system:masters`.
    pub client: Client,
    pub kubeconfig: PathBuf,
    logs: Option<PathBuf>,
}

impl Lane {
    /// Starts a control plane. Logs of attachers go to the folder `logs`, without it where they vanish at the end.
    pub async fn start(role: Role, logs: Option<PathBuf>) -> Result<Self> {
        let cluster = Arc::new(ControlPlane::start(role.control_plane()).await?);
        let (namespace, name) = IDENTITY;
        let kubeconfig = cluster.kubeconfig_for_service_account(namespace, name).await?;
        for rules in [role.rbac(), SHARED_RBAC] {
            cluster.apply_yaml(rules).await?;
        }
        let client = cluster.admin_client().await?;
        Ok(Self {
            role,
            cluster,
            client,
            kubeconfig,
            logs,
        })
    }

    pub fn log(&self, name: &str) -> PathBuf {
        let folder = self.logs.as_deref().unwrap_or_else(|| self.cluster.folder());
        folder.join(format!("{name}.log"))
    }
}
