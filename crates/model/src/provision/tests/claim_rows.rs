//! The rules about a claim, in their order: a row or more for each.

use serde_json::{Value, json};
use std::sync::Arc;

use super::builders::{
    ClaimWorld, DELETED_AT, DRIVER, MARKER, NAME, NOW, UID, answered_volume, claim_of, driver, marker_json, node,
    plan_of, put, volume_json, volume_of, world,
};
use super::table::secret_state;
use crate::objects::{SecretReference, StringMap};
use crate::provision::{
    ClaimAction, Creation, LeakProtection, NewVolume, ProvisionerSecretState, ProvisionerSecrets, RolePhase,
    UncertainCall, VolumeFault,
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

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

pub fn new_volume(world: &ClaimWorld) -> NewVolume {
    NewVolume::of_answer(&plan_of(world), Some(answered_volume())).unwrap()
}

pub fn uncertain(world: &ClaimWorld) -> Creation {
    Creation::Uncertain(UncertainCall {
        plan: Some(plan_of(world)),
        ..UncertainCall::default()
    })
}

/// The PersistentVolume of the name was seen with the handle of its volume.
pub fn recorded(world: &ClaimWorld) -> Creation {
    Creation::Uncertain(UncertainCall {
        plan: Some(plan_of(world)),
        handle: Some("vol-1".into()),
        ..UncertainCall::default()
    })
}

pub fn play(table: &'static str) -> usize {
    super::table::play(table, world, happen, |world| {
        let decision = world.decide();
        format!("{}: {}", decision.reason.as_str(), word(&decision.action))
    })
}

/// With another volume than the one that was created.
fn but(mut world: ClaimWorld, change: impl FnOnce(&mut NewVolume)) -> ClaimWorld {
    match &mut world.creation {
        Some(Creation::Created(volume)) => change(volume),
        other => panic!("{other:?}"),
    }
    world
}

/// Whose PersistentVolume has another volume.
fn of_another_volume(mut world: ClaimWorld) -> ClaimWorld {
    put(world.saved.as_mut().unwrap(), "/spec/csi/volumeHandle", json!("vol-9"));
    world
}

/// With the annotation of a person who asks to let it go.
fn asked(world: ClaimWorld, at: &str) -> ClaimWorld {
    let request = json!({"uid": UID, "deleted": DELETED_AT, "at": at});
    world.annotate("attacher.csi.dev/release", &request.to_string())
}

fn source(world: ClaimWorld, field: &str, group: &str, kind: &str) -> ClaimWorld {
    world.set(field, json!({"apiGroup": group, "kind": kind, "name": "s"}))
}

fn one_topology() -> Value {
    json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}])
}

