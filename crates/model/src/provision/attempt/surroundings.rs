//! What is around a claim, as an attempt sees it.

use std::sync::Arc;

use super::ClaimView;
use crate::objects::Claim;
use crate::provision::claim::{is_wanted, volume_name};
use crate::provision::creation::Creation;
use crate::provision::fingerprint::{claim_fingerprint, is_placed};
use crate::provision::marker::MarkerState;
use crate::provision::observed::{ObservedClaim, ProvisionerSecretState, Waited};
use crate::provision::ownership::may_be_asked_for;
use crate::provision::seen::Seen;
use crate::provision::topology::{KnownNode, TopologyFacts};

/// Fingerprint of what decides about a claim, as far as others change it: what the queue compares after a failure.
pub fn fingerprint(view: &impl ClaimView, claim: &Claim) -> u64 {
    let (creation, class) = (Creation::Never, view.class(&claim.class));
    // Each event of each claim asks, and all nodes are put together again after each change of one.
    let surroundings = if is_placed(claim, class.as_deref()) {
        Surroundings::of_node(view, claim)
    } else {
        Surroundings::of(view, claim)
    };
    let marker = MarkerState::of(claim, &view.driver().name);
    let name = volume_name(claim, &creation, &marker, view.policy()).unwrap_or_default();
    let saved = view.volume(&name);
    claim_fingerprint(&ObservedClaim {
        class: class.as_deref(),
        saved: saved.as_deref(),
        ..neutral(view, claim, &surroundings, &creation)
    })
}

/// Whether the next attempt for a claim may call the driver, as far as can be said beforehand: what needs no call waits for none.
pub fn may_call(view: &impl ClaimView, claim: &Claim, known: Option<&Creation>) -> bool {
    let marker = MarkerState::of(claim, &view.driver().name);
    let at_start = Creation::of_marker(marker.may_be_open());
    let creation = known.unwrap_or(&at_start);
    let name = volume_name(claim, creation, &marker, view.policy()).unwrap_or_default();
    let saved = view.volume(&name).here();
    if saved.is_some_and(|volume| creation.is_saved_in(&volume, claim, view.driver())) {
        return false;
    }
    let is_gone = matches!(view.claim(), Seen::Gone);
    let is_wanted = is_wanted(claim, view.driver(), is_gone, &name);
    match creation {
        Creation::Uncertain(_) => true,
        // It is saved; or undone.
        Creation::Created(volume) => !volume.is_usable() || !is_wanted,
        Creation::Never | Creation::Refused => is_wanted && may_be_asked_for(claim),
    }
}

/// The nodes, as far as they matter for a claim: of a driver without topology nothing is asked for.
pub(super) struct Surroundings {
    topology: Arc<TopologyFacts>,
    node: KnownNode,
}

impl Surroundings {
    /// Where nothing depends on them.
    pub fn none() -> Self {
        Self {
            topology: Arc::default(),
            node: KnownNode::GONE,
        }
    }

    pub fn of(view: &impl ClaimView, claim: &Claim) -> Self {
        let of_node = Self::of_node(view, claim);
        if !view.driver().capabilities.accessibility_constraints {
            return of_node;
        }
        Self {
            topology: view.topology(),
            ..of_node
        }
    }

    /// Where no other node than the selected one counts.
    fn of_node(view: &impl ClaimView, claim: &Claim) -> Self {
        let has_topology = view.driver().capabilities.accessibility_constraints;
        let selected = claim.selected_node.as_deref().filter(|_| has_topology);
        Self {
            node: selected.map_or(KnownNode::GONE, |name| view.node(name)),
            ..Self::none()
        }
    }

    /// Digest of the nodes of the driver.
    pub fn digest(&self) -> u64 {
        self.topology.digest()
    }

    /// Whether the selected node has no Node or no CSINode.
    pub fn misses_node(&self, claim: &Claim) -> bool {
        claim.selected_node.is_some() && self.node.is_gone()
    }
}

/// A claim of which nothing else is known.
pub(super) fn neutral<'a>(
    view: &'a impl ClaimView,
    claim: &'a Claim,
    surroundings: &'a Surroundings,
    creation: &'a Creation,
) -> ObservedClaim<'a> {
    ObservedClaim {
        claim,
        gone: false,
        claim_is_live: false,
        marker_is_own: false,
        class: Seen::Gone,
        classes_are_known: true,
        nodes_are_known: true,
        saved: Seen::Gone,
        saved_is_live: false,
        handle_owner: Seen::Gone,
        attached_to: Seen::Gone,
        node: &surroundings.node,
        topology: &surroundings.topology,
        secret: ProvisionerSecretState::NotLoaded,
        secret_of: None,
        creation,
        infeasible: false,
        save_failed: false,
        others_may_have_called: false,
        driver: view.driver(),
        policy: view.policy(),
        role: view.role(),
        is_away: view.is_away(),
        waited: Waited::default(),
        now: view.now(),
    }
}
