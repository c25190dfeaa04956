//! The rules about a claim, in their order: a row or more for each.

use serde_json::json;
use std::sync::Arc;

use super::builders::{
    ClaimWorld, DRIVER, NAME, UID, answered_volume, claim_of, marker_json, node, plan_of, volume_json, volume_of, world,
};
use super::table::{Decided, Row};
use crate::provision::{
    ClaimAction, Creation, LeakProtection, NewVolume, ProvisionerSecretState, RolePhase, UncertainCall, VolumeFault,
};

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

fn play(table: Vec<Vec<Row<ClaimWorld>>>) {
    super::table::play(table, |world| {
        let decision = world.decide();
        format!("{}: {}", decision.reason.as_str(), word(&decision.action))
    });
}

pub fn new_volume(world: &ClaimWorld) -> NewVolume {
    NewVolume::of_answer(&plan_of(world), Some(answered_volume())).unwrap()
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
        Decided("NotOwn: ignore").when(vec![
            ("1 another driver's", other()),
            ("1 another driver's, with its marker", other().marked_with(&foreign)),
            (
                "1 another driver's, with a marker that says nothing",
                other().marked_with(&unreadable),
            ),
        ]),
        Decided("MarkerOfAnotherDriver: tell marker_of_another_driver").when(vec![(
            "1 ours, with a marker of another driver",
            world().marked_with(&foreign),
        )]),
        Decided("NotNeeded: ignore").when(vec![(
            "1 ours, with a marker of another driver, bound",
            world().marked_with(&foreign).bound(NAME),
        )]),
        Decided("FindOut: create").when(vec![("1 another driver's by now, with our marker", other().marked())]),
        Decided("Saved: unmark").when(vec![
            ("2 saved and bound", world().marked().bound(NAME).saved()),
            ("2 saved, in deletion", world().marked().deleting().saved()),
            ("2 saved, bound to another", world().marked().bound("other").saved()),
            (
                "2 saved for 30 s",
                world().marked().saved().with(|world| world.waited.for_binding = true),
            ),
            ("2 bound, its PersistentVolume gone since", world().marked().bound(NAME)),
            ("2 lost", world().marked().lost()),
            (
                "3 saved just now, and the role ends",
                world().marked().saved().role(RolePhase::Stopping),
            ),
            (
                "4 its PersistentVolume goes, in deletion as well",
                world().marked().deleting().volume_going(),
            ),
            (
                "4 its PersistentVolume goes, bound to it",
                world().marked().bound(NAME).volume_going(),
            ),
            (
                "5 a volume populator gave it to another claim",
                world().marked().bound(NAME).name_taken(),
            ),
            (
                "5 a volume populator gave it to another claim, in deletion",
                world().marked().bound(NAME).deleting().name_taken(),
            ),
            (
                "5 it was given to another claim, and this one is lost",
                world().marked().lost().name_taken(),
            ),
        ]),
        Decided("Saved: ignore").when(vec![(
            "2 saved and bound, without a marker",
            world().bound(NAME).saved(),
        )]),
        Decided("TwoVolumes: unmark").when(vec![(
            "2 the driver made two volumes",
            created(&world(), |new| new.handle = "vol-2".into()).saved(),
        )]),
        Decided("WaitForBinding: wait").when(vec![("3 saved just now", world().marked().saved())]),
        Decided("VolumeGoing: tell pv_deleting").when(vec![
            ("4 its PersistentVolume goes", world().marked().volume_going()),
            (
                "4 its PersistentVolume goes, and deletions are held",
                world()
                    .marked()
                    .volume_going()
                    .with(|world| world.policy.hold_deletions = true),
            ),
        ]),
        Decided("NameTaken: tell name_taken").when(vec![
            ("5 of another claim", world().name_taken()),
            ("5 of no claim", world().saved_with("/spec/claimRef", json!(null))),
            (
                "5 of another driver",
                world().saved_with("/spec/csi/driver", "other.test"),
            ),
            ("5 of another claim, uncertain", world().marked().name_taken()),
        ]),
        Decided("Syncing: wait").when(vec![("not known whether it is saved", world().unknown("saved"))]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_6_to_8_the_volume_is_there() {
    let retain = world().class("/reclaimPolicy", "Retain");
    let faulty = |new: &mut NewVolume| new.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
    let failed = |new: &mut NewVolume| new.undo_failed = true;
    let wanted = || created(&world(), unnoticed);
    let retained = || created(&retain, unnoticed);
    let unwanted = || wanted().deleting();
    let unread = |world: &mut ClaimWorld| world.saved_is_live = false;
    let held = |world: &mut ClaimWorld| world.policy.hold_deletions = true;
    let stuck = |world: ClaimWorld| world.with(|world| world.waited.stuck = true);
    let attached = |world: ClaimWorld| world.with(|world| world.attached_to = Some("n1".into()));
    let ask = |world: ClaimWorld| {
        let request = json!({"uid": UID, "deleted": super::builders::DELETED_AT, "at": super::builders::NOW});
        world.annotate("attacher.csi.dev/release", &request.to_string())
    };
    play(vec![
        Decided("SaveVolume: save").when(vec![
            ("6 wanted", wanted()),
            ("6 wanted, the class gone", wanted().without_class()),
            ("6 wanted, switched off", wanted().role(RolePhase::Disabled)),
            ("6 wanted, and attached", attached(wanted())),
            ("6 the driver is away", wanted().away()),
        ]),
        Decided("KeepVolume: save").when(vec![
            ("7 unwanted, Retain", retained().deleting()),
            (
                "7 unwanted, no policy",
                created(&world().class("/reclaimPolicy", json!(null)), unnoticed).deleting(),
            ),
            ("7 bound elsewhere, Retain", retained().bound("static")),
        ]),
        Decided("NameTaken: tell name_taken").when(vec![(
            "7 unwanted, Retain, the name taken",
            retained().deleting().name_taken(),
        )]),
        Decided("HandleShared: unmark").when(vec![
            (
                "7 unwanted, Retain, somebody's handle",
                retained()
                    .deleting()
                    .with(|world| world.handle_owner = Some(NAME.into())),
            ),
            (
                "8a somebody's handle",
                unwanted().with(|world| world.handle_owner = Some("pv-2".into())),
            ),
        ]),
        Decided("KeepVolume: tell volume_unrecorded").when(vec![(
            "7 another driver's by now, Retain: the claim would be bound to it",
            retained().of_another_driver(),
        )]),
        Decided("UndoVolume: delete vol-1").when(vec![
            ("6 wanted again while it may be deleted", created(&world(), failed)),
            ("8 unwanted", unwanted()),
            ("8 bound elsewhere", wanted().bound("static")),
            ("8 another driver's by now", wanted().of_another_driver()),
            (
                "8 another driver's by now, not deleted with OK: the claim would be bound to it",
                created(&world(), failed).of_another_driver(),
            ),
            (
                "8 not deleted with OK, the name taken",
                created(&world(), failed).deleting().name_taken(),
            ),
            ("8 its claim removed by force", unwanted().removed()),
            ("8 undersized and wanted", created(&world(), faulty)),
            (
                "8 undersized and wanted, not deleted with OK",
                created(&world(), |new| {
                    faulty(new);
                    failed(new);
                }),
            ),
        ]),
        Decided("Syncing: wait").when(vec![
            ("8a not known whose", unwanted().unknown("handle")),
            ("8 not known whether it is attached", unwanted().unknown("attached")),
        ]),
        Decided("HandleShared: tell handle_shared").when(vec![(
            "8a undersized, somebody's handle",
            created(&world(), faulty).with(|world| world.handle_owner = Some("pv-2".into())),
        )]),
        Decided("UndoVolume: read volume").when(vec![
            ("8 unwanted, not looked at", unwanted().with(unread)),
            ("8 attached, not looked at", attached(unwanted().with(unread))),
        ]),
        Decided("UndoVolume: save").when(vec![
            ("8 not deleted with OK", created(&world(), failed).deleting()),
            ("8 attached", attached(unwanted())),
            ("8 attached, its claim removed by force", attached(unwanted().removed())),
            (
                "8 not known whether it is attached, held",
                unwanted().unknown("attached").with(held),
            ),
            ("8 held, and saved all the same", stuck(ask(unwanted().with(held)))),
            (
                "8 the process ends, and no marker says that there is a volume",
                unwanted().with(|world| {
                    world.role = RolePhase::Stopping;
                    world.claim["metadata"]["finalizers"] = json!(["example.com/hold"]);
                }),
            ),
            (
                "8 the process ends, and the claim was removed by force with its marker",
                unwanted().role(RolePhase::Stopping).removed(),
            ),
            (
                "8 the driver is away, and the claim was removed by force with its marker",
                unwanted().away().removed(),
            ),
        ]),
        Decided("Held: tell deletion_held").when(vec![
            (
                "8 another driver's by now, held: the claim would be bound to it",
                wanted().of_another_driver().with(held),
            ),
            ("8 held, the name taken", stuck(unwanted().name_taken().with(held))),
        ]),
        Decided("StillAttached: tell still_attached").when(vec![
            ("8 attached, the name taken", attached(unwanted().name_taken())),
            (
                "8 attached, another driver's by now: the claim would be bound to it",
                attached(wanted().of_another_driver()),
            ),
            ("8 attached, undersized and wanted", attached(created(&world(), faulty))),
        ]),
        Decided("LetGo: let go").when(vec![
            (
                "8 attached, the name taken, let go",
                stuck(ask(attached(unwanted().name_taken()))),
            ),
            (
                "8 held, the name taken, let go",
                stuck(ask(unwanted().name_taken().with(held))),
            ),
            (
                "7 unwanted, Retain, the name taken, let go",
                stuck(ask(retained().deleting().name_taken())),
            ),
        ]),
        Decided("DriverAway: wait").when(vec![("8 the driver is away", unwanted().away())]),
        Decided("Draining: wait").when(vec![("8 the process ends", unwanted().role(RolePhase::Stopping))]),
    ]);
}

/// Of a volume that nobody wants: its Secret holds up nothing that can be done without it.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn the_secret_of_what_nobody_wants() {
    use ProvisionerSecretState::{Loaded, Missing, NotLoaded, Unreadable};
    let faulty = |new: &mut NewVolume| new.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
    let failed = |new: &mut NewVolume| new.undo_failed = true;
    let made = |state, change: fn(&mut NewVolume)| created(&world().with_secret(state), change);
    let open = |state| {
        let world = world().with_secret(state);
        let known = uncertain(&world);
        world.marked().creation(known)
    };
    let was_wanted = |world: &mut ClaimWorld| world.secret_was_wanted = true;
    let unlisted = |world: &mut ClaimWorld| world.policy.secrets = crate::provision::ProvisionerSecrets::default();
    play(vec![
        Decided("LoadSecret: secret ns/s or as it was").when(vec![
            ("8 not read", made(NotLoaded, unnoticed).deleting()),
            (
                "8 not read, another driver's by now",
                made(NotLoaded, unnoticed).of_another_driver(),
            ),
            (
                "8 missing while it was wanted",
                made(Missing, unnoticed).deleting().with(was_wanted),
            ),
            ("10 not read", open(NotLoaded).deleting()),
            (
                "10 not read, another driver's by now",
                open(NotLoaded).of_another_driver(),
            ),
            ("10 not read, bound elsewhere", open(NotLoaded).bound("static")),
            (
                "10 missing while it was wanted",
                open(Missing).of_another_driver().with(was_wanted),
            ),
            (
                "10 not readable while it was wanted",
                open(Unreadable).deleting().with(was_wanted),
            ),
        ]),
        Decided("UndoVolume: delete vol-1 with ns/s").when(vec![
            ("8 read", made(Loaded, unnoticed).deleting()),
            (
                "8 read while it was wanted",
                made(Loaded, unnoticed).deleting().with(was_wanted),
            ),
        ]),
        Decided("UndoVolume: delete vol-1").when(vec![
            ("8 missing", made(Missing, unnoticed).deleting()),
            (
                "8 missing, another driver's by now",
                made(Missing, unnoticed).of_another_driver(),
            ),
            ("8 missing, bound elsewhere", made(Missing, unnoticed).bound("static")),
        ]),
        Decided("UndoVolume: read volume").when(vec![(
            "8 missing, not looked at",
            made(Missing, unnoticed)
                .deleting()
                .with(|world| world.saved_is_live = false),
        )]),
        Decided("UndoVolume: save").when(vec![(
            "8 missing, not deleted with OK",
            made(Missing, failed).deleting(),
        )]),
        Decided("SecretForbidden: tell secret_forbidden")
            .when(vec![("8 not readable", made(Unreadable, unnoticed).deleting())]),
        Decided("SecretForbidden: tell secret_not_allowed").when(vec![(
            "8 not listed any more",
            made(Missing, unnoticed).deleting().with(unlisted),
        )]),
        Decided("SecretMissing: tell secret_missing").when(vec![
            ("8 missing, undersized and wanted", made(Missing, faulty)),
            // Without it the call would be another one.
            ("10 missing", open(Missing).deleting()),
            ("20 missing, and wanted", open(Missing).with(was_wanted)),
        ]),
        Decided("SaveVolume: save").when(vec![("6 missing, and wanted", made(Missing, unnoticed))]),
        Decided("LoadSecret: secret ns/s").when(vec![("20 not read, and wanted", open(NotLoaded))]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_9_to_11_nobody_wants_it_or_the_role_ends() {
    let ask = |at: &str| {
        json!({"uid": UID, "deleted": super::builders::DELETED_AT, "at": at, "by": "ann", "reason": "stuck"})
            .to_string()
    };
    let unwanted = || world().marked().deleting();
    let asked = |at: &str| unwanted().annotate("attacher.csi.dev/release", &ask(at));
    let in_time = "2026-01-02T03:04:00Z";
    let stuck = |world: &mut ClaimWorld| world.waited.stuck = true;
    let refused = || world().marked().creation(Creation::Refused);
    play(vec![
        Decided("Cancelled: ignore").when(vec![("9 nothing was called", world().deleting())]),
        Decided("Cancelled: unmark").when(vec![
            ("9 marked, nothing was called", unwanted().creation(Creation::Never)),
            ("9 refused", refused().deleting()),
            ("9 refused, bound elsewhere", refused().bound("static")),
            ("9 refused, the driver is away", refused().deleting().away()),
        ]),
        Decided("LetGo: let go").when(vec![
            ("10a asked", asked(in_time).with(stuck)),
            ("10a asked, the driver is away", asked(in_time).with(stuck).away()),
        ]),
        Decided("LetGo: refuse release").when(vec![
            ("10a asked early", asked(in_time)),
            ("10a asked long ago", asked("2026-01-01T03:04:00Z").with(stuck)),
        ]),
        Decided("FindOut: create").when(vec![
            ("10 uncertain", unwanted()),
            (
                "10 uncertain, of this process",
                unwanted().creation(uncertain(&world())).without_class(),
            ),
            (
                "10 uncertain, removed by force",
                world().deleting().creation(uncertain(&world())).removed(),
            ),
            (
                "10a asked, removed by force: nothing is left to let go",
                asked(in_time).with(stuck).removed(),
            ),
            ("10 uncertain, bound elsewhere", world().marked().bound("static")),
            ("10 switched off", unwanted().role(RolePhase::Disabled)),
        ]),
        Decided("Mark: mark").when(vec![(
            "10 of a process that has ended",
            unwanted().with(|world| world.marker_is_own = false),
        )]),
        Decided("ClassMissing: wait").when(vec![("10 the class is gone", unwanted().without_class())]),
        Decided("ClassReplaced: tell class_replaced").when(vec![
            ("10 the class is another one", unwanted().replaced_class()),
            (
                "10 the class is another provisioner's by now",
                unwanted().class("/provisioner", "other.test"),
            ),
        ]),
        Decided("ClassMissing: tell class_missing").when(vec![(
            "10 the class is gone for 10 s",
            unwanted().without_class().with(|world| world.waited.for_class = true),
        )]),
        Decided("DriverAway: wait").when(vec![
            ("10 the driver is away", unwanted().away()),
            (
                "10 the driver is away, switched off",
                unwanted().role(RolePhase::Disabled).away(),
            ),
        ]),
        Decided("Draining: wait").when(vec![
            ("10 the process ends", unwanted().role(RolePhase::Stopping)),
            (
                "11 the process ends, uncertain",
                world().marked().role(RolePhase::Stopping),
            ),
        ]),
        Decided("Draining: ignore").when(vec![(
            "11 switched off, nothing was called",
            world().role(RolePhase::Disabled),
        )]),
        Decided("Draining: unmark").when(vec![
            ("11 switched off, refused", refused().role(RolePhase::Disabled)),
            ("11 the process ends, refused", refused().role(RolePhase::Stopping)),
        ]),
        Decided("Create: create").when(vec![(
            "11 switched off, uncertain: it is finished",
            world().marked().role(RolePhase::Disabled),
        )]),
    ]);
}

/// Watches of what a first call is made from are broken.
#[test]
fn row_12_what_a_first_call_is_made_from_has_to_be_known_as_it_is() {
    let stale = |world: ClaimWorld| {
        world.with(|world| {
            (world.classes_are_known, world.nodes_are_known) = (false, false);
        })
    };
    let for_long = |world: ClaimWorld| stale(world).with(|world| world.waited.for_class = true);
    let nodes = |world: ClaimWorld| world.with(|world| world.nodes_are_known = false);
    let refused = || world().marked().creation(Creation::Refused);
    play(vec![
        Decided("Syncing: wait").when(vec![
            ("the class", stale(world())),
            (
                "the class, of another provisioner as far as is known",
                stale(world().class("/provisioner", "other.test")),
            ),
            ("the class, refused before", stale(refused())),
            ("the nodes", nodes(world().delayed())),
            (
                "the nodes, of which the selected one is gone as far as is known",
                nodes(world().delayed()).with(|world| world.node_gone = true),
            ),
        ]),
        Decided("Unconfirmed: tell unconfirmed").when(vec![
            ("the class, for 10 s", for_long(world())),
            (
                "the nodes, for 10 s",
                nodes(world().delayed()).with(|world| world.waited.for_class = true),
            ),
        ]),
        Decided("ClassMissing: tell class_missing").when(vec![(
            "the class, and none is there as far as is known",
            for_long(world().without_class()),
        )]),
        Decided("Unconfirmed: unmark").when(vec![("the class, refused before, for 10 s", for_long(refused()))]),
        Decided("Create: create").when(vec![
            ("the class, while a call is open", stale(world().marked())),
            (
                "the class, while a call of this process is open",
                stale(world().marked().creation(uncertain(&world()))),
            ),
            ("the nodes, while a call is open", nodes(world().delayed().marked())),
        ]),
        Decided("FindOut: create").when(vec![(
            "the class, while a call is open for a claim that nobody wants",
            stale(world().marked().deleting()),
        )]),
        Decided("Mark: mark").when(vec![("the nodes, without topology", nodes(world()))]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_12_to_15_what_is_missing_or_wrong() {
    use ProvisionerSecretState::{Loaded, Missing, NotLoaded, Unreadable};
    let told = |world: &mut ClaimWorld| world.waited.for_class = true;
    let source = |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": "s"});
    let secret = |state| world().with_secret(state);
    let refused = || world().marked().creation(Creation::Refused);
    let infeasible = |world: &mut ClaimWorld| world.infeasible = true;
    let another = |world: &mut ClaimWorld| {
        world.secret_of = Some(crate::objects::SecretReference {
            namespace: "ns".into(),
            name: "another".into(),
        });
    };
    play(vec![
        Decided("ClassMissing: wait").when(vec![
            ("12 no class", world().without_class()),
            (
                "12 no class, uncertain: the marker stays",
                world().marked().without_class(),
            ),
        ]),
        Decided("ClassMissing: tell class_missing")
            .when(vec![("12 no class for 10 s", world().without_class().with(told))]),
        Decided("Syncing: wait").when(vec![
            ("12 not known", world().unknown("class")),
            ("12 not known, refused", refused().unknown("class")),
        ]),
        Decided("ClassMismatch: tell class_mismatch").when(vec![
            (
                "12 another provisioner's",
                world().class("/provisioner", "other").with(told),
            ),
            (
                "12 of volumes that are made by hand",
                world().class("/provisioner", "kubernetes.io/no-provisioner").with(told),
            ),
        ]),
        Decided("ClassMismatch: tell not_supported").when(vec![
            // kube-controller-manager writes the driver's name for a migrated plug-in, and corrects nothing: told at once.
            (
                "12 an in-tree plug-in's",
                world().class("/provisioner", "kubernetes.io/aws-ebs"),
            ),
        ]),
        Decided("Create: create").when(vec![
            (
                "12 no class, with the plan of the call",
                world().marked().without_class().creation(uncertain(&world())),
            ),
            (
                "12 no node selected any more, uncertain",
                world().marked().class("/volumeBindingMode", "WaitForFirstConsumer"),
            ),
            (
                "14 cannot succeed, and uncertain since",
                world().marked().with(infeasible),
            ),
        ]),
        Decided("WaitForConsumer: wait").when(vec![(
            "12 no node selected",
            world().class("/volumeBindingMode", "WaitForFirstConsumer"),
        )]),
        Decided("WaitForConsumer: unmark").when(vec![(
            "12 no node selected any more, refused",
            refused().class("/volumeBindingMode", "WaitForFirstConsumer"),
        )]),
        Decided("ClassMissing: unmark").when(vec![("12 no class, refused", refused().without_class())]),
        Decided("NotNeeded: ignore").when(vec![("names a volume", world().set("/spec/volumeName", NAME))]),
        Decided("Populator: wait").when(vec![
            (
                "13 a populator's",
                world().set("/spec/dataSource", source("x.io", "Foo")),
            ),
            (
                "13 a claim of another group",
                world().set("/spec/dataSourceRef", source("x.io", "PersistentVolumeClaim")),
            ),
        ]),
        Decided("Invalid: refuse invalid_claim").when(vec![
            ("14 selector", world().set("/spec/selector", json!({}))),
            (
                "14 uncertain: the marker stays",
                world().marked().set("/spec/selector", json!({})),
            ),
        ]),
        Decided("Invalid: refuse invalid_class").when(vec![
            (
                "14 reserved key",
                world().class("/parameters", json!({"csi.storage.k8s.io/foo": "x"})),
            ),
            (
                "14 template",
                world().class(
                    "/parameters",
                    json!({"csi.storage.k8s.io/secret-name": "${x}", "csi.storage.k8s.io/secret-namespace": "x"}),
                ),
            ),
            (
                "14 fstype twice",
                world().class(
                    "/parameters",
                    json!({"fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs"}),
                ),
            ),
        ]),
        Decided("Invalid: refuse capability_missing").when(vec![(
            "14 the driver creates nothing",
            world().with(|world| world.driver.capabilities.create_delete_volume = false),
        )]),
        Decided("Invalid: refuse not_supported").when(vec![
            (
                "14 a snapshot (P3)",
                world().set("/spec/dataSource", source("snapshot.storage.k8s.io", "VolumeSnapshot")),
            ),
            (
                "14 an attributes class (P3)",
                world().set("/spec/volumeAttributesClassName", "gold"),
            ),
        ]),
        Decided("SecretForbidden: tell secret_not_allowed").when(vec![(
            "14 a Secret that is not listed",
            secret(NotLoaded).with(|world| world.policy.secrets = crate::provision::ProvisionerSecrets::default()),
        )]),
        Decided("Invalid: unmark").when(vec![(
            "14 selector, refused",
            refused().set("/spec/selector", json!({})),
        )]),
        Decided("Infeasible: wait").when(vec![("14 cannot succeed", world().with(infeasible))]),
        Decided("Infeasible: unmark").when(vec![("14 cannot succeed, marked", refused().with(infeasible))]),
        Decided("Cancelled: unmark").when(vec![(
            "14 cannot succeed, in deletion",
            refused().deleting().with(infeasible),
        )]),
        Decided("SecretMissing: unmark").when(vec![(
            "15 Secret missing, refused",
            secret(Missing).marked().creation(Creation::Refused),
        )]),
        Decided("LoadSecret: secret ns/s").when(vec![
            ("15 Secret, not read", secret(NotLoaded)),
            ("15 another Secret was read", secret(Loaded).with(another)),
            ("15 another Secret was missing", secret(Missing).with(another)),
        ]),
        Decided("SecretMissing: tell secret_missing").when(vec![("15 Secret missing", secret(Missing))]),
        Decided("SecretForbidden: tell secret_forbidden").when(vec![("15 Secret not readable", secret(Unreadable))]),
        Decided("Mark: mark").when(vec![("15 Secret read", secret(Loaded))]),
    ]);
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_16_to_20_topology_the_marker_and_the_call() {
    let unlabelled = |world: &mut ClaimWorld| world.nodes[0].labels = crate::objects::StringMap::default();
    let gone = |world: &mut ClaimWorld| world.node_gone = true;
    let protection = |value| move |world: &mut ClaimWorld| world.policy.leak_protection = value;
    let refused = || world().marked().creation(Creation::Refused);
    let marked = || world().marked().creation(Creation::Never);
    let mut recorded = marker_json();
    recorded["segment"] = json!({"zone": "a"});
    recorded["first"] = json!({"zone": "a"});
    let unplaced = || world().delayed().annotate("volume.kubernetes.io/selected-node", "");
    let unreadable = json!("unreadable");
    let hosts: Vec<String> = (0..1000).map(|at| at.to_string()).collect();
    let many = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}, {"matchLabelExpressions": [{"key": "host", "values": hosts}]}]);
    play(vec![
        Decided("WaitForConsumer: wait").when(vec![
            (
                "16 no node selected, and a marker that says nothing",
                unplaced().marked_with(&unreadable),
            ),
            (
                "16 no node selected, and a marker that says nothing of topology",
                unplaced().marked(),
            ),
        ]),
        Decided("FindOut: create").when(vec![(
            "16 no node selected, and a marker that says nothing, in deletion",
            unplaced().marked_with(&unreadable).deleting(),
        )]),
        Decided("Create: create").when(vec![
            (
                "16 no node selected any more, recorded",
                unplaced().marked_with(&recorded),
            ),
            (
                "16 immediate, and a marker that says nothing",
                unplaced()
                    .class("/volumeBindingMode", "Immediate")
                    .marked_with(&unreadable),
            ),
            (
                "16 no Node, uncertain",
                world().delayed().marked_with(&recorded).with(gone),
            ),
            (
                "16 not known, uncertain",
                world().delayed().marked_with(&recorded).unknown("node"),
            ),
            (
                "17 no label, recorded",
                world().delayed().marked_with(&recorded).with(unlabelled),
            ),
            (
                "18 only when uncertain, looked at",
                world()
                    .with(protection(LeakProtection::WhenUncertain))
                    .with(|world| world.claim_is_live = true),
            ),
            ("18 never", world().with(protection(LeakProtection::Never))),
            (
                "18 refused, marked by another prefix: the name stays",
                refused().with(|world| world.policy.volume_name_prefix = "other".into()),
            ),
            ("20 first call", marked()),
            ("20 after a refusal", refused()),
            ("20 after a restart", world().marked()),
            (
                "20 after a restart, without the plan and the annotation",
                world().marked().annotate(super::builders::MARKER, ""),
            ),
            (
                "20 beta annotation",
                marked()
                    .set("/metadata/annotations", json!({}))
                    .marked()
                    .annotate("volume.beta.kubernetes.io/storage-provisioner", DRIVER),
            ),
        ]),
        Decided("Mark: mark").when(vec![
            (
                "16 many topologies are allowed",
                world().delayed().class("/allowedTopologies", many),
            ),
            (
                "16 no Node, a driver without topology",
                world()
                    .delayed()
                    .with(|world| world.driver.capabilities.accessibility_constraints = false)
                    .with(gone),
            ),
            (
                "17 immediate, none sent",
                world().with(|world| {
                    world.driver.capabilities.accessibility_constraints = true;
                    world.policy.aggregate_topology = false;
                }),
            ),
            (
                "17 immediate, nodes",
                world().with(|world| {
                    world.driver.capabilities.accessibility_constraints = true;
                    world.nodes = vec![node("n", &[("z", "a")])];
                }),
            ),
            ("18 no marker", world()),
            ("18 delayed", world().delayed()),
            (
                "18 refused, the marker removed by force",
                world().creation(Creation::Refused),
            ),
            (
                "18 marked by a process that has ended",
                world().marked().with(|world| world.marker_is_own = false),
            ),
            (
                "18 only when uncertain, and it is",
                world()
                    .creation(uncertain(&world()))
                    .with(protection(LeakProtection::WhenUncertain)),
            ),
            (
                "18 refused, the class made anew with other parameters",
                refused().replaced_class(),
            ),
            (
                "18 refused, another node selected since",
                world().delayed().marked().creation(Creation::Refused),
            ),
        ]),
        Decided("DriverAway: wait").when(vec![
            ("18 the driver is away", world().away()),
            ("18 the driver is away, uncertain", world().marked().away()),
        ]),
        Decided("DriverAway: unmark").when(vec![(
            "18 the driver is away, and a marker of a call that was refused",
            refused().away(),
        )]),
        Decided("NodeGone: reschedule").when(vec![
            ("16 no Node", world().delayed().with(gone)),
            ("16 no CSINode", world().delayed().with(|world| world.nodes.clear())),
            (
                "16 no Node, refused",
                world().delayed().marked().creation(Creation::Refused).with(gone),
            ),
        ]),
        Decided("TopologyMissing: tell topology_missing").when(vec![
            ("16 not known, and a watch is broken", world().delayed().unknown("node")),
            ("17 no label", world().delayed().with(unlabelled)),
            (
                "17 immediate, no nodes",
                world().with(|world| world.driver.capabilities.accessibility_constraints = true),
            ),
        ]),
        Decided("Syncing: wait").when(vec![
            (
                "16 no Node, uncertain, the lists not complete",
                world().delayed().marked_with(&recorded).unknown("topology"),
            ),
            ("17 nodes not known", world().delayed().unknown("topology")),
        ]),
        Decided("Mark: read claim").when(vec![(
            "18 only when uncertain, not looked at",
            world().with(protection(LeakProtection::WhenUncertain)),
        )]),
        Decided("ClassReplaced: tell class_replaced").when(vec![
            (
                "20 after a restart, the class another one",
                world().marked().replaced_class(),
            ),
            (
                "20 after a restart by another process, the class another one",
                world()
                    .marked()
                    .replaced_class()
                    .with(|world| world.marker_is_own = false),
            ),
        ]),
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
    let gone = || world().marked().deleting().removed();
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
    let gone = world().marked().deleting().removed();
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
