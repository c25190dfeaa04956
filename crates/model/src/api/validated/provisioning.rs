//! The checked settings of `spec.provisioning`.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use super::check::Checker;
use super::{BackoffSettings, SpecProblem};
use crate::api::attacher_config::{
    AttacherConfigSpec, CreateMetadata, DelayedBindingTopology, ImmediateBindingTopology, LeakProtectionMode,
    ProvisionerOrphanPolicy, ProvisionerSecretsSpec, ProvisioningMode, PublishSecretsSpec, ReadOnlyMany,
    VolumeDeletion,
};
use crate::api::rules;
use crate::provision::{LeakProtection, OrphanVolumePolicy, ProvisionPolicy, ProvisionerSecrets};

/// The namespace of each claim itself.
const OWN_NAMESPACE: &str = "*";

/// The checked settings of provisioning for one driver.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one setting with two values")]
pub struct Provisioning {
    /// Whether volumes are provisioned; if not, only what is uncertain is finished.
    pub enabled: bool,
    /// When the marker goes on.
    pub leak_protection: LeakProtection,
    /// Whether volumes of Released PersistentVolumes are kept.
    pub hold_deletions: bool,
    /// What NOT_FOUND in answer to DeleteVolume means.
    pub orphans: OrphanVolumePolicy,
    /// Deadline of CreateVolume, from 1 ms to 24 h.
    pub create_timeout: Duration,
    /// Deadline of DeleteVolume, from 1 ms to 24 h.
    pub delete_timeout: Duration,
    /// Waiting time after failures.
    pub backoff: BackoffSettings,
    /// CreateVolume calls in flight; none is no limit.
    pub create: Option<NonZeroUsize>,
    /// DeleteVolume calls in flight; none is no limit.
    pub delete: Option<NonZeroUsize>,
    /// CreateVolume calls in flight for one class; none is no limit.
    pub per_class: Option<NonZeroUsize>,
    /// Calls started in one second; none is no limit.
    pub calls_per_second: Option<NonZeroU32>,
    /// What the names of volumes begin with.
    pub volume_name_prefix: Arc<str>,
    /// So many characters of the UID; none is the whole UID.
    pub volume_name_uuid_length: Option<usize>,
    /// File system type of volumes whose class names none.
    pub default_fs_type: Arc<str>,
    /// Whether names are sent as parameters.
    pub create_metadata: bool,
    /// Whether the volume of a claim with a selected node must be reachable from exactly there.
    pub strict_topology: bool,
    /// Whether the topology of all nodes is sent for immediate binding.
    pub aggregate_topology: bool,
    /// Whether a volume with ReadOnlyMany alone is published read-only.
    pub read_only_many: bool,
    /// The Secrets that the driver may be given.
    pub secrets: ProvisionerSecrets,
}

impl Provisioning {
    /// What decisions are made by. `config` is the name of the AttacherConfig, `identity` that of the engine.
    pub fn policy(&self, config: &Arc<str>, identity: &Arc<str>) -> ProvisionPolicy {
        ProvisionPolicy {
            config: config.clone(),
            volume_name_prefix: self.volume_name_prefix.clone(),
            volume_name_uuid_length: self.volume_name_uuid_length,
            default_fs_type: self.default_fs_type.clone(),
            create_metadata: self.create_metadata,
            strict_topology: self.strict_topology,
            aggregate_topology: self.aggregate_topology,
            read_only_many: self.read_only_many,
            leak_protection: self.leak_protection,
            hold_deletions: self.hold_deletions,
            orphans: self.orphans,
            secrets: self.secrets.clone(),
            identity: identity.clone(),
        }
    }
}

