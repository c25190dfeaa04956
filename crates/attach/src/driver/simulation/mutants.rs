//! Wrong operators, each of which the simulation must find.

use csi_attacher_model::attempt;
use jiff::Timestamp;

use std::cell::Cell;

use super::super::Rules;
use super::backend::{Call, Pair};
use super::cluster::{Kind, text};
use super::invariants::{
    ALLOWED_SECRET, ATTACHED_IS_PROTECTED, ATTACHED_IS_PUBLISHED, ATTACHED_WITHOUT_ERROR, ATTACHES, CLAIMED_FIRST,
    DETACHED_AND_GONE, FOREIGN_PARTS, HELD_WHILE_PUBLISHED, NAMED, NO_BUSY_LOOP, NO_FORGOTTEN_WAIT,
    NO_LIST_FOR_A_STALL, NOT_HELD_BACK, NOT_UNDER_A_LIVE_ONE, NOTHING_LEFT, ONCE_CLAIMED, ONE_AT_A_TIME, ONE_LEADER,
    ONLY_WITH_THE_LEASE, PROTECTED_FIRST, PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED, PUBLISHED_FIRST,
    QUICK_BESIDE_SLOW, RELEASED_FIRST, RIGHT_CONTEXT, RIGHT_DRIVER, RIGHT_REQUEST, RIGHT_SECRET, TAKEN_BACK,
    VOLUME_GOES, WANTED,
};
use super::objects::claim_of;
use super::scenario::KindOfWorld;
use super::world::State;
use super::wrong_rules::{
    believe_failure, forget_driver, forget_former, forget_node_id, forget_read_only, forget_success, forget_twin,
    forget_version, forget_volume_deletion, keep_context, keep_error, lose_context, nameless, release_early,
    release_named, replace_finalizers, replace_when_adding, settle_nameless, skip_claim, skip_protection, status_first,
    take_all_finalizers, trust_not_found, trust_status,
};
use crate::reflect::TableRules;

use crate::cache::{AttacherKey, CacheChange, CacheRules};
use crate::decide::{self, Action, Observed, Outcome, Write};
use csi_attacher_kube::lease::LeaseRules;

thread_local! {
    static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
}

/// What is left out of an operator at the place where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Calls are made without a look at the Lease.
    Unfenced,
    /// Who creates a Lease works at once.
    Hasty,
    /// CLOCK_BOOTTIME is not looked at.
    OneClock,
    /// Whatever says 404 is believed.
    Believing,
    /// What is known gives way to greater versions only, also in a list.
    Forward,
    /// A driver that has lost the calls never needed any.
    Unattached,
    /// A page of ListVolumes that fails is taken for the last one.
    HalfListed,
    /// No Secret is sent.
    Secretless,
    /// Any Secret is sent that a PersistentVolume names.
    Generous,
    /// A watch that broke is gone on with.
    Resuming,
    /// An answer counts as what the watch has told up to its version.
    Ahead,
    /// The requests of all drivers stand in one line.
    OneLine,
    /// A connection that is silent for a moment counts as dead.
    Impatient,
}

/// Whether the operators of this thread have a flaw.
pub fn has_flaw(flaw: Flaw) -> bool {
    FLAW.get() == Some(flaw)
}

/// What is wrong with an operator; nothing, by default.
#[derive(Clone, Copy, Default)]
pub struct Mutant {
    pub rules: Option<Rules>,
    /// Changes that the store tells of, when these are not all.
    pub tells: Option<fn(&CacheChange) -> bool>,
    /// Calls that are not made and count as answered OK.
    pub omits: Option<fn(&State, Call, &Pair) -> bool>,
    /// What it sends instead of a place.
    pub resends: Option<fn(&State, Call, &mut Pair)>,
    /// It retries without a pause.
    pub restless: bool,
    /// It takes over with the cache that it has.
    pub stale: bool,
    /// A process more than there may be.
    pub double: bool,
    pub flaw: Option<Flaw>,
}

/// The rules of a mutant are in effect on this thread until it is dropped.
pub struct InEffect;

impl Mutant {
    /// By which Leases are judged.
    pub fn lease_rules(&self) -> LeaseRules {
        LeaseRules {
            creators_wait: self.flaw != Some(Flaw::Hasty),
            calls_need_the_lease: self.flaw != Some(Flaw::Unfenced),
        }
    }

