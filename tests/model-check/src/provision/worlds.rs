//! The worlds of the provisioner.

use serde_json::Value;

use super::objects::{ANOTHER, DRIVER, Edit, Phase, claim, class, edited, marked_by_another, volume};
use super::state::{CLAIM, CLASS, OTHER, OWN, SLOTS};
use super::{Beginning, Fault, Flaw, ProvisionSetting, Wish};

const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::LeaseLost,
    Fault::Unanswered,
    Fault::Refused,
    Fault::TimedOut,
];

/// Those by which no other process takes the Lease.
const ANSWERS: &[Fault] = &[Fault::Unanswered, Fault::Refused, Fault::TimedOut];
/// A process crashes, and what it wrote may arrive late.
const LATE_WRITES: &[Fault] = &[Fault::Crash, Fault::Unanswered];
/// A process crashes, and a call is not answered in time.
const FEW: &[Fault] = &[Fault::Crash, Fault::TimedOut];

/// The objects that are there when a world begins.
pub fn objects(beginning: Beginning) -> [Option<Value>; SLOTS] {
    let mut objects: [Option<Value>; SLOTS] = Default::default();
    objects[CLASS] = Some(class(1, DRIVER));
    let own = |phase| volume(OWN, 10, Some(1), 1, phase, "Delete", true);
    match beginning {
        Beginning::Waiting => objects[CLAIM] = Some(claim(1)),
        Beginning::MarkedByAnother => {
            objects[CLAIM] = Some(marked_by_another(1));
            objects[CLASS] = Some(class(1, ANOTHER));
        }
        Beginning::Bound => {
            let bound = edited(&claim(1), Edit::Bind(OWN as u8));
            objects[CLAIM] = Some(edited(&bound, Edit::Phase(Phase::Bound)));
            objects[OWN] = Some(own("Bound"));
        }
        Beginning::Released => objects[OWN] = Some(own("Released")),
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
        attaches: false,
        flaw: Flaw::None,
    }
}

/// W1: a claim waits; class policy Delete.
pub const fn one_claim(faults: u8) -> ProvisionSetting {
    world("one claim", Beginning::Waiting, faults, ALL, &[Wish::DeleteClaim])
}

/// W1, with lists that are not complete when a process begins.
pub const fn lists(faults: u8) -> ProvisionSetting {
    ProvisionSetting {
        unlisted: (1 << SLOTS) - 1,
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
    world(
        "claim, name of its volume taken",
        Beginning::Waiting,
        faults,
        ALL,
        wishes,
    )
}

/// W2: the class goes, comes back for another driver, or as it was.
pub const fn class_gone(faults: u8) -> ProvisionSetting {
    let wishes = &[
        Wish::DeleteClaim,
        Wish::DeleteClass,
        Wish::RemakeClass,
        Wish::RestoreClass,
    ];
    world("claim, class gone and back", Beginning::Waiting, faults, ALL, wishes)
}

/// W3: the claim is bound to a PersistentVolume that a person made.
pub const fn bound_elsewhere(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::BindElsewhere, Wish::AnnotateClaim];
    world("claim, bound elsewhere", Beginning::Waiting, faults, ALL, wishes)
}

/// W3: the claim is deleted and made anew.
pub const fn made_anew(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::RemakeClaim, Wish::DeleteSecond];
    world("claim, deleted and made again", Beginning::Waiting, faults, ALL, wishes)
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
        unlisted: (1 << SLOTS) - 1,
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

/// W8: the attach role, kube-controller-manager and the provisioner write on one PersistentVolume.
pub const fn three_writers(faults: u8) -> ProvisionSetting {
    let wishes = &[Wish::DeleteClaim, Wish::DeleteVolume, Wish::ToRetain];
    ProvisionSetting {
        attaches: true,
        ..world("volume, three writers", Beginning::Bound, faults, ALL, wishes)
    }
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

/// The worlds: those of CI, or the large ones.
pub fn worlds(large: bool) -> Vec<ProvisionSetting> {
    let with = |kinds: &'static [Fault], world: ProvisionSetting| ProvisionSetting { kinds, ..world };
    if large {
        return vec![
            one_claim(2),
            lists(2),
            name_taken(1),
            with(FEW, class_gone(1)),
            with(FEW, bound_elsewhere(1)),
            with(ANSWERS, made_anew(2)),
            with(ANSWERS, attached(2)),
            policy(2),
            made_again(2),
            mistake(2),
            shared(2),
            three_writers(1),
        ];
    }
    vec![
        one_claim(1),
        lists(1),
        with(ANSWERS, name_taken(1)),
        class_gone(0),
        ProvisionSetting {
            wishes: &[Wish::DeleteClaim, Wish::DeleteClass, Wish::RemakeClass],
            kinds: FEW,
            ..class_gone(1)
        },
        with(ANSWERS, bound_elsewhere(1)),
        with(ANSWERS, made_anew(1)),
        attached(1),
        policy(1),
        unlisted_attachment(1),
        made_again(1),
        mistake(1),
        shared(1),
        with(ANSWERS, three_writers(1)),
        of_another(),
    ]
}
