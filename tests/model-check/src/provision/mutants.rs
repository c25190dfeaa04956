//! Wrong operators of the worlds of the provisioner. Each must be caught by a property that is about what it does wrong.

use super::invariants::{
    ALONE, FINALIZER, KEPT, LEASED, MARKED, MARKER_LEAVES, NAMED, NOT_ATTACHED, NOT_CLAIMED, NOT_SHARED, PLACED,
    RELEASED, SAME, SAME_PLACE, UNDONE,
};
use super::worlds::{
    answers, attached, attached_unsaved, made_again, mistake, moved, name_taken, node_gone, of_another, one_claim,
    shared, unlisted_attachment,
};
use super::{Flaw, ProvisionSetting};
use crate::explorer::Wrong;

/// All of them.
pub fn mutants() -> Vec<Wrong<ProvisionSetting>> {
    let wrong = |what, world, flaw, violates| Wrong::new(what, ProvisionSetting { flaw, ..world }, violates);
    vec![
        wrong("calls before the marker is on", one_claim(0), Flaw::NoMarker, &[MARKED]),
        wrong(
            "takes the marker off while the outcome of a call is unknown",
            one_claim(1),
            Flaw::UnmarksUncertain,
            &[MARKER_LEAVES],
        ),
        wrong(
            "takes DEADLINE_EXCEEDED for a refusal",
            one_claim(1),
            Flaw::TimeoutIsFinal,
            &[MARKER_LEAVES, NAMED],
        ),
        wrong(
            "undoes a volume without a live look at its PersistentVolume",
            one_claim(1),
            Flaw::NoLookBeforeUndo,
            &[UNDONE],
        ),
        wrong(
            "takes 409 in answer to the POST for saved, whosever PersistentVolume it is",
            name_taken(0),
            Flaw::AnyConflictIsSuccess,
            &[MARKER_LEAVES],
        ),
        wrong(
            "calls after the Lease is lost",
            one_claim(1),
            Flaw::Unfenced,
            &[LEASED, MARKED],
        ),
        // The late write of a former leader has to take the marker off between two calls of the next one, which has not seen what that saved.
        Wrong {
            is_rare: true,
            ..wrong(
                "has no guard between the keys of a claim and of its PersistentVolume",
                one_claim(1),
                Flaw::TwoKeys,
                // It calls for a claim that is gone, whose volume it has deleted meanwhile.
                &[ALONE, KEPT, MARKED],
            )
        },
        wrong(
            "obeys the marker of another driver",
            of_another(),
            Flaw::ObeysAnotherMarker,
            &[MARKED],
        ),
        wrong(
            "takes its finalizer off before OK",
            attached(0),
            Flaw::FinalizerBeforeOk,
            &[FINALIZER],
        ),
        wrong(
            "deletes a volume without the live look",
            attached(0),
            Flaw::NoLiveLook,
            &[RELEASED],
        ),
        wrong(
            "deletes a volume without the look for another PersistentVolume of its handle",
            shared(0),
            Flaw::NoLookForSharers,
            &[NOT_SHARED],
        ),
        wrong(
            "deletes a volume without the look for VolumeAttachments",
            attached(0),
            Flaw::NoLookForAttachments,
            &[NOT_ATTACHED],
        ),
        wrong(
            "undoes a volume without the look for VolumeAttachments",
            attached_unsaved(0),
            Flaw::NoLookForAttachments,
            &[NOT_ATTACHED],
        ),
        wrong("believes any 404", mistake(1), Flaw::LiesAreBelieved, &[NOT_CLAIMED]),
        wrong(
            "takes what it does not know for gone",
            unlisted_attachment(0),
            Flaw::UnknownIsGone,
            &[NOT_ATTACHED],
        ),
        wrong(
            "deletes a PersistentVolume by its name alone",
            made_again(0),
            Flaw::DeletesByName,
            &[SAME],
        ),
        wrong(
            "takes the node off a claim while the outcome of a call is unknown",
            answers(node_gone(1)),
            Flaw::ReschedulesUncertain,
            &[PLACED],
        ),
        wrong(
            "repeats a call for the node that is selected now",
            answers(moved(1)),
            Flaw::FollowsNode,
            &[SAME_PLACE],
        ),
    ]
}
