//! What comes before CreateVolume, and the call itself.

use std::sync::Arc;

use super::{Subject, decided, wait, wait_for};
use crate::objects::StorageClass;
use crate::provision::action::{ClaimAction, ClaimDecision, ClaimReason};
use crate::provision::creation::Creation;
use crate::provision::marker::{self, Marker, MarkerState, RecordedArguments};
use crate::provision::observed::{CallSecret, ProvisionerSecretState, RolePhase};
use crate::provision::patch;
use crate::provision::plan::CreatePlan;
use crate::provision::policy::LeakProtection;
use crate::provision::refusal::ProvisionRefusal;
use crate::provision::request;
use crate::provision::secrets::TemplateContext;
use crate::provision::volume_name::VolumeNaming;

impl Subject<'_, '_> {
    /// Rows 14, 16 and 17: what the volume is created with.
    pub(super) fn planned(&self, class: &StorageClass, reason: ClaimReason) -> ClaimDecision {
        let observed = self.observed;
        let is_uncertain = observed.creation.is_uncertain();
        let capabilities = observed.driver.capabilities;
        let has_topology = capabilities.create_delete_volume && capabilities.accessibility_constraints;
        if has_topology && !observed.topology.complete {
            return wait(ClaimReason::Syncing);
        }
        if has_topology && !is_uncertain && !observed.nodes_are_known {
            return self.unconfirmed("Nodes or CSINodes");
        }
        let selected = observed.claim.selected_node.as_ref().filter(|_| has_topology);
        if let Some(node) = selected.filter(|_| class.delayed && !is_uncertain) {
            if observed.node.is_unknown() {
                // The lists are complete, and a watch is broken: it is told, as that may last.
                let node = node.clone();
                return wait_for(ClaimReason::TopologyMissing, ProvisionRefusal::NodeUnknown { node });
            }
            if observed.node.is_gone()
                && let Some(write) = patch::reschedule(observed.claim)
            {
                if !observed.waited.for_node {
                    return wait(ClaimReason::NodeGone);
                }
                return decided(ClaimReason::NodeGone, ClaimAction::Reschedule(write));
            }
        }
        let recorded = match self.marker.recorded() {
            Some(marker) if is_uncertain => {
                let context = TemplateContext::of(observed.claim, self.name);
                marker.arguments(class, observed.topology, &context)
            }
            _ => RecordedArguments::default(),
        };
        // A marker that says nothing of topology says nothing of a call either, and users of a namespace can write the finalizer: the volume
        // would be in any zone.
        let is_placed = selected.is_some() || recorded.is_placed();
        if has_topology && self.wanted && class.delayed && !is_placed {
            return wait(ClaimReason::WaitForConsumer);
        }
        match request::plan(observed, class, self.name, recorded, self.wanted) {
            Ok(plan) => self.call(Arc::new(plan), reason),
            Err(refusal) if refusal.is_missing_topology() => wait_for(ClaimReason::TopologyMissing, refusal),
            Err(refusal) => decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
        }
    }

    /// Rows 15 and 18 to 20: the Secret, the marker, the call.
    pub(super) fn call(&self, plan: Arc<CreatePlan>, reason: ClaimReason) -> ClaimDecision {
        let before = self
            .no_call(ProvisionRefusal::NotSupported)
            .or_else(|| self.secret(&plan));
        if let Some(decision) = before.or_else(|| self.mark(&plan)) {
            return decision;
        }
        decided(reason, ClaimAction::Create(plan))
    }

    /// Why nothing is called now; where the driver announces no such call, this.
    pub(super) fn no_call(&self, unsupported: fn(Arc<str>) -> ProvisionRefusal) -> Option<ClaimDecision> {
        if self.observed.role == RolePhase::Stopping {
            return Some(wait(ClaimReason::Draining));
        }
        if self.observed.is_away {
            return Some(wait(ClaimReason::DriverAway));
        }
        let driver = self.observed.driver;
        let is_supported = driver.capabilities.create_delete_volume;
        (!is_supported).then(|| wait_for(ClaimReason::Invalid, unsupported(driver.name.clone())))
    }

