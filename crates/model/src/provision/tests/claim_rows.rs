//! The rules about a claim, in their order: a row or more for each.

use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::builders::{
    ClaimWorld, DRIVER, NAME, UID, claim_of, marker_json, node, plan_of, volume_json, volume_of, world,
};
use crate::provision::{
    AnsweredVolume, ClaimAction, Creation, LeakProtection, NewVolume, ProvisionerSecretState, RolePhase, UncertainCall,
    UndoState, VolumeFault, Waited,
};

/// One line of the table: which rule decides, and what is done.
struct Row(&'static str, ClaimWorld, &'static str);

/// The action in a word.
pub fn word(action: &ClaimAction) -> String {
    match action {
        ClaimAction::Ignore => "ignore".into(),
        ClaimAction::Wait(None) => "wait".into(),
        ClaimAction::Wait(Some(cause)) => format!("tell {}", cause.reason()),
        ClaimAction::Refuse(cause) => format!("refuse {}", cause.reason()),
        ClaimAction::ReadClaim => "read claim".into(),
        ClaimAction::ReadVolume(name) => {
            assert_eq!(&**name, NAME);
            "read volume".into()
        }
        ClaimAction::LoadCredentials(secret) => {
            let or_kept = if secret.is_wanted { "" } else { " or as it was" };
            format!(
                "secret {}/{}{or_kept}",
                secret.reference.namespace, secret.reference.name
            )
        }
        ClaimAction::Mark(_) => "mark".into(),
        ClaimAction::Create(plan) => {
            assert_eq!(&*plan.name, NAME);
            "create".into()
        }
        ClaimAction::Save(_) => "save".into(),
        ClaimAction::Undo(plan) => match &plan.secret {
            None => format!("delete {}", plan.handle),
            Some(secret) => format!("delete {} with {}/{}", plan.handle, secret.namespace, secret.name),
        },
        ClaimAction::Unmark(_) => "unmark".into(),
        ClaimAction::Reschedule(_) => "reschedule".into(),
        ClaimAction::LetGo(..) => "let go".into(),
        ClaimAction::RefuseRelease(..) => "refuse release".into(),
    }
}

fn play(rows: Vec<Row>) {
    let names: BTreeSet<_> = rows.iter().map(|row| row.0).collect();
    assert_eq!(names.len(), rows.len(), "a name is used twice");
    for Row(name, world, wanted) in rows {
        let decision = world.decide();
        let found = format!("{}: {}", decision.reason.as_str(), word(&decision.action));
        assert_eq!(found, wanted, "{name}");
    }
}

pub fn new_volume(world: &ClaimWorld) -> NewVolume {
    let answer = AnsweredVolume {
        handle: "vol-1".into(),
        ..AnsweredVolume::default()
    };
    NewVolume::of_answer(&plan_of(world), Some(answer)).unwrap()
}

/// A marked claim whose volume was created.
fn created(world: &ClaimWorld, change: impl FnOnce(&mut NewVolume)) -> ClaimWorld {
    let mut volume = new_volume(world);
    change(&mut volume);
    world.clone().marked().creation(Creation::Created(Box::new(volume)))
}

pub fn uncertain(world: &ClaimWorld) -> Creation {
    Creation::Uncertain(UncertainCall {
        plan: Some(plan_of(world)),
        doubtful: false,
    })
}

