//! The worlds.

use super::objects::DRIVER;
use super::world::{Fault, Setting, User};

const RWO: &str = "ReadWriteOnce";
const RWX: &str = "ReadWriteMany";

/// What goes wrong in most worlds.
pub const FAULTS: &[Fault] = &[Fault::Crash, Fault::LeaseLost, Fault::NoAnswer, Fault::Refused, Fault::Hangs];

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
        users: vec![
            (User::Attach(0), 1),
            (User::Detach(0), 1),
            (User::Attach(1), 1),
            (User::Detach(1), 1),
        ],
        one_at_a_time: true,
        secret: false,
        contexts: false,
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