    pub(super) fn secret(&self, plan: &CreatePlan) -> Option<ClaimDecision> {
        let reference = plan.secret.clone()?;
        let (policy, driver) = (self.observed.policy, &self.observed.driver.name);
        if let Err(refusal) = policy.check_secret(&reference, &self.observed.claim.namespace, driver) {
            return Some(wait_for(ClaimReason::SecretForbidden, refusal));
        }
        let call = CallSecret {
            reference,
            is_wanted: self.wanted,
        };
        match call.state(self.observed.secret_of, self.observed.secret) {
            ProvisionerSecretState::Loaded => None,
            ProvisionerSecretState::NotLoaded => {
                Some(decided(ClaimReason::LoadSecret, ClaimAction::LoadCredentials(call)))
            }
            ProvisionerSecretState::Missing => Some(wait_for(
                ClaimReason::SecretMissing,
                ProvisionRefusal::SecretMissing { secret: call.reference },
            )),
            ProvisionerSecretState::Unreadable => Some(wait_for(
                ClaimReason::SecretForbidden,
                ProvisionRefusal::SecretUnreadable { secret: call.reference },
            )),
        }
    }

    /// A claim without a marker, where only this process knows that there is or may be a volume: it is marked before anything is waited
    /// for, as the process may end meanwhile. A volume that was created is about to be saved, and counts when that has failed, or when it
    /// cannot be used.
    pub(super) fn unmarked(&self) -> Option<ClaimDecision> {
        if !matches!(self.marker, MarkerState::Absent | MarkerState::Copied) {
            return None;
        }
        let plan = match self.observed.creation {
            Creation::Created(volume) if self.observed.save_failed || !volume.is_usable() => &volume.plan,
            creation => creation.uncertain_plan()?,
        };
        self.mark(plan)
    }

    /// The marker that must be on the claim before a call, or the look at the claim in its place.
    ///
    /// What it records is what the next process repeats. So before a call that is not one of an open one, it is written anew where it
    /// records other arguments; while a call is open, what that was made with stays.
    pub(super) fn mark(&self, plan: &CreatePlan) -> Option<ClaimDecision> {
        let observed = self.observed;
        if observed.gone {
            return None;
        }
        let is_uncertain = observed.creation.is_uncertain();
        // A call that is open may have been made by other settings, and its marker be gone since.
        let naming = VolumeNaming::of_name(&plan.name, &observed.claim.uid)
            .unwrap_or_else(|| marker::naming(self.marker, observed.policy));
        // While a call is open, its outcome is unknown since the first marker for it.
        let open = self.marker.recorded().filter(|_| is_uncertain);
        let since = open.map_or(observed.now, |known| known.since.min(observed.now));
        let mut marker = Marker::of_call(observed, naming, plan, since);
        if let Some(open) = open {
            marker.arguments.clone_from(&open.arguments);
            marker.secret.clone_from(&open.secret);
            marker.allowed = open.allowed.clone().or(marker.allowed);
            if plan.accessibility.is_none() || open.is_without_topology() {
                // The driver announces no topology for the moment, and what was asked for is asked for again once it does; or none was asked
                // for. Else the call has the topology that is recorded, unless that was forged, and is ignored.
                marker.segment.clone_from(&open.segment);
                marker.first.clone_from(&open.first);
                marker.requisite.clone_from(&open.requisite);
            }
        }
        let is_recorded = || is_uncertain || self.marker.recorded().is_some_and(|known| known.is_of_call(&marker));
        let needs_marker = match observed.policy.leak_protection {
            _ if self.marker.is_own() => !observed.marker_is_own || !is_recorded(),
            // It stands for a volume that the other one may have made, and holds the claim as well. Only an open call of this process gets
            // here, which is repeated as it was.
            _ if matches!(self.marker, MarkerState::OfAnotherDriver(_)) => false,
            // A claim in deletion takes no finalizer any more.
            _ if !self.wanted => false,
            LeakProtection::Always => true,
            // The answer may be about a call of somebody else, which no answer to this one ends.
            LeakProtection::WhenUncertain if observed.others_may_have_called => true,
            LeakProtection::WhenUncertain if !matches!(observed.creation, Creation::Never | Creation::Refused) => true,
            LeakProtection::WhenUncertain if !observed.claim_is_live => {
                return Some(decided(ClaimReason::Mark, ClaimAction::ReadClaim));
            }
            LeakProtection::WhenUncertain | LeakProtection::Never => false,
        };
        if !needs_marker {
            return None;
        }
        Some(match marker.text() {
            Ok(text) => decided(ClaimReason::Mark, ClaimAction::Mark(patch::mark(observed.claim, &text))),
            Err(refusal) => decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
        })
    }
}
