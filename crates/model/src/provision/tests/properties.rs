//! Properties of single decisions, over worlds by chance. What holds over time is in `tests/model-check`.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use std::sync::Arc;

use super::builders::{
    ClaimWorld, DELETED_AT, DRIVER, FINALIZER, MARKER, NAME, UID, VolumeWorld, another_claim, claim_of, marker_json,
    volume_of, volume_world, world,
};
use super::claim_rows::{new_volume, recorded, uncertain};
use super::patches::apply;
use crate::provision::{
    ClaimAction, ClaimWrite, Creation, Deletion, LeakProtection, MarkerState, OwningClaim, ProvisionedVolumeAction,
    ProvisionerSecretState, RolePhase, UncertainCall, VolumeFault, is_own_claim, patch,
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Changes of a claim's world, by number.
const CLAIM_CHANGES: [fn(ClaimWorld) -> ClaimWorld; 40] = [
    |world| world.deleting(),
    |world| world.bound(NAME),
    |world| world.bound("static"),
    |world| world.set("/spec/volumeName", NAME),
    |world| world.annotate(BIND_COMPLETED, "yes"),
    |world| world.annotate("volume.kubernetes.io/storage-provisioner", "other.test"),
    |world| world.without_class(),
    |world| world.marked(),
    |world| world.marked().with(|world| world.marker_is_own = false),
    |world| world.marked_with(&json!({"driver": "other.test"})),
    |world| world.marked_with(&json!("unreadable")),
    |world| world.annotate("foreign/annotation", "kept"),
    |world| world.set("/metadata/annotations", json!(null)),
    |world| world.saved(),
    |world| world.saved_with("/spec/claimRef/uid", "other"),
    |world| world.saved_with("/metadata/deletionTimestamp", DELETED_AT),
    |world| world.with(|world| world.saved_is_live = false),
    |world| world.with(|world| world.handle_owner = Some("pv-2".to_owned())),
    |world| world.with(|world| world.attached_to = Some("n1".to_owned())),
    |world| world.with(|world| world.unknown = "attached"),
    |world| world.with(|world| world.unknown = "saved"),
    |world| world.with(|world| world.unknown = "class"),
    |world| world.with(|world| world.unknown = "handle"),
    |world| world.with(|world| world.classes_are_known = false),
    |world| world.with(|world| world.nodes_are_known = false),
    |world| world.with(|world| world.unknown = "topology"),
    |world| world.with(|world| world.unknown = "node"),
    |world| world.with(|world| world.gone = true),
    |world| world.with(|world| world.role = RolePhase::Disabled),
    |world| world.with(|world| world.role = RolePhase::Stopping),
    |world| world.with(|world| world.policy.leak_protection = LeakProtection::Never),
    |world| world.with(|world| world.policy.leak_protection = LeakProtection::WhenUncertain),
    |world| world.with(|world| world.node_gone = true),
    |world| world.with(|world| world.waited.for_class = true),
    |world| world.with(|world| world.waited.for_node = true),
    |world| world.with(|world| world.waited.for_binding = true),
    |world| world.with(|world| world.waited.stuck = true),
    |world| {
        world.annotate(
            "attacher.csi.dev/release",
            &json!({"uid": UID, "deleted": DELETED_AT, "at": super::builders::NOW}).to_string(),
        )
    },
    |world| world.annotate("volume.kubernetes.io/selected-node", "n2"),
    |world| world.set("/spec/selector", json!({})),
];

/// Some have a secret, topology, another policy, and something that is known of the volume.
fn claim_worlds() -> impl Strategy<Value = ClaimWorld> {
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), 0..9_usize, 0..3_usize);
    let changes = prop::collection::vec(select(CLAIM_CHANGES.to_vec()), 0..6);
    (kinds, changes, 0..7_usize).prop_map(|((delayed, retain, with_secret, creation, secret), changes, finalizers)| {
        let mut world = if delayed { world().delayed() } else { world() };
        if retain {
            world = world.class("/reclaimPolicy", "Retain");
        }
        if with_secret {
            let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "ns"});
            world = world.class("/parameters", parameters);
        }
        let known = match creation {
            0 => Some(Creation::Never),
            1 => Some(Creation::Refused),
            2 => Some(uncertain(&world)),
            3 => Some(Creation::Uncertain(UncertainCall::default())),
            4..=6 => {
                let mut volume = new_volume(&world);
                volume.undo_failed = creation == 5;
                volume.fault = (creation == 6).then_some(VolumeFault::Undersized { asked: 2, answered: 1 });
                Some(Creation::Created(Box::new(volume)))
            }
            7 => Some(recorded(&world)),
            _ => None,
        };
        world.secret = [ProvisionerSecretState::Loaded, ProvisionerSecretState::NotLoaded, ProvisionerSecretState::Missing][secret];
        let mut world = changes.into_iter().fold(world, |world, change| change(world));
        world.creation = known;
        // Ours may stand anywhere among those of others.
        if let Some(list) = world.claim["metadata"]["finalizers"].as_array_mut() {
            list.push(json!("foreign/finalizer"));
            let at = finalizers % list.len();
            list.rotate_left(at);
        }
        world
    })
}

