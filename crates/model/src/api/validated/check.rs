//! The rules of the schema, checked again.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};

use super::checker::{Checker, is_driver_name, is_fs_type, is_label, is_server_name, is_subdomain};
use super::problem::{ConfigErrors, SpecProblem};
use super::{
    BackoffSettings, CapabilityLost, Concurrency, DriverConfig, Endpoint, KubernetesApi, LeaderElection, ReconcileSync,
    Timeouts, TlsSettings,
};
use crate::api::attacher_config::{
    AttacherConfigSpec, BackoffSpec, ConcurrencySpec, KubernetesApiSpec, LeaderElectionSpec, ReconcileSyncMode,
    ReconcileSyncSpec, TimeoutsSpec,
};
use crate::api::rules;

impl TryFrom<&AttacherConfigSpec> for DriverConfig {
    type Error = ConfigErrors;

    fn try_from(spec: &AttacherConfigSpec) -> Result<Self, ConfigErrors> {
        let mut checker = Checker::default();
        if spec.driver_name.as_deref().is_some_and(|name| !is_driver_name(name)) {
            checker.report("driverName", SpecProblem::DriverName);
        }
        let endpoint = checker.endpoint(&spec.endpoint);
        let timeouts = checker.timeouts(&spec.timeouts);
        let backoff = checker.backoff(&spec.backoff);
        let concurrency = checker.concurrency(&spec.concurrency);
        let reconcile_sync = checker.reconcile_sync(&spec.reconcile_sync);
        let tls = checker.tls(spec, endpoint.as_ref());
        let publish_secrets = checker.publish_secrets(&spec.publish_secrets);
        let kubernetes_api = checker.kubernetes_api(&spec.kubernetes_api);
        let leader_election = checker.leader_election(&spec.leader_election);
        let tracing = checker.tracing(&spec.tracing);
        if !is_fs_type(&spec.default_fs_type) {
            checker.report("defaultFsType", SpecProblem::FsType);
        }
        match endpoint {
            Some(endpoint) if checker.errors.is_empty() => Ok(Self {
                driver_name: spec.driver_name.clone(),
                endpoint,
                tls,
                suspend: spec.suspend,
                timeouts,
                backoff,
                concurrency,
                reconcile_sync,
                default_fs_type: spec.default_fs_type.clone(),
                orphan_policy: spec.orphan_policy,
                publish_secrets,
                kubernetes_api,
                leader_election,
                deletion_policy: spec.deletion_policy,
                tracing,
                capability_lost: CapabilityLost::default(),
                leaving: false,
            }),
            _ => Err(ConfigErrors { errors: checker.errors }),
        }
    }
}

impl Checker {
    fn endpoint(&mut self, text: &str) -> Option<Endpoint> {
        text.parse().map_err(|problem| self.report("endpoint", problem)).ok()
    }

    fn timeouts(&mut self, spec: &TimeoutsSpec) -> Timeouts {
        Timeouts {
            publish: self.duration("timeouts.publish", spec.publish),
            unpublish: self.duration("timeouts.unpublish", spec.unpublish),
            list_volumes: self.duration("timeouts.listVolumes", spec.list_volumes),
            probe: self.duration("timeouts.probe", spec.probe),
            identity: self.duration("timeouts.identity", spec.identity),
        }
    }

    fn backoff(&mut self, spec: &BackoffSpec) -> BackoffSettings {
        let initial = self.duration("backoff.initial", spec.initial);
        let max = self.duration("backoff.max", spec.max);
        if spec.initial > spec.max {
            self.report("backoff.initial", SpecProblem::BackoffOrder);
        }
        if !rules::FACTOR_RANGE.contains(&spec.factor_percent) {
            self.report("backoff.factorPercent", SpecProblem::Factor);
        }
        if !rules::JITTER_RANGE.contains(&spec.jitter_percent) {
            self.report("backoff.jitterPercent", SpecProblem::Jitter);
        }
        BackoffSettings {
            initial,
            max,
            factor: spec.factor_percent as f64 / 100.0,
            jitter: spec.jitter_percent as f64 / 100.0,
        }
    }

    fn concurrency(&mut self, spec: &ConcurrencySpec) -> Concurrency {
        let in_flight = |calls: u32| usize::try_from(calls).ok().and_then(NonZeroUsize::new);
        Concurrency {
            attach: in_flight(self.calls("concurrency.attach", spec.attach)),
            detach: in_flight(self.calls("concurrency.detach", spec.detach)),
            total: None,
            per_node: in_flight(self.calls("concurrency.perNode", spec.per_node)),
            calls_per_second: NonZeroU32::new(self.calls("concurrency.callsPerSecond", spec.calls_per_second)),
        }
    }

