//! What the three controllers of this process do, named as in controller-runtime, for the dashboards written for that.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::family::{Labels, labels};
use super::{Metrics, to_i64};

/// Buckets of controller-runtime.
const SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// A controller of this process. What it does for all drivers is counted together, as in controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Makes drivers run as AttacherConfigs say.
    AttacherConfig,
    /// Attaches and detaches.
    VolumeAttachment,
    /// Releases PersistentVolumes.
    PersistentVolume,
}

impl Controller {
    /// Value of the label `controller`.
    const fn as_str(self) -> &'static str {
        match self {
            Self::AttacherConfig => "attacherconfig",
            Self::VolumeAttachment => "volumeattachment",
            Self::PersistentVolume => "persistentvolume",
        }
    }
}

/// How a reconcile ended, in the words of controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// Nothing is left to do.
    Success,
    /// It failed, and is tried again after a while.
    Error,
    /// It failed, and only a change of the object helps: the same, counted as terminal as well.
    TerminalError,
    /// It is to be looked at again at once.
    Requeue,
    /// It is to be looked at again after a given time.
    RequeueAfter,
}

/// The series of all controllers.
pub(super) struct ControllerFamilies {
    series: [ControllerSeries; 3],
}

/// The series of one controller.
#[derive(Clone, Debug)]
pub struct ControllerSeries {
    success: Counter,
    error: Counter,
    requeue: Counter,
    requeue_after: Counter,
    errors: Counter,
    terminal: Counter,
    panics: Counter,
    timeouts: Counter,
    seconds: Histogram,
    active: Gauge,
    most: Gauge,
}

impl ControllerSeries {
    /// A reconcile ended.
    pub fn reconciled(&self, outcome: Reconciled) {
        match outcome {
            Reconciled::Success => self.success.inc(),
            Reconciled::Requeue => self.requeue.inc(),
            Reconciled::RequeueAfter => self.requeue_after.inc(),
            Reconciled::Error => {
                self.errors.inc();
                self.error.inc()
            }
            Reconciled::TerminalError => {
                self.errors.inc();
                self.terminal.inc();
                self.error.inc()
            }
        };
    }

    /// A reconcile ended by a fault of ours, which counts as an error too.
    pub fn panicked(&self) {
        self.panics.inc();
        self.reconciled(Reconciled::Error);
    }

    /// A reconcile gave up waiting for an answer. How it ended is told beside this.
    pub fn timed_out(&self) {
        self.timeouts.inc();
    }

    /// A reconcile, however it ended, took this long.
    pub fn took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }

    /// So many more reconciles are under way, or less.
    pub fn under_way(&self, more: i64) {
        self.active.inc_by(more);
    }

    /// So many reconciles may be under way at once; 0 is no limit.
    pub fn at_most(&self, reconciles: usize) {
        self.most.set(to_i64(reconciles));
    }
}

/// The families as they are registered.
struct Families {
    reconciles: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    terminal: Family<Labels, Counter>,
    panics: Family<Labels, Counter>,
    timeouts: Family<Labels, Counter>,
    active: Family<Labels, Gauge>,
    most: Family<Labels, Gauge>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Families {
    fn register(registry: &mut Registry) -> Self {
        let new: fn() -> Histogram = || Histogram::new(SECONDS);
        let families = Self {
            reconciles: Family::default(),
            errors: Family::default(),
            terminal: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            active: Family::default(),
            most: Family::default(),
            seconds: Family::new_with_constructor(new),
        };
        for (name, help, family) in [
            (
                "controller_runtime_reconcile",
                "Total number of reconciliations per controller and result",
                &families.reconciles,
            ),
            (
                "controller_runtime_reconcile_errors",
                "Total number of reconciliation errors per controller",
                &families.errors,
            ),
            (
                "controller_runtime_terminal_reconcile_errors",
                "Total number of terminal reconciliation errors per controller: what only a change of the object mends",
                &families.terminal,
            ),
            (
                "controller_runtime_reconcile_panics",
                "Total number of reconciliation panics per controller",
                &families.panics,
            ),
            (
                "controller_runtime_reconcile_timeouts",
                "Total number of reconciliations per controller that gave up waiting for an answer",
                &families.timeouts,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        families.register_others(registry);
        families
    }

    fn register_others(&self, registry: &mut Registry) {
        let help = "Number of reconciliations under way per controller";
        registry.register("controller_runtime_active_workers", help, self.active.clone());
        let help = "Most reconciliations under way at once per controller, over all drivers; 0 is no limit";
        registry.register("controller_runtime_max_concurrent_reconciles", help, self.most.clone());
        let help = "Length of time per reconciliation per controller";
        registry.register("controller_runtime_reconcile_time_seconds", help, self.seconds.clone());
    }

    /// The series of a controller, which begin here.
    fn series(&self, controller: Controller) -> ControllerSeries {
        let of = labels([("controller", controller.as_str())]);
        let ended = |result| {
            let labels = labels([("controller", controller.as_str()), ("result", result)]);
            self.reconciles.get_or_create(&labels).clone()
        };
        ControllerSeries {
            success: ended("success"),
            error: ended("error"),
            requeue: ended("requeue"),
            requeue_after: ended("requeue_after"),
            errors: self.errors.get_or_create(&of).clone(),
            terminal: self.terminal.get_or_create(&of).clone(),
            panics: self.panics.get_or_create(&of).clone(),
            timeouts: self.timeouts.get_or_create(&of).clone(),
            seconds: self.seconds.get_or_create(&of).clone(),
            active: self.active.get_or_create(&of).clone(),
            most: self.most.get_or_create(&of).clone(),
        }
    }
}

impl ControllerFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Families::register(registry);
        let controllers = [
            Controller::AttacherConfig,
            Controller::VolumeAttachment,
            Controller::PersistentVolume,
        ];
        Self {
            series: controllers.map(|controller| families.series(controller)),
        }
    }
}

impl Metrics {
    /// The series of a controller, which start at zero with the process.
    pub fn controller(&self, controller: Controller) -> &ControllerSeries {
        let [configs, attachments, volumes] = &self.0.controllers.series;
        match controller {
            Controller::AttacherConfig => configs,
            Controller::VolumeAttachment => attachments,
            Controller::PersistentVolume => volumes,
        }
    }
}
