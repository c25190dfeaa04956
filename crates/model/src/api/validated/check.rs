//! The rules of the schema, checked again: from a spec to a [`DriverConfig`].

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::{
    BackoffSettings, CapabilityLost, Concurrency, ConfigErrors, DriverConfig, Endpoint, FieldError, KubernetesApi,
    LeaderElection, PublishSecrets, ReconcileSync, Redact, SecretNames, SpecProblem, Timeouts, Tracing,
};
use crate::api::GoDuration;
use crate::api::attacher_config::{
    AttacherConfigSpec, BackoffSpec, ConcurrencySpec, KubernetesApiSpec, LeaderElectionSpec, ReconcileSyncMode,
    ReconcileSyncSpec, RedactionMode, TimeoutsSpec, TlsSpec, TracingSpec,
};
use crate::api::rules::{self, DurationRule, TextRule};

/// Whether a text is the name of a CSI driver (CSI spec, "GetPluginInfo"): at most 63 ASCII letters, digits, `-` and `.`, a
/// letter or digit at both ends.
pub fn is_driver_name(name: &str) -> bool {
    rules::DRIVER_NAME.check(name).is_ok()
}

impl Default for Tracing {
    /// The defaults of the schema.
    fn default() -> Self {
        Checker::default().tracing(&TracingSpec::default())
    }
}

impl TryFrom<&AttacherConfigSpec> for DriverConfig {
    type Error = ConfigErrors;

    fn try_from(spec: &AttacherConfigSpec) -> Result<Self, ConfigErrors> {
        let mut checker = Checker::default();
        if let Some(name) = &spec.driver_name {
            checker.text("driverName", name, &rules::DRIVER_NAME);
        }
        let endpoint = checker.endpoint(&spec.endpoint);
        let timeouts = checker.timeouts(&spec.timeouts);
        let backoff = checker.backoff("backoff", &spec.backoff);
        let concurrency = checker.concurrency(&spec.concurrency);
        let reconcile_sync = checker.reconcile_sync(&spec.reconcile_sync);
        let tls = checker.tls(spec, endpoint.as_ref());
        let publish_secrets = checker.publish_secrets(
            "publishSecrets",
            spec.publish_secrets
                .iter()
                .enumerate()
                .map(|(index, entry)| (index, &*entry.namespace, entry.names.as_ref())),
        );
        let kubernetes_api = checker.kubernetes_api(&spec.kubernetes_api);
        let leader_election = checker.leader_election(&spec.leader_election);
        let tracing = checker.tracing(&spec.tracing);
        let provisioning = checker.provisioning(spec);
        checker.text("defaultFsType", &spec.default_fs_type, &rules::FS_TYPE);
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
                former_lease: None,
                deletion_policy: spec.deletion_policy,
                tracing,
                provisioning,
                capability_lost: CapabilityLost::default(),
                leaving: false,
            }),
            _ => Err(ConfigErrors(checker.errors)),
        }
    }
}

/// Converts field by field and collects the problems. A bad field gives a harmless value that is never used, because
/// its problem makes the whole conversion fail.
#[derive(Default)]
pub(super) struct Checker {
    errors: Vec<FieldError>,
}

impl Checker {
    pub(super) fn report(&mut self, path_in_spec: &str, problem: SpecProblem) {
        let field = format!("spec.{path_in_spec}");
        self.errors.push(FieldError { field, problem });
    }

    pub(super) fn text(&mut self, path_in_spec: &str, text: &str, rule: &TextRule) {
        if let Err(problem) = rule.check(text) {
            self.report(path_in_spec, problem);
        }
    }

    pub(super) fn duration(&mut self, path_in_spec: &str, value: GoDuration) -> Duration {
        self.duration_of(path_in_spec, value, &rules::DURATION)
    }

    fn duration_of(&mut self, path_in_spec: &str, value: GoDuration, rule: &DurationRule) -> Duration {
        rule.check(value).unwrap_or_else(|problem| {
            self.report(path_in_spec, problem);
            rules::MAX_DURATION
        })
    }

