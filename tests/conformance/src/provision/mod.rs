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
mod marker;
mod others;
mod proxied;
mod refusal;
mod restored;
mod secrets;
mod settings;
mod teardown;
mod together;
mod topology;
mod uncertain;
mod volumes;

use std::time::Duration;

use csi_mock_driver::{ControllerCapability, MockDriverBuilder};

use crate::scenario::Setup;
use crate::test::SECRETS;

/// The finalizer on PersistentVolumes whose volume is to be deleted.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The finalizer and annotation that the operator has on claims while a volume may be made.
const MARKER: &str = "attacher.csi.dev/provisioning";
const NAMESPACE: &str = SECRETS;
/// The annotation with the node that the scheduler chose.
const SELECTED: &str = "volume.kubernetes.io/selected-node";

/// A pause that is longer than any scenario waits.
const LATE: Duration = Duration::from_mins(10);

/// Every setup; each inner list has a control plane of its own, and its setups take turns. The lists take about the same time.
pub fn lanes() -> Vec<Vec<Setup>> {
    let together = [
        together::scenarios(),
        create::scenarios(),
        answers::scenarios(),
        class::scenarios(),
        secrets::scenarios(),
        codes::scenarios(),
        uncertain::scenarios(),
        uncertain::save(),
        marker::scenarios(),
        delete::scenarios(),
        others::scenarios(),
    ];
    let mut main = Setup::new("provision", 20, together.into_iter().flatten().collect(), plain);
    main.flags = vec!["--leader-election=true".to_owned()];
    let mut wake = Setup::new("provision-wake", 20, delete::wake(), plain);
    wake.retry = (LATE, LATE);
    let mut strict = Setup::new("provision-strict", 1, topology::strict(), in_zones);
    strict.flags = vec!["--strict-topology=true".to_owned()];
    let mut short = Setup::new("provision-short", 1, answers::short(), plain);
    short.flags = vec![format!("--volume-name-uuid-length={}", answers::SHORT)];
    let mut proxied = Setup::new("provision-proxied", 1, proxied::scenarios(), plain);
    proxied.proxied = true;
    let zones = [topology::scenarios(), marker::in_zones()];
    let with_config = [settings::scenarios(), restored::scenarios()];
    let with_config = with_config.into_iter().flatten().collect();
    let settings = Setup::new("provision-settings", 1, with_config, plain);
    let many = [delete::many(), others::many()];
    let alone = [
        class::alone(),
        codes::alone(),
        uncertain::alone(),
        delete::alone(),
        together::alone(),
    ];
    let zones = Setup::new("provision-zones", 1, zones.into_iter().flatten().collect(), in_zones);
    let alone = Setup::new("provision-alone", 1, alone.into_iter().flatten().collect(), plain);
    let others = vec![
        Setup::new("provision-many", 1, many.into_iter().flatten().collect(), plain),
        wake,
        proxied,
        settings,
        // Its settings cannot be changed, so that it is the last.
        short,
    ];
    vec![vec![main, zones, strict], vec![alone], others]
}

/// A driver whose volumes are in one zone each.
fn in_zones(driver: MockDriverBuilder) -> MockDriverBuilder {
    plain(driver).topology([topology::ZONE])
}

/// A driver without snapshots and clones: nothing of them is played.
fn plain(driver: MockDriverBuilder) -> MockDriverBuilder {
    driver.capabilities([
        ControllerCapability::CreateDeleteVolume,
        ControllerCapability::PublishUnpublishVolume,
        ControllerCapability::SingleNodeMultiWriter,
    ])
}
