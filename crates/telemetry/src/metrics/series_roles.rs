//! Which role a series of a driver is about, by its labels: it begins and ends with that role.

use super::family::Labels;
use crate::names::{QUEUE_CLAIMS, QUEUE_UNSAVED_VOLUMES, QUEUE_VOLUMES};
use csi_attacher_model::api::EventReason;
use csi_attacher_model::api::condition::ConditionReason;
use csi_attacher_model::findings::FindingKind;
use csi_attacher_model::provision::event::ProvisionEventReason;

pub(super) const PROVISION: &str = "provision";
pub(super) const DELETE: &str = "delete";
/// The calls that only provisioning makes.
const METHODS: [&str; 2] = ["/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/DeleteVolume"];

/// Whether a series of a driver is about its provisioning.
pub(super) fn is_of_provisioning(labels: &Labels) -> bool {
    labels.iter().any(|(key, value)| match *key {
        "operation" => [PROVISION, DELETE].contains(&&**value),
        "name" => [QUEUE_CLAIMS, QUEUE_VOLUMES, QUEUE_UNSAVED_VOLUMES].contains(&&**value),
        "method_name" => METHODS.contains(&&**value),
        "kind" => FindingKind::of_role(false).any(|kind| kind.as_str() == value),
        "reason" => {
            let mut limits = ConditionReason::PROVISIONING_SATURATED.iter();
            limits.any(|reason| reason.as_str() == value) || event_reasons().any(|reason| reason == value)
        }
        _ => false,
    })
}

/// The reasons of Events about provisioning.
pub(super) fn event_reasons() -> impl Iterator<Item = &'static str> {
    let findings = FindingKind::of_role(false).map(|kind| kind.event_reason().as_str());
    ProvisionEventReason::ALL
        .iter()
        .map(|reason| reason.as_str())
        .chain(findings)
}

/// The reasons of Events about attaching, and about the AttacherConfig.
pub(super) fn other_event_reasons() -> impl Iterator<Item = &'static str> {
    let all = EventReason::ALL.iter().map(|reason| reason.as_str());
    all.filter(|reason| !event_reasons().any(|other| other == *reason))
}
