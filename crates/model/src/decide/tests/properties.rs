//! Properties of the decision core: P1 to P9 of its design.

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use serde_json::{Value, json};

use super::api_server::apply;
use super::builders::FINALIZER;
use super::stale::kind_of;
use super::strategies::{volumes, worlds};
use super::world::{DecideModel, now};
use crate::decide::patch::{self, Write, WriteTarget};
use crate::decide::{self, Action, IgnoreReason, NodeEntry, Outcome, ReleaseWithoutCall, SecretState, VolumeOnNode};
use crate::decide::{Observed, Snapshot, observe};
use crate::objects::AttachmentSource;

/// Calls `look` with what is decided about a world and with the snapshot behind it.
pub fn decided<T>(world: &DecideModel, credentials: SecretState, look: impl FnOnce(&Action<'_>, &Snapshot) -> T) -> T {
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, credentials);
    look(&decide::attachment(&observed), &snapshot)
}

pub fn write_of(action: &Action<'_>) -> Option<Write> {
    match action {
        Action::ProtectVolume(write) | Action::Claim(write) | Action::MarkAttached(write) | Action::Release(write) => {
            Some(write.clone())
        }
        _ => None,
    }
}

fn list(object: &Value) -> Vec<String> {
    let list = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.iter().map(|entry| entry.as_str().unwrap().to_owned()).collect()
}

fn foreign(object: &Value) -> Vec<String> {
    list(object).into_iter().filter(|entry| entry != FINALIZER).collect()
}

pub fn ours(object: &Value) -> usize {
    list(object).iter().filter(|entry| *entry == FINALIZER).count()
}

/// What must be as before after any write of ours.
pub fn check_others(before: &Value, after: &Value) -> Result<(), TestCaseError> {
    prop_assert_eq!(foreign(before), foreign(after));
    prop_assert!(ours(after) <= 1);
    prop_assert_eq!(&before["spec"], &after["spec"]);
    for (key, value) in before["metadata"]["annotations"].as_object().into_iter().flatten() {
        let own = ["csi.alpha.kubernetes.io/node-id", "attacher.csi.dev/volume"].contains(&key.as_str());
        prop_assert!(
            own || after["metadata"]["annotations"][key] == *value,
            "{} changed",
            key
        );
    }
    for field in ["name", "uid", "deletionTimestamp"] {
        prop_assert_eq!(&before["metadata"][field], &after["metadata"][field]);
    }
    Ok(())
}

pub fn object<'a>(world: &'a DecideModel, target: &WriteTarget) -> &'a Value {
    match target {
        WriteTarget::Volume(_) => world.volume.as_ref().unwrap(),
        WriteTarget::Attachment(_) | WriteTarget::AttachmentStatus(_) => world.attachment.as_ref().unwrap(),
    }
}

/// What `decides` asks for about a world whose volume was made again, and in which something is blank.
fn check_calls(
    mut world: DecideModel,
    remade: bool,
    blank: usize,
    forced: bool,
    decides: for<'a> fn(&Observed<'a>) -> Action<'a>,
) -> Result<(), TestCaseError> {
    world.blank(blank);
    if remade {
        world.make_volume_again();
    }
    let snapshot = world.snapshot().unwrap();
    let observed = Observed {
        forced,
        ..observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded)
    };
    let attachment = &snapshot.attachment;
    let noted = attachment.volume_note.as_ref().map(|note| &*note.handle);
    let by_name = matches!(attachment.source, AttachmentSource::PersistentVolume(_));
    let check = |place: &VolumeOnNode<'_>| {
        prop_assert!(!place.volume_id.trim().is_empty() && !place.node_id.trim().is_empty());
        Ok(())
    };
    match decides(&observed) {
        Action::Publish(plan) => {
            check(&plan.place)?;
            plan.former.iter().try_for_each(check)?;
            prop_assert_eq!(noted, Some(plan.place.volume_id));
        }
        Action::Unpublish(plan) => {
            plan.places.iter().chain(&plan.confirmed).try_for_each(check)?;
            let current = plan.places.first().map(|place| place.volume_id);
            prop_assert!(!by_name || noted.is_none_or(|noted| current == Some(noted)));
            // Without a note, a volume that was created after the attachment is not known to be the one.
            prop_assert!(!by_name || noted.is_some() || !remade);
        }
        // One that puts the finalizer back notes no volume.
        Action::Claim(write) if attachment.attached && write.body.to_string().contains("handle") => {
            let volume = snapshot.volume.as_ref().and_then(|volume| volume.spec.csi());
            // An in-line volume is in the attachment itself, whose spec never changes: a note that says otherwise is nobody's evidence.
            let is_noted = |noted: &str| volume.is_some_and(|source| *source.handle == *noted);
            prop_assert!(!by_name || noted.is_none_or(is_noted));
            prop_assert!(!remade || noted.is_some() || !by_name);
        }
        _ => {}
    }
    Ok(())
}

