//! What a spec holds back, which is obeyed even where the rest of it cannot be used.

use super::validated::DriverConfig;
use crate::api::attacher_config::{AttacherConfigSpec, ProvisioningMode, VolumeDeletion};

/// What a person sets in a spec so that less is done. It is read of every spec that has the right shape, whatever else is wrong with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brakes {
    /// `spec.suspend`.
    pub suspend: bool,
    /// Whether `spec.provisioning.mode` is Disabled; none without the section.
    pub disables_provisioning: Option<bool>,
    /// Whether `spec.provisioning.deletion` is Hold; none without the section.
    pub holds_deletions: Option<bool>,
}

impl From<&AttacherConfigSpec> for Brakes {
    fn from(spec: &AttacherConfigSpec) -> Self {
        let provisioning = spec.provisioning.as_ref();
        Self {
            suspend: spec.suspend,
            disables_provisioning: provisioning.map(|section| section.mode == ProvisioningMode::Disabled),
            holds_deletions: provisioning.map(|section| section.deletion == VolumeDeletion::Hold),
        }
    }
}

impl Brakes {
    /// These after `former` ones. A section that is not there says nothing: it may be missing by the same mistake for which the spec cannot be
    /// used, and whoever takes it out wants no more done than before.
    #[must_use]
    pub fn after(self, former: Self) -> Self {
        Self {
            suspend: self.suspend,
            disables_provisioning: self.disables_provisioning.or(former.disables_provisioning),
            holds_deletions: self.holds_deletions.or(former.holds_deletions),
        }
    }
}

impl DriverConfig {
    /// These settings with the brakes of a later spec, which cannot be used itself. What they hold back themselves stays so.
    #[must_use]
    pub fn braked(&self, brakes: Brakes) -> Self {
        let mut settings = self.clone();
        settings.suspend |= brakes.suspend;
        if let Some(provisioning) = &mut settings.provisioning {
            provisioning.enabled &= brakes.disables_provisioning != Some(true);
            provisioning.policy.hold_deletions |= brakes.holds_deletions == Some(true);
        }
        settings
    }
}
