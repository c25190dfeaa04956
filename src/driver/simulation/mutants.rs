//! Wrong operators, each of which the simulation must find.

use jiff::Timestamp;
use serde_json::{Value, json};

use std::cell::Cell;

use super::backend::{Call, Pair};
use super::cluster::Kind;
use super::invariants::{
    ALLOWED_SECRET, ATTACHED_IS_PROTECTED, ATTACHED_IS_PUBLISHED, ATTACHED_WITHOUT_ERROR, ATTACHES, CLAIMED_FIRST,
    DETACHED_AND_GONE, FOREIGN_PARTS, HELD_WHILE_PUBLISHED, NO_BUSY_LOOP, NO_FORGOTTEN_WAIT, NOT_UNDER_A_LIVE_ONE,
    NOTHING_LEFT, ONE_AT_A_TIME, ONE_PLACE_OF_THE_LEASE, ONLY_WITH_THE_LEASE, PROTECTED_FIRST, PROTECTED_WHILE_NAMED,
    PROTECTED_WHILE_PUBLISHED, PUBLISHED_FIRST, RELEASED_FIRST, RIGHT_CONTEXT, RIGHT_DRIVER, RIGHT_REQUEST,
    RIGHT_SECRET, TAKEN_BACK, VOLUME_GOES, WANTED,
};
use super::objects::claim_of;
use super::world::State;
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::patch::{self, Form, Target};
use crate::decide::{self, Action, DriverFacts, Failure, NodeEntry, Observed, Outcome, VolumeAction, Write};
use crate::driver::rules::Rules;
use crate::objects::{Attachment, Finalizers, StringMap, Volume, VolumeNote, VolumeSource, VolumeSpec};
use crate::store::Change;

thread_local! {
    static RULES: Cell<Option<Rules>> = const { Cell::new(None) };
    static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
}

/// What is left out of an operator at the place where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Calls are made without a look at the Lease.
    Unfenced,
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
    /// Nobody waits for the former place of the Lease.
    Hasty,
}

/// Whether the operators of this thread have a flaw.
pub fn has_flaw(flaw: Flaw) -> bool {
    FLAW.get() == Some(flaw)
}

/// The rules of the operators of this thread, if they are wrong ones.
pub fn mutant_rules() -> Option<Rules> {
    RULES.get()
}

/// What is wrong with an operator; nothing, by default.
#[derive(Clone, Copy, Default)]
pub struct Mutant {
    pub rules: Option<Rules>,
    /// Changes that the store takes in without telling anybody.
    pub deaf: Option<fn(&Change) -> bool>,
    /// Calls that are not made and count as answered OK.
    pub omits: Option<fn(&State, Call, &Pair) -> bool>,
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
    pub fn take_effect(&self) -> InEffect {
        RULES.set(self.rules);
        FLAW.set(self.flaw);
        InEffect
    }
}

impl Drop for InEffect {
    fn drop(&mut self) {
        RULES.set(None);
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
                rules: Some(Rules {
                    attachment: nameless,
                    settle: settle_nameless,
                    ..Rules::default()
                }),
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
        Wrong {
            budget: 100_000,
            ..wrong(
                "replaces the finalizers by what it knows of them",
                settling(replace_finalizers),
                &[FOREIGN_PARTS],
            )
        },
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
    let deaf = |ignores: fn(&Change) -> bool| Mutant {
        deaf: Some(ignores),
        ..Mutant::default()
    };
    let omits = |omits: fn(&State, Call, &Pair) -> bool| Mutant {
        omits: Some(omits),
        ..Mutant::default()
    };
    vec![
        wrong(
            "forgets to look again when a CSINode changes",
            deaf(|change| matches!(change, Change::Node { .. })),
            &[ATTACHES, DETACHED_AND_GONE],
        ),
        wrong(
            "forgets to look again when a PersistentVolume changes",
            deaf(|change| matches!(change, Change::Volume { .. })),
            &[ATTACHES, VOLUME_GOES],
        ),
        wrong(
            "forgets the PersistentVolume when an attachment goes",
            deaf(|change| matches!(change, Change::AttachmentGone { .. })),
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
        wrong(
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
        ),
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
            "works under the new place of the Lease at once",
            with(Flaw::Hasty),
            &[ONE_PLACE_OF_THE_LEASE],
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
        deaf: Some(|change| matches!(change, Change::AttachmentGone { .. })),
        ..Mutant::default()
    }
}

pub(super) fn with(flaw: Flaw) -> Mutant {
    Mutant {
        flaw: Some(flaw),
        ..Mutant::default()
    }
}

pub(super) fn settling(settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>) -> Mutant {
    Mutant {
        rules: Some(Rules {
            settle,
            ..Rules::default()
        }),
        ..Mutant::default()
    }
}

pub(super) fn deciding(attachment: for<'a> fn(&Observed<'a>) -> Action<'a>) -> Mutant {
    Mutant {
        rules: Some(Rules {
            attachment,
            ..Rules::default()
        }),
        ..Mutant::default()
    }
}

fn release_early(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::DetachFailed(_) => decide::settle(observed, &Outcome::Unpublished, now),
        outcome => decide::settle(observed, outcome, now),
    }
}

