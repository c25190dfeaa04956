//! [`DriverConfig`]: the settings of one driver in a form that cannot hold a bad value.
//!
//! The rules are those of the schema (see `rules.rs`), checked again because the schema can be bypassed. All problems
//! of a spec are reported together, so that one edit can mend them.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::attacher_config::{
    AttacherConfigSpec, BackoffSpec, ConcurrencySpec, OrphanPolicy, ReconcileSyncMode, ReconcileSyncSpec, TimeoutsSpec,
};
use super::duration::GoDuration;
pub use super::endpoint::{Endpoint, LoopbackHost};
use super::object::MalformedSpec;
use super::rules;

/// The checked settings of one driver.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverConfig {
    /// The name that the driver must answer; `None` accepts any.
    pub driver_name: Option<String>,
    /// Where the driver listens.
    pub endpoint: Endpoint,
    /// Whether to do nothing for this driver.
    pub suspend: bool,
    /// Deadlines of calls.
    pub timeouts: Timeouts,
    /// Waiting time after failures.
    pub backoff: Backoff,
    /// Limits of calls.
    pub concurrency: Concurrency,
    /// Comparison with what the driver lists.
    pub reconcile_sync: ReconcileSync,
    /// File system type for volumes that name none; empty sends none.
    pub default_fs_type: String,
    /// What NOT_FOUND from ControllerUnpublishVolume means.
    pub orphan_policy: OrphanPolicy,
}

/// Deadlines of calls, each from 1 ms to 24 h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// ControllerPublishVolume.
    pub publish: Duration,
    /// ControllerUnpublishVolume.
    pub unpublish: Duration,
    /// ListVolumes, each page.
    pub list_volumes: Duration,
    /// Probe.
    pub probe: Duration,
    /// GetPluginInfo, GetPluginCapabilities and ControllerGetCapabilities, each.
    pub identity: Duration,
}

/// Waiting time after failures.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// Wait after the first failure, from 1 ms to 24 h.
    pub initial: Duration,
    /// Longest wait, not below `initial`.
    pub max: Duration,
    /// Growth of each wait over the one before, from 1.0 to 10.0.
    pub factor: f64,
    /// Share of a wait that may be added at random, from 0.0 to 1.0.
    pub jitter: f64,
}

/// Comparison with what the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileSync {
    /// Whether it is made with drivers that can list.
    pub enabled: bool,
    /// Time from the end of one to the beginning of the next, from 1 ms to 24 h.
    pub interval: Duration,
    /// `max_entries` of each page; 0 lets the driver choose.
    pub max_entries: i32,
}

/// Limits of calls; `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// ControllerPublishVolume calls in flight.
    pub attach: Option<NonZeroUsize>,
    /// ControllerUnpublishVolume calls in flight.
    pub detach: Option<NonZeroUsize>,
    /// Calls of both kinds in flight for one node.
    pub per_node: Option<NonZeroUsize>,
    /// Calls of both kinds started in one second.
    pub calls_per_second: Option<NonZeroU32>,
}

/// One problem of a spec: where it is, what it is, how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field, such as `spec.backoff.initial`.
    pub field: String,
    /// The broken rule.
    pub problem: Problem,
}

/// A broken rule. The message says what is accepted instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not the form of a CSI driver name.
    #[error("{}", rules::DRIVER_NAME_MESSAGE)]
    DriverName,
    /// Neither unix nor http.
    #[error("{}", rules::ENDPOINT_SCHEME_MESSAGE)]
    EndpointScheme,
    /// Not an absolute path of a socket.
    #[error("{}", rules::UNIX_PATH_MESSAGE)]
    UnixPath,
    /// More bytes than a socket address holds.
    #[error("{}", rules::UNIX_LENGTH_MESSAGE)]
    UnixPathTooLong,
    /// Not a loopback host with a port.
    #[error("{}", rules::HTTP_MESSAGE)]
    HttpEndpoint,
    /// Not from 1 ms to 24 h.
    #[error("{}", rules::DURATION_MESSAGE)]
    DurationRange,
    /// `backoff.initial` is greater than `backoff.max`.
    #[error("{}", rules::BACKOFF_ORDER_MESSAGE)]
    BackoffOrder,
    /// Not a number from 1 to 10.
    #[error("{}", rules::FACTOR_MESSAGE)]
    Factor,
    /// Not from 0 to 100.
    #[error("{}", rules::JITTER_MESSAGE)]
    Jitter,
    /// Not from 0 to 10000.
    #[error("{}", rules::CALLS_MESSAGE)]
    Calls,
    /// Not from 0 to 1000000.
    #[error("{}", rules::ENTRIES_MESSAGE)]
    Entries,
    /// Not the name of a file system.
    #[error("{}", rules::FS_TYPE_MESSAGE)]
    FsType,
    /// The value does not have the type of the field.
    #[error("{0}")]
    Malformed(String),
}

