//! The worlds of the provisioner.

use serde_json::Value;

use super::objects::{ANOTHER, DRIVER, Edit, Phase, claim, class, edited, marked_by_another, volume};
use super::state::{CLAIM, CLASS, CSI_NODE, NODE, OTHER, OWN, SLOTS};
use super::zones::node;
use super::{Beginning, Fault, Flaw, ProvisionSetting, Topology, Wish};

/// All kinds but a 404 that lies.
pub const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::LeaseLost,
    Fault::Unanswered,
    Fault::Refused,
    Fault::TimedOut,
];

/// The lists of all objects but Nodes and CSINodes.
pub const ALL_BUT_NODES: u8 = (1 << NODE) - 1;

/// Those by which no other process takes the Lease.
const ANSWERS: &[Fault] = &[Fault::Unanswered, Fault::Refused, Fault::TimedOut];
/// A process crashes, and a call is not answered in time.
const FEW: &[Fault] = &[Fault::Crash, Fault::TimedOut];

/// The objects that are there when a world begins.
pub fn objects(beginning: Beginning, topology: Topology) -> [Option<Value>; SLOTS] {
    let mut objects: [Option<Value>; SLOTS] = Default::default();
    objects[CLASS] = Some(class(1, DRIVER, topology.binding()));
    if topology != Topology::None {
        objects[NODE] = Some(node(NODE, 1, 1));
        objects[CSI_NODE] = Some(node(CSI_NODE, 1, 0));
    }
    let own = |phase| volume(OWN, 10, Some(1), 1, phase, "Delete", true);
    match beginning {
        Beginning::Waiting => objects[CLAIM] = Some(claim(1)),
        Beginning::MarkedByAnother => {
            objects[CLAIM] = Some(marked_by_another(1));
            objects[CLASS] = Some(class(1, ANOTHER, topology.binding()));
        }
        Beginning::Bound => {
            let bound = edited(&claim(1), Edit::Bind(OWN as u8));
            objects[CLAIM] = Some(edited(&bound, Edit::Phase(Phase::Bound)));
            objects[OWN] = Some(own("Bound"));
        }
        Beginning::Released => objects[OWN] = Some(own("Released")),
        Beginning::BothReleased => {
            objects[OWN] = Some(own("Released"));
            objects[OTHER] = Some(volume(OTHER, 8, Some(1), 1, "Released", "Delete", true));
        }
        Beginning::Shared => {
            objects[OWN] = Some(own("Released"));
            objects[OTHER] = Some(volume(OTHER, 8, Some(1), 1, "Released", "Delete", false));
        }
    }
    objects
}

const fn world(
    name: &'static str,
    beginning: Beginning,
    faults: u8,
    kinds: &'static [Fault],
    wishes: &'static [Wish],
) -> ProvisionSetting {
    ProvisionSetting {
        name,
        beginning,
        faults,
        kinds,
        wishes,
        unlisted: 0,
        relisted: 0,
        attaches: false,
        topology: Topology::None,
        flaw: Flaw::None,
    }
}

/// A world in which a claim waits.
const fn waiting(name: &'static str, faults: u8, wishes: &'static [Wish]) -> ProvisionSetting {
    world(name, Beginning::Waiting, faults, ALL, wishes)
}

/// W1: a claim waits; class policy Delete.
pub const fn one_claim(faults: u8) -> ProvisionSetting {
    waiting("one claim", faults, &[Wish::DeleteClaim])
}

/// W1, with lists that are not complete when a process begins.
pub const fn lists(faults: u8) -> ProvisionSetting {
    ProvisionSetting {
        unlisted: ALL_BUT_NODES,
        ..world(
            "claim, incomplete lists",
            Beginning::Waiting,
            faults,
            &[Fault::Crash, Fault::TimedOut],
            &[Wish::DeleteClaim],
        )
    }
}

/// W1, with somebody who takes the name of the PersistentVolume.
pub const fn name_taken(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::TakeName];
    waiting("claim, name of its volume taken", faults, wishes)
}

