//! Which generations of the AttacherConfigs were seen, and their traces.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::deletion::is_served;
use super::plan::{Problem, Step, Wish};
use super::writer::Entry;
use crate::api::DriverConfig;
use crate::api::condition::Reason;
use crate::driver::{Change, ConfigTrace, Seen};
use crate::telemetry::Tracer;
use crate::telemetry::names::error_type;

/// The newest generation of each AttacherConfig.
#[derive(Default)]
pub(super) struct Generations(BTreeMap<String, Known>);

#[derive(Default)]
struct Known {
    uid: Option<String>,
    generation: i64,
    trace: ConfigTrace,
}

/// What is about to be done.
pub(super) struct Outlook<'a> {
    wishes: &'a BTreeMap<String, Wish>,
    /// The settings in use until now.
    configs: &'a BTreeMap<String, Arc<DriverConfig>>,
    steps: &'a [(String, Step)],
}

impl<'a> Outlook<'a> {
    /// What is wished, what runs by which settings until now, and what leads from the one to the other.
    pub fn new(
        wishes: &'a BTreeMap<String, Wish>,
        configs: &'a BTreeMap<String, Arc<DriverConfig>>,
        steps: &'a [(String, Step)],
    ) -> Self {
        Self { wishes, configs, steps }
    }
}

impl Generations {
    /// The trace of an AttacherConfig's newest generation.
    pub fn trace(&self, name: &str) -> ConfigTrace {
        self.0.get(name).map(|known| known.trace.clone()).unwrap_or_default()
    }

    /// Begins a trace for each generation that was not seen before, and for each AttacherConfig that is served no more.
    pub fn observe(&mut self, objects: &BTreeMap<String, Entry>, outlook: &Outlook<'_>, tracer: &Tracer) {
        let served = |name: &str| objects.get(name).filter(|entry| is_served(&entry.object));
        let gone: Vec<_> = self.0.keys().filter(|name| served(name).is_none()).cloned().collect();
        for name in gone {
            let Some(known) = self.0.remove(&name) else { continue };
            let tracer = by(tracer, outlook.configs.get(&name));
            known
                .trace
                .begin(&tracer, &seen(&name, known.generation, Change::Removed, outlook));
        }
        for name in objects.keys() {
            if let Some(entry) = served(name) {
                self.observe_one(name, entry, outlook, tracer);
            }
        }
    }

    fn observe_one(&mut self, name: &str, entry: &Entry, outlook: &Outlook<'_>, tracer: &Tracer) {
        let meta = &entry.object.metadata;
        let generation = meta.generation.unwrap_or_default();
        let known = self.0.get_mut(name).filter(|known| known.uid == meta.uid);
        let is_known = known.is_some();
        if known.is_some_and(|known| std::mem::replace(&mut known.generation, generation) == generation) {
            return;
        }
        let wish = outlook.wishes.get(name);
        let stepped = outlook.steps.iter().any(|(other, _)| other == name);
        let change = match wish {
            _ if !is_known => Change::Added,
            Some(Wish::Run(_)) if !stepped => Change::Unchanged,
            _ => Change::Updated,
        };
        let known = self.0.entry(name.to_owned()).or_default();
        if !is_known {
            *known = Known {
                uid: meta.uid.clone(),
                generation,
                trace: ConfigTrace::default(),
            };
        }
        let config = match wish {
            Some(Wish::Run(config)) => Some(config),
            _ => outlook.configs.get(name),
        };
        known
            .trace
            .begin(&by(tracer, config), &seen(name, generation, change, outlook));
        if let Some(Wish::Refused(problem)) = wish {
            known.trace.refused(error_type_of(problem), &problem.message);
        }
    }
}

fn seen<'a>(name: &'a str, generation: i64, change: Change, outlook: &Outlook<'_>) -> Seen<'a> {
    let step = outlook.steps.iter().find(|(other, _)| other == name);
    let (drivers, asks) = match step.map(|(_, step)| step) {
        Some(Step::Start(config)) => ([1, 0, 0], !config.suspend),
        Some(Step::Stop) => ([0, 1, 0], false),
        Some(Step::Restart(config)) => ([0, 0, 1], !config.suspend),
        Some(Step::Reload(_)) | None => ([0, 0, 0], false),
    };
    Seen {
        name,
        generation,
        change,
        drivers,
        asks,
    }
}

/// The tracer by these settings, if there are any.
fn by(tracer: &Tracer, config: Option<&Arc<DriverConfig>>) -> Tracer {
    tracer.sampling(config.and_then(|config| config.tracing.samples_per_million))
}

fn error_type_of(problem: &Problem) -> &'static str {
    match problem.reason {
        Reason::InvalidSpec => error_type::INVALID_SPEC,
        _ => error_type::CONFLICT,
    }
}