impl FieldError {
    fn new(path_in_spec: &str, problem: Problem) -> Self {
        Self {
            field: format!("spec.{path_in_spec}"),
            problem,
        }
    }
}

impl From<MalformedSpec> for FieldError {
    fn from(malformed: MalformedSpec) -> Self {
        Self {
            field: malformed.field,
            problem: Problem::Malformed(malformed.reason),
        }
    }
}

/// All problems of a spec, at least one, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<FieldError>,
}

impl ConfigErrors {
    /// The problems, at least one.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }
}

impl From<FieldError> for ConfigErrors {
    fn from(error: FieldError) -> Self {
        Self { errors: vec![error] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl TryFrom<&AttacherConfigSpec> for DriverConfig {
    type Error = ConfigErrors;

    fn try_from(spec: &AttacherConfigSpec) -> Result<Self, ConfigErrors> {
        let mut checker = Checker::default();
        if spec.driver_name.as_deref().is_some_and(|name| !is_driver_name(name)) {
            checker.report("driverName", Problem::DriverName);
        }
        let endpoint = checker.endpoint(&spec.endpoint);
        let timeouts = checker.timeouts(&spec.timeouts);
        let backoff = checker.backoff(&spec.backoff);
        let concurrency = checker.concurrency(&spec.concurrency);
        let reconcile_sync = checker.reconcile_sync(&spec.reconcile_sync);
        if !is_fs_type(&spec.default_fs_type) {
            checker.report("defaultFsType", Problem::FsType);
        }
        match endpoint {
            Some(endpoint) if checker.errors.is_empty() => Ok(Self {
                driver_name: spec.driver_name.clone(),
                endpoint,
                suspend: spec.suspend,
                timeouts,
                backoff,
                concurrency,
                reconcile_sync,
                default_fs_type: spec.default_fs_type.clone(),
                orphan_policy: spec.orphan_policy,
            }),
            _ => Err(ConfigErrors { errors: checker.errors }),
        }
    }
}

/// Converts field by field and collects the problems. A bad field gives a harmless value that is never used, because
/// its problem makes the whole conversion fail.
#[derive(Default)]
struct Checker {
    errors: Vec<FieldError>,
}

impl Checker {
    fn report(&mut self, path_in_spec: &str, problem: Problem) {
        self.errors.push(FieldError::new(path_in_spec, problem));
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

    fn backoff(&mut self, spec: &BackoffSpec) -> Backoff {
        let initial = self.duration("backoff.initial", spec.initial);
        let max = self.duration("backoff.max", spec.max);
        if spec.initial > spec.max {
            self.report("backoff.initial", Problem::BackoffOrder);
        }
        if !rules::FACTOR_RANGE.contains(&spec.factor) {
            self.report("backoff.factor", Problem::Factor);
        }
        if !rules::JITTER_RANGE.contains(&spec.jitter_percent) {
            self.report("backoff.jitterPercent", Problem::Jitter);
        }
        Backoff {
            initial,
            max,
            factor: spec.factor,
            jitter: spec.jitter_percent as f64 / 100.0,
        }
    }

    fn concurrency(&mut self, spec: &ConcurrencySpec) -> Concurrency {
        let in_flight = |calls: u32| usize::try_from(calls).ok().and_then(NonZeroUsize::new);
        Concurrency {
            attach: in_flight(self.calls("concurrency.attach", spec.attach)),
            detach: in_flight(self.calls("concurrency.detach", spec.detach)),
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
                self.report("reconcileSync.maxEntries", Problem::Entries);
                0
            }),
        }
    }

    fn duration(&mut self, path_in_spec: &str, value: GoDuration) -> Duration {
        let in_range = |span: &Duration| (rules::MIN_DURATION..=rules::MAX_DURATION).contains(span);
        value.to_std().filter(in_range).unwrap_or_else(|| {
            self.report(path_in_spec, Problem::DurationRange);
            rules::MAX_DURATION
        })
    }

    fn calls(&mut self, path_in_spec: &str, value: i64) -> u32 {
        u32::try_from(value)
            .ok()
            .filter(|_| value <= rules::MAX_CALLS)
            .unwrap_or_else(|| {
                self.report(path_in_spec, Problem::Calls);
                0
            })
    }
}

/// The name format of the CSI spec: at most 63 ASCII letters, digits, `-` and `.`, a letter or digit at both ends.
fn is_driver_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let at_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= rules::MAX_DRIVER_NAME
        && at_end(bytes.first())
        && at_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

fn is_fs_type(name: &str) -> bool {
    name.len() <= rules::MAX_FS_TYPE
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