/// Whether its volume is left to another one: that is there, and nothing uses this one.
fn is_left(world: &VolumeWorld) -> bool {
    let is_unused = world.attached_to.is_none() && world.bound.is_none() && world.claim != OwningClaim::Live;
    let source = &world.volume["spec"]["csi"];
    let is_ours = source["driver"] == DRIVER && source["volumeHandle"] != "";
    let is_live = world.is_live && world.heir_is_live;
    world.heir.is_some() && world.sharer.is_some() && is_live && is_ours && world.unknown.is_empty() && is_unused
}

const VOLUME_CHANGES: [fn(VolumeWorld) -> VolumeWorld; 30] = [
    |world| world.deleting(),
    |world| world.unprotected(),
    |world| world.phase("Bound"),
    |world| world.phase("Available"),
    |world| world.phase("Failed"),
    |world| world.phase("Pending"),
    |world| world.set("/spec/persistentVolumeReclaimPolicy", "Retain"),
    |world| world.set("/spec/persistentVolumeReclaimPolicy", json!(null)),
    |world| world.set("/spec/claimRef", json!(null)),
    |world| world.annotate("pv.kubernetes.io/provisioned-by", "other.test"),
    |world| world.annotate("attacher.csi.dev/reclaim", "Delete"),
    |world| world.set("/spec/csi/driver", "other.test"),
    |world| world.set("/spec/csi/volumeHandle", ""),
    |world| world.with(|world| world.sharer = Some("pv-2".to_owned())),
    |world| world.with(|world| (world.sharer, world.heir) = (Some("pv-1".to_owned()), Some("pv-1".into()))),
    |world| world.with(|world| world.heir_is_live = false),
    |world| world.with(|world| world.attached_to = Some("n1".to_owned())),
    |world| world.with(|world| world.bound = Some(another_claim())),
    |world| world.with(|world| (world.bound, world.bound_is_live) = (Some(another_claim()), true)),
    |world| world.with(|world| world.unknown = "bound"),
    |world| world.with(|world| world.claim = OwningClaim::Cached),
    |world| world.with(|world| world.claim = OwningClaim::Live),
    |world| world.with(|world| world.claim = OwningClaim::LiveGone),
    |world| world.with(|world| world.claim = OwningClaim::Unknown),
    |world| world.with(|world| world.is_live = false),
    |world| world.with(|world| world.deletion = Deletion::Uncertain),
    |world| world.with(|world| world.deletion = Deletion::Deleted),
    |world| world.with(|world| world.unknown = "sharer"),
    |world| world.with(|world| world.unknown = "attached"),
    |world| world.with(|world| world.policy.hold_deletions = true),
];

fn volume_worlds() -> impl Strategy<Value = VolumeWorld> {
    let changes = prop::collection::vec(select(VOLUME_CHANGES.to_vec()), 0..5);
    changes.prop_map(|changes| changes.into_iter().fold(volume_world(), |world, change| change(world)))
}