    /// By which copies are taken in and told of.
    pub fn cache_rules(&self) -> CacheRules {
        let right = CacheRules::default();
        CacheRules {
            dispatches: self.tells.unwrap_or(right.dispatches),
            lists_anew: !self.stale,
            tables: TableRules {
                lists_replace: self.flaw != Some(Flaw::Forward),
                answers_count_as_watch: self.flaw == Some(Flaw::Ahead),
                ..right.tables
            },
        }
    }

    pub fn take_effect(&self) -> InEffect {
        FLAW.set(self.flaw);
        InEffect
    }
}

impl Drop for InEffect {
    fn drop(&mut self) {
        FLAW.set(None);
    }
}

/// A mutant to be caught.
pub struct Wrong {
    /// What is wrong with it.
    pub what: &'static str,
    pub mutant: Mutant,
    /// The invariants that it violates, each of which is as good.
    pub violates: &'static [&'static str],
    /// In which worlds it must be caught.
    pub world: KindOfWorld,
    /// Within how many histories it must be caught.
    pub budget: u64,
}

/// Histories that are enough for most mutants.
const ENOUGH: u64 = 20_000;

fn wrong(what: &'static str, mutant: Mutant, violates: &'static [&'static str]) -> Wrong {
    Wrong {
        what,
        mutant,
        violates,
        world: KindOfWorld::Any,
        budget: ENOUGH,
    }
}

/// All mutants.
pub fn all() -> Vec<Wrong> {
    let mut all = mistaken();
    all.extend(forgetful());
    all.extend(careless());
    all.extend(flawed());
    all
}

/// Those that decide wrongly.
fn mistaken() -> Vec<Wrong> {
    vec![
        wrong(
            "drops the finalizer when Unpublish fails",
            settling(release_early),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "takes NOT_FOUND for detached",
            settling(trust_not_found),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "records detached before it drops the finalizer",
            settling(status_first),
            &[RELEASED_FIRST],
        ),
        wrong(
            "lets go without Unpublish when it was never attached",
            deciding(trust_status),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong("skips the claim", deciding(skip_claim), &[CLAIMED_FIRST]),
        wrong(
            "skips protecting the PersistentVolume",
            deciding(skip_protection),
            &[PROTECTED_FIRST],
        ),
        wrong(
            "publishes from a PersistentVolume that is being deleted",
            deciding(forget_volume_deletion),
            &[WANTED],
        ),
        wrong(
            "claims without noting the node ID",
            deciding(forget_node_id),
            &[CLAIMED_FIRST],
        ),
        wrong(
            "forgets former places when it claims anew",
            deciding(forget_former),
            &[HELD_WHILE_PUBLISHED, NOTHING_LEFT],
        ),
        Wrong {
            world: KindOfWorld::OtherIdentities,
            ..wrong(
                "goes by the name of a PersistentVolume",
                deciding(go_by_the_name),
                &[ONCE_CLAIMED, CLAIMED_FIRST],
            )
        },
        Wrong {
            world: KindOfWorld::OtherIdentities,
            ..wrong(
                "sends a node ID that somebody has blanked",
                Mutant {
                    resends: Some(blanked),
                    ..Mutant::default()
                },
                &[NAMED],
            )
        },
        wrong(
            "releases a PersistentVolume that is named",
            Mutant {
                rules: Some(Rules {
                    volume: release_named,
                    ..Rules::default()
                }),
                ..Mutant::default()
            },
            &[PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED],
        ),
        wrong(
            "writes to whatever has the name now",
            Mutant {
                rules: Some(by(attempt::Rules {
                    attachment: nameless,
                    settle: settle_nameless,
                })),
                ..Mutant::default()
            },
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
            settling(take_all_finalizers),
            &[FOREIGN_PARTS],
        ),
        wrong(
            "replaces the finalizers by what it knows of them",
            Mutant {
                rules: Some(by(attempt::Rules {
                    attachment: replace_when_adding,
                    settle: replace_finalizers,
                })),
                ..Mutant::default()
            },
            &[FOREIGN_PARTS],
        ),
        wrong(
            "detaches what another attachment of the volume uses",
            deciding(forget_twin),
            &[NOT_UNDER_A_LIVE_ONE],
        ),
        wrong(
            "sends another request than the PersistentVolume asks for",
            deciding(forget_read_only),
            &[RIGHT_REQUEST],
        ),
    ]
}

/// Those that record wrongly.
fn forgetful() -> Vec<Wrong> {
    vec![
        wrong(
            "does not record what it has attached",
            settling(forget_success),
            &[ATTACHES],
        ),
        wrong(
            "records as attached what it could not attach",
            settling(believe_failure),
            &[PUBLISHED_FIRST, ATTACHED_IS_PUBLISHED],
        ),
        wrong(
            "leaves the error of an earlier try on what it has attached",
            settling(keep_error),
            &[ATTACHED_WITHOUT_ERROR],
        ),
        wrong("loses the publish context", settling(lose_context), &[RIGHT_CONTEXT]),
        wrong(
            "keeps keys of an older publish context",
            settling(keep_context),
            &[RIGHT_CONTEXT],
        ),
    ]
}

/// Those whose decisions are right.
fn careless() -> Vec<Wrong> {
    let telling = |tells: fn(&CacheChange) -> bool| Mutant {
        tells: Some(tells),
        ..Mutant::default()
    };
    let omits = |omits: fn(&State, Call, &Pair) -> bool| Mutant {
        omits: Some(omits),
        ..Mutant::default()
    };
    vec![
        wrong(
            "forgets to look again when a CSINode changes",
            telling(|change| change.own.is_some()),
            &[ATTACHES, DETACHED_AND_GONE],
        ),
        wrong(
            "forgets to look again when a PersistentVolume changes",
            telling(|change| !matches!(change.own, Some((AttacherKey::Volume(_), _)))),
            &[ATTACHES, VOLUME_GOES],
        ),
        wrong(
            "forgets the PersistentVolume when an attachment goes",
            telling(|change| change.gone.is_none()),
            &[VOLUME_GOES, ATTACHES],
        ),
        wrong(
            "forgets to take back a volume whose attachment vanished",
            omits(compensates),
            &[TAKEN_BACK, NOTHING_LEFT],
        ),
        wrong(
            "retries without a pause",
            Mutant {
                restless: true,
                ..Mutant::default()
            },
            &[NO_BUSY_LOOP],
        ),
        Wrong {
            world: KindOfWorld::LateSuccessors,
            ..wrong(
                "takes over with a cache that may be stale",
                Mutant {
                    stale: true,
                    ..Mutant::default()
                },
                &[
                    WANTED,
                    PROTECTED_WHILE_PUBLISHED,
                    PROTECTED_WHILE_NAMED,
                    NOT_UNDER_A_LIVE_ONE,
                    HELD_WHILE_PUBLISHED,
                ],
            )
        },
        wrong(
            "works beside another replica",
            Mutant {
                double: true,
                ..Mutant::default()
            },
            &[ONE_AT_A_TIME],
        ),
    ]
}

/// Those that leave out one rule.
fn flawed() -> Vec<Wrong> {
    vec![
        wrong(
            "calls without a look at the Lease",
            with(Flaw::Unfenced),
            &[ONLY_WITH_THE_LEASE],
        ),
        wrong(
            "works at once where it has created the Lease",
            with(Flaw::Hasty),
            &[ONE_LEADER],
        ),
        Wrong {
            budget: 100_000,
            ..wrong(
                "does not know that its machine was suspended",
                with(Flaw::OneClock),
                &[ONLY_WITH_THE_LEASE],
            )
        },
        wrong(
            "believes whatever says 404",
            with(Flaw::Believing),
            &[NOT_UNDER_A_LIVE_ONE, PROTECTED_WHILE_NAMED, DETACHED_AND_GONE, ATTACHES],
        ),
        wrong(
            "never goes back to an older version",
            with(Flaw::Forward),
            &[ATTACHES, DETACHED_AND_GONE, ATTACHED_IS_PROTECTED],
        ),
        wrong(
            "goes on with a watch that broke",
            with(Flaw::Resuming),
            &[ATTACHES, DETACHED_AND_GONE, ATTACHED_IS_PROTECTED],
        ),
        wrong(
            "takes an answer for all that the watch has told up to it",
            with(Flaw::Ahead),
            &[NOT_HELD_BACK],
        ),
        Wrong {
            world: KindOfWorld::SlowRequests,
            ..wrong(
                "lets the requests of all drivers wait in one line",
                with(Flaw::OneLine),
                &[QUICK_BESIDE_SLOW],
            )
        },
        Wrong {
            world: KindOfWorld::Stalls,
            ..wrong(
                "lists everything again after a stall of two seconds",
                with(Flaw::Impatient),
                &[NO_LIST_FOR_A_STALL],
            )
        },
        wrong(
            "takes an attachment without its annotation for one that was never attached",
            deciding(trust_the_note),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "releases without a call when the driver has lost PUBLISH_UNPUBLISH",
            with(Flaw::Unattached),
            &[HELD_WHILE_PUBLISHED],
        ),
        wrong(
            "takes half a listing for a whole one",
            with(Flaw::HalfListed),
            &[WANTED],
        ),
        wrong("sends no Secret", with(Flaw::Secretless), &[RIGHT_SECRET]),
        wrong(
            "sends any Secret that a PersistentVolume names",
            with(Flaw::Generous),
            &[ALLOWED_SECRET],
        ),
        wrong(
            "forgets a wait when the attachment goes",
            forgets_attachments(),
            &[NO_FORGOTTEN_WAIT],
        ),
        wrong(
            "writes what an attach came to over whatever is there now",
            settling(forget_version),
            &[
                PUBLISHED_FIRST,
                ATTACHED_WITHOUT_ERROR,
                ATTACHED_IS_PUBLISHED,
                ATTACHES,
                RIGHT_CONTEXT,
            ],
        ),
        wrong(
            "serves volumes of other drivers",
            deciding(forget_driver),
            &[RIGHT_DRIVER],
        ),
    ]
}

/// It does not look again when an attachment goes.
pub(super) fn forgets_attachments() -> Mutant {
    Mutant {
        tells: Some(|change| change.gone.is_none()),
        ..Mutant::default()
    }
}

pub(super) fn with(flaw: Flaw) -> Mutant {
    Mutant {
        flaw: Some(flaw),
        ..Mutant::default()
    }
}

/// An operator whose attempts go by these rules.
fn by(attempt: attempt::Rules) -> Rules {
    Rules {
        attempt,
        ..Rules::default()
    }
}

fn settling(settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>) -> Mutant {
    Mutant {
        rules: Some(by(attempt::Rules {
            settle,
            ..attempt::Rules::default()
        })),
        ..Mutant::default()
    }
}

pub(super) fn deciding(attachment: for<'a> fn(&Observed<'a>) -> Action<'a>) -> Mutant {
    Mutant {
        rules: Some(by(attempt::Rules {
            attachment,
            ..attempt::Rules::default()
        })),
        ..Mutant::default()
    }
}

/// An Unpublish that no attachment asks for.
fn compensates(state: &State, call: Call, pair: &Pair) -> bool {
    let mut attachments = state.cluster.all(Kind::Attachment);
    call == Call::Unpublish && !attachments.any(|object| claim_of(object).is_some_and(|(claimed, _)| claimed == *pair))
}

/// What is written in the annotation of the attachment, whatever it is; the operator itself has no type for such a place.
fn blanked(state: &State, call: Call, place: &mut Pair) {
    let mut attachments = state.cluster.all(Kind::Attachment);
    let is_blank = attachments.any(|object| {
        let note = text(object, "/metadata/annotations/attacher.csi.dev~1volume");
        note.contains(&place.volume) && state.unnoted.contains(text(object, "/metadata/uid"))
    });
    if call == Call::Unpublish && is_blank {
        place.node.clear();
    }
}

/// The PersistentVolume alone says which volume is attached, as it does for the Go sidecar.
fn go_by_the_name<'a>(observed: &Observed<'a>) -> Action<'a> {
    let mut attachment = observed.attachment.clone();
    (attachment.volume_note, attachment.created) = (None, None);
    decide::attachment(&Observed {
        attachment: Box::leak(Box::new(attachment)),
        ..*observed
    })
}

/// Its own annotation alone says that a volume may be published, which the sidecar does not write.
fn trust_the_note<'a>(observed: &Observed<'a>) -> Action<'a> {
    let attachment = observed.attachment;
    let release = decide::patch::release(attachment, &observed.driver.finalizer);
    match release {
        Some(write) if attachment.deleting.is_some() && attachment.volume_note.is_none() => Action::Release(write),
        _ => decide::attachment(observed),
    }
}