fn unnoticed(_: &mut NewVolume) {}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_1_to_5_whose_claim_and_whose_volume_it_is() {
    let other = || world().annotate("volume.kubernetes.io/storage-provisioner", "other.test");
    let foreign = json!({"driver": "other.test", "uid": UID});
    let unreadable = json!("{");
    play(vec![
        Row("1 another driver's", other(), "NotOwn: ignore"),
        Row(
            "1 another driver's, with its marker",
            other().marked_with(&foreign),
            "NotOwn: ignore",
        ),
        Row(
            "1 another driver's, with a marker that says nothing",
            other().marked_with(&unreadable),
            "NotOwn: ignore",
        ),
        Row(
            "1 ours, with a marker of another driver",
            world().marked_with(&foreign),
            "MarkerOfAnotherDriver: tell marker_of_another_driver",
        ),
        Row(
            "1 ours, with a marker of another driver, bound",
            world().marked_with(&foreign).bound(NAME),
            "NotNeeded: ignore",
        ),
        Row(
            "1 another driver's by now, with our marker",
            other().marked(),
            "FindOut: create",
        ),
        Row(
            "2 saved and bound",
            world().marked().bound(NAME).saved(),
            "Saved: unmark",
        ),
        Row(
            "2 saved, in deletion",
            world().marked().deleting().saved(),
            "Saved: unmark",
        ),
        Row(
            "2 saved, bound to another",
            world().marked().bound("other").saved(),
            "Saved: unmark",
        ),
        Row(
            "2 saved for 30 s",
            world().marked().saved().with(|world| world.waited.for_binding = true),
            "Saved: unmark",
        ),
        Row(
            "2 saved and bound, without a marker",
            world().bound(NAME).saved(),
            "Saved: ignore",
        ),
        Row(
            "2 bound, its PersistentVolume gone since",
            world().marked().bound(NAME),
            "Saved: unmark",
        ),
        Row(
            "2 lost",
            world()
                .marked()
                .set("/spec/volumeName", NAME)
                .set("/status/phase", "Lost"),
            "Saved: unmark",
        ),
        Row(
            "2 the driver made two volumes",
            created(&world(), |new| new.handle = "vol-2".into()).saved(),
            "TwoVolumes: unmark",
        ),
        Row("3 saved just now", world().marked().saved(), "WaitForBinding: wait"),
        Row(
            "3 saved just now, and the role ends",
            world().marked().saved().with(|world| world.role = RolePhase::Stopping),
            "Saved: unmark",
        ),
        Row(
            "4 its PersistentVolume goes",
            world()
                .marked()
                .saved_with("/metadata/deletionTimestamp", "2026-01-02T03:00:00Z"),
            "VolumeGoing: tell pv_deleting",
        ),
        Row(
            "4 its PersistentVolume goes, and deletions are held",
            world()
                .marked()
                .saved_with("/metadata/deletionTimestamp", "2026-01-02T03:00:00Z")
                .with(|world| world.policy.hold_deletions = true),
            "VolumeGoing: tell pv_deleting",
        ),
        Row(
            "4 its PersistentVolume goes, in deletion as well",
            world()
                .marked()
                .deleting()
                .saved_with("/metadata/deletionTimestamp", "2026-01-02T03:00:00Z"),
            "Saved: unmark",
        ),
        Row(
            "4 its PersistentVolume goes, bound to it",
            world()
                .marked()
                .bound(NAME)
                .saved_with("/metadata/deletionTimestamp", "2026-01-02T03:00:00Z"),
            "Saved: unmark",
        ),
        Row(
            "5 of another claim",
            world().saved_with("/spec/claimRef/uid", "other"),
            "NameTaken: tell name_taken",
        ),
        Row(
            "5 of no claim",
            world().saved_with("/spec/claimRef", json!(null)),
            "NameTaken: tell name_taken",
        ),
        Row(
            "5 of another driver",
            world().saved_with("/spec/csi/driver", "other.test"),
            "NameTaken: tell name_taken",
        ),
        Row(
            "5 a volume populator gave it to another claim",
            world().marked().bound(NAME).saved_with("/spec/claimRef/uid", "other"),
            "Saved: unmark",
        ),
        Row(
            "5 a volume populator gave it to another claim, in deletion",
            world()
                .marked()
                .bound(NAME)
                .deleting()
                .saved_with("/spec/claimRef/uid", "other"),
            "Saved: unmark",
        ),
        Row(
            "5 it was given to another claim, and this one is lost",
            world()
                .marked()
                .set("/spec/volumeName", NAME)
                .set("/status/phase", "Lost")
                .saved_with("/spec/claimRef/uid", "other"),
            "Saved: unmark",
        ),
        Row(
            "5 of another claim, uncertain",
            world().marked().saved_with("/spec/claimRef/uid", "other"),
            "NameTaken: tell name_taken",
        ),
        Row(
            "not known whether it is saved",
            world().with(|world| world.unknown = "saved"),
            "Syncing: wait",
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_6_to_8_the_volume_is_there() {
    let retain = world().class("/reclaimPolicy", "Retain");
    let faulty = |new: &mut NewVolume| new.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
    let failed = |new: &mut NewVolume| new.undo = UndoState::Failed;
    let unwanted = || created(&world(), unnoticed).deleting();
    let held = |world: &mut ClaimWorld| world.policy.hold_deletions = true;
    let stuck = |world: ClaimWorld| world.with(|world| world.waited.stuck = true);
    let attached = |world: ClaimWorld| world.with(|world| world.attached_to = Some("n1".into()));
    let ask = |world: ClaimWorld| {
        let request = json!({"uid": UID, "deleted": super::builders::DELETED_AT, "at": super::builders::NOW});
        world.annotate("attacher.csi.dev/release", &request.to_string())
    };
    play(vec![
        Row("6 wanted", created(&world(), unnoticed), "SaveVolume: save"),
        Row(
            "6 wanted, the class gone",
            created(&world(), unnoticed).without_class(),
            "SaveVolume: save",
        ),
        Row(
            "6 wanted, switched off",
            created(&world(), unnoticed).with(|world| world.role = RolePhase::Disabled),
            "SaveVolume: save",
        ),
        Row(
            "7 unwanted, Retain",
            created(&retain, unnoticed).deleting(),
            "KeepVolume: save",
        ),
        Row(
            "7 unwanted, no policy",
            created(&world().class("/reclaimPolicy", json!(null)), unnoticed).deleting(),
            "KeepVolume: save",
        ),
        Row(
            "7 unwanted, Retain, the name taken",
            created(&retain, unnoticed)
                .deleting()
                .saved_with("/spec/claimRef/uid", "other"),
            "NameTaken: tell name_taken",
        ),
        Row(
            "7 unwanted, Retain, somebody's handle",
            created(&retain, unnoticed)
                .deleting()
                .with(|world| world.handle_owner = Some(NAME.into())),
            "HandleShared: unmark",
        ),
        Row(
            "7 another driver's by now, Retain: the claim would be bound to it",
            created(&retain, unnoticed).of_another_driver(),
            "KeepVolume: tell volume_unrecorded",
        ),
        Row(
            "7 bound elsewhere, Retain",
            created(&retain, unnoticed).bound("static"),
            "KeepVolume: save",
        ),
        Row(
            "6 wanted again while it may be deleted",
            created(&world(), failed),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8a somebody's handle",
            unwanted().with(|world| world.handle_owner = Some("pv-2".into())),
            "HandleShared: unmark",
        ),
        Row(
            "8a not known whose",
            unwanted().with(|world| world.unknown = "handle"),
            "Syncing: wait",
        ),
        Row(
            "8a undersized, somebody's handle",
            created(&world(), faulty).with(|world| world.handle_owner = Some("pv-2".into())),
            "HandleShared: tell handle_shared",
        ),
        Row(
            "8 unwanted, not looked at",
            unwanted().with(|world| world.saved_is_live = false),
            "UndoVolume: read volume",
        ),
        Row("8 unwanted", unwanted(), "UndoVolume: delete vol-1"),
        Row(
            "8 bound elsewhere",
            created(&world(), unnoticed).bound("static"),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 another driver's by now",
            created(&world(), unnoticed).of_another_driver(),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 not deleted with OK",
            created(&world(), failed).deleting(),
            "UndoVolume: save",
        ),
        Row(
            "8 another driver's by now, not deleted with OK: the claim would be bound to it",
            created(&world(), failed).of_another_driver(),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 another driver's by now, held: the claim would be bound to it",
            created(&world(), unnoticed).of_another_driver().with(held),
            "Held: tell deletion_held",
        ),
        Row("8 attached", attached(unwanted()), "UndoVolume: save"),
        Row(
            "8 attached, the name taken",
            attached(unwanted().saved_with("/spec/claimRef/uid", "other")),
            "StillAttached: tell still_attached",
        ),
        Row(
            "8 attached, the name taken, let go",
            stuck(ask(attached(unwanted().saved_with("/spec/claimRef/uid", "other")))),
            "LetGo: let go",
        ),
        Row(
            "8 attached, another driver's by now: the claim would be bound to it",
            attached(created(&world(), unnoticed).of_another_driver()),
            "StillAttached: tell still_attached",
        ),
        Row(
            "8 attached, undersized and wanted",
            attached(created(&world(), faulty)),
            "StillAttached: tell still_attached",
        ),
        Row(
            "8 attached, its claim removed by force",
            attached(unwanted().with(|world| world.gone = true)),
            "UndoVolume: save",
        ),
        Row(
            "8 attached, not looked at",
            attached(unwanted().with(|world| world.saved_is_live = false)),
            "UndoVolume: read volume",
        ),
        Row(
            "8 not known whether it is attached",
            unwanted().with(|world| world.unknown = "attached"),
            "Syncing: wait",
        ),
        Row(
            "8 not known whether it is attached, held",
            unwanted().with(|world| world.unknown = "attached").with(held),
            "UndoVolume: save",
        ),
        Row(
            "6 wanted, and attached",
            attached(created(&world(), unnoticed)),
            "SaveVolume: save",
        ),
        Row(
            "8 not deleted with OK, the name taken",
            created(&world(), failed)
                .deleting()
                .saved_with("/spec/claimRef/uid", "other"),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 held, the name taken",
            stuck(unwanted().saved_with("/spec/claimRef/uid", "other").with(held)),
            "Held: tell deletion_held",
        ),
        Row(
            "8 held, the name taken, let go",
            stuck(ask(unwanted().saved_with("/spec/claimRef/uid", "other").with(held))),
            "LetGo: let go",
        ),
        Row(
            "7 unwanted, Retain, the name taken, let go",
            stuck(ask(created(&retain, unnoticed)
                .deleting()
                .saved_with("/spec/claimRef/uid", "other"))),
            "LetGo: let go",
        ),
        Row(
            "8 held, and saved all the same",
            stuck(ask(unwanted().with(held))),
            "UndoVolume: save",
        ),
        Row(
            "8 its claim removed by force",
            unwanted().with(|world| world.gone = true),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 the driver is away",
            unwanted().with(|world| world.is_away = true),
            "DriverAway: wait",
        ),
        Row(
            "6 the driver is away",
            created(&world(), unnoticed).with(|world| world.is_away = true),
            "SaveVolume: save",
        ),
        Row(
            "8 the process ends",
            unwanted().with(|world| world.role = RolePhase::Stopping),
            "Draining: wait",
        ),
        Row(
            "8 the process ends, and no marker says that there is a volume",
            unwanted().with(|world| {
                world.role = RolePhase::Stopping;
                world.claim["metadata"]["finalizers"] = json!(["example.com/hold"]);
            }),
            "UndoVolume: save",
        ),
        Row(
            "8 the process ends, and the claim was removed by force with its marker",
            unwanted().with(|world| {
                world.role = RolePhase::Stopping;
                world.gone = true;
            }),
            "UndoVolume: save",
        ),
        Row(
            "8 the driver is away, and the claim was removed by force with its marker",
            unwanted().with(|world| {
                world.is_away = true;
                world.gone = true;
            }),
            "UndoVolume: save",
        ),
        Row(
            "8 undersized and wanted",
            created(&world(), faulty),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 undersized and wanted, not deleted with OK",
            created(&world(), |new| {
                faulty(new);
                failed(new);
            }),
            "UndoVolume: delete vol-1",
        ),
    ]);
}

/// Of a volume that nobody wants: its Secret holds up nothing that can be done without it.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn the_secret_of_what_nobody_wants() {
    use ProvisionerSecretState::{Loaded, Missing, NotLoaded, Unreadable};
    let faulty = |new: &mut NewVolume| new.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
    let failed = |new: &mut NewVolume| new.undo = UndoState::Failed;
    let made = |state, change: fn(&mut NewVolume)| created(&world().with_secret(state), change);
    let open = |state| {
        let world = world().with_secret(state);
        let known = uncertain(&world);
        world.marked().creation(known)
    };
    let was_wanted = |world: &mut ClaimWorld| world.secret_was_wanted = true;
    let unlisted = |world: &mut ClaimWorld| world.policy.secrets = crate::provision::ProvisionerSecrets::default();
    play(vec![
        Row(
            "8 not read",
            made(NotLoaded, unnoticed).deleting(),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "8 not read, another driver's by now",
            made(NotLoaded, unnoticed).of_another_driver(),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "8 read",
            made(Loaded, unnoticed).deleting(),
            "UndoVolume: delete vol-1 with ns/s",
        ),
        Row(
            "8 read while it was wanted",
            made(Loaded, unnoticed).deleting().with(was_wanted),
            "UndoVolume: delete vol-1 with ns/s",
        ),
        Row(
            "8 missing",
            made(Missing, unnoticed).deleting(),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 missing, another driver's by now",
            made(Missing, unnoticed).of_another_driver(),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 missing, bound elsewhere",
            made(Missing, unnoticed).bound("static"),
            "UndoVolume: delete vol-1",
        ),
        Row(
            "8 missing while it was wanted",
            made(Missing, unnoticed).deleting().with(was_wanted),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "8 missing, not looked at",
            made(Missing, unnoticed)
                .deleting()
                .with(|world| world.saved_is_live = false),
            "UndoVolume: read volume",
        ),
        Row(
            "8 missing, not deleted with OK",
            made(Missing, failed).deleting(),
            "UndoVolume: save",
        ),
        Row(
            "8 not readable",
            made(Unreadable, unnoticed).deleting(),
            "SecretForbidden: tell secret_forbidden",
        ),
        Row(
            "8 not listed any more",
            made(Missing, unnoticed).deleting().with(unlisted),
            "SecretForbidden: tell secret_not_allowed",
        ),
        Row(
            "8 missing, undersized and wanted",
            made(Missing, faulty),
            "SecretMissing: tell secret_missing",
        ),
        Row("6 missing, and wanted", made(Missing, unnoticed), "SaveVolume: save"),
        Row(
            "10 not read",
            open(NotLoaded).deleting(),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "10 not read, another driver's by now",
            open(NotLoaded).of_another_driver(),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "10 not read, bound elsewhere",
            open(NotLoaded).bound("static"),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "10 missing while it was wanted",
            open(Missing).of_another_driver().with(was_wanted),
            "LoadSecret: secret ns/s or as it was",
        ),
        Row(
            "10 not readable while it was wanted",
            open(Unreadable).deleting().with(was_wanted),
            "LoadSecret: secret ns/s or as it was",
        ),
        // Without it the call would be another one.
        Row(
            "10 missing",
            open(Missing).deleting(),
            "SecretMissing: tell secret_missing",
        ),
        Row("20 not read, and wanted", open(NotLoaded), "LoadSecret: secret ns/s"),
        Row(
            "20 missing, and wanted",
            open(Missing).with(was_wanted),
            "SecretMissing: tell secret_missing",
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_9_to_11_nobody_wants_it_or_the_role_ends() {
    let ask = |at: &str| {
        json!({"uid": UID, "deleted": super::builders::DELETED_AT, "at": at, "by": "ann", "reason": "stuck"})
            .to_string()
    };
    let asked = |at: &str| {
        world()
            .marked()
            .deleting()
            .annotate("attacher.csi.dev/release", &ask(at))
    };
    let stuck = |world: &mut ClaimWorld| world.waited.stuck = true;
    let ends = |role| move |world: &mut ClaimWorld| world.role = role;
    let away = |world: &mut ClaimWorld| world.is_away = true;
    let refused = || world().marked().creation(Creation::Refused);
    play(vec![
        Row("9 nothing was called", world().deleting(), "Cancelled: ignore"),
        Row(
            "9 marked, nothing was called",
            world().marked().deleting().creation(Creation::Never),
            "Cancelled: unmark",
        ),
        Row("9 refused", refused().deleting(), "Cancelled: unmark"),
        Row(
            "9 refused, bound elsewhere",
            refused().bound("static"),
            "Cancelled: unmark",
        ),
        Row("10a asked", asked("2026-01-02T03:04:00Z").with(stuck), "LetGo: let go"),
        Row(
            "10a asked early",
            asked("2026-01-02T03:04:00Z"),
            "LetGo: refuse release",
        ),
        Row(
            "10a asked long ago",
            asked("2026-01-01T03:04:00Z").with(stuck),
            "LetGo: refuse release",
        ),
        Row("10 uncertain", world().marked().deleting(), "FindOut: create"),
        Row(
            "10 uncertain, of this process",
            world()
                .marked()
                .deleting()
                .creation(uncertain(&world()))
                .without_class(),
            "FindOut: create",
        ),
        Row(
            "10 uncertain, removed by force",
            world()
                .deleting()
                .creation(uncertain(&world()))
                .with(|world| world.gone = true),
            "FindOut: create",
        ),
        Row(
            "10a asked, removed by force: nothing is left to let go",
            asked("2026-01-02T03:04:00Z")
                .with(stuck)
                .with(|world| world.gone = true),
            "FindOut: create",
        ),
        Row(
            "10 uncertain, bound elsewhere",
            world().marked().bound("static"),
            "FindOut: create",
        ),
        Row(
            "10 of a process that has ended",
            world().marked().deleting().with(|world| world.marker_is_own = false),
            "Mark: mark",
        ),
        Row(
            "10 the class is gone",
            world().marked().deleting().without_class(),
            "ClassMissing: wait",
        ),
        Row(
            "10 the class is another one",
            world().marked().deleting().replaced_class(),
            "ClassReplaced: tell class_replaced",
        ),
        Row(
            "10 the class is another provisioner's by now",
            world().marked().deleting().class("/provisioner", "other.test"),
            "ClassReplaced: tell class_replaced",
        ),
        Row(
            "10 the class is gone for 10 s",
            world()
                .marked()
                .deleting()
                .without_class()
                .with(|world| world.waited.for_class = true),
            "ClassMissing: tell class_missing",
        ),
        Row(
            "9 refused, the driver is away",
            refused().deleting().with(away),
            "Cancelled: unmark",
        ),
        Row(
            "10 the driver is away",
            world().marked().deleting().with(away),
            "DriverAway: wait",
        ),
        Row(
            "10 the driver is away, switched off",
            world().marked().deleting().with(ends(RolePhase::Disabled)).with(away),
            "DriverAway: wait",
        ),
        Row(
            "10a asked, the driver is away",
            asked("2026-01-02T03:04:00Z").with(stuck).with(away),
            "LetGo: let go",
        ),
        Row(
            "10 the process ends",
            world().marked().deleting().with(ends(RolePhase::Stopping)),
            "Draining: wait",
        ),
        Row(
            "10 switched off",
            world().marked().deleting().with(ends(RolePhase::Disabled)),
            "FindOut: create",
        ),
        Row(
            "11 switched off, nothing was called",
            world().with(ends(RolePhase::Disabled)),
            "Draining: ignore",
        ),
        Row(
            "11 switched off, refused",
            refused().with(ends(RolePhase::Disabled)),
            "Draining: unmark",
        ),
        Row(
            "11 switched off, uncertain: it is finished",
            world().marked().with(ends(RolePhase::Disabled)),
            "Create: create",
        ),
        Row(
            "11 the process ends, uncertain",
            world().marked().with(ends(RolePhase::Stopping)),
            "Draining: wait",
        ),
        Row(
            "11 the process ends, refused",
            refused().with(ends(RolePhase::Stopping)),
            "Draining: unmark",
        ),
    ]);
}

/// Watches of what a first call is made from are broken.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn row_12_what_a_first_call_is_made_from_has_to_be_known_as_it_is() {
    let stale = |world: ClaimWorld| {
        world.with(|world| {
            (world.classes_are_known, world.nodes_are_known) = (false, false);
        })
    };
    let for_long = |world: ClaimWorld| stale(world).with(|world| world.waited.for_class = true);
    let nodes = |world: ClaimWorld| world.with(|world| world.nodes_are_known = false);
    play(vec![
        Row("the class", stale(world()), "Syncing: wait"),
        Row(
            "the class, for 10 s",
            for_long(world()),
            "Unconfirmed: tell unconfirmed",
        ),
        Row(
            "the class, of another provisioner as far as is known",
            stale(world().class("/provisioner", "other.test")),
            "Syncing: wait",
        ),
        Row(
            "the class, and none is there as far as is known",
            for_long(world().without_class()),
            "ClassMissing: tell class_missing",
        ),
        Row(
            "the class, refused before",
            stale(world().marked().creation(Creation::Refused)),
            "Syncing: wait",
        ),
        Row(
            "the class, refused before, for 10 s",
            for_long(world().marked().creation(Creation::Refused)),
            "Unconfirmed: unmark",
        ),
        Row(
            "the class, while a call is open",
            stale(world().marked()),
            "Create: create",
        ),
        Row(
            "the class, while a call of this process is open",
            stale(world().marked().creation(uncertain(&world()))),
            "Create: create",
        ),
        Row(
            "the class, while a call is open for a claim that nobody wants",
            stale(world().marked().deleting()),
            "FindOut: create",
        ),
        Row("the nodes, without topology", nodes(world()), "Mark: mark"),
        Row("the nodes", nodes(world().delayed()), "Syncing: wait"),
        Row(
            "the nodes, while a call is open",
            nodes(world().delayed().marked()),
            "Create: create",
        ),
        Row(
            "the nodes, for 10 s",
            nodes(world().delayed()).with(|world| world.waited.for_class = true),
            "Unconfirmed: tell unconfirmed",
        ),
        Row(
            "the nodes, of which the selected one is gone as far as is known",
            nodes(world().delayed()).with(|world| world.node_gone = true),
            "Syncing: wait",
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_12_to_15_what_is_missing_or_wrong() {
    let told = |world: &mut ClaimWorld| {
        world.waited = Waited {
            for_class: true,
            ..Waited::default()
        }
    };
    let source = |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": "s"});
    let secret = || world().with_secret(ProvisionerSecretState::NotLoaded);
    let state = |state| move |world: &mut ClaimWorld| world.secret = state;
    let refused = || world().marked().creation(Creation::Refused);
    let infeasible = |world: &mut ClaimWorld| world.infeasible = true;
    let another = |world: &mut ClaimWorld| {
        world.secret_of = Some(crate::objects::SecretReference {
            namespace: "ns".into(),
            name: "another".into(),
        });
    };
    play(vec![
        Row("12 no class", world().without_class(), "ClassMissing: wait"),
        Row(
            "12 no class for 10 s",
            world().without_class().with(told),
            "ClassMissing: tell class_missing",
        ),
        Row(
            "12 no class, uncertain: the marker stays",
            world().marked().without_class(),
            "ClassMissing: wait",
        ),
        Row(
            "12 not known",
            world().with(|world| world.unknown = "class"),
            "Syncing: wait",
        ),
        Row(
            "12 another provisioner's",
            world().class("/provisioner", "other").with(told),
            "ClassMismatch: tell class_mismatch",
        ),
        // kube-controller-manager writes the driver's name for a migrated plug-in, and corrects nothing: told at once.
        Row(
            "12 an in-tree plug-in's",
            world().class("/provisioner", "kubernetes.io/aws-ebs"),
            "ClassMismatch: tell not_supported",
        ),
        Row(
            "12 of volumes that are made by hand",
            world().class("/provisioner", "kubernetes.io/no-provisioner").with(told),
            "ClassMismatch: tell class_mismatch",
        ),
        Row(
            "12 no class, with the plan of the call",
            world().marked().without_class().creation(uncertain(&world())),
            "Create: create",
        ),
        Row(
            "12 no node selected",
            world().class("/volumeBindingMode", "WaitForFirstConsumer"),
            "WaitForConsumer: wait",
        ),
        Row(
            "12 no node selected any more, refused",
            refused().class("/volumeBindingMode", "WaitForFirstConsumer"),
            "WaitForConsumer: unmark",
        ),
        Row(
            "12 no class, refused",
            refused().without_class(),
            "ClassMissing: unmark",
        ),
        Row(
            "12 not known, refused",
            refused().with(|world| world.unknown = "class"),
            "Syncing: wait",
        ),
        Row(
            "12 no node selected any more, uncertain",
            world().marked().class("/volumeBindingMode", "WaitForFirstConsumer"),
            "Create: create",
        ),
        Row(
            "names a volume",
            world().set("/spec/volumeName", NAME),
            "NotNeeded: ignore",
        ),
        Row(
            "13 a populator's",
            world().set("/spec/dataSource", source("x.io", "Foo")),
            "Populator: wait",
        ),
        Row(
            "13 a claim of another group",
            world().set("/spec/dataSourceRef", source("x.io", "PersistentVolumeClaim")),
            "Populator: wait",
        ),
        Row(
            "14 selector",
            world().set("/spec/selector", json!({})),
            "Invalid: refuse invalid_claim",
        ),
        Row(
            "14 reserved key",
            world().class("/parameters", json!({"csi.storage.k8s.io/foo": "x"})),
            "Invalid: refuse invalid_class",
        ),
        Row(
            "14 template",
            world().class(
                "/parameters",
                json!({"csi.storage.k8s.io/secret-name": "${x}", "csi.storage.k8s.io/secret-namespace": "x"}),
            ),
            "Invalid: refuse invalid_class",
        ),
        Row(
            "14 fstype twice",
            world().class(
                "/parameters",
                json!({"fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs"}),
            ),
            "Invalid: refuse invalid_class",
        ),
        Row(
            "14 the driver creates nothing",
            world().with(|world| world.driver.capabilities.create_delete_volume = false),
            "Invalid: refuse capability_missing",
        ),
        Row(
            "14 a snapshot (P3)",
            world().set("/spec/dataSource", source("snapshot.storage.k8s.io", "VolumeSnapshot")),
            "Invalid: refuse not_supported",
        ),
        Row(
            "14 an attributes class (P3)",
            world().set("/spec/volumeAttributesClassName", "gold"),
            "Invalid: refuse not_supported",
        ),
        Row(
            "14 a Secret that is not listed",
            secret().with(|world| world.policy.secrets = crate::provision::ProvisionerSecrets::default()),
            "SecretForbidden: tell secret_not_allowed",
        ),
        Row(
            "14 uncertain: the marker stays",
            world().marked().set("/spec/selector", json!({})),
            "Invalid: refuse invalid_claim",
        ),
        Row(
            "14 selector, refused",
            refused().set("/spec/selector", json!({})),
            "Invalid: unmark",
        ),
        Row("14 cannot succeed", world().with(infeasible), "Infeasible: wait"),
        Row(
            "14 cannot succeed, marked",
            refused().with(infeasible),
            "Infeasible: unmark",
        ),
        Row(
            "14 cannot succeed, in deletion",
            refused().deleting().with(infeasible),
            "Cancelled: unmark",
        ),
        Row(
            "14 cannot succeed, and uncertain since",
            world().marked().with(infeasible),
            "Create: create",
        ),
        Row(
            "15 Secret missing, refused",
            secret()
                .marked()
                .creation(Creation::Refused)
                .with(state(ProvisionerSecretState::Missing)),
            "SecretMissing: unmark",
        ),
        Row("15 Secret, not read", secret(), "LoadSecret: secret ns/s"),
        Row(
            "15 Secret missing",
            secret().with(state(ProvisionerSecretState::Missing)),
            "SecretMissing: tell secret_missing",
        ),
        Row(
            "15 another Secret was read",
            secret().with(state(ProvisionerSecretState::Loaded)).with(another),
            "LoadSecret: secret ns/s",
        ),
        Row(
            "15 another Secret was missing",
            secret().with(state(ProvisionerSecretState::Missing)).with(another),
            "LoadSecret: secret ns/s",
        ),
        Row(
            "15 Secret not readable",
            secret().with(state(ProvisionerSecretState::Unreadable)),
            "SecretForbidden: tell secret_forbidden",
        ),
        Row(
            "15 Secret read",
            secret().with(state(ProvisionerSecretState::Loaded)),
            "Mark: mark",
        ),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_16_to_20_topology_the_marker_and_the_call() {
    let unlabelled = |world: &mut ClaimWorld| world.nodes[0].labels = crate::objects::StringMap::default();
    let gone = |world: &mut ClaimWorld| world.node_gone = true;
    let protection = |value| move |world: &mut ClaimWorld| world.policy.leak_protection = value;
    let marked = || world().marked().creation(Creation::Never);
    let away = |world: &mut ClaimWorld| world.is_away = true;
    let mut recorded = marker_json();
    recorded["segment"] = json!({"zone": "a"});
    recorded["first"] = json!({"zone": "a"});
    play(vec![
        Row("18 the driver is away", world().with(away), "DriverAway: wait"),
        Row(
            "18 the driver is away, and a marker of a call that was refused",
            world().marked().creation(Creation::Refused).with(away),
            "DriverAway: unmark",
        ),
        Row(
            "18 the driver is away, uncertain",
            world().marked().with(away),
            "DriverAway: wait",
        ),
        Row("16 no Node", world().delayed().with(gone), "NodeGone: reschedule"),
        Row(
            "16 no CSINode",
            world().delayed().with(|world| world.nodes.clear()),
            "NodeGone: reschedule",
        ),
        Row(
            "16 no Node, refused",
            world().delayed().marked().creation(Creation::Refused).with(gone),
            "NodeGone: reschedule",
        ),
        Row(
            "16 no Node, uncertain",
            world().delayed().marked_with(&recorded).with(gone),
            "Create: create",
        ),
        Row(
            "16 not known, and a watch is broken",
            world().delayed().with(|world| world.unknown = "node"),
            "TopologyMissing: tell topology_missing",
        ),
        Row(
            "16 not known, uncertain",
            world()
                .delayed()
                .marked_with(&recorded)
                .with(|world| world.unknown = "node"),
            "Create: create",
        ),
        Row(
            "16 no Node, uncertain, the lists not complete",
            world()
                .delayed()
                .marked_with(&recorded)
                .with(|world| world.unknown = "topology"),
            "Syncing: wait",
        ),
        Row(
            "16 no Node, a driver without topology",
            world()
                .delayed()
                .with(|world| world.driver.capabilities.accessibility_constraints = false)
                .with(gone),
            "Mark: mark",
        ),
        Row(
            "17 no label",
            world().delayed().with(unlabelled),
            "TopologyMissing: tell topology_missing",
        ),
        Row(
            "17 no label, recorded",
            world().delayed().marked_with(&recorded).with(unlabelled),
            "Create: create",
        ),
        Row(
            "17 nodes not known",
            world().delayed().with(|world| world.unknown = "topology"),
            "Syncing: wait",
        ),
        Row(
            "17 immediate, no nodes",
            world().with(|world| world.driver.capabilities.accessibility_constraints = true),
            "TopologyMissing: tell topology_missing",
        ),
        Row(
            "17 immediate, none sent",
            world().with(|world| {
                world.driver.capabilities.accessibility_constraints = true;
                world.policy.aggregate_topology = false;
            }),
            "Mark: mark",
        ),
        Row(
            "17 immediate, nodes",
            world().with(|world| {
                world.driver.capabilities.accessibility_constraints = true;
                world.nodes = vec![node("n", &[("z", "a")])];
            }),
            "Mark: mark",
        ),
        Row("18 no marker", world(), "Mark: mark"),
        Row("18 delayed", world().delayed(), "Mark: mark"),
        Row(
            "18 refused, the marker removed by force",
            world().creation(Creation::Refused),
            "Mark: mark",
        ),
        Row(
            "18 marked by a process that has ended",
            world().marked().with(|world| world.marker_is_own = false),
            "Mark: mark",
        ),
        Row(
            "18 only when uncertain, not looked at",
            world().with(protection(LeakProtection::WhenUncertain)),
            "Mark: read claim",
        ),
        Row(
            "18 only when uncertain, looked at",
            world()
                .with(protection(LeakProtection::WhenUncertain))
                .with(|world| world.claim_is_live = true),
            "Create: create",
        ),
        Row(
            "18 only when uncertain, and it is",
            world()
                .creation(uncertain(&world()))
                .with(protection(LeakProtection::WhenUncertain)),
            "Mark: mark",
        ),
        Row(
            "18 never",
            world().with(protection(LeakProtection::Never)),
            "Create: create",
        ),
        Row(
            "18 refused, the class made anew with other parameters",
            world().marked().creation(Creation::Refused).replaced_class(),
            "Mark: mark",
        ),
        Row(
            "18 refused, another node selected since",
            world().delayed().marked().creation(Creation::Refused),
            "Mark: mark",
        ),
        Row(
            "18 refused, marked by another prefix: the name stays",
            world()
                .marked()
                .creation(Creation::Refused)
                .with(|world| world.policy.volume_name_prefix = "other".into()),
            "Create: create",
        ),
        Row("20 first call", marked(), "Create: create"),
        Row(
            "20 after a refusal",
            world().marked().creation(Creation::Refused),
            "Create: create",
        ),
        Row("20 after a restart", world().marked(), "Create: create"),
        Row(
            "20 after a restart, the class another one",
            world().marked().replaced_class(),
            "ClassReplaced: tell class_replaced",
        ),
        Row(
            "20 after a restart by another process, the class another one",
            world()
                .marked()
                .replaced_class()
                .with(|world| world.marker_is_own = false),
            "ClassReplaced: tell class_replaced",
        ),
        Row(
            "20 after a restart, without the plan and the annotation",
            world().marked().annotate(super::builders::MARKER, ""),
            "Create: create",
        ),
        Row(
            "20 beta annotation",
            marked()
                .set("/metadata/annotations", json!({}))
                .marked()
                .annotate("volume.beta.kubernetes.io/storage-provisioner", DRIVER),
            "Create: create",
        ),
    ]);
}

/// Whatever its deletion waits for, the process may end meanwhile.
#[test]
fn a_volume_that_cannot_be_used_is_marked_before_its_deletion_waits() {
    type Obstacle = fn(&mut ClaimWorld);
    let waits: [(&str, Obstacle); 9] = [
        ("Held", |world| world.policy.hold_deletions = true),
        ("StillAttached", |world| world.attached_to = Some("n1".into())),
        ("HandleShared", |world| world.handle_owner = Some("pv-2".into())),
        ("SecretMissing", |world| world.secret = ProvisionerSecretState::Missing),
        ("DriverAway", |world| world.is_away = true),
        ("Draining", |world| world.role = RolePhase::Stopping),
        ("Syncing", |world| world.unknown = "attached"),
        // What goes on is not marked.
        ("UndoVolume", |world| world.saved_is_live = false),
        ("UndoVolume", |_| {}),
    ];
    for (wanted, change) in waits {
        let world = world().with_secret(ProvisionerSecretState::Loaded);
        let mut volume = new_volume(&world);
        volume.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
        let world = world.creation(Creation::Created(Box::new(volume))).with(change);
        let found = |protection| {
            let world = world.clone().with(|world| world.policy.leak_protection = protection);
            [world.clone(), world.marked()].map(|world| world.decide().reason.as_str())
        };
        let unmarked = if wanted == "UndoVolume" { wanted } else { "Mark" };
        assert_eq!(found(LeakProtection::WhenUncertain), [unmarked, wanted]);
        assert_eq!(found(LeakProtection::Never), [wanted, wanted]);
    }
}

/// An uncertain call of this process is repeated to the letter, whatever class, node and claim say by now.
#[test]
fn an_uncertain_call_is_repeated_with_its_own_arguments() {
    let before = world().delayed();
    let plan = plan_of(&before);
    let call = Creation::Uncertain(UncertainCall {
        plan: Some(plan.clone()),
        doubtful: true,
    });
    let after = before
        .marked()
        .creation(call)
        .class("/mountOptions", json!(["ro"]))
        .class("/parameters", json!({"pool": "other"}))
        .annotate("volume.kubernetes.io/selected-node", "n2")
        .with(|world| world.policy.default_fs_type = "xfs".into());
    for world in [after.clone(), after.deleting()] {
        match world.decide().action {
            ClaimAction::Create(repeated) => assert!(Arc::ptr_eq(&repeated, &plan)),
            other => panic!("{other:?}"),
        }
    }
}

/// The class that was created again under its name is known by what the driver is told of it.
#[test]
fn a_class_that_is_the_same_again_is_used_while_it_is_not_known_what_a_call_did() {
    let wanted = world().marked().class("/metadata/uid", "new");
    for again in [wanted.clone(), wanted.deleting()] {
        assert_eq!(word(&again.decide().action), "create");
        let other = again.class("/parameters", json!({"pool": "other"}));
        assert_eq!(word(&other.decide().action), "tell class_replaced");
    }
}

/// One that was changed in place has its UID still. That decides only for a marker which records nothing else.
#[test]
fn a_class_that_was_changed_in_place_is_another_one_while_it_is_not_known_what_a_call_did() {
    let changed = |world: ClaimWorld| world.class("/mountOptions", json!(["discard"]));
    for changed in [changed(world().marked()), changed(world().marked().deleting())] {
        assert_eq!(word(&changed.decide().action), "tell class_replaced");
    }
    let of_uid = world().marked_with(&marker_json());
    assert_eq!(word(&changed(of_uid.clone()).decide().action), "create");
    assert_eq!(word(&of_uid.replaced_class().decide().action), "tell class_replaced");
}

/// What was somebody's is not deleted after its PersistentVolume is gone: that may have been retained.
#[test]
fn a_volume_that_was_shared_is_never_undone() {
    let claim = claim_of(&world().marked().deleting().claim);
    let known = Creation::Created(Box::new(new_volume(&world())));
    let shared = known
        .revised(&claim, false, None, Some("pv-2"))
        .revised(&claim, false, None, None);
    let world = world().marked().deleting().creation(shared);
    assert_eq!(word(&world.decide().action), "unmark");
}

/// A process that has ended took it off, and knew why: what only the marker said ends with it, and nothing is called for a claim without one.
#[test]
fn what_only_the_marker_said_ends_with_it() {
    let of_marker = || Creation::of_marker(true);
    let revise = |known: Creation, world: ClaimWorld| known.revised(&claim_of(&world.claim), world.gone, None, None);
    assert!(revise(of_marker(), world().marked().deleting()).is_uncertain());
    assert_eq!(revise(of_marker(), world().deleting()), Creation::Never);
    let gone = || world().marked().deleting().with(|world| world.gone = true);
    assert_eq!(revise(of_marker(), gone()), Creation::Never, "its last copy may be old");
    let called = uncertain(&world());
    assert_eq!(revise(called.clone(), gone()), called, "who called finds out");
}

/// A PersistentVolume of the claim takes the volume over.
#[test]
fn what_is_known_after_the_volume_is_saved() {
    let saved = volume_of(&volume_json());
    let created = || Creation::Created(Box::new(new_volume(&world())));
    let revise =
        |known: Creation, world: ClaimWorld| known.revised(&claim_of(&world.claim), world.gone, Some(&saved), None);
    assert!(revise(created(), world().marked()).is_uncertain());
    assert_eq!(revise(created(), world()), Creation::Never);
    assert_eq!(
        revise(uncertain(&world()), world()),
        Creation::Never,
        "the answer to taking the marker off was lost"
    );
    assert!(revise(uncertain(&world()), world().marked()).is_uncertain());
    let gone = world().marked().deleting().with(|world| world.gone = true);
    assert_eq!(
        revise(uncertain(&world()), gone),
        Creation::Never,
        "its last copy may be old"
    );
    assert_eq!(revise(Creation::Refused, world()), Creation::Refused);
    let mut second = new_volume(&world());
    second.handle = "vol-2".into();
    let second = Creation::Created(Box::new(second));
    assert_eq!(revise(second.clone(), world().marked()), second, "the driver made two");
    let other = world().set("/metadata/uid", "other");
    assert_eq!(
        revise(created(), other.clone()),
        created().revised(&claim_of(&other.claim), false, None, None)
    );
}