/// Two topologies, one of which is a thousand.
fn many_topologies() -> Value {
    let hosts: Vec<String> = (0..1000).map(|at| at.to_string()).collect();
    json!([
        {"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]},
        {"matchLabelExpressions": [{"key": "host", "values": hosts}]},
    ])
}

/// What these words of a table say.
fn happen(world: ClaimWorld, words: &'static str) -> ClaimWorld {
    if let Some(what) = words.strip_prefix("unknown ") {
        return world.with(|world| world.unknown = what);
    }
    if let Some(state) = words.strip_prefix("secret ") {
        return world.with_secret(secret_state(state));
    }
    match words {
        "as it is" => world,
        "delayed" => world.delayed(),
        "marked" => world.marked(),
        "deleting" => world.deleting(),
        "removed" => world.removed(),
        "bound" => world.bound(NAME),
        "bound elsewhere" => world.bound("static"),
        "taken for bound" => world.set("/spec/volumeName", NAME).annotate(BIND_COMPLETED, ""),
        "lost" => world.set("/spec/volumeName", NAME).set("/status/phase", "Lost"),
        "another driver's" => world.of_another_driver(),
        "saved" => world.saved(),
        "volume going" => world.saved_with("/metadata/deletionTimestamp", DELETED_AT),
        "name taken" => of_another_volume(world.saved_with("/spec/claimRef/uid", "other")),
        "given away" => world.saved_with("/spec/claimRef/uid", "other"),
        "freed" => world.saved_with("/spec/claimRef/uid", ""),
        "saved for nobody" => world.saved_with("/spec/claimRef", json!(null)),
        "saved by another driver" => world.saved_with("/spec/csi/driver", "other.test"),
        "asked" => asked(world, NOW),
        "asked long ago" => asked(world, "2026-01-01T03:04:00Z"),
        "no class" => world.without_class(),
        "replaced class" => world.replaced_class(),
        "never called" => world.creation(Creation::Never),
        "refused" => world.creation(Creation::Refused),
        "uncertain" => {
            let call = uncertain(&world);
            world.creation(call)
        }
        "recorded" => {
            let call = recorded(&world);
            world.creation(call)
        }
        "created" => {
            let volume = new_volume(&world);
            world.marked().creation(Creation::Created(Box::new(volume)))
        }
        "second volume" => but(world, |new| new.handle = "vol-2".into()),
        "undersized" => but(world, |new| {
            new.fault = Some(VolumeFault::Undersized { asked: 2, answered: 1 });
        }),
        "undo failed" => but(world, |new| new.undo_failed = true),
        _ => world.with(|world| observe(world, words)),
    }
}

/// What these words of a table say of one thing that is observed.
fn observe(world: &mut ClaimWorld, words: &str) {
    let capabilities = &mut world.driver.capabilities;
    match words {
        "away" => world.is_away = true,
        "stopping" => world.role = RolePhase::Stopping,
        "disabled" => world.role = RolePhase::Disabled,
        "held" => world.policy.hold_deletions = true,
        "stuck" => world.waited.stuck = true,
        "attached" => world.attached_to = Some("n1".into()),
        "shared" => world.handle_owner = Some("pv-2".into()),
        "in its own volume" => world.handle_owner = Some(NAME.into()),
        "claim read" => world.claim_is_live = true,
        "volume not read" => world.saved_is_live = false,
        "of another process" => world.marker_is_own = false,
        "infeasible" => world.infeasible = true,
        "waited for binding" => world.waited.for_binding = true,
        "waited for node" => world.waited.for_node = true,
        "waited for class" => world.waited.for_class = true,
        "unwatched" => (world.classes_are_known, world.nodes_are_known) = (false, false),
        "unwatched nodes" => world.nodes_are_known = false,
        "node gone" => world.node_gone = true,
        "no CSINode" => world.nodes.clear(),
        "unlabelled" => world.nodes[0].labels = StringMap::default(),
        "one node" => world.nodes = vec![node("n", &[("z", "a")])],
        "with topology" => capabilities.accessibility_constraints = true,
        "without topology" => capabilities.accessibility_constraints = false,
        "creates nothing" => capabilities.create_delete_volume = false,
        "no aggregation" => world.policy.aggregate_topology = false,
        "protected when uncertain" => world.policy.leak_protection = LeakProtection::WhenUncertain,
        "never protected" => world.policy.leak_protection = LeakProtection::Never,
        "other prefix" => world.policy.volume_name_prefix = "other".into(),
        "long prefix" => world.policy.volume_name_prefix = "p".repeat(128).as_str().into(),
        "unlisted" => world.policy.secrets = ProvisionerSecrets::default(),
        "wanted then" => world.secret_was_wanted = true,
        "another secret" => {
            world.secret_of = Some(SecretReference {
                namespace: "ns".into(),
                name: "another".into(),
            });
        }
        _ => *world = object(world.clone(), words),
    }
}

/// What these words of a table say of what stands in the claim or its class.
fn object(world: ClaimWorld, words: &str) -> ClaimWorld {
    match words {
        "foreign marker" => world.marked_with(&json!({"driver": "other.test", "uid": UID})),
        "cut marker" => world.marked_with(&json!("{")),
        "unreadable marker" => world.marked_with(&json!("unreadable")),
        "recorded marker" => {
            let mut recorded = marker_json();
            recorded["segment"] = json!({"zone": "a"});
            recorded["first"] = json!({"zone": "a"});
            world.marked_with(&recorded)
        }
        "marker without topology" => {
            let mut recorded = marker_json();
            recorded["arguments"] = json!("of the call");
            world.marked_with(&recorded)
        }
        "empty marker" => world.annotate(MARKER, ""),
        "no finalizer" => world.set("/metadata/finalizers", json!(["example.com/hold"])),
        "beta annotation" => world
            .set("/metadata/annotations", json!({}))
            .marked()
            .annotate("volume.beta.kubernetes.io/storage-provisioner", DRIVER),
        "unplaced" => world.annotate("volume.kubernetes.io/selected-node", ""),
        "on n2" => world.annotate("volume.kubernetes.io/selected-node", "n2"),
        "named volume" => world.set("/spec/volumeName", NAME),
        "bind completed" => world.annotate(BIND_COMPLETED, ""),
        "classless" => world.set("/spec/storageClassName", "").without_class(),
        "selector" => world.set("/spec/selector", json!({})),
        "attributes class" => world.set("/spec/volumeAttributesClassName", "gold"),
        "populator" => source(world, "/spec/dataSource", "x.io", "Foo"),
        "claim of another group" => source(world, "/spec/dataSourceRef", "x.io", "PersistentVolumeClaim"),
        "snapshot" => source(world, "/spec/dataSource", "snapshot.storage.k8s.io", "VolumeSnapshot"),
        "Retain" => world.class("/reclaimPolicy", "Retain"),
        "no policy" => world.class("/reclaimPolicy", json!(null)),
        "immediate" => world.class("/volumeBindingMode", "Immediate"),
        "for a consumer" => world.class("/volumeBindingMode", "WaitForFirstConsumer"),
        "restricted" => world.class("/allowedTopologies", one_topology()),
        "many topologies" => world.class("/allowedTopologies", many_topologies()),
        "another's class" => world.class("/provisioner", "other.test"),
        "class of hand-made volumes" => world.class("/provisioner", "kubernetes.io/no-provisioner"),
        "in-tree class" => world.class("/provisioner", "kubernetes.io/aws-ebs"),
        _ => world.class("/parameters", wrong_parameters(words)),
    }
}

/// Parameters of a class that no call is made with.
fn wrong_parameters(words: &str) -> Value {
    match words {
        "reserved key" => json!({"csi.storage.k8s.io/foo": "x"}),
        "template" => json!({"csi.storage.k8s.io/secret-name": "${x}", "csi.storage.k8s.io/secret-namespace": "x"}),
        "half a Secret" => json!({"csi.storage.k8s.io/provisioner-secret-name": "s"}),
        "Secret of an annotation" => json!({
            "csi.storage.k8s.io/secret-name": "default-${pvc.annotations['team']}",
            "csi.storage.k8s.io/secret-namespace": "n",
        }),
        "two file systems" => json!({"fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs"}),
        "file system twice" => json!({"fstype": "ext3", "csi.storage.k8s.io/fstype": "ext4"}),
        _ => panic!("no such words: {words}"),
    }
}

#[test]
fn rows_1_to_5_whose_claim_and_whose_volume_it_is() {
    play(
        "
        NotOwn: ignore
            1 another driver's | another driver's
            1 another driver's, with its marker | another driver's, foreign marker
            1 another driver's, with a marker that says nothing | another driver's, cut marker
        MarkerOfAnotherDriver: tell marker_of_another_driver
            1 ours, with a marker of another driver | foreign marker
        NotNeeded: ignore
            1 ours, with a marker of another driver, bound | foreign marker, bound
        FindOut: create
            1 another driver's by now, with our marker | another driver's, marked
            5 freed since, bound elsewhere: its handle is not known | marked, bound elsewhere, freed
            5 of another claim, with another volume, bound elsewhere | recorded, marked, bound elsewhere, name taken
        Saved: unmark
            2 saved and bound | marked, bound, saved
            2 saved, in deletion | marked, deleting, saved
            2 saved, bound to another | marked, bound elsewhere, saved
            2 saved for 30 s | marked, saved, waited for binding
            2 bound, its PersistentVolume gone since | marked, bound
            2 bound, its phase not written yet | marked, taken for bound
            2 saved and bound, its phase not written yet | marked, taken for bound, saved
            2 lost | marked, lost
            3 saved just now, and the role ends | marked, saved, stopping
            4 its PersistentVolume goes, in deletion as well | marked, deleting, volume going
            4 its PersistentVolume goes, bound to it | marked, bound, volume going
            4 its PersistentVolume goes, bound to it, its phase not written yet | marked, taken for bound, volume going
            5 freed since, with its volume, bound elsewhere | recorded, marked, bound elsewhere, freed
            5 freed since, with its volume, bound elsewhere, the driver away | recorded, marked, bound elsewhere, freed, away
            5 of another claim, with its volume | recorded, marked, given away
            5 of another claim, with its volume, which was just created | created, given away
            5 a volume populator gave it to another claim | marked, bound, name taken
            5 a volume populator gave it to another claim, in deletion | marked, bound, deleting, name taken
            5 it was given to another claim, and this one is lost | marked, lost, name taken
        Saved: ignore
            2 saved and bound, without a marker | bound, saved
        TwoVolumes: unmark
            2 the driver made two volumes | created, second volume, saved
        WaitForBinding: wait
            3 saved just now | marked, saved
        VolumeGoing: tell pv_deleting
            4 its PersistentVolume goes | marked, volume going
            4 its PersistentVolume goes, and deletions are held | marked, volume going, held
        NameTaken: tell name_taken
            5 of another claim | name taken
            5 of another claim, with its volume, and no marker any more | given away
            5 of no claim | saved for nobody
            5 of another driver | saved by another driver
            5 of another claim, uncertain | marked, name taken
        Syncing: wait
            not known whether it is saved | unknown saved
        ",
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_6_to_8_the_volume_is_there() {
    play(
        "
        SaveVolume: save
            6 wanted | created
            6 wanted, the class gone | created, no class
            6 wanted, switched off | created, disabled
            6 wanted, and attached | created, attached
            6 wanted, and taken for bound since: it is finished | created, bind completed
            6 the driver is away | created, away
        KeepVolume: save
            7 unwanted, Retain | Retain, created, deleting
            7 unwanted, no policy | no policy, created, deleting
            7 bound elsewhere, Retain | Retain, created, bound elsewhere
        NameTaken: tell name_taken
            7 unwanted, Retain, the name taken | Retain, created, deleting, name taken
        HandleShared: unmark
            7 unwanted, Retain, somebody's handle | Retain, created, deleting, in its own volume
            8a somebody's handle | created, deleting, shared
        KeepVolume: tell volume_unrecorded
            7 another driver's by now, Retain: the claim would be bound to it | Retain, created, another driver's
        UndoVolume: delete vol-1
            6 wanted again while it may be deleted | created, undo failed
            8 unwanted | created, deleting
            8 bound elsewhere | created, bound elsewhere
            8 another driver's by now | created, another driver's
            8 another driver's, not deleted with OK: it would be bound to it | created, undo failed, another driver's
            8 not deleted with OK, the name taken | created, undo failed, deleting, name taken
            8 its claim removed by force | created, deleting, removed
            8 undersized and wanted | created, undersized
            8 undersized and wanted, not deleted with OK | created, undersized, undo failed
        Syncing: wait
            8a not known whose | created, deleting, unknown handle
            8 not known whether it is attached | created, deleting, unknown attached
        HandleShared: tell handle_shared
            8a undersized, somebody's handle | created, undersized, shared
        UndoVolume: read volume
            8 unwanted, not looked at | created, deleting, volume not read
            8 attached, not looked at | created, deleting, volume not read, attached
        UndoVolume: save
            8 not deleted with OK | created, undo failed, deleting
            8 attached | created, deleting, attached
            8 attached, its claim removed by force | created, deleting, removed, attached
            8 not known whether it is attached, held | created, deleting, unknown attached, held
            8 held, and saved all the same | created, deleting, held, asked, stuck
            8 the process ends, and no marker says that there is a volume | created, deleting, stopping, no finalizer
            8 the process ends, and the claim was removed with its marker | created, deleting, stopping, removed
            8 the driver is away, and the claim was removed with its marker | created, deleting, away, removed
        Held: tell deletion_held
            8 another driver's by now, held: the claim would be bound to it | created, another driver's, held
            8 held, the name taken | created, deleting, name taken, held, stuck
        StillAttached: tell still_attached
            8 attached, the name taken | created, deleting, name taken, attached
            8 attached, another driver's by now: the claim would be bound to it | created, another driver's, attached
            8 attached, undersized and wanted | created, undersized, attached
        LetGo: let go
            8 attached, the name taken, let go | created, deleting, name taken, attached, asked, stuck
            8 held, the name taken, let go | created, deleting, name taken, held, asked, stuck
            7 unwanted, Retain, the name taken, let go | Retain, created, deleting, name taken, asked, stuck
        Invalid: tell capability_missing
            8 the driver deletes no volumes any more | created, deleting, creates nothing
        UndoVolume: save
            8 the driver deletes no volumes any more, and no marker says that there is one | created, deleting, creates nothing, no finalizer
        DriverAway: wait
            8 the driver is away | created, deleting, away
        Draining: wait
            8 the process ends | created, deleting, stopping
        ",
    );
}

/// Of a volume that nobody wants: its Secret holds up nothing that can be done without it.
#[test]
fn the_secret_of_what_nobody_wants() {
    play(
        "
        Invalid: tell capability_missing
            10 the driver makes no volumes any more | uncertain, marked, deleting, creates nothing
            16 the driver makes no volumes any more, wanted | uncertain, marked, creates nothing
        LoadSecret: secret ns/s or as it was
            8 not read | secret not loaded, created, deleting
            8 not read, another driver's by now | secret not loaded, created, another driver's
            8 missing while it was wanted | secret missing, created, deleting, wanted then
            10 not read | secret not loaded, uncertain, marked, deleting
            10 not read, another driver's by now | secret not loaded, uncertain, marked, another driver's
            10 not read, bound elsewhere | secret not loaded, uncertain, marked, bound elsewhere
            10 missing while it was wanted | secret missing, uncertain, marked, another driver's, wanted then
            10 not readable while it was wanted | secret unreadable, uncertain, marked, deleting, wanted then
        UndoVolume: delete vol-1 with ns/s
            8 read | secret loaded, created, deleting
            8 read while it was wanted | secret loaded, created, deleting, wanted then
        UndoVolume: delete vol-1
            8 missing | secret missing, created, deleting
            8 missing, another driver's by now | secret missing, created, another driver's
            8 missing, bound elsewhere | secret missing, created, bound elsewhere
        UndoVolume: read volume
            8 missing, not looked at | secret missing, created, deleting, volume not read
        UndoVolume: save
            8 missing, not deleted with OK | secret missing, created, undo failed, deleting
        SecretForbidden: tell secret_forbidden
            8 not readable | secret unreadable, created, deleting
        SecretForbidden: tell secret_not_allowed
            8 not listed any more | secret missing, created, deleting, unlisted
        SecretMissing: tell secret_missing
            8 missing, undersized and wanted | secret missing, created, undersized
            // Without it the call would be another one.
            10 missing | secret missing, uncertain, marked, deleting
            20 missing, and wanted | secret missing, uncertain, marked, wanted then
        SaveVolume: save
            6 missing, and wanted | secret missing, created
        LoadSecret: secret ns/s
            20 not read, and wanted | secret not loaded, uncertain, marked
        ",
    );
}

#[test]
fn rows_9_to_11_nobody_wants_it_or_the_role_ends() {
    play(
        "
        Cancelled: ignore
            9 nothing was called | deleting
        Cancelled: unmark
            9 marked, nothing was called | marked, deleting, never called
            9 refused | marked, refused, deleting
            9 refused, bound elsewhere | marked, refused, bound elsewhere
            9 refused, the driver is away | marked, refused, deleting, away
        LetGo: let go
            10a asked | marked, deleting, asked, stuck
            10a asked, the driver is away | marked, deleting, asked, stuck, away
        LetGo: refuse release
            10a asked early | marked, deleting, asked
            10a asked long ago | marked, deleting, asked long ago, stuck
        FindOut: create
            10 uncertain | marked, deleting
            10 uncertain, of this process | uncertain, marked, deleting, no class
            10 uncertain, removed by force | uncertain, deleting, removed
            10a asked, removed by force: nothing is left to let go | marked, deleting, asked, stuck, removed
            10 uncertain, bound elsewhere | marked, bound elsewhere
            10 switched off | marked, deleting, disabled
        Mark: mark
            10 of a process that has ended | marked, deleting, of another process
        ClassMissing: wait
            10 the class is gone | marked, deleting, no class
        ClassReplaced: tell class_replaced
            10 the class is another one | marked, deleting, replaced class
            10 the class is another provisioner's by now | marked, deleting, another's class
        ClassMissing: tell class_missing
            10 the class is gone for 10 s | marked, deleting, no class, waited for class
        DriverAway: wait
            10 the driver is away | marked, deleting, away
            10 the driver is away, switched off | marked, deleting, disabled, away
        Draining: wait
            10 the process ends | marked, deleting, stopping
            11 the process ends, uncertain | marked, stopping
        Draining: ignore
            11 switched off, nothing was called | disabled
        Draining: unmark
            11 switched off, refused | marked, refused, disabled
            11 the process ends, refused | marked, refused, stopping
        Create: create
            11 switched off, uncertain: it is finished | marked, disabled
        ",
    );
}

/// Watches of what a first call is made from are broken.
#[test]
fn row_12_what_a_first_call_is_made_from_has_to_be_known_as_it_is() {
    play(
        "
        Syncing: wait
            the class | unwatched
            the class, of another provisioner as far as is known | another's class, unwatched
            the class, refused before | marked, refused, unwatched
            the nodes | delayed, unwatched nodes
            the nodes, of which the selected one is gone as far as is known | delayed, unwatched nodes, node gone
        Unconfirmed: tell unconfirmed
            the class, for 10 s | unwatched, waited for class
            the nodes, for 10 s | delayed, unwatched nodes, waited for class
        ClassMissing: tell class_missing
            the class, and none is there as far as is known | no class, unwatched, waited for class
        Unconfirmed: unmark
            the class, refused before, for 10 s | marked, refused, unwatched, waited for class
        Create: create
            the class, while a call is open | marked, unwatched
            the class, while a call of this process is open | uncertain, marked, unwatched
            the nodes, while a call is open | delayed, marked, unwatched nodes
        FindOut: create
            the class, while a call is open for a claim that nobody wants | marked, deleting, unwatched
        Mark: mark
            the nodes, without topology | unwatched nodes
        ",
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_12_to_15_what_is_missing_or_wrong() {
    play(
        "
        ClassMissing: wait
            12 no class | no class
            12 no class, uncertain: the marker stays | marked, no class
            12 names no class, uncertain: the marker stays | marked, classless
        ClassMissing: tell class_missing
            12 no class for 10 s | no class, waited for class
        Syncing: wait
            12 not known | unknown class
            12 not known, refused | marked, refused, unknown class
        ClassMismatch: tell class_mismatch
            12 another provisioner's | another's class, waited for class
            12 of volumes that are made by hand | class of hand-made volumes, waited for class
        ClassMismatch: tell not_supported
            // kube-controller-manager writes the driver's name for a migrated plug-in,
            // and corrects nothing: told at once.
            12 an in-tree plug-in's | in-tree class
        Create: create
            12 no class, with the plan of the call | uncertain, marked, no class
            12 no node selected any more, uncertain | marked, for a consumer
            14 cannot succeed, and uncertain since | marked, infeasible
            14 taken for bound, uncertain: it is finished | marked, bind completed
        WaitForConsumer: wait
            12 no node selected | for a consumer
        WaitForConsumer: unmark
            12 no node selected any more, refused | marked, refused, for a consumer
        ClassMissing: unmark
            12 no class, refused | marked, refused, no class
        NotNeeded: ignore
            names a volume | named volume
            names no class | classless
            names no class for 10 s | classless, waited for class
            names no class, and is taken for bound | classless, bind completed
        NotNeeded: unmark
            names no class, refused | marked, refused, classless
        Populator: wait
            13 a populator's | populator
            13 a claim of another group | claim of another group
        Invalid: refuse invalid_claim
            14 taken for bound, and names no PersistentVolume | bind completed
            14 selector | selector
            14 uncertain: the marker stays | marked, selector
        Invalid: refuse invalid_class
            14 reserved key | reserved key
            14 template | template
            14 fstype twice | two file systems
        Invalid: refuse capability_missing
            14 the driver creates nothing | creates nothing
        Invalid: refuse not_supported
            14 a snapshot (P3) | snapshot
            14 an attributes class (P3) | attributes class
        SecretForbidden: tell secret_not_allowed
            14 a Secret that is not listed | secret not loaded, unlisted
        Invalid: unmark
            14 selector, refused | marked, refused, selector
            14 taken for bound, refused | marked, refused, bind completed
        Infeasible: wait
            14 cannot succeed | infeasible
        Infeasible: unmark
            14 cannot succeed, marked | marked, refused, infeasible
        Cancelled: unmark
            14 cannot succeed, in deletion | marked, refused, deleting, infeasible
        SecretMissing: unmark
            15 Secret missing, refused | secret missing, marked, refused
        LoadSecret: secret ns/s
            15 Secret, not read | secret not loaded
            15 another Secret was read | secret loaded, another secret
            15 another Secret was missing | secret missing, another secret
        SecretMissing: tell secret_missing
            15 Secret missing | secret missing
        SecretForbidden: tell secret_forbidden
            15 Secret not readable | secret unreadable
        Mark: mark
            15 Secret read | secret loaded
        ",
    );
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn rows_16_to_20_topology_the_marker_and_the_call() {
    play(
        "
        WaitForConsumer: wait
            16 no node selected, and a marker that says nothing | delayed, unplaced, unreadable marker
            16 no node selected, and a marker that says nothing of topology | delayed, unplaced, marked
        FindOut: create
            16 no node, a marker that says nothing, in deletion | delayed, unplaced, unreadable marker, deleting
            16 none asked for, restricted since, in deletion | delayed, marker without topology, restricted, deleting
            // Of what nobody wants, and nothing is recorded, no node is waited for.
            16 no Node, and a marker that says nothing, in deletion | delayed, unreadable marker, node gone, deleting
            16 no Node, and a marker that says nothing of topology, in deletion | delayed, marked, node gone, deleting
            16 no Node, and a marker that says nothing, bound elsewhere | delayed, unreadable marker, node gone, bound elsewhere
            16 no CSINode, and a marker that says nothing, in deletion | delayed, unreadable marker, no CSINode, deleting
            16 not allowed, and a marker that says nothing, in deletion | delayed, on n2, restricted, unreadable marker, deleting
            17 no label, and a marker that says nothing, in deletion | delayed, unreadable marker, unlabelled, deleting
            17 immediate, no nodes, and a marker that says nothing, in deletion | with topology, unreadable marker, deleting
        Create: create
            16 no node selected any more, recorded | delayed, unplaced, recorded marker
            16 no node selected any more, none asked for | delayed, unplaced, marker without topology
            16 no CSINode, none asked for | delayed, marker without topology, no CSINode
            20 none asked for, restricted, a driver without topology | without topology, restricted, marker without topology
            16 immediate, and a marker that says nothing | delayed, unplaced, immediate, unreadable marker
            16 no Node, uncertain | delayed, recorded marker, node gone
            16 not known, uncertain | delayed, recorded marker, unknown node
            17 no label, recorded | delayed, recorded marker, unlabelled
            18 only when uncertain, looked at | protected when uncertain, claim read
            18 never | never protected
            18 refused, marked by another prefix: the name stays | marked, refused, other prefix
            20 first call | marked, never called
            20 after a refusal | marked, refused
            20 after a restart | marked
            20 after a restart, without the plan and the annotation | marked, empty marker
            20 beta annotation | marked, never called, beta annotation
        Mark: mark
            16 many topologies are allowed | delayed, many topologies
            16 no Node, a driver without topology | delayed, without topology, node gone
            17 immediate, none sent | with topology, no aggregation
            17 immediate, nodes | with topology, one node
            18 no marker | as it is
            18 delayed | delayed
            18 refused, the marker removed by force | refused
            18 marked by a process that has ended | marked, of another process
            18 only when uncertain, and it is | uncertain, protected when uncertain
            18 refused, the class made anew with other parameters | marked, refused, replaced class
            18 refused, another node selected since | delayed, marked, refused
        DriverAway: wait
            18 the driver is away | away
            18 the driver is away, uncertain | marked, away
        DriverAway: unmark
            18 the driver is away, and a marker of a call that was refused | marked, refused, away
        // The watch of Nodes may be behind that of claims.
        NodeGone: wait
            16 no Node for a moment | delayed, node gone
            16 no CSINode for a moment | delayed, no CSINode
        NodeGone: reschedule
            16 no Node | delayed, node gone, waited for node
            16 no CSINode | delayed, no CSINode, waited for node
            16 no Node, refused | delayed, marked, refused, node gone, waited for node
        TopologyMissing: tell topology_missing
            16 not known, and a watch is broken | delayed, unknown node
            17 no label | delayed, unlabelled
            17 immediate, no nodes | with topology
            16 no CSINode, and a marker that says nothing | delayed, unreadable marker, no CSINode
            16 not allowed, and a marker that says nothing | delayed, on n2, restricted, unreadable marker
            16 not known, and a marker that says nothing, in deletion | delayed, unreadable marker, unknown node, deleting
        Syncing: wait
            16 no Node, uncertain, the lists not complete | delayed, recorded marker, unknown topology
            17 nodes not known | delayed, unknown topology
        Mark: read claim
            18 only when uncertain, not looked at | protected when uncertain
        ClassReplaced: tell class_replaced
            20 after a restart, the class another one | marked, replaced class
            20 after a restart, none asked for, restricted since | delayed, marker without topology, restricted
            20 after a restart by another process, the class another one | marked, replaced class, of another process
        ",
    );
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

/// It is found by its name, wherever it was made.
#[test]
fn a_volume_that_nobody_wants_is_asked_for_without_a_node_that_is_gone() {
    let asked = |change: fn(&mut ClaimWorld)| match world().delayed().marked().deleting().with(change).decide().action {
        ClaimAction::Create(plan) => plan.accessibility.as_ref().map(|asked| asked.requisite.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(asked(|world| world.node_gone = true), Some(2), "of all nodes");
    assert_eq!(asked(|world| world.nodes.clear()), None, "there are none");
}

/// An uncertain call of this process is repeated to the letter, whatever class, node and claim say by now.
#[test]
fn an_uncertain_call_is_repeated_with_its_own_arguments() {
    let before = world().delayed();
    let plan = plan_of(&before);
    let call = Creation::Uncertain(UncertainCall {
        plan: Some(plan.clone()),
        doubtful: true,
        ..UncertainCall::default()
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
    let shared =
        known
            .revised(&claim, false, &driver(), None, Some("pv-2"))
            .revised(&claim, false, &driver(), None, None);
    let world = world().marked().deleting().creation(shared);
    assert_eq!(word(&world.decide().action), "unmark");
}

/// A process that has ended took it off, and knew why: what only the marker said ends with it, and nothing is called for a claim without one.
#[test]
fn what_only_the_marker_said_ends_with_it() {
    let of_marker = || Creation::of_marker(true);
    let revise =
        |known: Creation, world: ClaimWorld| known.revised(&claim_of(&world.claim), world.gone, &driver(), None, None);
    assert!(revise(of_marker(), world().marked().deleting()).is_uncertain());
    assert_eq!(revise(of_marker(), world().deleting()), Creation::Never);
    let gone = || world().marked().deleting().removed();
    assert_eq!(revise(of_marker(), gone()), Creation::Never, "its last copy may be old");
    let called = uncertain(&world());
    assert_eq!(revise(called.clone(), gone()), called, "who called finds out");
}

/// The PersistentVolume of its name that has the volume takes it over, whichever claim it names by now.
#[test]
fn what_is_known_after_the_volume_is_saved() {
    let saved = volume_of(&volume_json());
    let created = || Creation::Created(Box::new(new_volume(&world())));
    let revise = |known: Creation, world: ClaimWorld| {
        known.revised(&claim_of(&world.claim), world.gone, &driver(), Some(&saved), None)
    };
    let other = || world().set("/metadata/uid", "other");
    for of in [world(), other()] {
        assert_eq!(revise(created(), of.clone().marked()), recorded(&world()));
        assert_eq!(revise(created(), of), Creation::Never);
    }
    let found = revise(uncertain(&world()), world());
    assert_eq!(found, Creation::Never, "the answer to taking the marker off was lost");
    assert!(revise(uncertain(&world()), world().marked()).is_uncertain());
    let gone = world().marked().deleting().removed();
    let wanted = Creation::Never;
    assert_eq!(revise(uncertain(&world()), gone), wanted, "its last copy may be old");
    assert_eq!(revise(Creation::Refused, world()), Creation::Refused);
    let mut second = new_volume(&world());
    second.handle = "vol-2".into();
    let second = Creation::Created(Box::new(second));
    assert_eq!(revise(second.clone(), world().marked()), second, "the driver made two");
    assert_eq!(revise(recorded(&world()), other()), Creation::Never);
    assert_eq!(
        revise(uncertain(&world()), other()),
        uncertain(&world()),
        "nothing says so"
    );
}
