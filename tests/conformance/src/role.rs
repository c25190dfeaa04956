//! What is different between the roles of a CSI sidecar: everything else of the suite is the same for all.

use crate::scenario::{Outcome, Setup};
use crate::support::Options;
use crate::support::operator::{release_lease, release_provisioner_lease};
use crate::test::Test;
use crate::{groups, provision, support};

/// What the program under test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Role {
    /// It attaches and detaches volumes.
    Attach,
    /// It makes and deletes volumes.
    Provision,
}

/// What an attacher may do: what the Go sidecar's manifest grants. Publish secrets and events come with [`SHARED_RBAC`].
const ATTACH_RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: conformance-attacher}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
"#;

/// What a provisioner may do: what the Go sidecar's manifest grants, without the snapshots and capacities that are not played. It may see
/// in all namespaces that no other provisioner writes capacities.
const PROVISION_RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: conformance-attacher}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, update, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update, patch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [update, patch]}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, csinodes, volumeattributesclasses], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csistoragecapacities], verbs: [list]}
"#;

/// What every role may do besides: Leases, events, and the Secrets of one namespace.
pub const SHARED_RBAC: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: conformance-shared}
rules:
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [list, watch, create, patch, update]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create, update, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: conformance-shared}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: conformance-shared}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: conformance-attacher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: conformance-attacher}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: conformance, name: secrets}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: conformance, name: secrets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: secrets}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
"#;

/// The controllers that make and bind claims, and those that the harness itself waits for. Some hundred objects a minute
/// would be held up by the usual limits of the client.
const CONTROLLERS: [&str; 4] = [
    "--controllers=persistentvolume-binder-controller,persistentvolume-protection-controller,persistentvolumeclaim-protection-controller,serviceaccount-controller,namespace-controller",
    "--kube-api-qps=1000",
    "--kube-api-burst=1000",
    // A claim that comes before its class is looked at again.
    "--pvclaimbinder-sync-period=2s",
];

impl Role {
    pub const ALL: [Self; 2] = [Self::Attach, Self::Provision];

    /// What is played for it; each inner list has a control plane of its own.
    pub fn lanes(self) -> Vec<Vec<Setup>> {
        match self {
            Self::Attach => groups::lanes(),
            Self::Provision => provision::lanes(),
        }
    }

    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Provision => "provision",
        }
    }

    /// What the program under test is called in reports.
    pub fn who(self) -> &'static str {
        match self {
            Self::Attach => "attacher",
            Self::Provision => "provisioner",
        }
    }

    /// What its results in a document begin with.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Attach => "<!-- The results are written by `make conformance-results`. -->\n",
            Self::Provision => "<!-- The results of provisioners are written by `make conformance-results`. -->\n",
        }
    }

    /// What it may do by RBAC besides [`SHARED_RBAC`].
    pub fn rbac(self) -> &'static str {
        match self {
            Self::Attach => ATTACH_RBAC,
            Self::Provision => PROVISION_RBAC,
        }
    }

    pub fn control_plane(self) -> Options {
        let (controller_manager, apiserver, manager): (_, &[&str], &[&str]) = match self {
            // There is no kube-controller-manager which would take its finalizer away again.
            Self::Attach => (
                false,
                &["--disable-admission-plugins=StorageObjectInUseProtection"],
                &[],
            ),
            Self::Provision => (true, &[], &CONTROLLERS),
        };
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        Options {
            audit: true,
            controller_manager,
            apiserver_args: owned(apiserver),
            controller_manager_args: owned(manager),
            ..Options::default()
        }
    }

    /// Flags of every setup besides those that both sidecars have.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Attach => &[],
            // The suite tells by the metadata for which claim a volume is made.
            Self::Provision => &[
                "--extra-create-metadata=true",
                "--feature-gates=Topology=true",
                "--default-fstype=ext4",
            ],
        }
    }

    pub fn finalizer(self, driver: &str) -> String {
        match self {
            Self::Attach => crate::env::finalizer_of(driver),
            Self::Provision => provision::FINALIZER.to_owned(),
        }
    }

    /// Makes its Lease free: each setup has a driver of its own, whose Lease the operator would create, and
    /// wait for a Lease's duration.
    pub async fn release_lease(self, client: &kube::Client, driver: &str) -> support::Result<()> {
        release_lease(client, "default", driver).await?;
        match self {
            Self::Attach => Ok(()),
            Self::Provision => release_provisioner_lease(client, "default", driver).await,
        }
    }

    /// Waits until it has done its work once.
    pub async fn works(self, test: &Test) -> Outcome {
        // Who looks at an object before it has heard of those that it names pauses, in some setups for longer than anybody waits.
        match self {
            Self::Attach => match test.given_attached().await {
                Ok(_) => Ok(()),
                Err(_) => test.barrier("again").await,
            },
            Self::Provision => {
                // For a driver with topology there is no place without a node.
                test.given_zone(&test.node, Some("a")).await?;
                match test.given_bound().await {
                    Ok(_) => Ok(()),
                    Err(_) => test.given_claim("again").await?.bound().await.map(drop),
                }
            }
        }
    }
}