/// W1, with a VolumeAttachment that names the PersistentVolume before that is saved.
pub const fn attached_unsaved(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::AttachUnsaved];
    waiting("claim, attached before it is saved", faults, wishes)
}

/// W2: the class goes, comes back for another driver, or as it was.
pub const fn class_gone(faults: u8) -> ProvisionSetting {
    let wishes = &[
        Wish::DeleteClaim,
        Wish::DeleteClass,
        Wish::RemakeClass,
        Wish::RestoreClass,
    ];
    waiting("claim, class gone and back", faults, wishes)
}

/// W3: the claim is bound to a PersistentVolume that a person made.
pub const fn bound_elsewhere(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::BindElsewhere, Wish::AnnotateClaim];
    waiting("claim, bound elsewhere", faults, wishes)
}

/// W3: the claim is deleted and made anew.
pub const fn made_anew(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::RemakeClaim, Wish::DeleteSecond];
    waiting("claim, deleted and made again", faults, wishes)
}

/// W4: a bound claim, attached; its PersistentVolume is Released one day, or deleted by a person before.
pub const fn attached(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::Attach, Wish::DeleteVolume];
    world("volume, attached, deleted first", Beginning::Bound, faults, ALL, wishes)
}

/// W4: a Released PersistentVolume, whose policy changes.
pub const fn policy(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::ToRetain, Wish::ToDelete, Wish::DeleteVolume];
    world("volume, policy changes", Beginning::Released, faults, ALL, wishes)
}

/// W4: the lists are not complete when a process begins.
pub const fn unlisted_attachment(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::Attach];
    ProvisionSetting {
        unlisted: ALL_BUT_NODES,
        ..world(
            "volume, attached, incomplete lists",
            Beginning::Bound,
            faults,
            &[Fault::Crash],
            wishes,
        )
    }
}

/// W4: a Released PersistentVolume is removed by force, and another one gets its name.
pub const fn made_again(faults: u8) -> ProvisionSetting {
    world(
        "volume, another one of its name",
        Beginning::Released,
        faults,
        ALL,
        &[Wish::RemakeVolume],
    )
}

/// W4, W5: the PersistentVolume is marked Released while its claim is there; reads are answered with a 404 that lies.
pub const fn mistake(faults: u8) -> ProvisionSetting {
    let kinds = &[Fault::Crash, Fault::LeaseLost, Fault::Unanswered, Fault::Lie];
    let wishes = &[Wish::Mistake, Wish::DeleteClaim];
    world("volume, Released by mistake", Beginning::Bound, faults, kinds, wishes)
}

/// W5: two PersistentVolumes have one handle.
pub const fn shared(faults: u8) -> ProvisionSetting {
    world(
        "volume, handle of another one",
        Beginning::Shared,
        faults,
        ALL,
        &[Wish::DeleteOther],
    )
}

/// W5, where both are to be deleted.
pub const fn both_released(faults: u8) -> ProvisionSetting {
    world(
        "volume, of two that are to be deleted",
        Beginning::BothReleased,
        faults,
        ALL,
        &[Wish::DeleteOther],
    )
}

/// W8: the attach role, kube-controller-manager and the provisioner write on one PersistentVolume.
pub const fn three_writers(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::DeleteVolume, Wish::ToRetain];
    ProvisionSetting {
        attaches: true,
        ..world("volume, three writers", Beginning::Bound, faults, ALL, wishes)
    }
}

/// The same, of a driver that knows places.
const fn in_zones(topology: Topology, name: &'static str, faults: u8, wishes: &'static [Wish]) -> ProvisionSetting {
    ProvisionSetting {
        topology,
        ..waiting(name, faults, wishes)
    }
}

/// W6: a claim waits for a node; the Node goes and comes back in another zone.
pub const fn node_gone(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::DeleteNode, Wish::RemakeNode];
    in_zones(Topology::Delayed, "zones, Node gone and back", faults, wishes)
}