/// An operator that lets the PersistentVolume alone say which volume is attached.
fn goes_by_the_name<'a>(observed: &Observed<'a>) -> Action<'a> {
    let mut attachment = observed.attachment.clone();
    attachment.volume_note = None;
    attachment.created = None;
    decide::attachment(&Observed {
        attachment: Box::leak(Box::new(attachment)),
        ..*observed
    })
}

#[test]
fn an_operator_that_goes_by_the_name_of_a_volume_is_caught() {
    let mut runner = TestRunner::deterministic();
    let found = runner.run(&(worlds(), any::<bool>(), any::<bool>()), |(world, remade, forced)| {
        check_calls(world, remade, 3, forced, goes_by_the_name)
    });
    assert!(matches!(found, Err(TestError::Fail(..))), "{found:?}");
}

proptest! {
    /// P1, P2, P5: a call to publish only for what is claimed under that very node ID, protected, and wanted.
    #[test]
    fn publish_is_guarded(world in worlds(), loaded: bool, advanced: bool) {
        let mut world = world;
        if advanced {
            world.advance();
        }
        let credentials = if loaded { SecretState::Loaded } else { SecretState::NotLoaded };
        decided(&world, credentials, |action, snapshot| {
            let Action::Publish(plan) = action else { return Ok(()) };
            let attachment = &snapshot.attachment;
            prop_assert!(attachment.deleting.is_none() && !attachment.attached);
            prop_assert!(attachment.finalizers.contains(FINALIZER));
            prop_assert_eq!(attachment.node_id.as_deref(), Some(plan.place.node_id));
            prop_assert_eq!(attachment.volume_note.as_ref().map(|note| &*note.handle), Some(plan.place.volume_id));
            if let AttachmentSource::PersistentVolume(_) = attachment.source {
                let volume = snapshot.volume.as_ref().unwrap();
                prop_assert!(volume.finalizers.contains(FINALIZER) && !volume.deleting);
            }
            prop_assert!(!plan.read_only || world.driver.capabilities.publish_readonly);
            prop_assert!(world.driver.capabilities.publish_unpublish);
            Ok(())
        })?;
    }

    /// Whatever is written on the objects: no call has a blank ID, and what is attached is published as the volume that was claimed or
    /// not at all, also when the driver lists it otherwise.
    #[test]
    fn calls_name_what_was_claimed(world in worlds(), remade: bool, blank in 0..4_usize, forced: bool) {
        check_calls(world, remade, blank, forced, decide::attachment)?;
    }

    /// A call to unpublish only for what is deleted and claimed, or was before somebody took our finalizer off.
    #[test]
    fn unpublish_is_guarded(world in worlds()) {
        decided(&world, SecretState::Loaded, |action, snapshot| {
            let Action::Unpublish(plan) = action else { return Ok(()) };
            let attachment = &snapshot.attachment;
            let was_claimed = attachment.attached && decide::was_called_for(attachment);
            prop_assert!(attachment.deleting.is_some());
            prop_assert!(was_claimed || attachment.finalizers.contains(FINALIZER));
            if let (Some(note), AttachmentSource::PersistentVolume(_)) = (&attachment.volume_note, &attachment.source) {
                prop_assert_eq!(plan.places[0].volume_id, &*note.handle);
            }
            Ok(())
        })?;
    }

    /// Where the node is now is always asked for, and a person's word counts for former places only.
    #[test]
    fn former_places_alone_can_be_confirmed(world in worlds()) {
        decided(&world, SecretState::Loaded, |action, snapshot| {
            let Action::Unpublish(plan) = action else { return Ok(()) };
            let registered = match snapshot.node_entry(&world.driver.name) {
                NodeEntry::Registered(node_id) => Some(node_id),
                NodeEntry::Missing | NodeEntry::WithoutDriver | NodeEntry::BlankId => None,
            };
            let current = registered.or(snapshot.attachment.node_id.as_deref());
            prop_assert_eq!(plan.places.first().map(|place| place.node_id), current);
            for place in &plan.confirmed {
                prop_assert!(Some(place.node_id) != current && !plan.places.contains(place));
                prop_assert!(snapshot.attachment.not_attached_at.as_ref().unwrap().contains(place.node_id));
            }
            Ok(())
        })?;
    }

    /// What may be published is let go without a call only where the facts of the driver say so.
    #[test]
    fn nothing_published_is_released_without_a_word(world in worlds()) {
        decided(&world, SecretState::Loaded, |action, snapshot| {
            let claimed = decide::is_claimed(&snapshot.attachment, &world.driver);
            let release = world.driver.release;
            match action {
                Action::Release(_) => {
                    prop_assert!(!world.driver.capabilities.publish_unpublish);
                    prop_assert!(release != ReleaseWithoutCall::Nothing);
                    prop_assert!(!claimed || release != ReleaseWithoutCall::Unclaimed);
                }
                Action::MarkAttached(_) => {
                    prop_assert!(!world.driver.capabilities.publish_unpublish);
                    prop_assert!(!claimed || release != ReleaseWithoutCall::Unclaimed);
                }
                _ => {}
            }
            Ok(())
        })?;
    }

    /// An AttacherConfig that is being deleted claims nothing new. What was called for gets the finalizer again, so that it is waited for.
    #[test]
    fn nothing_is_claimed_while_leaving(world in worlds()) {
        let mut world = world;
        world.policy.leaving = true;
        decided(&world, SecretState::Loaded, |action, snapshot| {
            let attachment = &snapshot.attachment;
            let is_again = decide::has_lost_finalizer(attachment, FINALIZER) && matches!(action, Action::Claim(_));
            if let Action::ProtectVolume(_) | Action::Claim(_) | Action::Publish(_) = action {
                prop_assert!(is_again || attachment.finalizers.contains(FINALIZER));
            }
            Ok(())
        })?;
    }

    /// P3: nothing on another attacher's attachment.
    #[test]
    fn others_are_left_alone(world in worlds()) {
        decided(&world, SecretState::Loaded, |action, snapshot| {
            let own = snapshot.attachment.attacher == world.driver.name;
            prop_assert_eq!(!own, *action == Action::Ignore(IgnoreReason::OtherAttacher));
            Ok(())
        })?;
    }

    /// P4: finalizers and annotations of others survive each write, and what is written is not asked for again.
    #[test]
    fn writes_touch_what_is_ours(world in worlds()) {
        let Some(write) = decided(&world, SecretState::Loaded, |action, _| write_of(action)) else { return Ok(()) };
        let before = object(&world, &write.target);
        let after = apply(before, &write).unwrap();
        check_others(before, &after)?;
        let mut next = world.clone();
        next.write(&write).unwrap();
        if next.attachment.is_some() {
            let again = decided(&next, SecretState::Loaded, |action, _| write_of(action));
            prop_assert_ne!(again.as_ref(), Some(&write));
            // Adding ours twice is refused, not done.
            if let Some(Ok(twice)) = (ours(before) == 0).then(|| apply(&after, &write)) {
                prop_assert!(ours(&twice) <= 1);
            }
        }
    }

    /// P6: a volume is released only when it is deleted and nothing is attached, and then by its own finalizer alone.
    #[test]
    fn volumes_are_released_last(volume in volumes(), attachments in 0..3_usize) {
        let world = super::world::world().pv(volume.clone());
        let record = world.volume_record().unwrap();
        // Nothing here is annotated as migrated, so that no in-tree volume is this driver's.
        let spec = volume.0["spec"].as_object().unwrap();
        let unwanted = record.deleting || spec.contains_key("gcePersistentDisk") || spec.contains_key("cinder");
        match decide::volume(&record, attachments, &world.driver) {
            Err(_) => {
                prop_assert!(!unwanted || attachments > 0 || !record.finalizers.contains(FINALIZER));
            }
            Ok(write) => {
                prop_assert!(unwanted && attachments == 0);
                let after = apply(&volume.0, &write).unwrap();
                prop_assert_eq!(ours(&after), 0);
                check_others(&volume.0, &after)?;
            }
        }
    }

    /// P7: where nothing fails, an attempt ends after five decisions and leaves nothing to do.
    #[test]
    fn a_world_without_faults_settles(world in worlds()) {
        let mut world = world;
        let requeue = world.attempt();
        prop_assert!(world.decisions <= 5, "{:?}", world.log);
        if requeue == super::world::Requeue::Forget && world.attachment.is_some() {
            let ignored = decided(&world, SecretState::NotLoaded, |action, _| matches!(action, Action::Ignore(_)));
            prop_assert!(ignored);
            let snapshot = world.snapshot().unwrap();
            let own = snapshot.attachment.attacher == world.driver.name;
            let needs_work = decide::needs_work(&snapshot.attachment, snapshot.volume.as_deref(), &world.driver);
            // A node ID that is missing is noted when the node has one again; the CSINode that says so queues the attachment.
            let awaits_node = !matches!(snapshot.node_entry(&world.driver.name), NodeEntry::Registered(_))
                && decide::attach::partly_noted(&snapshot.attachment, snapshot.volume.as_deref(), &world.driver).is_some();
            prop_assert!(!own || !needs_work || awaits_node);
        }
    }

    /// What a call may have been made for, as its node ID or note shows, is not left without our finalizer.
    #[test]
    fn what_was_called_for_is_held(world in worlds()) {
        let mut world = world;
        world.advance();
        let Some(snapshot) = world.snapshot() else { return Ok(()) };
        let attachment = &snapshot.attachment;
        let own = attachment.attacher == world.driver.name && world.driver.capabilities.publish_unpublish;
        let is_described = matches!(attachment.source, AttachmentSource::PersistentVolume(_) | AttachmentSource::Inline(_));
        let was_called_for = attachment.node_id.is_some() || attachment.volume_note.is_some();
        if own && is_described && attachment.deleting.is_none() && was_called_for {
            prop_assert!(attachment.finalizers.contains(FINALIZER));
        }
    }

    /// What was let go is not detached again, whatever becomes of the write after that one.
    #[test]
    fn what_was_let_go_is_settled(world in worlds()) {
        let mut world = world;
        let attachment = world.snapshot().unwrap().attachment;
        let release = patch::release(&attachment, FINALIZER).filter(|_| attachment.deleting.is_some());
        let Some(release) = release else { return Ok(()) };
        world.write(&release).unwrap();
        let settled = world.snapshot().is_none_or(|left| decide::is_settled(&left.attachment, FINALIZER));
        prop_assert!(settled);
    }

    /// P8: what others write on the objects changes nothing about what is decided.
    #[test]
    fn notes_of_others_decide_nothing(world in worlds()) {
        let kind = |world: &DecideModel| decided(world, SecretState::Loaded, |action, _| kind_of(action));
        let mut noted = world.clone();
        for object in noted.attachment.iter_mut().chain(&mut noted.volume) {
            object["metadata"]["labels"] = json!({"someone/else": "label"});
            object["metadata"]["annotations"]["someone/else"] = json!("annotation");
            object["metadata"]["resourceVersion"] = json!("7");
        }
        prop_assert_eq!(kind(&world), kind(&noted));
    }

    /// P9: at the end of a detach the finalizer goes before the status is cleared.
    #[test]
    fn the_finalizer_goes_first(world in worlds()) {
        let snapshot = world.snapshot().unwrap();
        let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
        let targets: Vec<_> = decide::settle(&observed, &Outcome::Unpublished, now())
            .into_iter()
            .map(|write| write.target)
            .collect();
        let name = snapshot.attachment.name.clone();
        let mut wanted = vec![WriteTarget::AttachmentStatus(name.clone())];
        if snapshot.attachment.finalizers.contains(FINALIZER) {
            wanted.insert(0, WriteTarget::Attachment(name));
        }
        prop_assert_eq!(targets, wanted);
    }
}
