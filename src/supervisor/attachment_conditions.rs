//! The conditions of an AttacherConfig that are about its attachments. Pure.

use super::status::StatusInput;
use crate::api::condition::{ConditionReason, ConditionType, ConditionUpdate};
use crate::cache::{ATTACH, AttacherKey, DETACH, VOLUME};
use crate::decide::reconcile::{LastingMismatches, contradiction};
use crate::queue::{Lane, Stats};
use csi_attacher_model::findings::{FindingKind, FindingsSummary};

/// How many attaches and detaches failed and wait, and how much else did: releases of PersistentVolumes, and finalizers and notes of what
/// is attached.
pub(super) fn failing(stats: &Stats<AttacherKey>) -> (usize, usize) {
    let failing = |lane: Lane| stats.lanes.get(lane.index()).map_or(0, |lane| lane.failing);
    (failing(ATTACH) + failing(DETACH), failing(VOLUME))
}

/// Whether attaches and detaches come to their end; none where nobody knows.
pub(super) fn healthy(facts: &StatusInput<'_>) -> Option<ConditionUpdate> {
    let update = |is_healthy: bool, reason: ConditionReason, message: String| {
        let kind = ConditionType::AttachmentsHealthy;
        Some(ConditionUpdate::new(kind, is_healthy, reason, message))
    };
    // It says what to do, which is better than that something is stuck for want of it.
    if let Some(withheld) = facts.driver.and_then(|driver| driver.withheld.as_ref()) {
        let waiting = match withheld.attachments {
            1 => "1 attachment waits for it".to_owned(),
            count => format!("{count} attachments wait for Secrets that the driver may not receive"),
        };
        let message = format!("{}; {waiting}", withheld.message);
        return update(false, withheld.reason, message);
    }
    let failing = facts.failing?;
    if let Some(stuck) = facts.stuck {
        let count = |kind| facts.insight.map_or(0, |insight| insight.count(kind));
        let count = count(FindingKind::AttachStuck) + count(FindingKind::DetachStuck);
        let message = match count {
            0 | 1 => stuck.words.clone(),
            count => format!("{count} are stuck; the oldest: {}", stuck.words),
        };
        return update(false, ConditionReason::AttachmentsStuck, message);
    }
    let upkeep = match facts.failing_upkeep {
        0 => String::new(),
        count => format!("; {count} finalizers or notes of volumes cannot be written and will be retried"),
    };
    if failing == 0 {
        let text = format!("no attach or detach keeps failing{upkeep}");
        return update(true, ConditionReason::NoFailures, text);
    }
    // What came to its end since, or is no attach or detach, says nothing of those that fail.
    let last = facts.driver.and_then(|driver| driver.last_failure.as_ref());
    let last = last.filter(|_| facts.is_last_pending).map(|failure| {
        format!(
            "; the last one: {} of {}: {}",
            failure.operation, failure.attachment, failure.message
        )
    });
    let message = format!(
        "{failing} failed and will be retried{}{upkeep}",
        last.unwrap_or_default()
    );
    update(false, ConditionReason::AttachmentsFailing, message)
}

/// Whether attachments fit to what is around them. The reason is the worst of the findings, the message names all.
pub(super) fn consistent(insight: &FindingsSummary, lasting: Option<&LastingMismatches>) -> ConditionUpdate {
    let kind = ConditionType::AttachmentsConsistent;
    let mut kinds = insight.kinds().filter(|kind| !kind.is_stuck()).peekable();
    let reason = match kinds.peek() {
        Some(worst) => worst.condition_reason(),
        None if lasting.is_some() => ConditionReason::MismatchRepeating,
        None => {
            let text = "attachments agree with their volumes, nodes and the CSIDriver";
            return ConditionUpdate::new(kind, true, ConditionReason::Consistent, text);
        }
    };
    let findings = kinds.map(|kind| several(insight.count(kind), insight.example(kind).unwrap_or_default()));
    let mismatches = lasting.map(|lasting| {
        let example = &lasting.example;
        let text = format!("VolumeAttachment {}: {}", example.name, contradiction(example));
        several(lasting.count, &text)
    });
    let texts: Vec<String> = findings.chain(mismatches).collect();
    ConditionUpdate::new(kind, false, reason, texts.join("; "))
}

fn several(count: usize, example: &str) -> String {
    match count {
        1 => example.to_owned(),
        count => format!("{count} as this one: {example}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::LaneStats;

    #[test]
    fn what_is_no_attach_or_detach_is_counted_apart() {
        let lane = |failing| LaneStats {
            failing,
            ..LaneStats::default()
        };
        let stats = Stats {
            lanes: vec![lane(1), lane(2), lane(4)],
            lacks_token: false,
            paused: false,
            closed: false,
        };
        assert_eq!(failing(&stats), (3, 4));
    }
}
