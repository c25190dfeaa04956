//! Whose turn it is to work for a driver: first among the AttacherConfigs of this process, then among the replicas.

use std::sync::Arc;

use tracing::warn;

use super::Leadership;
use crate::api::condition::ConditionReason;
use crate::api::names::lease_name;
use crate::connect::ConnectedDriver;
use crate::connect::handshake::RETRY;
use crate::csi::CsiClient;
use crate::decide::DriverFacts;
use crate::lease::{LeaderElectionHandle, LeaderState};
use crate::reservation::{ReservationConflict, ReservationState};
use crate::role::Role;
use crate::state::{DriverPhase, DriverStateSender};
use crate::task::{DriverTask, TaskEvent};

impl<R: Role> DriverTask<R> {
    /// Watches the Lease of a driver that has not answered yet, if its name is known.
    pub fn observe_known_lease(&self, held: &mut Leadership<R::Engine>) {
        if held.candidate.is_some() {
            return;
        }
        let told = self.config.borrow().driver_name.as_deref().map(Arc::from);
        if let Some(driver) = told.or_else(|| self.known_as.lock().clone()) {
            self.observe_lease(held, &driver);
        }
    }

    /// Watches the Lease of a driver, if there is an election at all.
    fn observe_lease(&self, held: &mut Leadership<R::Engine>, driver: &str) {
        let Some(campaign) = self.campaign.clone() else { return };
        if held.candidate.is_none() {
            let candidate = LeaderElectionHandle::observe(campaign, lease_name(driver), self.role.metrics().clone());
            *self.standing.lock() = Some(candidate.subscribe());
            held.candidate = Some(candidate);
        }
    }

    /// Waits until the driver is ours among the AttacherConfigs of this process. False when something else comes first.
    pub async fn acquire_reservation(
        &mut self,
        publisher: &DriverStateSender,
        driver: &Arc<str>,
        client: &CsiClient,
        held: &mut Leadership<R::Engine>,
    ) -> bool {
        let lease = lease_name(driver);
        let other_claim = held.claim.as_ref().is_some_and(|claim| claim.driver() != driver);
        let other_lease = held.candidate.as_ref().is_some_and(|held| held.lease() != lease);
        if other_claim || other_lease {
            // The driver came back under another name, or has another one than was thought.
            let former = held.claim.as_ref().map(|claim| claim.driver().clone());
            self.finish(publisher, held).await;
            held.release_all().await;
            // An engine that ends takes its metrics along; where none ever ran, nothing else would.
            if let Some(former) = former.filter(|former| !self.claims.is_served_by_another(&self.name, former)) {
                self.role.metrics().forget_driver(&former);
            }
        }
        self.observe_lease(held, driver);
        if held.claim.is_none() {
            held.claim = Some(self.claims.reserve(&self.name, driver));
        }
        loop {
            let Some(claim) = &held.claim else { return false };
            let verdict = claim.activate();
            match &verdict {
                ReservationState::Granted => return true,
                ReservationState::Waiting { after } => {
                    let after = after.clone();
                    publisher.phase(DriverPhase::AwaitingReservation { after });
                    let connection = client.connection();
                    let news = async {
                        tokio::select! {
                            biased;
                            () = claim.differs_from(&verdict) => {}
                            () = connection.lost() => {}
                        }
                    };
                    if self.wait_or_interrupted(None, news, client).await {
                        return false;
                    }
                }
                ReservationState::Refused(rival) => {
                    self.finish(publisher, held).await;
                    self.wait_for_reservation(publisher, rival, &verdict, client, held)
                        .await;
                    return false;
                }
            }
        }
    }

    /// Shows that an older AttacherConfig has the driver, until that changes or it is time to look again.
    async fn wait_for_reservation(
        &mut self,
        publisher: &DriverStateSender,
        rival: &ReservationConflict,
        verdict: &ReservationState,
        client: &CsiClient,
        held: &Leadership<R::Engine>,
    ) {
        let (reason, message) = (rival.reason(), rival.message());
        let phase = DriverPhase::Stalled {
            reason,
            message: message.clone(),
        };
        if self.status.borrow().phase != phase {
            warn!(
                config = &*self.name,
                reason = reason.as_str(),
                message,
                "cannot serve the driver"
            );
        }
        publisher.phase(phase);
        let Some(claim) = &held.claim else { return };
        let connection = client.connection();
        let news = async {
            tokio::select! {
                biased;
                () = claim.differs_from(verdict) => {}
                () = connection.lost() => {}
            }
        };
        self.wait(Some(RETRY * 30), news).await;
    }

