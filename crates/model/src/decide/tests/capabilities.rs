//! Volume capabilities: section 8.8 of the sidecar's behaviour, 18 scenarios, and the row about ReadWriteOncePod of 4.8.

use serde_json::json;

use super::builders::{Pv, attachment, volume};
use super::table::tally;
use super::world::{DecideModel, capable, world};
use crate::decide::observe;
use crate::decide::{self, AccessMode, Action, Capabilities, Refusal, SecretState, VolumeAccessType};

const RWO: &str = "ReadWriteOnce";
const ROX: &str = "ReadOnlyMany";
const RWX: &str = "ReadWriteMany";
const RWOP: &str = "ReadWriteOncePod";

/// How the volume is published: mode, then `block` or file system type and flags; or the refusal.
fn published(world: DecideModel) -> Result<(AccessMode, String), Refusal> {
    let mut world = world.node().va(attachment());
    world.volume = world.volume.map(|volume| Pv(volume).protected().0);
    // The claim is written first; the call is decided on what it left.
    loop {
        let snapshot = world.snapshot().unwrap();
        let (driver, policy) = (world.driver.clone(), world.policy.clone());
        let observed = observe(&snapshot, &driver, &policy, SecretState::Loaded);
        match decide::attachment(&observed) {
            Action::Claim(write) => world.write(&write).unwrap(),
            Action::Refuse(refusal) => return Err(refusal),
            Action::Publish(plan) => {
                let access = match plan.capability.access {
                    VolumeAccessType::Block => "block".to_owned(),
                    VolumeAccessType::Mount { fs_type, flags } => format!("{fs_type} {}", flags.join(",")),
                };
                return Ok((plan.capability.mode, access.trim().to_owned()));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn with(volume: Pv, finer: bool) -> DecideModel {
    let single_node_multi_writer = finer;
    world().pv(volume).capabilities(Capabilities {
        single_node_multi_writer,
        ..capable()
    })
}

#[test]
fn capabilities_of_volumes() {
    use AccessMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
    };
    let block = |modes: &[&str]| volume().modes(modes).set("/spec/volumeMode", "Block");
    let ext3 = volume()
        .modes(&[RWX])
        .set("/spec/csi/fsType", "ext3")
        .set("/spec/volumeMode", json!(null));
    let options = volume()
        .modes(&[RWX])
        .set("/spec/mountOptions", json!(["first", "second"]));
    let plain = |modes: &[&str]| volume().modes(modes).set("/spec/volumeMode", "Filesystem");
    // Volume, finer modes, wanted mode (none: refused), wanted access.
    let rows = [
        (plain(&[RWX]), false, Some(MultiNodeMultiWriter), "ext4"),
        (block(&[RWX]), false, Some(MultiNodeMultiWriter), "block"),
        (ext3, false, Some(MultiNodeMultiWriter), "ext3"),
        (plain(&[RWO]), false, Some(SingleNodeWriter), "ext4"),
        (block(&[RWO]), false, Some(SingleNodeWriter), "block"),
        (plain(&[ROX]), false, Some(MultiNodeReaderOnly), "ext4"),
        (plain(&[RWX, ROX, RWO]), false, Some(MultiNodeMultiWriter), "ext4"),
        (options, false, Some(MultiNodeMultiWriter), "ext4 first,second"),
        (plain(&[ROX, RWO]), false, None, ""),
        (plain(&[]), false, None, ""),
        (plain(&[RWX]), true, Some(MultiNodeMultiWriter), "ext4"),
        (plain(&[ROX, RWO]), true, None, ""),
        (plain(&[ROX, RWOP]), true, None, ""),
        (plain(&[RWO, RWOP]), true, None, ""),
        (plain(&[ROX]), true, Some(MultiNodeReaderOnly), "ext4"),
        (plain(&[RWO]), true, Some(SingleNodeMultiWriter), "ext4"),
        (plain(&[RWOP]), true, Some(SingleNodeSingleWriter), "ext4"),
        (plain(&[]), true, None, ""),
        // Of 4.8: without the finer modes.
        (plain(&[RWOP]), false, Some(SingleNodeWriter), "ext4"),
        (plain(&[RWOP, RWX]), false, None, ""),
        // A mode of a later version: not alone, and not beside ReadWriteOncePod.
        (plain(&["ReadWriteSometimes"]), false, None, ""),
        (
            plain(&[RWO, "ReadWriteSometimes"]),
            false,
            Some(SingleNodeWriter),
            "ext4",
        ),
        (plain(&[RWOP, "ReadWriteSometimes"]), true, None, ""),
    ];
    // The last five are not among the sidecar's.
    tally("8.8", "volume capabilities", rows.len() - 5);
    for (volume, finer, mode, access) in rows {
        let found = published(with(volume.clone(), finer));
        match mode {
            Some(mode) => assert_eq!(found, Ok((mode, access.to_owned())), "{volume:?} {finer}"),
            None => assert!(
                matches!(found, Err(Refusal::AccessModes(_))),
                "{volume:?} {finer}: {found:?}"
            ),
        }
    }
}

/// Section 8.9: handle and read-only of a source, and none at all.
#[test]
fn handles_of_volumes() {
    let published = |volume: Pv| {
        let mut world = world().pv(volume.protected()).node().va(attachment());
        world.attempt();
        world
            .log
            .into_iter()
            .find(|entry| entry.starts_with("pub ") || entry.starts_with("AERR"))
    };
    let rows = [
        (volume(), "pub handle1 nodeID1 rw"),
        (volume().read_only(), "pub handle1 nodeID1 ro"),
        (volume().in_tree("hostPath"), "AERR(pv spec contained non-csi"),
    ];
    tally("8.9", "volume handle", rows.len());
    for (volume, wanted) in rows {
        let found = published(volume).unwrap();
        assert!(found.starts_with(wanted), "{found}");
    }
}

#[test]
fn without_a_default_the_driver_chooses_the_file_system() {
    let mut world = with(volume(), false);
    world.policy.default_fs_type = "".into();
    assert_eq!(published(world), Ok((AccessMode::MultiNodeMultiWriter, String::new())));
}