fn trust_not_found(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::DetachFailed(Failure { code: Some(5), .. }) => decide::settle(observed, &Outcome::Unpublished, now),
        outcome => decide::settle(observed, outcome, now),
    }
}

fn status_first(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    writes.reverse();
    writes
}

fn forget_success(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::Published(_) => Vec::new(),
        outcome => decide::settle(observed, outcome, now),
    }
}

fn trust_status<'a>(observed: &Observed<'a>) -> Action<'a> {
    let attachment = observed.attachment;
    let release = patch::release(attachment, &observed.driver.finalizer);
    match release {
        Some(write) if attachment.deleting.is_some() && !attachment.attached => Action::Release(write),
        _ => decide::attachment(observed),
    }
}

/// A decision may point into what it was made from, which for a mutant is made up. The few bytes stay until the end.
fn with_attachment<'a>(observed: &Observed<'a>, change: impl FnOnce(&mut Attachment)) -> Observed<'a> {
    let mut attachment = observed.attachment.clone();
    change(&mut attachment);
    Observed {
        attachment: Box::leak(Box::new(attachment)),
        ..*observed
    }
}

fn with_volume<'a>(observed: &Observed<'a>, change: impl FnOnce(&mut Volume)) -> Observed<'a> {
    let volume = observed.volume.map(|volume| {
        let mut volume = volume.clone();
        change(&mut volume);
        &*Box::leak(Box::new(volume))
    });
    Observed { volume, ..*observed }
}

fn and_ours(finalizers: &Finalizers, driver: &DriverFacts) -> Finalizers {
    Finalizers::new(finalizers.iter().chain([&*driver.finalizer]))
}

fn skip_claim<'a>(observed: &Observed<'a>) -> Action<'a> {
    let action = decide::attachment(observed);
    let (Action::Claim(_), NodeEntry::Registered(id)) = (&action, observed.node) else {
        return action;
    };
    let source = match (&observed.attachment.source, observed.volume) {
        (crate::objects::Source::Inline(spec), _) => spec.csi(),
        (_, volume) => volume.map(|volume| &volume.spec).and_then(VolumeSpec::csi),
    };
    let Some(source) = source else { return action };
    let claimed = with_attachment(observed, |attachment| {
        attachment.finalizers = and_ours(&attachment.finalizers, observed.driver);
        attachment.node_id = Some(id.into());
        attachment.volume_note = Some(Box::new(VolumeNote {
            handle: source.handle.clone(),
            secret: None,
            former: Vec::new(),
        }));
    });
    decide::attachment(&claimed)
}

fn skip_protection<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::ProtectVolume(_) => decide::attachment(&with_volume(observed, |volume| {
            volume.finalizers = and_ours(&volume.finalizers, observed.driver);
        })),
        action => action,
    }
}

fn forget_volume_deletion<'a>(observed: &Observed<'a>) -> Action<'a> {
    decide::attachment(&with_volume(observed, |volume| volume.deleting = false))
}

fn forget_node_id<'a>(observed: &Observed<'a>) -> Action<'a> {
    let known = match observed.node {
        NodeEntry::Registered(id) if observed.attachment.volume_note.is_some() => Some(id),
        _ => observed.attachment.node_id.as_deref(),
    };
    let observed = with_attachment(observed, |attachment| attachment.node_id = known.map(Into::into));
    match decide::attachment(&observed) {
        Action::Claim(write) => Action::Claim(without_annotation(write, NODE_ID_ANNOTATION)),
        action => action,
    }
}

