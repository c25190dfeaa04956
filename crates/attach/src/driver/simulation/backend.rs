//! The truth about volumes: where each is published, and what is still to come of calls that were made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tonic::Code;

use super::scenario::{Busy, DRIVERS, Disk, Scenario};
use super::world::Owner;

/// A volume handle and a node ID of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// Index of the driver.
    pub driver: usize,
    pub volume: String,
    pub node: String,
}

impl Pair {
    /// A disk at a node ID.
    pub fn of(disk: &Disk, node: &str) -> Self {
        Self {
            driver: disk.driver,
            volume: disk.handle.clone(),
            node: node.to_owned(),
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} at {} of {}",
            self.volume, self.node, DRIVERS[self.driver]
        )
    }
}

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Publish,
    Unpublish,
}

/// An operation that the backend works at.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: usize,
    pub call: Call,
    pub owners: BTreeSet<Owner>,
}

/// A call that a process waits for.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub process: usize,
    pub pair: Pair,
    /// Whether its process has stood still since: others cannot wait for its end.
    pub left: bool,
}

/// The backends of all drivers.
pub struct Backend {
    /// Where volumes are, and for whom they were brought there.
    pub published: BTreeMap<Pair, BTreeSet<Owner>>,
    /// What is under way; at most one operation for a volume and a node.
    pub under_way: BTreeMap<Pair, Operation>,
    /// Calls that processes that live wait for.
    pub open: Vec<OpenCall>,
    /// The publish contexts that were answered for a place, and the last one.
    pub contexts: BTreeMap<Pair, Vec<BTreeMap<String, String>>>,
    pub busy: Busy,
    single_writer: BTreeSet<(usize, String)>,
    pub ended: usize,
    ids: usize,
}

impl Backend {
    pub fn new(scenario: &Scenario) -> Self {
        let single = scenario.disks.iter().filter(|disk| disk.single_writer);
        Self {
            published: BTreeMap::new(),
            under_way: BTreeMap::new(),
            open: Vec::new(),
            contexts: BTreeMap::new(),
            busy: scenario.busy,
            single_writer: single.map(|disk| (disk.driver, disk.handle.clone())).collect(),
            ended: 0,
            ids: 0,
        }
    }

    /// Takes an operation up; its effect is still to come.
    pub fn accept(&mut self, pair: &Pair, call: Call, owners: BTreeSet<Owner>) -> usize {
        self.ids += 1;
        let id = self.ids;
        self.under_way.insert(pair.clone(), Operation { id, call, owners });
        id
    }

    /// Gives up what is under way for a pair.
    pub fn supersede(&mut self, pair: &Pair) {
        self.under_way.remove(pair);
        self.ended += 1;
    }

    /// Carries an operation out, unless it was superseded; what the driver has to say of it.
    pub fn carry_out(&mut self, pair: &Pair, id: usize) -> Option<Result<(), Code>> {
        if self.under_way.get(pair)?.id != id {
            return None;
        }
        let operation = self.under_way.remove(pair)?;
        self.ended += 1;
        Some(match operation.call {
            Call::Publish if self.is_elsewhere(pair) => Err(Code::FailedPrecondition),
            Call::Publish => {
                self.published.entry(pair.clone()).or_default().extend(operation.owners);
                Ok(())
            }
            Call::Unpublish => {
                self.published.remove(pair);
                Ok(())
            }
        })
    }

    /// Whether a volume that can be in one place only is in another one.
    pub fn is_elsewhere(&self, pair: &Pair) -> bool {
        self.single_writer.contains(&(pair.driver, pair.volume.clone()))
            && self
                .published
                .keys()
                .any(|other| (other.driver, &other.volume) == (pair.driver, &pair.volume) && other.node != pair.node)
    }

    /// Nobody can wait for the end of what a process waits for.
    pub fn leave_open(&mut self, process: usize) {
        let open = self.open.iter_mut();
        open.filter(|call| call.process == process)
            .for_each(|call| call.left = true);
    }

    /// All places where a volume is or may come to be, and for whom.
    pub fn may_be_published(&self) -> impl Iterator<Item = (&Pair, &BTreeSet<Owner>)> {
        let coming = self
            .under_way
            .iter()
            .filter(|(_, operation)| operation.call == Call::Publish);
        self.published
            .iter()
            .chain(coming.map(|(pair, operation)| (pair, &operation.owners)))
    }
}
