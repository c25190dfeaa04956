//! From a snapshot to what the rules decide on.

use super::Snapshot;
use crate::decide::{self, DriverFacts};

/// The facts and settings that turn a snapshot into something to decide on.
pub fn observe<'a>(
    snapshot: &'a Snapshot,
    driver: &'a DriverFacts,
    policy: &'a decide::Policy,
    credentials: decide::Credentials,
) -> decide::Observed<'a> {
    decide::Observed {
        attachment: &snapshot.attachment,
        volume: snapshot.volume.as_deref(),
        node: snapshot.node_entry(&driver.name),
        neighbours: &snapshot.neighbours,
        forced: false,
        patience: decide::Patience::Left,
        credentials,
        driver,
        policy,
    }
}
