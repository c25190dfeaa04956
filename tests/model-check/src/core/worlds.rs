//! The worlds.

use super::Rules;
use super::objects::DRIVER;
use super::world::{Fault, Setting, User};

const RWO: &str = "ReadWriteOnce";
const RWX: &str = "ReadWriteMany";

/// What goes wrong in most worlds.
pub const FAULTS: &[Fault] = &[
    Fault::Crash,
    Fault::LeaseLost,
    Fault::NoAnswer,
    Fault::Refused,
    Fault::Hangs,
];

/// One volume for one node and two nodes between which it moves.
pub fn one_volume_two_nodes(replicas: usize, faults: u8) -> Setting {
    Setting {
        name: "RWO volume, two nodes",
        volumes: vec![("disk0", DRIVER, RWO)],
        attachments: vec![(0, 0), (0, 1)],
        nodes: 2,
        replicas,
        faults,
        kinds: FAULTS,
        before: Vec::new(),
        users: vec![
            (User::Attach(0), 1),
            (User::Detach(0), 1),
            (User::Attach(1), 1),
            (User::Detach(1), 1),
        ],
        one_at_a_time: true,
        secret: false,
        contexts: false,
        rules: Rules::default(),
    }
}

/// A volume for many nodes on two nodes, which is deleted meanwhile.
pub fn shared_volume_in_deletion(replicas: usize, faults: u8) -> Setting {
    Setting {
        name: "RWX volume on two nodes, deleted",
        volumes: vec![("disk0", DRIVER, RWX)],
        users: vec![
            (User::Attach(0), 1),
            (User::Detach(0), 1),
            (User::Attach(1), 1),
            (User::Detach(1), 1),
            (User::DeleteVolume(0), 1),
        ],
        one_at_a_time: false,
        ..one_volume_two_nodes(replicas, faults)
    }
}

/// The same volume, which is attached to the first node when the history begins.
pub fn shared_volume_attached(replicas: usize, faults: u8) -> Setting {
    Setting {
        name: "RWX volume, one attached, one comes",
        before: vec![User::Attach(0)],
        users: vec![
            (User::Detach(0), 1),
            (User::Attach(1), 1),
            (User::Detach(1), 1),
            (User::DeleteVolume(0), 1),
        ],
        ..shared_volume_in_deletion(replicas, faults)
    }
}

/// The same volume, attached to both nodes when the history begins, and in deletion.
pub fn shared_volume_leaves(replicas: usize, faults: u8) -> Setting {
    Setting {
        name: "RWX volume, two attached, in deletion",
        before: vec![User::Attach(0), User::Attach(1), User::DeleteVolume(0)],
        users: vec![(User::Detach(0), 1), (User::Detach(1), 1)],
        ..shared_volume_in_deletion(replicas, faults)
    }
}

/// One volume and one node; it is attached twice.
pub fn one_volume(faults: u8) -> Setting {
    Setting {
        name: "RWO volume, one node",
        attachments: vec![(0, 0)],
        nodes: 1,
        users: vec![(User::Attach(0), 2), (User::Detach(0), 2)],
        ..one_volume_two_nodes(2, faults)
    }
}

/// The same; the PersistentVolume is deleted meanwhile.
pub fn volume_in_deletion(faults: u8) -> Setting {
    Setting {
        name: "volume on one node, deleted",
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1), (User::DeleteVolume(0), 1)],
        ..one_volume(faults)
    }
}

/// The same; somebody takes our finalizer from the PersistentVolume.
pub fn unprotected(faults: u8) -> Setting {
    Setting {
        name: "volume on one node, unprotected",
        users: vec![(User::Attach(0), 1), (User::Unprotect(0), 1)],
        ..one_volume(faults)
    }
}

/// A node that comes back under another ID.
pub fn reborn_node(faults: u8) -> Setting {
    Setting {
        name: "volume on a node that changes its ID",
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1), (User::Reborn(0), 1)],
        ..one_volume(faults)
    }
}

/// Somebody else puts finalizers on both objects.
pub fn foreign_finalizers(faults: u8) -> Setting {
    Setting {
        name: "finalizers of others",
        users: vec![
            (User::Attach(0), 1),
            (User::Detach(0), 1),
            (User::Hold(0), 1),
            (User::HoldVolume(0), 1),
            (User::DeleteVolume(0), 1),
        ],
        ..one_volume(faults)
    }
}