fn write_of(action: &ClaimAction) -> Option<&ClaimWrite> {
    match action {
        ClaimAction::Mark(write)
        | ClaimAction::Unmark(write)
        | ClaimAction::Reschedule(write)
        | ClaimAction::LetGo(write, _)
        | ClaimAction::RefuseRelease(write, _) => Some(write),
        _ => None,
    }
}

fn foreign(object: &Value) -> Vec<Value> {
    let list = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.into_iter()
        .filter(|entry| entry != MARKER && entry != FINALIZER)
        .collect()
}

/// Whether the PersistentVolume of the volume's name is the claim's, or has the volume that is known.
fn is_saved(world: &ClaimWorld, creation: &Creation) -> bool {
    let handle = match creation {
        Creation::Created(volume) => Some(&*volume.handle),
        Creation::Uncertain(call) => call.handle.as_deref(),
        Creation::Never | Creation::Refused => None,
    };
    world.saved.as_ref().is_some_and(|saved| {
        let has_volume = handle.is_some_and(|handle| saved["spec"]["csi"]["volumeHandle"] == handle);
        has_volume || saved["spec"]["claimRef"]["uid"] == UID
    })
}

/// What a claim's next step may be, whatever the world is.
#[allow(clippy::too_many_lines, reason = "one arm for each action")]
fn check_claim(world: &ClaimWorld) -> Result<(), TestCaseError> {
    let claim = claim_of(&world.claim);
    let marker = MarkerState::of(&claim, DRIVER);
    let creation = world
        .creation
        .clone()
        .unwrap_or_else(|| Creation::of_marker(marker.may_be_open()));
    let is_saved = is_saved(world, &creation);
    let is_bound = !world.claim["metadata"]["annotations"][BIND_COMPLETED].is_null();
    let action = world.decide().action;
    match &action {
        ClaimAction::Create(plan) => {
            // 1: the marker of this process, and a name made from the UID.
            prop_assert!(&*plan.name == NAME);
            let unprotected = world.policy.leak_protection != LeakProtection::Always || world.gone;
            let late = claim.deleting.is_some() || !is_own_claim(&claim, &world.driver) || claim.volume_name.is_some();
            // The marker of another driver stands for an open call of this process, too, which is repeated as it was.
            let is_others = matches!(marker, MarkerState::OfAnotherDriver(_));
            let stands_in = is_others && matches!(creation, Creation::Uncertain(UncertainCall { plan: Some(_), .. }));
            let is_own = marker.is_own() && world.marker_is_own;
            prop_assert!(unprotected || is_own || stands_in || (!marker.is_own() && late));
            // 6: an uncertain call is repeated as it was.
            if let Creation::Uncertain(UncertainCall { plan: Some(before), .. }) = &creation {
                prop_assert!(Arc::ptr_eq(before, plan));
            }
            // What nobody wants is called for only while it is uncertain.
            prop_assert!(creation.is_uncertain() || !(late || world.gone || is_bound));
            prop_assert!(!matches!(creation, Creation::Created(_)));
            // A first call is made from what is known as it is.
            let has_topology = world.driver.capabilities.accessibility_constraints;
            let is_known = world.classes_are_known && (world.nodes_are_known || !has_topology);
            prop_assert!(creation.is_uncertain() || is_known);
            prop_assert!(world.role != RolePhase::Stopping);
        }
        ClaimAction::Save(body) => {
            let Creation::Created(volume) = &creation else {
                panic!("saved without a volume")
            };
            prop_assert_eq!(&body["spec"]["csi"]["volumeHandle"], &json!(&*volume.handle));
            prop_assert_eq!(&body["spec"]["claimRef"]["uid"], &json!(UID));
            // kube-controller-manager may bind the claim to it: then it is the volume that the claim wants, and nothing deletes it.
            let names_other = claim.volume_name.as_deref().is_some_and(|name| name != NAME);
            let may_be_bound = !world.gone && claim.deleting.is_none() && !names_other;
            let is_wanted = may_be_bound && is_own_claim(&claim, &world.driver);
            prop_assert!(!may_be_bound || (is_wanted && volume.is_usable()));
        }
        ClaimAction::Undo(plan) => {
            // 4, 12: only what this process created, nobody wants or is faulty, and no PersistentVolume names.
            let Creation::Created(volume) = &creation else {
                panic!("deleted without a volume")
            };
            prop_assert_eq!(&plan.handle, &volume.handle);
            prop_assert!(world.saved_is_live && !is_saved && world.handle_owner.is_none() && world.unknown != "handle");
            prop_assert!(world.attached_to.is_none() && world.unknown != "attached");
            let is_wanted = is_own_claim(&claim, &world.driver)
                && !world.gone
                && claim.deleting.is_none()
                && claim.volume_name.as_deref().is_none_or(|name| name == NAME);
            prop_assert!(!is_wanted || !volume.is_usable());
            let is_missing = world.secret == ProvisionerSecretState::Missing;
            prop_assert!(plan.secret == volume.plan.secret || (is_missing && !is_wanted && plan.secret.is_none()));
            prop_assert!(
                is_wanted
                    || world
                        .class
                        .as_ref()
                        .is_none_or(|class| class["reclaimPolicy"] == "Delete")
            );
        }
        ClaimAction::Unmark(_) => {
            // 3: not while it is uncertain, nor while a volume is there that no PersistentVolume names.
            let is_bound = is_bound || world.claim["status"]["phase"] == "Bound";
            let was_bound = claim.volume_name.as_deref() == Some(NAME) && is_bound;
            prop_assert!(is_saved || was_bound || !creation.is_uncertain());
            prop_assert!(is_saved || !matches!(creation, Creation::Created(_)) || world.handle_owner.is_some());
            // One of another driver only where this process had called, and the claim is this driver's.
            let was_called = matches!(
                creation,
                Creation::Created(_) | Creation::Uncertain(UncertainCall { plan: Some(_), .. })
            );
            prop_assert!(marker.is_own() || (was_called && is_own_claim(&claim, &world.driver)));
            prop_assert!(!world.gone);
        }
        // 7: the node stays while it is uncertain.
        ClaimAction::Reschedule(_) => {
            prop_assert!(!creation.is_uncertain() && !matches!(creation, Creation::Created(_)));
        }
        ClaimAction::LetGo(..) => {
            prop_assert!(creation.is_uncertain() || matches!(creation, Creation::Created(_)));
            prop_assert!(claim.deleting.is_some() && world.waited.stuck && !world.gone);
        }
        _ => {}
    }
    // What is not known of the saved one leads to nothing but waiting.
    prop_assert!(world.unknown != "saved" || matches!(action, ClaimAction::Wait(_) | ClaimAction::Ignore));
    if let Some(write) = write_of(&action) {
        let mut after = world.claim.clone();
        let done = apply(&mut after, &write.body);
        prop_assert!(done.is_ok(), "{:?} {done:?}", write.body);
        prop_assert_eq!(foreign(&after), foreign(&world.claim));
        prop_assert_eq!(&after["spec"], &world.claim["spec"]);
        prop_assert_eq!(
            &after["metadata"]["annotations"]["foreign/annotation"],
            &world.claim["metadata"]["annotations"]["foreign/annotation"]
        );
    }
    Ok(())
}

