//! Since when each finding has been there, and whether it was told.

use jiff::Timestamp;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use super::finding::{FindingKind, age};

/// The findings of one driver from pass to pass: some 30 bytes for each, kept by a hash of kind and UID.
#[derive(Clone, Debug, Default)]
pub struct FindingHistory {
    seen: HashMap<u64, FindingRecord>,
    pass: u64,
}

#[derive(Clone, Copy, Debug)]
struct FindingRecord {
    first: Timestamp,
    /// The last pass in which it was there.
    pass: u64,
    told: bool,
}

/// What is known of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingState {
    /// It is there, but may pass by itself.
    Pending,
    /// It counts, and nobody was told.
    New,
    /// It counts, and was told.
    Reported,
}

impl FindingHistory {
    /// Begins a pass.
    pub fn begin(&mut self) {
        self.pass += 1;
    }

    /// Takes in that a finding about the object of this UID is there.
    pub fn observe(&mut self, kind: FindingKind, uid: &str, now: Timestamp, patience: Duration) -> FindingState {
        let pass = self.pass;
        let seen = self.seen.entry(hash(kind, uid)).or_insert(FindingRecord {
            first: now,
            pass,
            told: false,
        });
        seen.pass = pass;
        if age(seen.first, now) < patience {
            FindingState::Pending
        } else if seen.told {
            FindingState::Reported
        } else {
            FindingState::New
        }
    }

    /// Takes in that a finding was told.
    pub fn mark_reported(&mut self, kind: FindingKind, uid: &str) {
        if let Some(seen) = self.seen.get_mut(&hash(kind, uid)) {
            seen.told = true;
        }
    }

    /// Ends a pass: what was not seen in it is over.
    pub fn end(&mut self) {
        let pass = self.pass;
        self.seen.retain(|_, seen| seen.pass == pass);
        // After a day on which everything was wrong.
        if self.seen.capacity() > 4 * self.seen.len() + 64 {
            self.seen.shrink_to_fit();
        }
    }
}

fn hash(kind: FindingKind, uid: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((kind, uid))
}
