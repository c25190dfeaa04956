//! The levels of single drivers: a line that says which driver, or which AttacherConfig, it is about is judged by the level
//! of that one; every other line by the level of the process.
//!
//! While no driver has a level of its own nothing here is asked: a disabled line costs one load, as ever. With such a
//! level the lines of this program that name a driver are looked at one by one, without formatting anything.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, Filter};

use crate::api::LogLevel;

/// Root of the targets of this program.
const OWN_TARGET: &str = "csi_attacher_operator";
/// Field with the name of the driver that a line is about.
const DRIVER: &str = "driver";
/// Field with the name of its AttacherConfig.
const CONFIG: &str = "config";

/// Sets the levels of single drivers. Clones share them; the default has no log to change.
#[derive(Clone, Default)]
pub struct DriverLogs(Option<Arc<Levels>>);

/// All levels.
pub(super) struct Levels(RwLock<LevelState>);

struct LevelState {
    process: EnvFilter,
    own: BTreeMap<String, ConfigLevel>,
    /// Levels by the name of the driver and of the AttacherConfig, made from `own`.
    by_driver: HashMap<String, LevelFilter>,
    by_config: HashMap<String, LevelFilter>,
    loudest: Option<LevelFilter>,
}

/// What is known of one AttacherConfig.
#[derive(Default, PartialEq)]
struct ConfigLevel {
    level: Option<LevelFilter>,
    driver: Option<String>,
}

impl fmt::Debug for DriverLogs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DriverLogs").finish_non_exhaustive()
    }
}

impl DriverLogs {
    pub(super) fn new(levels: Arc<Levels>) -> Self {
        Self(Some(levels))
    }

    /// Sets the level of an AttacherConfig, from the next line on; none leaves it to the process.
    pub fn set(&self, config: &str, level: Option<LogLevel>) {
        let level = level.map(level_filter);
        self.change(config, |own| own.level = level);
    }

    /// Tells how the driver of an AttacherConfig is called.
    pub fn name(&self, config: &str, driver: &str) {
        self.change(config, |own| own.driver = Some(driver.to_owned()));
    }

    /// Forgets an AttacherConfig.
    pub fn forget(&self, config: &str) {
        self.change(config, |own| *own = ConfigLevel::default());
    }

    fn change(&self, config: &str, change: impl FnOnce(&mut ConfigLevel)) {
        let Some(levels) = &self.0 else { return };
        if levels.0.write().change(config, change) {
            // Asks every line anew whether it may be of interest. Not under the lock, which that takes.
            tracing::callsite::rebuild_interest_cache();
        }
    }
}

impl LevelState {
    /// Returns whether any level is another one now.
    fn change(&mut self, config: &str, change: impl FnOnce(&mut ConfigLevel)) -> bool {
        let own = self.own.entry(config.to_owned()).or_default();
        change(own);
        if *own == ConfigLevel::default() {
            self.own.remove(config);
        }
        let (mut by_driver, mut by_config) = (HashMap::new(), HashMap::new());
        for (config, own) in &self.own {
            let Some(level) = own.level else { continue };
            by_config.insert(config.clone(), level);
            if let Some(driver) = &own.driver {
                by_driver.insert(driver.clone(), level);
            }
        }
        let changed = (&by_driver, &by_config) != (&self.by_driver, &self.by_config);
        self.loudest = by_config.values().max().copied();
        (self.by_driver, self.by_config) = (by_driver, by_config);
        changed
    }

    /// The loudest level of any driver, when such a line may be judged by the level of a driver.
    fn loudest_for(&self, line: &Metadata<'_>) -> Option<LevelFilter> {
        self.loudest.filter(|_| names_driver(line))
    }
}

impl Levels {
    pub(super) fn new(process: EnvFilter) -> Self {
        Self(RwLock::new(LevelState {
            process,
            own: BTreeMap::new(),
            by_driver: HashMap::new(),
            by_config: HashMap::new(),
            loudest: None,
        }))
    }
}

/// The filter of a log by [`Levels`].
pub(super) struct DriverLevelFilter(pub(super) Arc<Levels>);

impl<S: Subscriber> Filter<S> for DriverLevelFilter {
    fn callsite_enabled(&self, line: &'static Metadata<'static>) -> Interest {
        let state = self.0.0.read();
        let process = Filter::<S>::callsite_enabled(&state.process, line);
        match state.loudest_for(line) {
            None => process,
            Some(loudest) if process.is_never() && *line.level() > loudest => process,
            Some(_) => Interest::sometimes(),
        }
    }

    fn enabled(&self, line: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        let state = self.0.0.read();
        let by_driver = state.loudest_for(line).is_some_and(|loudest| *line.level() <= loudest);
        by_driver || Filter::<S>::enabled(&state.process, line, context)
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        let state = self.0.0.read();
        if state.loudest_for(event.metadata()).is_none() {
            return true;
        }
        let mut subject = DriverFieldVisitor {
            state: &state,
            level: None,
        };
        event.record(&mut subject);
        match subject.level {
            Some(level) => *event.metadata().level() <= level,
            None => Filter::<S>::enabled(&state.process, event.metadata(), context),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let state = self.0.0.read();
        let process = Filter::<S>::max_level_hint(&state.process)?;
        Some(state.loudest.map_or(process, |loudest| loudest.max(process)))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.0.0.read().process.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        Filter::<S>::on_record(&self.0.0.read().process, id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Filter::<S>::on_enter(&self.0.0.read().process, id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Filter::<S>::on_exit(&self.0.0.read().process, id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        Filter::<S>::on_close(&self.0.0.read().process, id, context);
    }
}

/// Finds the level of the driver that a line is about.
struct DriverFieldVisitor<'a> {
    state: &'a LevelState,
    level: Option<LevelFilter>,
}

impl Visit for DriverFieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let levels = match field.name() {
            DRIVER => &self.state.by_driver,
            CONFIG => &self.state.by_config,
            _ => return,
        };
        self.level = self.level.or_else(|| levels.get(value).copied());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(field.name(), DRIVER | CONFIG) {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// Whether a line says which driver it is about.
fn names_driver(line: &Metadata<'_>) -> bool {
    let target = line.target();
    let own = target
        .strip_prefix(OWN_TARGET)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    own && line.is_event() && [DRIVER, CONFIG].iter().any(|name| line.fields().field(name).is_some())
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
