//! From flags to settings: what each flag of the sidecar means here, and which values do not go together.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use super::flags::{AlphaLogOption, THIS_IMAGE};
use super::table::{Flag, Flags};
use crate::admin::{AddressError, ListenAddress};
use crate::api::validated::{
    BackoffSettings, CapabilityLost, Concurrency, DriverConfig, Endpoint, LeaderElection, PublishSecrets,
    ReconcileSync, SpecProblem, Timeouts, Tracing,
};
use crate::api::{DeletionPolicy, OrphanPolicy};
use crate::apiserver::RateLimit;
use crate::app::{Cluster, LeaderElectionOptions, ProcessOptions, replica_name};
use crate::findings;
use crate::lease::{LeaseTimings, LeaseTimingsError};
use crate::telemetry::logs::LogOptions;

/// Deadline of the calls that ask what the driver is and can do. The sidecar's is a second, which a driver that shares
/// its CPU with others may miss.
const IDENTITY_DEADLINE: Duration = Duration::from_secs(10);
/// The shortest resync of a shared informer of client-go (`minimumResyncPeriod`).
const MINIMUM_RESYNC: Duration = Duration::from_secs(1);
/// The sidecar's Kubernetes client takes these for 0.
const USUAL_QPS: f32 = 5.0;
const USUAL_BURST: u32 = 10;

/// The settings of an operator that serves one driver.
#[derive(Clone, Debug, PartialEq)]
pub struct DropIn {
    pub process: ProcessOptions,
    pub driver: DriverConfig,
    /// How the driver's Lease is competed for, if at all.
    pub election: Option<LeaderElectionOptions>,
    /// What the log should say about the arguments.
    pub warnings: Vec<String>,
}

