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
    /// The history from which on it is looked for: a little before the first that catches it, where that takes thousands.
    pub from: u64,
    /// Within how many histories it must be caught.
    pub budget: u64,
}

/// Histories that are enough for most mutants.
const ENOUGH: u64 = 20_000;

fn wrong(what: &'static str) -> Wrong {
    Wrong {
        what,
        mutant: Mutant::default(),
        violates: &[],
        world: KindOfWorld::Any,
        from: 1,
        budget: ENOUGH,
    }
}

impl Wrong {
    fn in_world(self, world: KindOfWorld) -> Self {
        Self { world, ..self }
    }

    fn from(self, from: u64) -> Self {
        Self { from, ..self }
    }

    fn violates(self, mutant: Mutant, violates: &'static [&'static str]) -> Self {
        Self {
            mutant,
            violates,
            ..self
        }
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
        wrong("drops the finalizer when Unpublish fails").violates(settling(release_early), &[HELD_WHILE_PUBLISHED]),
        wrong("takes NOT_FOUND for detached").violates(settling(trust_not_found), &[HELD_WHILE_PUBLISHED]),
        wrong("records detached before it drops the finalizer").violates(settling(status_first), &[RELEASED_FIRST]),
        wrong("lets go without Unpublish when it was never attached")
            .violates(deciding(trust_status), &[HELD_WHILE_PUBLISHED]),
        wrong("skips the claim").violates(deciding(skip_claim), &[CLAIMED_FIRST]),
        wrong("skips protecting the PersistentVolume").violates(deciding(skip_protection), &[PROTECTED_FIRST]),
        wrong("publishes from a PersistentVolume that is being deleted")
            .violates(deciding(forget_volume_deletion), &[WANTED]),
        wrong("claims without noting the node ID").violates(deciding(forget_node_id), &[CLAIMED_FIRST]),
        wrong("forgets former places when it claims anew")
            .from(4_550)
            .violates(deciding(forget_former), &[HELD_WHILE_PUBLISHED, NOTHING_LEFT]),
        wrong("goes by the name of a PersistentVolume")
            .in_world(KindOfWorld::OtherIdentities)
            .violates(deciding(go_by_the_name), &[ONCE_CLAIMED, CLAIMED_FIRST]),
        wrong("sends a node ID that somebody has blanked")
            .in_world(KindOfWorld::OtherIdentities)
            .violates(with_change(|it| it.resends = Some(blanked)), &[NAMED]),
        wrong("releases a PersistentVolume that is named")
            .violates(releases_named(), &[PROTECTED_WHILE_NAMED, PROTECTED_WHILE_PUBLISHED]),
        wrong("writes to whatever has the name now").violates(
            by(nameless, settle_nameless),
            &[
                PUBLISHED_FIRST,
                HELD_WHILE_PUBLISHED,
                RIGHT_CONTEXT,
                RELEASED_FIRST,
                CLAIMED_FIRST,
            ],
        ),
        wrong("takes the finalizers of others off with its own")
            .violates(settling(take_all_finalizers), &[FOREIGN_PARTS]),
        wrong("replaces the finalizers by what it knows of them")
            .violates(by(replace_when_adding, replace_finalizers), &[FOREIGN_PARTS]),
        wrong("detaches what another attachment of the volume uses")
            .violates(deciding(forget_twin), &[NOT_UNDER_A_LIVE_ONE]),
        wrong("sends another request than the PersistentVolume asks for")
            .violates(deciding(forget_read_only), &[RIGHT_REQUEST]),
    ]
}

/// Those that record wrongly.
fn forgetful() -> Vec<Wrong> {
    vec![
        wrong("does not record what it has attached").violates(settling(forget_success), &[ATTACHES]),
        wrong("records as attached what it could not attach")
            .violates(settling(believe_failure), &[PUBLISHED_FIRST, ATTACHED_IS_PUBLISHED]),
        wrong("leaves the error of an earlier try on what it has attached")
            .violates(settling(keep_error), &[ATTACHED_WITHOUT_ERROR]),
        wrong("loses the publish context").violates(settling(lose_context), &[RIGHT_CONTEXT]),
        wrong("keeps keys of an older publish context").violates(settling(keep_context), &[RIGHT_CONTEXT]),
    ]
}