proptest! {

    #[test]
    fn a_step_of_a_claim_is_guarded(world in claim_worlds()) {
        check_claim(&world)?;
    }

    /// 11: nothing but an answer changes what is known; so a missing class, node or Secret never takes the marker off.
    #[test]
    fn what_is_missing_never_takes_the_marker_off(changes in prop::collection::vec(0..5_usize, 0..5)) {
        let mut world = world().delayed().marked_with(&marker_json());
        world.waited.for_node = true;
        for change in changes {
            world = match change {
                0 => world.without_class(),
                1 => world.with(|world| world.node_gone = true),
                2 => world.with(|world| world.nodes.clear()),
                3 => world.with(|world| world.secret = ProvisionerSecretState::Missing),
                _ => world.with(|world| world.driver.capabilities.create_delete_volume = false),
            };
        }
        let action = world.decide().action;
        prop_assert!(!matches!(action, ClaimAction::Unmark(_) | ClaimAction::Reschedule(_)), "{:?}", action);
    }

    /// 4, 5: data is destroyed only when all of it holds, and our finalizer goes only after OK or by the policy.
    #[test]
    fn a_volume_is_deleted_last(world in volume_worlds()) {
        let volume = volume_of(&world.volume);
        let lifecycle = volume.lifecycle.clone();
        let decision = world.decide();
        let is_delete = world.volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete";
        match &decision.action {
            ProvisionedVolumeAction::Delete(plan) => {
                prop_assert!(is_delete && !world.policy.hold_deletions);
                prop_assert!(world.is_live && world.sharer.is_none() && world.attached_to.is_none() && world.unknown.is_empty());
                prop_assert!(world.bound.is_none());
                let phase = &world.volume["status"]["phase"];
                prop_assert!(phase == "Released" || phase == "Failed" || lifecycle.reclaim_requested);
                let is_released = phase == "Released" && world.claim == OwningClaim::NotCached;
                prop_assert!(volume.claim.is_none() || is_released || world.claim == OwningClaim::LiveGone);
                prop_assert!(!plan.handle.trim().is_empty() && world.volume["spec"]["csi"]["driver"] == DRIVER);
            }
            ProvisionedVolumeAction::Remove(uid) => {
                prop_assert!(!volume.deleting && **uid == *volume.uid);
                prop_assert!(world.deletion == Deletion::Deleted || is_left(&world));
            }
            ProvisionedVolumeAction::Release(write) => {
                let is_kept = world.volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain";
                prop_assert!(world.deletion == Deletion::Deleted || is_kept || is_left(&world));
                let mut after = world.volume.clone();
                apply(&mut after, &write.body).unwrap();
                let left = after["metadata"]["finalizers"].as_array();
                prop_assert!(!left.is_some_and(|left| left.contains(&json!(FINALIZER))));
                prop_assert_eq!(foreign(&after), foreign(&world.volume));
            }
            ProvisionedVolumeAction::Protect(write) => {
                prop_assert!(is_delete && !volume.deleting);
                let mut after = world.volume.clone();
                apply(&mut after, &write.body).unwrap();
                prop_assert_eq!(foreign(&after), foreign(&world.volume));
            }
            _ => {}
        }
        // 9: nothing on an object of another driver.
        let is_other = world.volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] != DRIVER;
        prop_assert!(!is_other || decision.action == ProvisionedVolumeAction::Ignore);
    }

    /// Whatever is written into a class, it is read or refused, and what is refused can be told.
    #[test]
    fn templates_never_panic(name in "(\\$|\\{|\\}|pvc|pv|\\.|name|annotations|\\['|'\\]|[a-zé]){0,12}", namespace in "\\PC{0,20}") {
        let parameters = json!({"csi.storage.k8s.io/secret-name": name, "csi.storage.k8s.io/secret-namespace": namespace});
        let decision = world().class("/parameters", parameters).decide();
        if let ClaimAction::Refuse(cause) = decision.action {
            prop_assert!(!cause.to_string().is_empty());
        }
    }

    #[test]
    fn sizes_go_there_and_back(bytes in 0..i64::MAX) {
        prop_assert_eq!(crate::provision::parse_bytes(&crate::provision::format_bytes(bytes)), Some(bytes));
    }

    #[test]
    fn any_size_is_read_or_refused(text in "[0-9.+\\-]{0,25}(Ki|Mi|Gi|Ei|k|E|m|n|e-?[0-9]{1,4})?") {
        let bytes = crate::provision::parse_bytes(&text);
        prop_assert!(bytes.is_none_or(|bytes| bytes >= 0));
    }

    #[test]
    fn any_marker_is_read_or_ignored(text in "\\PC{0,200}") {
        let world = world().marked().annotate(MARKER, &text);
        world.decide();
    }
}

/// A late write of a process that has ended is void as soon as the next one has written its own marker, which it does before its first
/// call.
#[test]
fn no_call_before_the_own_marker() {
    let world = world().marked().with(|world| world.marker_is_own = false);
    let late = patch::unmark(&claim_of(&world.claim)).unwrap();
    let ClaimAction::Mark(write) = world.decide().action else {
        panic!()
    };
    let mut claim = world.claim.clone();
    apply(&mut claim, &write.body).unwrap();
    assert!(apply(&mut claim, &late.body).is_err());
}