/// Why values do not go together, or cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    /// The socket's address has another form.
    #[error("--csi-address {address:?}: expected an absolute path or unix:///path: {problem}")]
    Address { address: String, problem: SpecProblem },
    /// Alpha options of the log were given; the text is that of the sidecar.
    #[error("LoggingConfiguration is invalid: {}", forbidden(.0))]
    Logging(Vec<AlphaLogOption>),
    /// A feature gate that csi-attacher does not know; the text begins as that of the sidecar.
    #[error("unrecognized feature gate: {0}: csi-attacher has no gate of this name. {THIS_IMAGE}")]
    Gate(String),
    #[error("--{0} must be greater than zero")]
    Zero(&'static str),
    #[error("--max-entries must not be negative")]
    MaxEntries,
    #[error("--kube-api-qps must be a number")]
    Qps,
    #[error("only one of --metrics-address and --http-endpoint can be set")]
    TwoAddresses,
    #[error("--{flag} {address:?}: {reason}")]
    Listen {
        flag: &'static str,
        address: String,
        reason: AddressError,
    },
    #[error("--leader-election-lease-duration, -renew-deadline, -retry-period: {0}")]
    LeaderElection(#[from] LeaseTimingsError),
}

fn forbidden(options: &[AlphaLogOption]) -> String {
    let one =
        |option: &AlphaLogOption| format!("{}: Forbidden: Feature LoggingAlphaOptions is disabled", option.path());
    let all: Vec<String> = options.iter().map(one).collect();
    match all.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// Refuses options of the log and feature gates that the sidecar refuses, in the order in which it checks them.
pub(super) fn check(flags: &Flags) -> Result<(), SettingsError> {
    if !flags.alpha_log_options.is_empty() {
        let options = flags.alpha_log_options.iter().copied().collect();
        return Err(SettingsError::Logging(options));
    }
    match flags.unknown_gates.first() {
        Some(gate) => Err(SettingsError::Gate(gate.clone())),
        None => Ok(()),
    }
}

pub(super) fn into_settings(flags: Flags) -> Result<DropIn, SettingsError> {
    Ok(DropIn {
        driver: driver(&flags)?,
        election: election(&flags)?,
        warnings: remarks(&flags),
        process: process(flags)?,
    })
}

fn driver(flags: &Flags) -> Result<DriverConfig, SettingsError> {
    let timeout = not_zero("timeout", flags.timeout)?;
    let interval = not_zero("reconcile-sync", flags.reconcile_sync)?;
    if flags.max_entries < 0 {
        return Err(SettingsError::MaxEntries);
    }
    // One pool for both directions, as in the sidecar: a vendor whose storage takes one call at a time says 1.
    let workers = usize::try_from(flags.worker_threads).ok().and_then(NonZeroUsize::new);
    let workers = workers.ok_or(SettingsError::Zero("worker-threads"))?;
    Ok(DriverConfig {
        driver_name: None,
        endpoint: endpoint(&flags.csi_address)?,
        suspend: false,
        timeouts: Timeouts {
            publish: timeout,
            unpublish: timeout,
            list_volumes: timeout,
            probe: timeout,
            identity: IDENTITY_DEADLINE,
        },
        backoff: backoff(flags)?,
        concurrency: Concurrency {
            attach: Some(workers),
            detach: Some(workers),
            total: Some(workers),
            per_node: None,
            calls_per_second: None,
        },
        reconcile_sync: ReconcileSync {
            enabled: true,
            interval,
            max_entries: flags.max_entries,
        },
        default_fs_type: flags.default_fs_type.clone(),
        // No error of the driver means detached, as for the sidecar.
        orphan_policy: OrphanPolicy::Retry,
        tls: None,
        // The sidecar reads what its ServiceAccount may read, which is that of one driver.
        publish_secrets: PublishSecrets::Any,
        // The limit of --kube-api-qps is one of the process.
        kubernetes_api: None,
        // What counts is LeaderElectionOptions: there is no AttacherConfig that could have its own election.
        leader_election: LeaderElection {
            sidecar_namespaces: Vec::new(),
            lease_duration: flags.lease_duration,
            renew_deadline: flags.renew_deadline,
            retry_period: flags.retry_period,
        },
        former_lease: None,
        deletion_policy: DeletionPolicy::Orphan,
        tracing: Tracing::default(),
        provisioning: None,
        capability_lost: CapabilityLost::Tolerate,
        leaving: false,
    })
}

/// The waits after failures. A resync of the sidecar's informers adds every VolumeAttachment to its queue at once, also those that wait for
/// their next try, so that none waits for longer; 0 is no resync.
fn backoff(flags: &Flags) -> Result<BackoffSettings, SettingsError> {
    let max = not_zero("retry-interval-max", flags.retry_interval_max)?;
    let initial = not_zero("retry-interval-start", flags.retry_interval_start)?;
    let resync = Some(flags.resync).filter(|resync| !resync.is_zero());
    let max = resync.map_or(max, |resync| max.min(resync.max(MINIMUM_RESYNC)));
    Ok(BackoffSettings {
        initial: initial.min(max),
        max,
        factor: 2.0,
        jitter: 0.0,
    })
}

fn election(flags: &Flags) -> Result<Option<LeaderElectionOptions>, SettingsError> {
    if !flags.leader_election {
        return Ok(None);
    }
    let timing = LeaseTimings::new(flags.lease_duration, flags.renew_deadline, flags.retry_period)?;
    Ok(Some(LeaderElectionOptions {
        namespace: flags.leader_election_namespace.clone(),
        labels: flags.leader_election_labels.clone(),
        timing,
        // The sidecar has this path only on the address that is not deprecated.
        health: !flags.http_endpoint.is_empty(),
    }))
}

fn endpoint(address: &str) -> Result<Endpoint, SettingsError> {
    let url = if Path::new(address).is_absolute() {
        format!("unix://{address}")
    } else {
        address.to_owned()
    };
    let failed = |problem| SettingsError::Address {
        address: address.to_owned(),
        problem,
    };
    match url.parse::<Endpoint>() {
        Ok(endpoint @ Endpoint::Unix(_)) => Ok(endpoint),
        Err(problem @ SpecProblem::UnixPathTooLong) => Err(failed(problem)),
        // Other problems name forms that an AttacherConfig may use and the sidecar does not.
        Ok(Endpoint::Http { .. } | Endpoint::Https { .. }) | Err(_) => Err(failed(SpecProblem::UnixPath)),
    }
}

fn not_zero(flag: &'static str, value: Duration) -> Result<Duration, SettingsError> {
    if value.is_zero() {
        return Err(SettingsError::Zero(flag));
    }
    Ok(value)
}

fn process(flags: Flags) -> Result<ProcessOptions, SettingsError> {
    let (flag, address) = match (flags.http_endpoint.as_str(), flags.metrics_address.as_str()) {
        (http, "") => ("http-endpoint", http),
        ("", metrics) => ("metrics-address", metrics),
        _ => return Err(SettingsError::TwoAddresses),
    };
    let refused = |reason| SettingsError::Listen {
        flag,
        address: address.to_owned(),
        reason,
    };
    let parsed = (!address.is_empty()).then(|| address.parse::<ListenAddress>().map_err(refused));
    let http_endpoint = parsed.transpose()?;
    let kube_api_limit = limit(&flags)?;
    Ok(ProcessOptions {
        cluster: flags.kubeconfig.map_or(Cluster::Pod, Cluster::Kubeconfig),
        http_endpoint,
        metrics_path: flags.metrics_path,
        log: LogOptions {
            format: flags.log_format,
            level: flags.log_level.unwrap_or_else(|| level(flags.verbosity).to_owned()),
        },
        // The sidecar has no such flag; the environment is read as ever.
        request_deadlines: flags.kube_api_timeout,
        kube_api_limit,
        shutdown_grace_period: flags.shutdown_grace_period,
        inspection: findings::ScannerSettings::default(),
        identity: replica_name(flags.identity),
    })
}

/// The level that shows about as much as klog does at this verbosity.
fn level(verbosity: i32) -> &'static str {
    match verbosity {
        ..=1 => "info",
        2..=5 => "debug",
        _ => "trace",
    }
}

/// A limit only when one is asked for: API Priority and Fairness shares the API server between its clients since
/// Kubernetes 1.29, and the sidecar's 5 requests per second allow hardly two attaches per second.
fn limit(flags: &Flags) -> Result<Option<RateLimit>, SettingsError> {
    let qps = flags.kube_api_qps;
    if !flags.given.contains("kube-api-qps") || qps < 0.0 {
        return Ok(None);
    }
    if !qps.is_finite() {
        return Err(SettingsError::Qps);
    }
    let burst = u32::try_from(flags.kube_api_burst).ok().filter(|burst| *burst > 0);
    Ok(Some(RateLimit {
        per_second: f64::from(if qps > 0.0 { qps } else { USUAL_QPS }),
        burst: burst.unwrap_or(USUAL_BURST),
    }))
}

fn remarks(flags: &Flags) -> Vec<String> {
    let mut remarks = Vec::new();
    let given = flags.given.iter().filter_map(|name| Flag::named(name));
    let idle: Vec<String> = given
        .filter(|flag| !flag.has_effect)
        .map(|flag| format!("--{}", flag.name))
        .collect();
    if !idle.is_empty() {
        remarks.push(format!("accepted, but without effect here: {}", idle.join(", ")));
    }
    if flags.given.contains("kube-api-burst") && !flags.given.contains("kube-api-qps") {
        remarks.push("--kube-api-burst is without effect here unless --kube-api-qps is given".to_owned());
    }
    if !flags.rest.is_empty() {
        // A boolean with a value behind a space ends the flags; for the sidecar too, but it keeps silent about it.
        remarks.push(format!(
            "arguments that are no flags are ignored: {}",
            flags.rest.join(" ")
        ));
    }
    remarks
}