/// Two PersistentVolumes of one handle on one node.
pub fn twins(faults: u8) -> Setting {
    Setting {
        name: "two volumes of one handle, one node",
        volumes: vec![("disk0", DRIVER, RWX), ("disk0", DRIVER, RWX)],
        attachments: vec![(0, 0), (1, 0)],
        users: vec![
            (User::Attach(0), 1),
            (User::Detach(0), 1),
            (User::Attach(1), 1),
            (User::Detach(1), 1),
        ],
        one_at_a_time: false,
        ..one_volume(faults)
    }
}

/// The same volumes, one of which is never detached, and a crash: in this world a claim has to be renewed.
pub fn twins_and_a_crash() -> Setting {
    Setting {
        name: "two volumes of one handle, and a crash",
        users: vec![(User::Attach(0), 1), (User::Attach(1), 1), (User::Detach(1), 1)],
        kinds: &[Fault::Crash],
        ..twins(1)
    }
}

/// The same volumes: one of them is attached when the history begins, and is detached while the other one is attached.
pub fn one_twin_attached(faults: u8) -> Setting {
    Setting {
        name: "two volumes of one handle, one attached",
        before: vec![User::Attach(1)],
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1), (User::Detach(1), 1)],
        ..twins(faults)
    }
}

/// A volume of another driver than its attachment names.
pub fn of_another_driver(faults: u8) -> Setting {
    Setting {
        name: "volume of another driver",
        volumes: vec![("disk0", "b.test", RWO)],
        ..one_volume(faults)
    }
}

/// The driver answers each Publish with another publish context.
pub fn late_contexts(faults: u8) -> Setting {
    Setting {
        name: "publish contexts that differ",
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1)],
        contexts: true,
        ..one_volume(faults)
    }
}

/// The driver answers without PUBLISH_UNPUBLISH_VOLUME for a while.
pub fn lost_capability(faults: u8) -> Setting {
    Setting {
        name: "volume of a driver that loses its capability",
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1)],
        kinds: &[Fault::Crash, Fault::NoAnswer, Fault::Hangs, Fault::CapabilityGoes],
        ..one_volume(faults)
    }
}

/// The publish Secret is deleted for a while.
pub fn lost_secret(faults: u8) -> Setting {
    Setting {
        name: "volume whose Secret is deleted",
        users: vec![(User::Attach(0), 1), (User::Detach(0), 1)],
        kinds: &[Fault::Crash, Fault::NoAnswer, Fault::Hangs, Fault::SecretGoes],
        secret: true,
        ..one_volume(faults)
    }
}

/// One volume whose writes get lost, and nothing else.
pub fn lost_writes(faults: u8) -> Setting {
    Setting {
        name: "RWO volume, one node, lost answers",
        kinds: &[Fault::Crash, Fault::NoAnswer],
        ..one_volume(faults)
    }
}

/// The worlds of CI.
pub fn small() -> Vec<Setting> {
    vec![
        one_volume_two_nodes(1, 1),
        one_volume_two_nodes(2, 1),
        two_at_a_time(1),
        one_volume(1),
        volume_in_deletion(1),
        unprotected(1),
        reborn_node(1),
        foreign_finalizers(0),
        twins(0),
        twins_and_a_crash(),
        one_twin_attached(1),
        of_another_driver(1),
        late_contexts(1),
        lost_secret(1),
        lost_capability(1),
    ]
}

/// One volume for one node, which somebody attaches to two nodes at the same time.
pub fn two_at_a_time(faults: u8) -> Setting {
    Setting {
        name: "RWO volume, two nodes at the same time",
        one_at_a_time: false,
        ..one_volume_two_nodes(1, faults)
    }
}

/// The worlds that take longer, the smaller ones first.
pub fn large() -> Vec<Setting> {
    vec![
        late_contexts(2),
        lost_secret(2),
        lost_capability(2),
        volume_in_deletion(2),
        one_volume(2),
        reborn_node(2),
        foreign_finalizers(1),
        one_twin_attached(2),
        one_volume_two_nodes(2, 2),
        one_volume_two_nodes(1, 3),
        shared_volume_leaves(2, 2),
        shared_volume_in_deletion(2, 0),
        shared_volume_attached(2, 1),
    ]
}