/// Those whose decisions are right.
fn careless() -> Vec<Wrong> {
    let telling = |tells: fn(&CacheChange) -> bool| with_change(|it| it.tells = Some(tells));
    let omitting = |omits: fn(&State, Call, &Pair) -> bool| with_change(|it| it.omits = Some(omits));
    vec![
        wrong("forgets to look again when a CSINode changes")
            .violates(telling(|change| change.own.is_some()), &[ATTACHES, DETACHED_AND_GONE]),
        wrong("forgets to look again when a PersistentVolume changes").violates(
            telling(|change| !matches!(change.own, Some((AttacherKey::Volume(_), _)))),
            &[ATTACHES, VOLUME_GOES],
        ),
        wrong("forgets the PersistentVolume when an attachment goes")
            .violates(forgets_attachments(), &[VOLUME_GOES, ATTACHES]),
        wrong("forgets to take back a volume whose attachment vanished")
            .violates(omitting(compensates), &[TAKEN_BACK, NOTHING_LEFT]),
        wrong("retries without a pause").violates(with_change(|it| it.restless = true), &[NO_BUSY_LOOP]),
        wrong("takes over with a cache that may be stale")
            .in_world(KindOfWorld::LateSuccessors)
            .from(4_550)
            .violates(
                stale(),
                &[
                    WANTED,
                    PROTECTED_WHILE_PUBLISHED,
                    PROTECTED_WHILE_NAMED,
                    NOT_UNDER_A_LIVE_ONE,
                    HELD_WHILE_PUBLISHED,
                ],
            ),
        wrong("works beside another replica").violates(with_change(|it| it.double = true), &[ONE_AT_A_TIME]),
    ]
}

/// Those that leave out one rule.
fn flawed() -> Vec<Wrong> {
    const STALE: &[&str] = &[ATTACHES, DETACHED_AND_GONE, ATTACHED_IS_PROTECTED];
    vec![
        wrong("calls without a look at the Lease")
            .from(4_400)
            .violates(with(Flaw::Unfenced), &[ONLY_WITH_THE_LEASE]),
        wrong("works at once where it has created the Lease").violates(with(Flaw::Hasty), &[ONE_LEADER]),
        Wrong {
            budget: 100_000,
            ..wrong("does not know that its machine was suspended")
                .from(10_850)
                .violates(with(Flaw::OneClock), &[ONLY_WITH_THE_LEASE])
        },
        wrong("believes whatever says 404").violates(
            with(Flaw::Believing),
            &[NOT_UNDER_A_LIVE_ONE, PROTECTED_WHILE_NAMED, DETACHED_AND_GONE, ATTACHES],
        ),
        wrong("never goes back to an older version").violates(with(Flaw::Forward), STALE),
        wrong("goes on with a watch that broke").violates(with(Flaw::Resuming), STALE),
        wrong("takes an answer for all that the watch has told up to it").violates(with(Flaw::Ahead), &[NOT_HELD_BACK]),
        wrong("lets the requests of all drivers wait in one line")
            .in_world(KindOfWorld::SlowRequests)
            .violates(with(Flaw::OneLine), &[QUICK_BESIDE_SLOW]),
        wrong("lists everything again after a stall of two seconds")
            .in_world(KindOfWorld::Stalls)
            .violates(with(Flaw::Impatient), &[NO_LIST_FOR_A_STALL]),
        wrong("takes an attachment without its annotation for one that was never attached")
            .violates(deciding(trust_the_note), &[HELD_WHILE_PUBLISHED]),
        wrong("releases without a call when the driver has lost PUBLISH_UNPUBLISH")
            .violates(with(Flaw::Unattached), &[HELD_WHILE_PUBLISHED]),
        wrong("takes half a listing for a whole one").violates(with(Flaw::HalfListed), &[WANTED]),
        wrong("sends no Secret").violates(with(Flaw::Secretless), &[RIGHT_SECRET]),
        wrong("sends any Secret that a PersistentVolume names").violates(with(Flaw::Generous), &[ALLOWED_SECRET]),
        wrong("forgets a wait when the attachment goes").violates(forgets_attachments(), &[NO_FORGOTTEN_WAIT]),
        wrong("writes what an attach came to over whatever is there now").violates(
            settling(forget_version),
            &[
                PUBLISHED_FIRST,
                ATTACHED_WITHOUT_ERROR,
                ATTACHED_IS_PUBLISHED,
                ATTACHES,
                RIGHT_CONTEXT,
            ],
        ),
        wrong("serves volumes of other drivers").violates(deciding(forget_driver), &[RIGHT_DRIVER]),
    ]
}

/// It does not look again when an attachment goes.
pub(super) fn forgets_attachments() -> Mutant {
    with_change(|mutant| mutant.tells = Some(|change| change.gone.is_none()))
}

pub(super) fn stale() -> Mutant {
    with_change(|mutant| mutant.stale = true)
}

pub(super) fn with(flaw: Flaw) -> Mutant {
    with_change(|mutant| mutant.flaw = Some(flaw))
}

fn with_change(change: impl FnOnce(&mut Mutant)) -> Mutant {
    let mut mutant = Mutant::default();
    change(&mut mutant);
    mutant
}

type Decide = for<'a> fn(&Observed<'a>) -> Action<'a>;
type Settle = fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>;

/// An operator whose attempts go by these rules.
fn by(attachment: Decide, settle: Settle) -> Mutant {
    let attempt = attempt::Rules { attachment, settle };
    with_change(|mutant| mutant.rules.get_or_insert_default().attempt = attempt)
}

fn settling(settle: Settle) -> Mutant {
    by(attempt::Rules::default().attachment, settle)
}

pub(super) fn deciding(attachment: Decide) -> Mutant {
    by(attachment, attempt::Rules::default().settle)
}

fn releases_named() -> Mutant {
    with_change(|mutant| mutant.rules.get_or_insert_default().volume = release_named)
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
