//! What the queue of a task that provisions shows once a second: gauges, findings as metrics and Events, what the conditions are made of.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

use csi_attacher_model::findings::{FindingHistory, FindingKind, FindingsSummary, NewFinding};
use csi_attacher_model::provision::ProvisionHealth;
use csi_attacher_provision::WorkKey;

use super::gauges;
use super::provisioning_state::PendingWork;
use super::saturation::{RoleLimits, Saturation};
use crate::api::DriverConfig;
use crate::clock;
use crate::driver::SharedContext;
use crate::events::{InvolvedObject, of_claim_named, of_volume_named};
use crate::findings::{FindingsHandle, FindingsReport};
use crate::queue::Queue;

/// What is kept of one queue from second to second.
#[derive(Debug, Default)]
pub(super) struct QueueExamination {
    history: FindingHistory,
    findings: FindingsSummary,
    /// How its volumes are, as of the last look.
    pub health: Option<Arc<ProvisionHealth>>,
    /// What it had left to do then.
    pub pending: Option<PendingWork>,
    pub saturation: Saturation,
}

impl QueueExamination {
    pub fn examine(
        &mut self,
        context: &SharedContext,
        (driver, queue): &(Arc<str>, Queue<WorkKey>),
        config: &DriverConfig,
        stuck_after: Duration,
        (insights, config_name): (&FindingsHandle, &str),
    ) {
        let now = clock::now();
        let (mut pending, health, findings, new) = PendingWork::of(queue, &mut self.history, stuck_after, now);
        let stats = queue.stats();
        (pending.claims.failing, pending.volumes.failing) = gauges::failing(&stats);
        let limits = config.provisioning.as_ref().map(RoleLimits::provisioning);
        self.saturation.observe(&stats, limits.as_ref(), Instant::now());
        gauges::set_provisioning(&context.metrics, driver, &stats, &pending, config, &self.saturation);
        let report = FindingsReport::begin(context, driver, false, &findings, now);
        for finding in &new {
            warn!(
                driver = &**driver,
                object = finding.object.as_deref(),
                finding = finding.kind.as_str(),
                "{}",
                finding.words
            );
            // Of all others the attempts have told on the object.
            if finding.kind.is_stuck() {
                report.record(finding.kind, "", finding.words.clone(), subjects(finding));
            }
        }
        // Until the AttacherConfig is known with its driver, nothing can be told on it: it is told then.
        if let Some(config) = insights.config(|config| config.name == config_name) {
            report.end(Some(&config), &self.findings);
            self.findings = findings;
        }
        self.health = Some(Arc::new(health));
        self.pending = Some(pending);
    }
}

fn subjects(finding: &NewFinding) -> Vec<InvolvedObject> {
    let name = finding.object.as_deref().unwrap_or_default();
    let object = match (finding.kind, name.split_once('/')) {
        (FindingKind::ProvisionStuck, Some((namespace, name))) => of_claim_named(namespace, name, &finding.uid),
        _ => of_volume_named(name, &finding.uid),
    };
    vec![object]
}
