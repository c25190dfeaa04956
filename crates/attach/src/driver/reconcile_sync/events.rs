//! What is told of mismatches as events.

use super::super::attempt::events;
use super::super::context::DriverContext;
use crate::decide::reconcile::{DesiredState, Expectation, contradiction};
use crate::decide::shown_handle;
use crate::events::EventReason;

/// Two listings in a row contradict an attachment; it is attached or detached once more.
pub(super) fn mismatch_event(work: &DriverContext, expected: &Expectation) {
    let (handle, node_id) = (shown_handle(&expected.handle), shown_handle(&expected.node_id));
    let note = match expected.wanted {
        DesiredState::Published => format!(
            "volume {handle}: the driver does not list it at the node with ID {node_id}, where it is attached; it is attached \
             again"
        ),
        DesiredState::Unpublished => format!(
            "volume {handle}: the driver still lists it at the node with ID {node_id}, from where it was detached; it is \
             detached again"
        ),
    };
    listing_event(work, expected, EventReason::AttachmentMismatch, note);
}

/// Repairs that the driver answered with OK did not change what it lists.
pub(super) fn lasting_mismatch_event(work: &DriverContext, expected: &Expectation) {
    let note = format!(
        "{}; it is repeated about once an hour, or in each comparison if these are rarer",
        contradiction(expected)
    );
    listing_event(work, expected, EventReason::MismatchRepeating, note);
}

/// The driver lists a volume as it should, after it did not.
pub(super) fn repaired_event(work: &DriverContext, expected: &Expectation) {
    let (handle, node_id) = (shown_handle(&expected.handle), shown_handle(&expected.node_id));
    let note = match expected.wanted {
        DesiredState::Published => format!("volume {handle}: the driver lists it at the node with ID {node_id} again"),
        DesiredState::Unpublished => {
            format!("volume {handle}: the driver does not list it at the node with ID {node_id} any more")
        }
    };
    listing_event(work, expected, EventReason::AttachmentRepaired, note);
}

fn listing_event(work: &DriverContext, expected: &Expectation, reason: EventReason, note: String) {
    let known = work.context.store.attachment(&expected.name);
    if let Some(snapshot) = known.filter(|known| known.attachment.uid == expected.uid) {
        events::record(work, &snapshot, reason, note);
    }
}
