//! Wrong operators: those of the simulation that decide, write or lead wrongly. Each must be caught by a property that is about what it
//! does wrong, in a world of a few thousand states.

use csi_attacher_model::attempt;
use csi_attacher_model::decide::{self, Action, KeepReason, Observed, Outcome, UnpublishRequest, Write};
use jiff::Timestamp;

use super::Rules;
use super::invariants::{
    ATTACHED_IS_PROTECTED, ATTACHED_IS_PUBLISHED, ATTACHED_WITHOUT_ERROR, ATTACHES, CLAIMED_FIRST, DETACHED_AND_GONE,
    FOREIGN_PARTS, HELD_WHILE_PUBLISHED, NOT_UNDER_A_LIVE_ONE, NOTHING_LEFT, ONLY_WITH_THE_LEASE, PROTECTED_FIRST,
    PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED, PUBLISHED_FIRST, RELEASED_FIRST, RIGHT_CONTEXT, RIGHT_DRIVER,
    RIGHT_REQUEST, WANTED,
};
use super::world::Setting;
use super::worlds::{
    foreign_finalizers, late_contexts, lost_capability, lost_writes, of_another_driver, one_volume, reborn_node,
    shared_volume_in_deletion, twins, twins_and_a_crash, unprotected, volume_in_deletion,
};
use crate::explorer::Wrong;

#[path = "../../../../crates/attach/src/driver/simulation/wrong_rules.rs"]
#[allow(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "they are those of the simulation"
)]
mod wrong_rules;

use wrong_rules as rules;

type Decides = for<'a> fn(&Observed<'a>) -> Action<'a>;
type Settles = fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>;

/// One of the simulation, in its words.
fn wrong(what: &'static str, rules: Rules, world: Setting, violates: &'static [&'static str]) -> Wrong<Setting> {
    Wrong::new(what, Setting { rules, ..world }, violates)
}

fn by(attempt: attempt::Rules) -> Rules {
    Rules {
        attempt,
        ..Rules::default()
    }
}

fn deciding(attachment: Decides) -> Rules {
    by(attempt::Rules {
        attachment,
        ..attempt::Rules::default()
    })
}

fn settling(settle: Settles) -> Rules {
    by(attempt::Rules {
        settle,
        ..attempt::Rules::default()
    })
}

/// All of them.
pub fn all() -> Vec<Wrong<Setting>> {
    let mut all = mistaken();
    all.extend(writing());
    all.extend(forgetful());
    all.extend(careless());
    all
}

/// Those that decide wrongly.
fn mistaken() -> Vec<Wrong<Setting>> {
    let releasing: fn(
        &csi_attacher_model::objects::Volume,
        usize,
        &csi_attacher_model::decide::DriverFacts,
    ) -> Result<Write, KeepReason> = rules::release_named;
    vec![
        wrong(
            "lets go without Unpublish when it was never attached",
            deciding(rules::trust_status),
            one_volume(1),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "skips the claim",
            deciding(rules::skip_claim),
            one_volume(0),
            &[CLAIMED_FIRST],
        ),
        wrong(
            "skips protecting the PersistentVolume",
            deciding(rules::skip_protection),
            one_volume(0),
            &[PROTECTED_FIRST],
        ),
        wrong(
            "does not protect again the PersistentVolume of what is attached",
            deciding(rules::protect_once),
            unprotected(0),
            &[ATTACHED_IS_PROTECTED],
        ),
        wrong(
            "publishes from a PersistentVolume that is being deleted",
            deciding(rules::forget_volume_deletion),
            volume_in_deletion(0),
            &[WANTED],
        ),
        wrong(
            "claims without noting the node ID",
            deciding(rules::forget_node_id),
            one_volume(0),
            &[CLAIMED_FIRST],
        ),
        wrong(
            "forgets former places when it claims anew",
            deciding(rules::forget_former),
            reborn_node(1),
            &[HELD_WHILE_PUBLISHED, NOTHING_LEFT],
        ),
        wrong(
            "releases a PersistentVolume that is named",
            Rules {
                volume: releasing,
                ..Rules::default()
            },
            volume_in_deletion(0),
            &[PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED],
        ),
        wrong(
            "detaches what another attachment of the volume uses",
            deciding(rules::forget_twin),
            twins(0),
            &[NOT_UNDER_A_LIVE_ONE],
        ),
        wrong(
            "leaves a claim as it is for whose place it detaches",
            deciding(forget_renewal),
            twins_and_a_crash(),
            &[ATTACHED_IS_PUBLISHED, PUBLISHED_FIRST],
        ),
        wrong(
            "sends another request than the PersistentVolume asks for",
            deciding(rules::forget_read_only),
            one_volume(0),
            &[RIGHT_REQUEST],
        ),
        wrong(
            "serves volumes of other drivers",
            deciding(rules::forget_driver),
            of_another_driver(0),
            &[RIGHT_DRIVER],
        ),
    ]
}

/// Random histories find this one too seldom, so that the simulation does not have it.
fn forget_renewal<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::Unpublish(plan) => Action::Unpublish(UnpublishRequest {
            renew: Vec::new(),
            ..plan
        }),
        action => action,
    }
}

