//! The scenarios, and which of them share a driver and an attacher.

#![allow(
    clippy::too_many_lines,
    reason = "a function here is a list of scenarios, each of them short"
)]

mod access_modes;
mod api_faults;
mod attach;
mod backoff;
mod claim;
mod codes;
mod detach;
mod driver_restart;
mod errors;
mod events;
mod inline;
mod many;
mod metrics;
mod migration;
mod plain;
mod reconcile;
mod refusals;
mod restart;
mod secrets;
mod several;
mod timeouts;
mod trivial;
mod unasked;
mod volumes;
mod wake;

use csi_mock_driver::{ALL_CAPABILITIES, ControllerCapability, MockDriverBuilder};

use crate::scenario::Setup;

/// Every setup; each inner list has a control plane of its own, and its setups take turns. The lists take about the same time.
pub fn lanes() -> Vec<Vec<Setup>> {
    // The first of each of these stop or kill what they need themselves, so that they take turns.
    let driver = vec![
        Setup::new("driver", 1, driver_restart::scenarios(), without_lists),
        reconcile::setup(),
        migration::gce(),
        migration::ebs(),
    ];
    let restart = vec![
        Setup::new("restart", 1, restart::scenarios(), without_lists),
        plain::setup(),
        trivial::setup(),
        wake::setup(),
    ];
    vec![vec![main_setup()], driver, restart]
}

/// The driver can do everything but list what is published: a reconciler would repair what a scenario breaks.
fn main_setup() -> Setup {
    let scenarios = [
        // One of these takes half a minute on any machine, so that they come first.
        several::scenarios(),
        attach::scenarios(),
        inline::scenarios(),
        claim::scenarios(),
        access_modes::scenarios(),
        secrets::scenarios(),
        refusals::scenarios(),
        codes::scenarios(),
        errors::scenarios(),
        detach::scenarios(),
        volumes::scenarios(),
        timeouts::scenarios(),
        api_faults::scenarios(),
        backoff::scenarios(),
        many::scenarios(),
        metrics::scenarios(),
        unasked::scenarios(),
    ];
    Setup::new("main", 20, scenarios.into_iter().flatten().collect(), without_lists)
}

fn without_lists(driver: MockDriverBuilder) -> MockDriverBuilder {
    let all = ALL_CAPABILITIES.into_iter();
    driver.capabilities(all.filter(|it| *it != ControllerCapability::ListVolumesPublishedNodes))
}
