//! The values of production that states name by number, and what the key of a state needs of them.

use std::hash::Hash;

use csi_attacher_kube::lease::{ElectionState, LeaderElectionRecord, ObservedRecord};
use csi_attacher_model::api::names::NEW_LEASE_HOLDER;
use tokio::time::Instant;

use super::{SIDECAR_NAME, TICK, Tick};
use crate::hash::FastMap;

/// Values by number, each with something that was made of it once; number 0 is none.
struct Numbers<V, P> {
    values: Vec<(V, P)>,
    known: FastMap<V, u32>,
}

impl<V: Clone + Eq + Hash, P> Numbers<V, P> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            known: FastMap::default(),
        }
    }

    fn of(&mut self, value: V, parts: impl FnOnce(&V) -> P) -> u32 {
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        self.values.push((value.clone(), parts(&value)));
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.known.insert(value, number);
        number
    }

    fn get(&self, number: u32) -> &(V, P) {
        &self.values[number as usize - 1]
    }
}

/// What matters of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordParts {
    /// The number of the replica that holds the Lease.
    pub replica: Option<u8>,
    /// Whether nobody holds it, its creator did not take it yet, or the sidecar holds it.
    pub other: u8,
    /// Whether a replica holds it by the record that created it.
    pub created: bool,
}

/// What was seen of a Lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownParts {
    pub record: u32,
    pub since: Tick,
    pub exists: bool,
}

/// What a candidate knows.
#[derive(Debug)]
pub(super) struct ElectionParts {
    pub has_looked: bool,
    pub known: Option<KnownParts>,
    pub attempted: Vec<u32>,
}

/// All of them.
pub(super) struct Values {
    base: Instant,
    records: Numbers<LeaderElectionRecord, RecordParts>,
    elections: Numbers<ElectionState, ElectionParts>,
}

impl Values {
    /// None yet. Ticks count from `base`.
    pub fn new(base: Instant) -> Self {
        Self {
            base,
            records: Numbers::new(),
            elections: Numbers::new(),
        }
    }

    fn tick(base: Instant, at: Instant) -> Tick {
        let ticks = at.saturating_duration_since(base).as_secs() / TICK.as_secs();
        Tick::try_from(ticks).unwrap_or(Tick::MAX)
    }

    pub fn of_record(&mut self, record: LeaderElectionRecord) -> u32 {
        Self::record_of(&mut self.records, record)
    }

    fn record_of(records: &mut Numbers<LeaderElectionRecord, RecordParts>, record: LeaderElectionRecord) -> u32 {
        records.of(record, |record| {
            let replica = record.holder.strip_prefix('r').and_then(|number| number.parse().ok());
            RecordParts {
                replica,
                other: match &*record.holder {
                    "" => 0,
                    SIDECAR_NAME => 4,
                    NEW_LEASE_HOLDER => 3,
                    _ => u8::MAX,
                },
                created: replica.is_some() && record.transitions == 0,
            }
        })
    }

    fn known_of(
        records: &mut Numbers<LeaderElectionRecord, RecordParts>,
        base: Instant,
        known: &ObservedRecord,
    ) -> KnownParts {
        KnownParts {
            record: Self::record_of(records, known.record.clone()),
            since: Self::tick(base, known.since),
            exists: known.exists,
        }
    }

    pub fn of_election(&mut self, election: ElectionState) -> u32 {
        let (base, records) = (self.base, &mut self.records);
        self.elections.of(election, |election| ElectionParts {
            has_looked: election.has_looked(),
            known: election.known().map(|known| Self::known_of(records, base, known)),
            attempted: election
                .attempted()
                .map(|record| Self::record_of(records, record.clone()))
                .collect(),
        })
    }

    pub fn record(&self, number: u32) -> &LeaderElectionRecord {
        &self.records.get(number).0
    }

    pub fn record_parts(&self, number: u32) -> RecordParts {
        self.records.get(number).1
    }

    pub fn election(&self, number: u32) -> &ElectionState {
        &self.elections.get(number).0
    }

    pub fn election_parts(&self, number: u32) -> &ElectionParts {
        &self.elections.get(number).1
    }
}