    fn reconcile_sync(&mut self, spec: &ReconcileSyncSpec) -> ReconcileSync {
        let max_entries = i32::try_from(spec.max_entries)
            .ok()
            .filter(|_| (0..=rules::MAX_ENTRIES).contains(&spec.max_entries));
        ReconcileSync {
            enabled: spec.mode == ReconcileSyncMode::Auto,
            interval: self.duration("reconcileSync.interval", spec.interval),
            max_entries: max_entries.unwrap_or_else(|| {
                self.report("reconcileSync.maxEntries", SpecProblem::Entries);
                0
            }),
        }
    }

    /// Both rules are about an endpoint that can be read; one that cannot has its own problem.
    fn tls(&mut self, spec: &AttacherConfigSpec, endpoint: Option<&Endpoint>) -> Option<TlsSettings> {
        let https = matches!(endpoint?, Endpoint::Https { .. });
        let Some(tls) = &spec.tls else {
            if https {
                self.report("tls", SpecProblem::TlsMissing);
            }
            return None;
        };
        if !https {
            self.report("tls", SpecProblem::TlsWithoutHttps);
        }
        if !is_label(&tls.secret_ref.namespace) {
            self.report("tls.secretRef.namespace", SpecProblem::Namespace);
        }
        if !is_subdomain(&tls.secret_ref.name) {
            self.report("tls.secretRef.name", SpecProblem::SecretName);
        }
        if tls.server_name.as_deref().is_some_and(|name| !is_server_name(name)) {
            self.report("tls.serverName", SpecProblem::ServerName);
        }
        Some(TlsSettings {
            secret: tls.secret_ref.clone(),
            server_name: tls.server_name.clone(),
        })
    }

    fn kubernetes_api(&mut self, spec: &KubernetesApiSpec) -> Option<KubernetesApi> {
        let qps = self.calls("kubernetesAPI.qps", spec.qps);
        let burst = self.calls("kubernetesAPI.burst", spec.burst);
        let qps = NonZeroU32::new(qps)?;
        let burst = NonZeroU32::new(burst).unwrap_or(qps);
        Some(KubernetesApi { qps, burst })
    }

    fn leader_election(&mut self, spec: &LeaderElectionSpec) -> LeaderElection {
        if !spec.namespace.is_empty() && !is_label(&spec.namespace) {
            self.report("leaderElection.namespace", SpecProblem::Namespace);
        }
        self.sidecar_namespaces(&spec.sidecar_namespaces);
        let known = self.errors.len();
        let lease_duration = self.duration("leaderElection.leaseDuration", spec.lease_duration);
        let renew_deadline = self.duration("leaderElection.renewDeadline", spec.renew_deadline);
        let retry_period = self.duration("leaderElection.retryPeriod", spec.retry_period);
        // Times that are no times at all have been reported, and fit nothing.
        if self.errors.len() == known {
            if lease_duration.is_zero() || lease_duration.subsec_nanos() != 0 {
                self.report("leaderElection.leaseDuration", SpecProblem::WholeSeconds);
            }
            if renew_deadline >= lease_duration {
                self.report("leaderElection.renewDeadline", SpecProblem::RenewDeadline);
            }
            if retry_period * 6 >= renew_deadline * 5 {
                self.report("leaderElection.retryPeriod", SpecProblem::RetryPeriod);
            }
        }
        LeaderElection {
            enabled: spec.enabled,
            namespace: spec.namespace.clone(),
            sidecar_namespaces: spec.sidecar_namespaces.clone(),
            lease_duration,
            renew_deadline,
            retry_period,
        }
    }

    fn sidecar_namespaces(&mut self, namespaces: &[String]) {
        if namespaces.len() > rules::MAX_SIDECAR_NAMESPACES {
            self.report("leaderElection.sidecarNamespaces", SpecProblem::SidecarNamespaces);
        }
        let mut known = BTreeSet::new();
        for (index, namespace) in namespaces.iter().enumerate() {
            let path = format!("leaderElection.sidecarNamespaces[{index}]");
            if !is_label(namespace) {
                self.report(&path, SpecProblem::Namespace);
            } else if !known.insert(namespace) {
                self.report(&path, SpecProblem::SidecarNamespaces);
            }
        }
    }
}
