//! Which rules keep two replicas from working at once when a Lease is deleted.

/// One rule each. All are true in production; the drop-in mode creates Leases as the sidecar does. Tests hand in an election without one
/// of them, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRules {
    /// Who creates a Lease outside of a term waits until it has run out: the holder of a Lease that was deleted may not know.
    pub creators_wait: bool,
    /// A call is made only while the Lease is held by both clocks.
    pub calls_need_the_lease: bool,
}

impl Default for LeaseRules {
    fn default() -> Self {
        Self {
            creators_wait: true,
            calls_need_the_lease: true,
        }
    }
}
