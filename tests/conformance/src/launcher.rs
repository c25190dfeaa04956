//! The operator in its usual mode behind the command line of a sidecar: installs what the product ships, turns the
//! flags into an AttacherConfig and becomes the operator. So the suite itself knows nothing of AttacherConfigs.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::role::Role;
use crate::support::operator::apply_config;
use crate::support::{Error, Result, apply_yaml};
use crate::test::SECRETS;
use csi_attacher_model::api::crd;

/// First word of the command line that plays the launcher.
pub const LAUNCHER: &str = "with-attacherconfig";
const RBAC: &str = include_str!("../../../config/rbac.yaml");
/// The suite's ServiceAccount gets the shipped role as well.
const BINDING: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: conformance-operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-attacher-operator}
subjects: [{kind: ServiceAccount, namespace: conformance, name: attacher}]
";
/// There is one AttacherConfig in the cluster; the next attacher takes it over.
pub const CONFIG: &str = "conformance";
/// Its sibling with shortened names of volumes, as these cannot be changed.
const SHORT: &str = "conformance-short";
/// A claim may be let go when it is held for longer than that.
pub const STUCK_AFTER: Duration = Duration::from_secs(3);
/// Shortens the names of volumes.
const UUID_LENGTH: &str = "volume-name-uuid-length";

/// Flags, each `--name=value`.
struct Flags(Vec<(String, String)>);

impl Flags {
    fn read(words: &[String]) -> Result<Self> {
        let split = |word: &String| {
            let (name, value) = word.strip_prefix("--")?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let wrong = |word: &String| Error::Other(format!("want --name=value, not {word:?}"));
        let flags: Result<_> = words
            .iter()
            .map(|word| split(word).ok_or_else(|| wrong(word)))
            .collect();
        flags.map(Self)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    fn is_provisioner(&self) -> bool {
        self.get("role") == Some(Role::Provision.name())
    }

    fn need(&self, name: &str) -> Result<&str> {
        self.get(name)
            .ok_or_else(|| Error::Other(format!("--{name} is missing")))
    }
}

/// Prepares the cluster, then replaces this process by the operator; returns only when that is not possible.
pub fn run(words: &[String]) -> Result<()> {
    let flags = Flags::read(words)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Error::Other(error.to_string()))?;
    runtime.block_on(prepare(&flags))?;
    drop(runtime);
    let error = Command::new(flags.need("operator")?)
        .arg(format!("--kubeconfig={}", flags.need("kubeconfig")?))
        .arg(format!("--http-endpoint={}", flags.need("http-endpoint")?))
        .arg("--log-level=info,csi_attacher=debug")
        .args(
            flags
                .is_provisioner()
                .then(|| format!("--stuck-after={}s", STUCK_AFTER.as_secs())),
        )
        .args(flags.get("identity").map(|name| format!("--identity={name}")))
        .exec();
    Err(Error::Other(format!("cannot start the operator: {error}")))
}

async fn prepare(flags: &Flags) -> Result<()> {
    let client = admin(Path::new(flags.need("admin-kubeconfig")?)).await?;
    let definition = crd::crd_yaml().map_err(|error| Error::Other(error.to_string()))?;
    for manifest in [definition.as_str(), RBAC, BINDING] {
        apply_yaml(&client, manifest).await?;
    }
    let name = flags.get(UUID_LENGTH).map_or(CONFIG, |_| SHORT);
    apply_config(&client, name, spec(flags)?).await?;
    Ok(())
}

async fn admin(kubeconfig: &Path) -> Result<Client> {
    let other = |error: &dyn std::fmt::Display| Error::Other(format!("{}: {error}", kubeconfig.display()));
    let file = kube::config::Kubeconfig::read_from(kubeconfig).map_err(|error| other(&error))?;
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| other(&error))?;
    config.proxy_url = None;
    Client::try_from(config).map_err(|error| other(&error))
}

/// What the flags of a sidecar mean in an AttacherConfig.
fn spec(flags: &Flags) -> Result<Value> {
    let timeout = flags.need("timeout")?;
    // A sidecar is given what it may read. In the second namespace it may read nothing, which is a scenario.
    let secrets = [SECRETS, "default"].map(|namespace| json!({ "namespace": namespace }));
    let mut spec = json!({
        "endpoint": format!("unix://{}", flags.need("csi-address")?),
        "publishSecrets": secrets,
        "timeouts": { "publish": timeout, "unpublish": timeout, "listVolumes": timeout, "probe": timeout },
        "backoff": {
            "initial": flags.need("retry-interval-start")?,
            "max": flags.need("retry-interval-max")?,
            "jitterPercent": 0,
        },
    });
    if let Some(fs_type) = flags.get("default-fstype") {
        spec["defaultFsType"] = json!(fs_type);
    }
    if let Some(duration) = flags.get("leader-election-lease-duration") {
        spec["leaderElection"] = json!({
            "leaseDuration": duration,
            "renewDeadline": flags.need("leader-election-renew-deadline")?,
            "retryPeriod": flags.need("leader-election-retry-period")?,
        });
    }
    if flags.is_provisioner() {
        spec["driverName"] = json!(flags.need("driver-name")?);
        spec["provisioning"] = json!({
            "timeouts": { "create": timeout, "delete": timeout },
            "backoff": spec["backoff"],
            "createMetadata": "Names",
            "defaultFsType": flags.need("default-fstype")?,
            "secrets": spec["publishSecrets"],
            "topology": { "delayedBinding": if flags.get("strict-topology").is_some() { "Strict" } else { "Preferred" } },
        });
    }
    if let Some(length) = flags.get(UUID_LENGTH) {
        let length: i64 = length
            .parse()
            .map_err(|_| Error::Other(format!("--{UUID_LENGTH}={length}")))?;
        spec["provisioning"]["volumeNameUUIDLength"] = json!(length);
    }
    if let Some(interval) = flags.get("reconcile-sync") {
        spec["reconcileSync"] = json!({ "interval": interval });
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use csi_attacher_model::api::{AttacherConfigSpec, DriverConfig};

    use super::*;
    use crate::env::{LEASE, flags_of_replica};

    #[test]
    fn leases_last_as_long_as_the_flags_of_replicas_say() {
        let usual = "--timeout=1s --csi-address=/s --retry-interval-start=1s --retry-interval-max=1s";
        let lease = |more: &[String]| {
            let words: Vec<String> = usual
                .split(' ')
                .map(str::to_owned)
                .chain(more.iter().cloned())
                .collect();
            let flags = Flags::read(&words).expect("flags");
            let settings = spec(&flags).expect("settings");
            let settings: AttacherConfigSpec = serde_json::from_value(settings).expect("a spec");
            let settings = DriverConfig::try_from(&settings).expect("a valid spec");
            settings.leader_election.lease_duration
        };
        assert_eq!(lease(&flags_of_replica("one")), LEASE);
        assert_ne!(lease(&[]), LEASE);
    }
}