    /// Waits until the driver's Lease is held, if there is an election at all, and notes the term. False when something else
    /// comes first.
    ///
    /// An engine that is there works on only if the Lease was held without interruption: what it knows of the objects may be
    /// from before another replica worked.
    pub async fn acquire_lease(
        &mut self,
        publisher: &DriverStateSender,
        reached: &ConnectedDriver,
        held: &mut Leadership<R::Engine>,
    ) -> bool {
        if self.campaign.is_none() {
            return true;
        }
        loop {
            let Some(candidate) = &held.candidate else { return false };
            candidate.start_acquiring();
            let standing = candidate.standing();
            // Of the same look: the Lease may be lost at any moment, and without a term nothing would be checked.
            held.term = standing.term().cloned();
            if held.has_engine_of_another_term() {
                self.warn(
                    &reached.handshake.plugin.name,
                    "the Lease was lost meanwhile; its running calls end",
                );
                self.drain(publisher, held).await;
                self.init_driver_metrics(&reached.handshake);
                continue;
            }
            let holder = match &standing {
                LeaderState::Leading(_) => return true,
                LeaderState::Observing { holder } | LeaderState::Waiting { holder } => holder.as_ref(),
                LeaderState::Lost { .. } | LeaderState::Unknown => None,
            };
            let refusal = candidate.permission_error();
            publisher.phase(match (holder, &refusal) {
                (None, Some(message)) => DriverPhase::Stalled {
                    reason: ConditionReason::LeaseForbidden,
                    message: message.clone(),
                },
                (Some(holder), _) if holder.namesake => DriverPhase::Stalled {
                    reason: ConditionReason::IdentityConflict,
                    message: same_name(&holder.identity, candidate.lease()),
                },
                (holder, _) => DriverPhase::Standby {
                    holder: holder.map(|holder| holder.identity.clone()),
                },
            });
            let connection = reached.client.connection();
            let news = async {
                tokio::select! {
                    biased;
                    () = candidate.differs_from(&standing) => {}
                    () = candidate.refusal_differs_from(refusal.as_deref()) => {}
                    () = connection.lost() => {}
                    () = held.reservation_lost() => {}
                }
            };
            if self.wait_or_interrupted(None, news, &reached.client).await || held.has_lost_reservation() {
                return false;
            }
        }
    }

    /// Waits for news; true when there is no point in waiting on: told to stop or to rest, or the connection is lost.
    async fn wait_or_interrupted(
        &mut self,
        pause: Option<std::time::Duration>,
        news: impl Future<Output = ()>,
        client: &CsiClient,
    ) -> bool {
        match self.wait(pause, news).await {
            TaskEvent::Stop => true,
            TaskEvent::SettingsChanged if self.config.borrow().suspend => {
                self.config.mark_changed();
                true
            }
            _ => client.connection().is_lost(),
        }
    }

    /// Waits until as much was listed as is needed before the driver is competed for. False when told to stop.
    ///
    /// A driver is competed for as soon as lists come in, as with its Lease everything is listed anew; see [`Role::needs_lists_first`].
    /// Not before: a replica that may not list could do nothing with the Lease.
    pub async fn wait_for_lists(&self, publisher: &DriverStateSender, facts: &DriverFacts) -> bool {
        let lists = self.role.lists();
        if lists.is_synced() {
            return true;
        }
        publisher.phase(DriverPhase::Syncing);
        let listed = async {
            if self.campaign.is_some() && !self.role.needs_lists_first(facts) {
                lists.wait_answered().await;
            } else {
                lists.wait_synced().await;
            }
        };
        tokio::select! {
            biased;
            () = listed => true,
            () = self.stop.cancelled() => false,
        }
    }

    /// Makes sure that the cache shows everything that another replica did before us. False when something else comes first.
    pub async fn relist_before_start(
        &self,
        publisher: &DriverStateSender,
        client: &CsiClient,
        held: &Leadership<R::Engine>,
    ) -> bool {
        publisher.phase(DriverPhase::Syncing);
        tokio::select! {
            biased;
            () = self.role.lists().relist() => true,
            () = self.stop.cancelled() => false,
            () = held.loses_term() => false,
            () = held.reservation_lost() => false,
            () = client.connection().lost() => false,
        }
    }
}

/// What is wrong when another process has our name, and how to fix it.
fn same_name(identity: &str, lease: &str) -> String {
    format!(
        "another process with the identity {identity} has taken the Lease {lease} from this replica, and each needs an identity of \
         its own: remove that process, or give one of the two another --identity (by default it is the name of the host, \
         which a sidecar in the same pod has, too, and one on the same node with hostNetwork)"
    )
}
