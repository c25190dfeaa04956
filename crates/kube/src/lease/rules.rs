//! Which rules keep two replicas from working at once when a Lease is deleted or moves.

/// One rule each. All are true in production. Tests hand in an election without one of them, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
pub struct LeaseRules {
    /// A candidate waits for the holders of the former places of its Lease.
    pub waits_for_former_places: bool,
    /// The holder of a Lease that is gone may not know, and counts until the Lease would have run out.
    pub gone_may_be_held: bool,
    /// Who made a Lease and did not work under it yet does not count it as its own when it comes back.
    pub made_is_not_ours: bool,
    /// Who creates a Lease outside of a term waits until it has run out.
    pub creators_wait: bool,
    /// A call is made only while the Lease is held by both clocks.
    pub calls_need_the_lease: bool,
}

impl Default for LeaseRules {
    fn default() -> Self {
        Self {
            waits_for_former_places: true,
            gone_may_be_held: true,
            made_is_not_ours: true,
            creators_wait: false,
            calls_need_the_lease: true,
        }
    }
}
