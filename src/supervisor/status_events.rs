//! Which changes of a status become an Event on the AttacherConfig. Pure.
//!
//! Only what lasts: the driver works, is suspended, does not answer, or a person must fix something.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::status::of_driver;
use crate::api::AttacherConfigStatus;
use crate::api::condition::{ConditionReason, ConditionType};
use crate::api::status::WithoutAttachment;
use crate::events::EventReason;

/// The Event of a change of the status, if there is one: reason, cause and note. One at most, about the worst.
pub(super) fn event_for_change(
    before: &AttacherConfigStatus,
    now: &AttacherConfigStatus,
) -> Option<(EventReason, Box<str>, String)> {
    // The states with an Event, by condition, status and, where not every reason is meant, reason.
    let (suspended, running) = (ConditionReason::Suspended, ConditionReason::Running);
    let states = [
        (ConditionType::Stalled, "True", None, EventReason::Stalled),
        (
            ConditionType::DriverReachable,
            "False",
            None,
            EventReason::DriverUnreachable,
        ),
        (ConditionType::Ready, "True", Some(suspended), EventReason::Suspended),
        (ConditionType::Ready, "True", Some(running), EventReason::Ready),
    ];
    for (kind, status, cause, reason) in states {
        let is_meant = |condition: &&Condition| {
            condition.status == status && cause.is_none_or(|cause| condition.reason == cause.as_str())
        };
        let state = |of: &AttacherConfigStatus| {
            let found = of.conditions.iter().find(|condition| condition.type_ == kind.as_str());
            found.filter(is_meant).cloned()
        };
        let Some(current) = state(now) else { continue };
        let known = state(before).is_some_and(|before| before.reason == current.reason);
        let note = format!("{}: {}", current.reason, current.message);
        return (!known).then(|| (reason, current.reason.into(), note));
    }
    None
}

/// The Event about volumes that no VolumeAttachment names, when there are more of them than before.
pub(super) fn without_attachment(
    before: &AttacherConfigStatus,
    now: &AttacherConfigStatus,
) -> Option<(EventReason, Box<str>, String)> {
    let of = |status: &'_ AttacherConfigStatus| -> Option<WithoutAttachment> {
        status.last_reconcile_sync.as_ref()?.without_attachment.clone()
    };
    let found = of(now)?;
    let driver = now.driver.as_ref().map(|driver| &*driver.name);
    if of(&of_driver(before, driver)).is_some_and(|known| known.count >= found.count) {
        return None;
    }
    let first = found.examples.first().map(|listed| {
        let (handle, node_id) = (&listed.volume_handle, &listed.node_id);
        format!(", such as volume {handle} at the node with ID {node_id}")
    });
    let volumes = match found.count {
        1 => "1 volume".to_owned(),
        count => format!("{count} volumes"),
    };
    let note = format!(
        "the driver lists {volumes} at nodes of this cluster without a VolumeAttachment{}; what nobody uses is to be detached by \
         hand: the operator leaves it alone",
        first.unwrap_or_default()
    );
    Some((EventReason::VolumesWithoutAttachment, Box::default(), note))
}
