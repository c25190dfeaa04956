//! What of a status is told as an event on its AttacherConfig, for people who look at events first. Pure.
//!
//! Told is what lasts: that a driver works, rests, does not answer, or that only a person can mend something; not what passes
//! by itself in a moment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::AttacherConfigStatus;
use crate::api::condition::{self, ConditionType};
use crate::events::Reason;

/// The event of a change of the status, if it is worth one: its reason, its cause and its words. One at most, and the worst.
pub(super) fn news(before: &AttacherConfigStatus, now: &AttacherConfigStatus) -> Option<(Reason, Box<str>, String)> {
    // What is told, by condition, status and, where not every reason is meant, reason.
    let states = [
        (ConditionType::Stalled, "True", None, Reason::Stalled),
        (ConditionType::DriverReachable, "False", None, Reason::DriverUnreachable),
        (
            ConditionType::Ready,
            "False",
            Some(condition::Reason::Suspended),
            Reason::Suspended,
        ),
        (ConditionType::Ready, "True", None, Reason::Ready),
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
        let told = state(before).is_some_and(|known| known.reason == current.reason);
        let note = format!("{}: {}", current.reason, current.message);
        return (!told).then(|| (reason, current.reason.into(), note));
    }
    None
}