    pub(super) fn number<N: TryFrom<i64> + Default>(
        &mut self,
        path_in_spec: &str,
        value: i64,
        range: RangeInclusive<i64>,
        problem: SpecProblem,
    ) -> N {
        let number = N::try_from(value).ok().filter(|_| range.contains(&value));
        number.unwrap_or_else(|| {
            self.report(path_in_spec, problem);
            N::default()
        })
    }

    pub(super) fn calls<N: TryFrom<i64> + Default>(&mut self, path_in_spec: &str, value: i64) -> N {
        self.number(path_in_spec, value, 0..=rules::MAX_CALLS, SpecProblem::Calls)
    }

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

    pub(super) fn backoff(&mut self, path: &str, spec: &BackoffSpec) -> BackoffSettings {
        let initial = self.duration(&format!("{path}.initial"), spec.initial);
        let max = self.duration(&format!("{path}.max"), spec.max);
        if spec.initial > spec.max {
            self.report(&format!("{path}.initial"), SpecProblem::BackoffOrder);
        }
        let factor: u32 = self.number(
            &format!("{path}.factorPercent"),
            spec.factor_percent,
            100..=1000,
            SpecProblem::Factor,
        );
        let jitter: u32 = self.number(
            &format!("{path}.jitterPercent"),
            spec.jitter_percent,
            0..=100,
            SpecProblem::Jitter,
        );
        BackoffSettings {
            initial,
            max,
            factor: f64::from(factor) / 100.0,
            jitter: f64::from(jitter) / 100.0,
        }
    }

    fn concurrency(&mut self, spec: &ConcurrencySpec) -> Concurrency {
        Concurrency {
            attach: NonZeroUsize::new(self.calls("concurrency.attach", spec.attach)),
            detach: NonZeroUsize::new(self.calls("concurrency.detach", spec.detach)),
            total: None,
            per_node: NonZeroUsize::new(self.calls("concurrency.perNode", spec.per_node)),
            calls_per_second: NonZeroU32::new(self.calls("concurrency.callsPerSecond", spec.calls_per_second)),
        }
    }

    fn reconcile_sync(&mut self, spec: &ReconcileSyncSpec) -> ReconcileSync {
        let (path, entries) = ("reconcileSync.maxEntries", 0..=rules::MAX_ENTRIES);
        ReconcileSync {
            enabled: spec.mode == ReconcileSyncMode::Auto,
            interval: self.duration("reconcileSync.interval", spec.interval),
            max_entries: self.number(path, spec.max_entries, entries, SpecProblem::Entries),
        }
    }

    /// Both rules are about an endpoint that can be read; one that cannot has its own problem.
    fn tls(&mut self, spec: &AttacherConfigSpec, endpoint: Option<&Endpoint>) -> Option<TlsSpec> {
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
        self.text("tls.secretRef.namespace", &tls.secret.namespace, &rules::NAMESPACE);
        self.text("tls.secretRef.name", &tls.secret.name, &rules::SECRET_NAME);
        if let Some(name) = &tls.server_name {
            self.text("tls.serverName", name, &rules::SERVER_NAME);
        }
        Some(tls.clone())
    }

    fn kubernetes_api(&mut self, spec: &KubernetesApiSpec) -> Option<KubernetesApi> {
        let qps = self.calls("kubernetesAPI.qps", spec.qps);
        let burst = self.calls("kubernetesAPI.burst", spec.burst);
        let qps = NonZeroU32::new(qps)?;
        let burst = NonZeroU32::new(burst).unwrap_or(qps);
        Some(KubernetesApi { qps, burst })
    }

