//! The role of a provisioner: what becomes of PersistentVolumeClaims, and of the volumes of PersistentVolumes that are
//! released. kube-controller-manager binds and releases, as in every cluster.

#![allow(
    clippy::too_many_lines,
    reason = "a function here is a list of scenarios, each of them short"
)]

mod answers;
mod claims;
mod class;
mod codes;
mod create;
mod delete;
mod refusal;
mod secrets;
mod teardown;
mod topology;
mod uncertain;

use csi_mock_driver::{ControllerCapability, MockDriverBuilder};

use crate::env::RETRY;
use crate::scenario::{Scenario, Setup};
use crate::test::SECRETS;

/// The finalizer on PersistentVolumes whose volume is to be deleted.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The finalizer and annotation that the operator has on claims while a volume may be made.
const MARKER: &str = "attacher.csi.dev/provisioning";
/// Where the claims are.
const NAMESPACE: &str = SECRETS;
/// The annotation with the node that the scheduler chose.
const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// Every setup; each inner list has a control plane of its own, and its setups take turns.
pub fn lanes() -> Vec<Vec<Setup>> {
    let together = [
        create::scenarios(),
        answers::scenarios(),
        class::scenarios(),
        secrets::scenarios(),
        codes::scenarios(),
        uncertain::scenarios(),
        uncertain::save(),
        delete::scenarios(),
    ];
    let alone = [codes::alone(), uncertain::alone()];
    let turns = vec![setup(
        "provision-alone",
        1,
        alone.into_iter().flatten().collect(),
        plain,
    )];
    vec![
        vec![setup("provision", 20, together.into_iter().flatten().collect(), plain)],
        turns,
    ]
}

fn setup(
    name: &'static str,
    parallel: usize,
    scenarios: Vec<Scenario>,
    driver: fn(MockDriverBuilder) -> MockDriverBuilder,
) -> Setup {
    Setup {
        name,
        driver_name: None,
        driver,
        retry: RETRY,
        flags: Vec::new(),
        parallel,
        scenarios,
    }
}

/// A driver without snapshots and clones: nothing of them is played.
fn plain(driver: MockDriverBuilder) -> MockDriverBuilder {
    driver.capabilities([
        ControllerCapability::CreateDeleteVolume,
        ControllerCapability::PublishUnpublishVolume,
        ControllerCapability::SingleNodeMultiWriter,
    ])
}