/// Those that write wrongly.
fn writing() -> Vec<Wrong<Setting>> {
    vec![
        wrong(
            "drops the finalizer when Unpublish fails",
            settling(rules::release_early),
            one_volume(1),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "takes NOT_FOUND for detached",
            settling(rules::trust_not_found),
            one_volume(1),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "records detached before it drops the finalizer",
            settling(rules::status_first),
            one_volume(0),
            &[RELEASED_FIRST],
        ),
        wrong(
            "writes to whatever has the name now",
            by(attempt::Rules {
                attachment: rules::nameless,
                settle: rules::settle_nameless,
            }),
            lost_writes(2),
            &[
                PUBLISHED_FIRST,
                HELD_WHILE_PUBLISHED,
                RIGHT_CONTEXT,
                RELEASED_FIRST,
                CLAIMED_FIRST,
            ],
        ),
        wrong(
            "takes the finalizers of others off with its own",
            settling(rules::take_all_finalizers),
            foreign_finalizers(0),
            &[FOREIGN_PARTS],
        ),
        wrong(
            "replaces the finalizers by what it knows of them",
            by(attempt::Rules {
                attachment: rules::replace_when_adding,
                settle: rules::replace_finalizers,
            }),
            foreign_finalizers(0),
            &[FOREIGN_PARTS],
        ),
        wrong(
            "writes what an attach came to over whatever is there now",
            settling(rules::forget_version),
            reborn_node(2),
            &[
                PUBLISHED_FIRST,
                ATTACHED_WITHOUT_ERROR,
                ATTACHED_IS_PUBLISHED,
                ATTACHES,
                RIGHT_CONTEXT,
            ],
        ),
    ]
}

/// Those that record wrongly.
fn forgetful() -> Vec<Wrong<Setting>> {
    vec![
        wrong(
            "does not record what it has attached",
            settling(rules::forget_success),
            one_volume(0),
            &[ATTACHES],
        ),
        wrong(
            "records as attached what it could not attach",
            settling(rules::believe_failure),
            one_volume(1),
            &[PUBLISHED_FIRST, ATTACHED_IS_PUBLISHED],
        ),
        wrong(
            "leaves the error of an earlier try on what it has attached",
            settling(rules::keep_error),
            one_volume(1),
            &[ATTACHED_WITHOUT_ERROR],
        ),
        wrong(
            "loses the publish context",
            settling(rules::lose_context),
            one_volume(0),
            &[RIGHT_CONTEXT],
        ),
        wrong(
            "keeps keys of an older publish context",
            settling(rules::keep_context),
            late_contexts(1),
            &[RIGHT_CONTEXT],
        ),
    ]
}

/// Those whose decisions are right.
fn careless() -> Vec<Wrong<Setting>> {
    vec![
        wrong(
            "makes calls without the Lease",
            Rules {
                unfenced: true,
                ..Rules::default()
            },
            one_volume(1),
            &[ONLY_WITH_THE_LEASE],
        ),
        wrong(
            "takes over with a cache that may be stale",
            Rules {
                stale: true,
                ..Rules::default()
            },
            shared_volume_in_deletion(2, 1),
            &[
                WANTED,
                PROTECTED_WHILE_PUBLISHED,
                PROTECTED_WHILE_NAMED,
                NOT_UNDER_A_LIVE_ONE,
            ],
        ),
        wrong(
            "believes a 404 about something else",
            Rules {
                believing: true,
                ..Rules::default()
            },
            one_volume(1),
            &[
                NOT_UNDER_A_LIVE_ONE,
                PROTECTED_WHILE_NAMED,
                DETACHED_AND_GONE,
                ATTACHES,
                HELD_WHILE_PUBLISHED,
            ],
        ),
        wrong(
            "releases without a call when the driver has lost PUBLISH_UNPUBLISH",
            Rules {
                unattached: true,
                ..Rules::default()
            },
            lost_capability(1),
            &[HELD_WHILE_PUBLISHED, PUBLISHED_FIRST],
        ),
    ]
}