    fn leader_election(&mut self, spec: &LeaderElectionSpec) -> LeaderElection {
        if !spec.namespace.is_empty() {
            self.text("leaderElection.namespace", &spec.namespace, &rules::NAMESPACE);
        }
        self.sidecar_namespaces(&spec.sidecar_namespaces);
        let known = self.errors.len();
        let lease_duration = self.duration("leaderElection.leaseDuration", spec.lease_duration);
        let renew_deadline = self.duration("leaderElection.renewDeadline", spec.renew_deadline);
        let retry_period = self.duration("leaderElection.retryPeriod", spec.retry_period);
        // Durations out of range are reported above, and are not compared.
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
            sidecar_namespaces: Some(&spec.namespace)
                .filter(|namespace| !namespace.is_empty())
                .into_iter()
                .chain(&spec.sidecar_namespaces)
                .cloned()
                .collect(),
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
            if let Err(problem) = rules::NAMESPACE.check(namespace) {
                self.report(&path, problem);
            } else if !known.insert(namespace) {
                self.report(&path, SpecProblem::SidecarNamespaces);
            }
        }
    }

    /// The entries of a list by their index there, each with its namespace and names.
    pub(super) fn publish_secrets<'s>(
        &mut self,
        field: &str,
        spec: impl ExactSizeIterator<Item = (usize, &'s str, Option<&'s Vec<String>>)>,
    ) -> PublishSecrets {
        if spec.len() > rules::MAX_PUBLISH_SECRETS {
            self.report(field, SpecProblem::PublishSecrets);
            return PublishSecrets::default();
        }
        let mut namespaces: BTreeMap<Box<str>, SecretNames> = BTreeMap::new();
        for (index, namespace, names) in spec {
            let path = format!("{field}[{index}]");
            self.text(&format!("{path}.namespace"), namespace, &rules::NAMESPACE);
            let known = namespaces
                .entry(namespace.into())
                .or_insert_with(|| SecretNames::Only(BTreeSet::new()));
            let Some(names) = names else {
                *known = SecretNames::All;
                continue;
            };
            if !self.secret_names(&format!("{path}.names"), names) {
                continue;
            }
            if let SecretNames::Only(known) = known {
                known.extend(names.iter().map(|name| Box::from(name.as_str())));
            }
        }
        PublishSecrets::Listed(Arc::new(namespaces))
    }

    /// Checks the names of the Secrets of one entry; false where it has none or too many.
    pub(super) fn secret_names(&mut self, path: &str, names: &[String]) -> bool {
        if !(1..=rules::MAX_PUBLISH_SECRETS).contains(&names.len()) {
            self.report(path, SpecProblem::SecretNames);
            return false;
        }
        for (index, name) in names.iter().enumerate() {
            self.text(&format!("{path}[{index}]"), name, &rules::SECRET_NAME);
        }
        true
    }

    fn tracing(&mut self, spec: &TracingSpec) -> Tracing {
        if spec.annotations.len() > rules::MAX_ANNOTATIONS {
            self.report("tracing.annotations", SpecProblem::Annotations);
        }
        for (index, key) in spec.annotations.iter().enumerate() {
            self.text(&format!("tracing.annotations[{index}]"), key, &rules::TRACE_ANNOTATION);
        }
        let (path, rates) = ("tracing.samplingRatePerMillion", 0..=rules::MILLION);
        let rate = spec.sampling_rate_per_million;
        let rate = rate.map(|rate| self.number(path, rate, rates, SpecProblem::Samples));
        let (path, attempts) = ("tracing.maxAttemptsPerTrace", 1..=rules::MAX_ATTEMPTS);
        let attempts = self.number(path, spec.max_attempts_per_trace, attempts, SpecProblem::Attempts);
        Tracing {
            sampling_rate_per_million: rate,
            annotation_mode: spec.annotation_mode,
            annotations: spec.annotations.clone(),
            outgoing_annotation: spec.outgoing_annotation,
            max_attempts: NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN),
            max_age: self.duration_of("tracing.maxTraceAge", spec.max_trace_age, &rules::TRACE_AGE),
            redact: Redact {
                volume_id: spec.redact.volume_id == RedactionMode::Hash,
                names: spec.redact.names == RedactionMode::Hash,
            },
            error_suffix: spec.error_suffix,
        }
    }
}
