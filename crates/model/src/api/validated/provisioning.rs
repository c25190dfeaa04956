//! The checked settings of `spec.provisioning`.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use super::check::Checker;
use super::{BackoffSettings, SpecProblem};
use crate::api::attacher_config::{
    AttacherConfigSpec, CreateMetadata, DelayedBindingTopology, ImmediateBindingTopology, ProvisionerSecretsSpec,
    ProvisioningMode, ReadOnlyMany, VolumeDeletion,
};
use crate::api::rules;
use crate::provision::{ProvisionPolicy, ProvisionerSecrets};

/// The namespace of each claim itself.
const OWN_NAMESPACE: &str = "*";

/// The checked settings of provisioning for one driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Provisioning {
    /// Whether volumes are provisioned; if not, only what is uncertain is finished.
    pub enabled: bool,
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
    /// What decisions are made by; the names of the AttacherConfig and of the engine are empty here.
    pub policy: ProvisionPolicy,
}

impl Provisioning {
    /// What decisions are made by. `config` is the name of the AttacherConfig, `identity` that of the engine.
    pub fn policy(&self, config: &Arc<str>, identity: &Arc<str>) -> ProvisionPolicy {
        ProvisionPolicy {
            config: config.clone(),
            identity: identity.clone(),
            ..self.policy.clone()
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
            self.number(path, length, 16..=32, SpecProblem::VolumeNameUuidLength)
        });
        let limits = &provisioning.concurrency;
        Some(Provisioning {
            enabled: provisioning.mode == ProvisioningMode::Enabled,
            delete_timeout: self.duration("provisioning.timeouts.delete", provisioning.timeouts.delete),
            create_timeout: self.duration("provisioning.timeouts.create", provisioning.timeouts.create),
            backoff: self.backoff("provisioning.backoff", &provisioning.backoff),
            create: NonZeroUsize::new(self.calls("provisioning.concurrency.create", limits.create)),
            delete: NonZeroUsize::new(self.calls("provisioning.concurrency.delete", limits.delete)),
            per_class: NonZeroUsize::new(self.calls("provisioning.concurrency.perClass", limits.per_class)),
            calls_per_second: NonZeroU32::new(
                self.calls("provisioning.concurrency.callsPerSecond", limits.calls_per_second),
            ),
            policy: ProvisionPolicy {
                leak_protection: provisioning.leak_protection,
                hold_deletions: provisioning.deletion == VolumeDeletion::Hold,
                orphans: provisioning.orphan_policy,
                volume_name_prefix: provisioning.volume_name_prefix.as_str().into(),
                volume_name_uuid_length: length,
                default_fs_type: provisioning.default_fs_type.as_str().into(),
                create_metadata: provisioning.create_metadata == CreateMetadata::Names,
                strict_topology: provisioning.topology.delayed_binding == DelayedBindingTopology::Strict,
                aggregate_topology: provisioning.topology.immediate_binding == ImmediateBindingTopology::Aggregate,
                read_only_many: provisioning.read_only_many == ReadOnlyMany::ReadOnly,
                secrets: self.provisioner_secrets(&provisioning.secrets),
                ..ProvisionPolicy::default()
            },
        })
    }

    fn provisioner_secrets<'s>(&mut self, spec: &'s [ProvisionerSecretsSpec]) -> ProvisionerSecrets {
        let (own, listed): (Vec<_>, Vec<_>) = spec
            .iter()
            .enumerate()
            .partition(|(_, entry)| entry.namespace == OWN_NAMESPACE);
        let entry =
            |(index, entry): (usize, &'s ProvisionerSecretsSpec)| (index, &*entry.namespace, entry.names.as_ref());
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
            if self.secret_names(path, given) {
                names.extend(given.iter().map(|name| Box::from(name.as_str())));
            }
        }
        ProvisionerSecrets {
            listed: self.publish_secrets(path, listed.into_iter().map(entry)),
            in_claim_namespace: Arc::new(names),
        }
    }
}