impl Checker {
    /// The settings of provisioning, where there are any.
    pub(super) fn provisioning(&mut self, spec: &AttacherConfigSpec) -> Option<Provisioning> {
        let provisioning = spec.provisioning.as_ref()?;
        if spec.driver_name.is_none() {
            self.report("driverName", SpecProblem::DriverNameMissing);
        }
        let path = "provisioning.volumeNamePrefix";
        self.text(path, &provisioning.volume_name_prefix, &rules::VOLUME_NAME_PREFIX);
        let path = "provisioning.defaultFsType";
        self.text(path, &provisioning.default_fs_type, &rules::FS_TYPE);
        let length = provisioning.volume_name_uuid_length.map(|length| {
            let path = "provisioning.volumeNameUUIDLength";
            let length: u32 = self.number(path, length, 16..=32, SpecProblem::VolumeNameUuidLength);
            length as usize
        });
        let in_flight = |calls: u32| usize::try_from(calls).ok().and_then(NonZeroUsize::new);
        let limits = &provisioning.concurrency;
        Some(Provisioning {
            enabled: provisioning.mode == ProvisioningMode::Enabled,
            leak_protection: match provisioning.leak_protection {
                LeakProtectionMode::Always => LeakProtection::Always,
                LeakProtectionMode::WhenUncertain => LeakProtection::WhenUncertain,
                LeakProtectionMode::Never => LeakProtection::Never,
            },
            hold_deletions: provisioning.deletion == VolumeDeletion::Hold,
            orphans: match provisioning.orphan_policy {
                ProvisionerOrphanPolicy::Retry => OrphanVolumePolicy::Retry,
                ProvisionerOrphanPolicy::TreatNotFoundAsDeleted => OrphanVolumePolicy::TreatNotFoundAsDeleted,
            },
            delete_timeout: self.duration("provisioning.timeouts.delete", provisioning.timeouts.delete),
            create_timeout: self.duration("provisioning.timeouts.create", provisioning.timeouts.create),
            backoff: self.backoff("provisioning.backoff", &provisioning.backoff),
            create: in_flight(self.calls("provisioning.concurrency.create", limits.create)),
            delete: in_flight(self.calls("provisioning.concurrency.delete", limits.delete)),
            per_class: in_flight(self.calls("provisioning.concurrency.perClass", limits.per_class)),
            calls_per_second: NonZeroU32::new(
                self.calls("provisioning.concurrency.callsPerSecond", limits.calls_per_second),
            ),
            volume_name_prefix: provisioning.volume_name_prefix.as_str().into(),
            volume_name_uuid_length: length,
            default_fs_type: provisioning.default_fs_type.as_str().into(),
            create_metadata: provisioning.create_metadata == CreateMetadata::Names,
            strict_topology: provisioning.topology.delayed_binding == DelayedBindingTopology::Strict,
            aggregate_topology: provisioning.topology.immediate_binding == ImmediateBindingTopology::Aggregate,
            read_only_many: provisioning.read_only_many == ReadOnlyMany::ReadOnly,
            secrets: self.provisioner_secrets(&provisioning.secrets),
        })
    }

    fn provisioner_secrets(&mut self, spec: &[ProvisionerSecretsSpec]) -> ProvisionerSecrets {
        let (own, listed): (Vec<_>, Vec<_>) = spec
            .iter()
            .enumerate()
            .partition(|(_, entry)| entry.namespace == OWN_NAMESPACE);
        let listed: Vec<PublishSecretsSpec> = listed
            .into_iter()
            .map(|(_, entry)| PublishSecretsSpec {
                namespace: entry.namespace.clone(),
                names: entry.names.clone(),
            })
            .collect();
        let path = "provisioning.secrets";
        if spec.len() > rules::MAX_PUBLISH_SECRETS {
            self.report(path, SpecProblem::PublishSecrets);
            return ProvisionerSecrets::default();
        }
        let mut names: BTreeSet<Box<str>> = BTreeSet::new();
        for (index, entry) in own {
            let path = &format!("{path}[{index}].names");
            let Some(given) = &entry.names else {
                self.report(path, SpecProblem::NamesOfOwn);
                continue;
            };
            if !(1..=rules::MAX_PUBLISH_SECRETS).contains(&given.len()) {
                self.report(path, SpecProblem::SecretNames);
                continue;
            }
            for name in given {
                self.text(path, name, &rules::SECRET_NAME);
                names.insert(name.as_str().into());
            }
        }
        ProvisionerSecrets {
            listed: self.publish_secrets(path, &listed),
            in_claim_namespace: Arc::new(names),
        }
    }
}