fn without_annotation(mut write: Write, key: &str) -> Write {
    let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
    if let Some(operations) = write.body.as_array_mut() {
        operations.retain(|operation| operation["path"] != path.as_str());
        for operation in operations {
            if let Some(both) = operation["value"].as_object_mut() {
                both.remove(key);
            }
        }
    }
    write
}

pub(super) fn forget_former<'a>(observed: &Observed<'a>) -> Action<'a> {
    let Action::Claim(mut write) = decide::attachment(observed) else {
        return decide::attachment(observed);
    };
    let path = format!("/metadata/annotations/{}", VOLUME_ANNOTATION.replace('/', "~1"));
    let operations = write.body.as_array_mut().into_iter().flatten();
    for operation in operations.filter(|operation| operation["path"] == path.as_str()) {
        let note: Option<Value> = operation["value"]
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        if let Some(mut note) = note {
            note.as_object_mut().map(|note| note.remove("former"));
            operation["value"] = note.to_string().into();
        }
    }
    Action::Claim(write)
}

fn release_named(volume: &Volume, _attachments: usize, driver: &DriverFacts) -> VolumeAction {
    decide::volume(volume, 0, driver)
}

fn nameless<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::Claim(write) => Action::Claim(without_uid(write)),
        Action::ProtectVolume(write) => Action::ProtectVolume(without_uid(write)),
        action => action,
    }
}

fn settle_nameless(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    decide::settle(observed, outcome, now)
        .into_iter()
        .map(without_uid)
        .collect()
}

fn without_uid(mut write: Write) -> Write {
    match &mut write.body {
        Value::Array(operations) => operations.retain(|operation| operation["path"] != "/metadata/uid"),
        body => body["metadata"] = json!({}),
    }
    write
}

fn take_all_finalizers(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if matches!(write.target, Target::Attachment(_)) {
            write.form = Form::Merge;
            write.body = json!({"metadata": {"uid": &*observed.attachment.uid, "finalizers": null}});
        }
    }
    writes
}

/// What the Go sidecar does: the whole list, from a copy that may be stale.
fn replace_finalizers(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let attachment = observed.attachment;
    let left = attachment.finalizers.iter();
    let left: Vec<&str> = left.filter(|entry| **entry != *observed.driver.finalizer).collect();
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if matches!(write.target, Target::Attachment(_)) {
            write.form = Form::Merge;
            write.body = json!({"metadata": {"uid": &*attachment.uid, "finalizers": left}});
        }
    }
    writes
}

pub(super) fn forget_twin<'a>(observed: &Observed<'a>) -> Action<'a> {
    let alone = decide::Neighbours {
        here: Vec::new(),
        ..observed.neighbours.clone()
    };
    decide::attachment(&Observed {
        neighbours: Box::leak(Box::new(alone)),
        ..*observed
    })
}

fn forget_read_only<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::Publish(mut plan) => {
            plan.read_only = false;
            Action::Publish(plan)
        }
        action => action,
    }
}

fn believe_failure(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::AttachFailed(Failure { code: Some(_), .. }) => vec![patch::attached(observed.attachment, None)],
        outcome => decide::settle(observed, outcome, now),
    }
}

fn keep_error(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    if matches!(outcome, Outcome::Published(_)) {
        for write in &mut writes {
            write.body["status"]
                .as_object_mut()
                .map(|status| status.remove("attachError"));
        }
    }
    writes
}

fn lose_context(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::Published(_) => vec![patch::attached(observed.attachment, None)],
        outcome => decide::settle(observed, outcome, now),
    }
}

fn keep_context(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let fresh = with_attachment(observed, |attachment| attachment.publish_context = StringMap::default());
    decide::settle(&fresh, outcome, now)
}

pub(super) fn forget_version(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if let Some(metadata) = write.body["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
    }
    writes
}

fn forget_driver<'a>(observed: &Observed<'a>) -> Action<'a> {
    let name = observed.driver.name.clone();
    decide::attachment(&with_volume(observed, |volume| {
        if let VolumeSource::Csi(source) = &mut volume.spec.source {
            source.driver = name;
        }
    }))
}

/// An Unpublish that no attachment asks for.
fn compensates(state: &State, call: Call, pair: &Pair) -> bool {
    let mut attachments = state.cluster.all(Kind::Attachment);
    call == Call::Unpublish && !attachments.any(|object| claim_of(object).is_some_and(|(claimed, _)| claimed == *pair))
}
