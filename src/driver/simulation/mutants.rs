//! Wrong operators, each of which the simulation must find.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::backend::{Call, Pair};
use super::check::claim_of;
use super::cluster::Kind;
use super::world::State;
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::patch::{self, Form, Target};
use crate::decide::{self, Action, DriverFacts, Failure, NodeEntry, Observed, Outcome, VolumeAction, Write};
use crate::driver::rules::Rules;
use crate::objects::{Attachment, Finalizers, Volume, VolumeNote, VolumeSpec};
use crate::store::Change;

/// What is wrong with an operator; nothing, by default.
#[derive(Clone, Copy, Default)]
pub struct Mutant {
    pub rules: Rules,
    /// Changes that the store takes in without telling anybody.
    pub deaf: Option<fn(&Change) -> bool>,
    /// Calls that are not made and count as answered OK.
    pub omits: Option<fn(&State, Call, &Pair) -> bool>,
    /// It retries without a pause.
    pub restless: bool,
    /// It takes over with the cache that it has.
    pub stale: bool,
    /// Two replicas work at once.
    pub double: bool,
}

/// All mutants with what is wrong with them.
pub fn all() -> Vec<(&'static str, Mutant)> {
    let mut all = mistaken();
    all.extend(careless());
    all
}

/// Those that decide wrongly.
fn mistaken() -> Vec<(&'static str, Mutant)> {
    let by = |rules: Rules| Mutant {
        rules,
        ..Mutant::default()
    };
    vec![
        ("drops the finalizer when Unpublish fails", by(settling(release_early))),
        ("takes NOT_FOUND for detached", by(settling(trust_not_found))),
        (
            "records detached before it drops the finalizer",
            by(settling(status_first)),
        ),
        (
            "lets go without Unpublish when it was never attached",
            by(deciding(trust_status)),
        ),
        ("skips the claim", by(deciding(skip_claim))),
        ("skips protecting the PersistentVolume", by(deciding(skip_protection))),
        ("does not record what it has attached", by(settling(forget_success))),
        (
            "publishes from a PersistentVolume that is being deleted",
            by(deciding(forget_volume_deletion)),
        ),
        ("claims without noting the node ID", by(deciding(forget_node_id))),
        ("forgets former places when it claims anew", by(deciding(forget_former))),
        (
            "releases a PersistentVolume that is named",
            by(Rules {
                volume: release_named,
                ..Rules::default()
            }),
        ),
        (
            "writes to whatever has the name now",
            by(Rules {
                attachment: nameless,
                settle: settle_nameless,
                ..Rules::default()
            }),
        ),
        (
            "takes the finalizers of others off with its own",
            by(settling(take_all_finalizers)),
        ),
    ]
}

/// Those whose decisions are right.
fn careless() -> Vec<(&'static str, Mutant)> {
    let deaf = |ignores: fn(&Change) -> bool| Mutant {
        deaf: Some(ignores),
        ..Mutant::default()
    };
    vec![
        (
            "forgets to look again when a CSINode changes",
            deaf(|change| matches!(change, Change::Node { .. })),
        ),
        (
            "forgets to look again when a PersistentVolume changes",
            deaf(|change| matches!(change, Change::Volume { .. })),
        ),
        (
            "forgets the PersistentVolume when an attachment goes",
            deaf(|change| matches!(change, Change::AttachmentGone { .. })),
        ),
        (
            "forgets to take back a volume whose attachment vanished",
            Mutant {
                omits: Some(compensates),
                ..Mutant::default()
            },
        ),
        (
            "retries without a pause",
            Mutant {
                restless: true,
                ..Mutant::default()
            },
        ),
        (
            "takes over with a cache that may be stale",
            Mutant {
                stale: true,
                ..Mutant::default()
            },
        ),
        (
            "works beside another replica",
            Mutant {
                double: true,
                ..Mutant::default()
            },
        ),
    ]
}

fn settling(settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>) -> Rules {
    Rules {
        settle,
        ..Rules::default()
    }
}

fn deciding(attachment: for<'a> fn(&Observed<'a>) -> Action<'a>) -> Rules {
    Rules {
        attachment,
        ..Rules::default()
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

fn forget_former<'a>(observed: &Observed<'a>) -> Action<'a> {
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

/// An Unpublish that no attachment asks for.
fn compensates(state: &State, call: Call, pair: &Pair) -> bool {
    let mut attachments = state.cluster.all(Kind::Attachment);
    call == Call::Unpublish && !attachments.any(|object| claim_of(object).is_some_and(|(claimed, _)| claimed == *pair))
}