/// W6: the driver is not registered on the node for a while.
pub const fn not_registered(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::DeleteCsiNode, Wish::RemakeCsiNode];
    in_zones(Topology::Strict, "zones, CSINode gone and back", faults, wishes)
}

/// W6: the Node is in another zone one day, and another node is selected.
pub const fn moved(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::Relabel, Wish::MoveClaim];
    in_zones(
        Topology::Delayed,
        "zones, labels and selected node change",
        faults,
        wishes,
    )
}

/// W6: a class that binds at once, of all zones that there are.
pub const fn any_zone(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::Relabel, Wish::DeleteNode];
    in_zones(Topology::Immediate, "zones, bound at once", faults, wishes)
}

/// A claim of another driver, which has marked it.
pub const fn of_another() -> ProvisionSetting {
    world(
        "claim of another driver",
        Beginning::MarkedByAnother,
        0,
        &[],
        &[Wish::DeleteClaim],
    )
}

/// The same world, with the faults by which no other process takes the Lease.
pub const fn answers(world: ProvisionSetting) -> ProvisionSetting {
    ProvisionSetting {
        kinds: ANSWERS,
        ..world
    }
}

/// The same world, with a process that crashes, and a call that is not answered in time.
const fn few(world: ProvisionSetting) -> ProvisionSetting {
    ProvisionSetting { kinds: FEW, ..world }
}

/// Kinds of faults for a row each: with those of the next table, all histories with two faults of the five kinds are in these rows.
const PAIRS: &[&[Fault]] = &[
    FEW,
    ANSWERS,
    &[Fault::Crash, Fault::Unanswered],
    &[Fault::Crash, Fault::Refused],
];

/// Those with a process that goes on without the Lease. There are too many states where the next one may have seen any version of the claim
/// and the class: these it lists once it has the Lease (`relist_before_start` of `csi_attacher_runtime::task`).
const WITH_FORMER: &[&[Fault]] = &[
    &[Fault::Crash, Fault::LeaseLost],
    &[Fault::LeaseLost, Fault::Refused],
    &[Fault::LeaseLost, Fault::TimedOut],
    &[Fault::LeaseLost, Fault::Unanswered],
];

/// The worlds: those of CI, or the large ones.
pub fn worlds(large: bool) -> Vec<ProvisionSetting> {
    if large {
        let two = |kinds: &&'static [Fault]| ProvisionSetting { kinds, ..one_claim(2) };
        let relisted = |world| ProvisionSetting {
            relisted: (1 << CLAIM) | (1 << CLASS),
            ..world
        };
        let mut worlds: Vec<_> = PAIRS.iter().map(two).collect();
        worlds.extend(WITH_FORMER.iter().map(two).map(relisted));
        worlds.extend([
            lists(2),
            name_taken(1),
            attached_unsaved(1),
            few(class_gone(1)),
            few(bound_elsewhere(1)),
            answers(made_anew(2)),
            answers(attached(2)),
            policy(2),
            made_again(2),
            mistake(2),
            shared(2),
            both_released(2),
            three_writers(1),
            node_gone(1),
            not_registered(1),
            moved(1),
            any_zone(1),
            answers(node_gone(2)),
            answers(not_registered(2)),
            answers(moved(2)),
            answers(any_zone(2)),
        ]);
        return worlds;
    }
    vec![
        one_claim(1),
        lists(1),
        answers(name_taken(1)),
        answers(attached_unsaved(1)),
        class_gone(0),
        few(ProvisionSetting {
            wishes: &[Wish::DeleteClaim, Wish::DeleteClass, Wish::RemakeClass],
            ..class_gone(1)
        }),
        answers(bound_elsewhere(1)),
        answers(made_anew(1)),
        attached(1),
        policy(1),
        unlisted_attachment(1),
        made_again(1),
        mistake(1),
        shared(1),
        both_released(1),
        answers(three_writers(1)),
        of_another(),
        answers(node_gone(1)),
        answers(not_registered(1)),
        answers(moved(1)),
        answers(any_zone(1)),
    ]
}
