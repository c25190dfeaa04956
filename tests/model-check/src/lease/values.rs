//! The values of production that states name by number.

use csi_attacher_kube::lease::{ElectionState, LeaderElectionRecord};

use crate::hash::{Numbered, fingerprint};

/// What somebody knows of a Lease.
pub(super) struct Election {
    pub state: ElectionState,
    /// The record that was seen last.
    pub known: Option<u32>,
    /// The records that it wrote, or may have written.
    pub attempted: Vec<u32>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Values {
    records: Numbered<LeaderElectionRecord>,
    elections: Numbered<Election>,
}

impl Values {
    pub fn of_record(&mut self, record: LeaderElectionRecord) -> u32 {
        self.records.number(fingerprint(&record), || record)
    }

    pub fn of_election(&mut self, state: ElectionState) -> u32 {
        let records = &mut self.records;
        self.elections.number(fingerprint(&state), || {
            let mut of = |record: &LeaderElectionRecord| records.number(fingerprint(record), || record.clone());
            let known = state.known().map(|known| of(&known.record));
            let attempted = state.attempted().map(of).collect();
            Election {
                state,
                known,
                attempted,
            }
        })
    }

    /// An election after a change.
    pub fn changed(&mut self, election: u32, change: impl FnOnce(&mut ElectionState)) -> u32 {
        let mut state = self.election(election).state.clone();
        change(&mut state);
        self.of_election(state)
    }

    pub fn record(&self, number: u32) -> &LeaderElectionRecord {
        self.records.get(number)
    }

    pub fn election(&self, number: u32) -> &Election {
        self.elections.get(number)
    }
}
