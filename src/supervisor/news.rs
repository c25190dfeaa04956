//! What of a status is told as an event on its AttacherConfig, for people who look at events first. Pure.
//!
//! Told is what lasts: that a driver works, rests, does not answer, or that only a person can mend something; not what passes
//! by itself in a moment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::AttacherConfigStatus;
use crate::api::condition::{self, ConditionType};
use crate::events::Reason;

/// The event of a change of the status, if it is worth one. One at most, and the worst.
pub(super) fn news(before: &AttacherConfigStatus, now: &AttacherConfigStatus) -> Option<(Reason, String)> {
    let rested = |condition: &Condition| condition.reason == condition::Reason::Suspended.as_str();
    let states: [(ConditionType, &str, Reason, &dyn Fn(&Condition) -> bool); 4] = [
        (ConditionType::Stalled, "True", Reason::Stalled, &|_| true),
        (
            ConditionType::DriverReachable,
            "False",
            Reason::DriverUnreachable,
            &|_| true,
        ),
        (ConditionType::Ready, "False", Reason::Suspended, &rested),
        (ConditionType::Ready, "True", Reason::Ready, &|_| true),
    ];
    for (kind, status, reason, matches) in states {
        let state = |of: &AttacherConfigStatus| {
            let found = of.conditions.iter().find(|condition| condition.type_ == kind.as_str());
            found
                .filter(|condition| condition.status == status && matches(condition))
                .cloned()
        };
        let Some(current) = state(now) else { continue };
        let told = state(before).is_some_and(|known| known.reason == current.reason);
        return (!told).then(|| (reason, format!("{}: {}", current.reason, current.message)));
    }
    None
}
