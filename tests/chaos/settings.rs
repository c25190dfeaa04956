//! A walk through the settings under load, one field after the other: what Acto does to operators. The settings in effect are those of
//! the object or the object says why not, and going back brings the former behaviour back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::RETRY_NOW_ANNOTATION;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::checker::Kind;
use super::effect::{seen, wrong};
use super::recorder::Recorder;
use super::report::Part;
use super::schema::{Candidate, at, candidates};
use super::secrets;
use super::storm::watch_drivers;
use super::workers::{Order, SETTLED_WITHIN, Workers};
use super::world::{Scale, World, this_version};
use super::{ending, other};
use crate::support::wait::wait_for;
use crate::support::{Result, Volume};

/// How soon the status must tell of a change.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
/// Attachments of one look at the effect.
const CANARIES: usize = 4;
/// The one whose volume names a publish Secret.
const WITH_SECRET: usize = 3;
/// How long attaches are waited for that settings may forbid or slow down.
const LOOK: Duration = Duration::from_secs(3);
/// Fields that by their documentation give up a guarantee: they are walked with one replica.
const GIVE_UP: [&str; 1] = ["spec.orphanPolicy"];

struct Walk {
    world: Arc<World>,
    configs: Api<AttacherConfig>,
    attachments: Api<VolumeAttachment>,
    outcomes: BTreeMap<&'static str, usize>,
    /// Fields of which a value was set.
    fields: BTreeSet<String>,
}

/// Walks as many values as there is time for, in the order that the seed says; all of them if there is enough.
pub async fn walk(seed: u64, lasts: Duration) -> Result<Part> {
    let mut part = Part::new("settings");
    let started = Instant::now();
    let (careful, mut rest): (Vec<_>, Vec<_>) = all()?
        .into_iter()
        .partition(|it| GIVE_UP.contains(&it.field().as_str()));
    fastrand::Rng::with_seed(seed).shuffle(&mut rest);
    each_field_first(&mut rest);
    let scale = Scale {
        drivers: 1,
        volumes: 6,
        nodes: 3,
        replicas: 2,
        claims: 0,
    };
    let world = Arc::new(World::set(scale, Recorder::new(true)).await?);
    world.start_replicas(&this_version()).await?;
    let _watched = watch_drivers(&world);
    make_canaries(&world).await?;
    let workers = Workers::start(&world, seed);
    let mut walk = Walk {
        configs: Api::all(world.client.clone()),
        attachments: Api::all(world.client.clone()),
        world: Arc::clone(&world),
        outcomes: BTreeMap::new(),
        fields: BTreeSet::new(),
    };
    let (several, one) = (lasts.mul_f64(0.8), lasts);
    for (index, candidate) in rest.iter().enumerate() {
        if started.elapsed() > several {
            part.faults.insert("settings left out".to_owned(), rest.len() - index);
            break;
        }
        walk.visit(candidate).await?;
    }
    if let Some(process) = world.replicas[1].running.lock().await.take() {
        world.end(process, "TERM").await?;
    }
    for candidate in &careful {
        if started.elapsed() > one {
            *part.faults.entry("settings left out".to_owned()).or_default() += 1;
            continue;
        }
        walk.visit(candidate).await?;
    }
    part.slowest = workers.settle(Order::Final).await;
    ending::leave_nothing(&world, &workers).await?;
    secrets::look_for(&world).await?;
    part.judge(&world.recorder.history(world.calls()));
    let all: BTreeSet<String> = rest.iter().chain(&careful).map(Candidate::field).collect();
    part.faults.insert("fields walked".to_owned(), walk.fields.len());
    part.faults
        .insert("fields left out".to_owned(), all.difference(&walk.fields).count());
    part.faults
        .extend(walk.outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count)));
    world.keep_logs().await;
    part.took = started.elapsed();
    Ok(part)
}

/// A value of each field first, so that a short walk sees as many fields as it can.
fn each_field_first(candidates: &mut [Candidate]) {
    let mut before: BTreeMap<String, usize> = BTreeMap::new();
    candidates.sort_by_cached_key(|it| {
        let count = before.entry(it.field()).or_default();
        *count += 1;
        *count
    });
}

/// The volumes that are attached and detached after each change.
async fn make_canaries(world: &World) -> Result<()> {
    for number in 0..CANARIES {
        let volume = Volume::new(&canary(number), &world.drivers[0].name, &canary(number));
        // One of them cannot be attached where `spec.publishSecrets` does not list its Secret.
        let volume = if number == WITH_SECRET {
            volume.publish_secret(secrets::NAMESPACE, &world.drivers[0].config)
        } else {
            volume
        };
        world.drivers[0].mock.create_volume(&canary(number));
        world.fixtures.persistent_volume(&volume).await?;
    }
    Ok(())
}

/// All values for all fields of the present definition, but those that take the driver's place.
fn all() -> Result<Vec<Candidate>> {
    let definition = serde_json::to_value(AttacherConfig::crd())?;
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    Ok(candidates(schema))
}

fn canary(number: usize) -> String {
    format!("canary-{number}")
}

impl Walk {
    async fn patch(&self, patch: &Value) -> kube::Result<AttacherConfig> {
        let params = PatchParams {
            field_manager: Some("chaos".to_owned()),
            ..PatchParams::default()
        };
        self.configs
            .patch(&self.world.drivers[0].config, &params, &Patch::Merge(patch))
            .await
    }

    fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    fn wrong(&self, candidate: &Candidate, text: &str) {
        let text = format!("{} = {}: {text}", candidate.field(), candidate.value);
        self.world
            .recorder
            .finding(Kind::SettingNotInEffect, &self.world.drivers[0].config, text);
    }

    /// Sets a field to a value and back, and looks at what comes of it both times.
    async fn visit(&mut self, candidate: &Candidate) -> Result<()> {
        let driver = &self.world.drivers[0];
        self.fields.insert(candidate.field());
        self.world
            .recorder
            .note(&driver.config, format!("{} = {}", candidate.field(), candidate.value));
        let former = at(&driver.spec, &candidate.path).clone();
        match self.patch(&candidate.patch(&candidate.value)).await {
            Err(kube::Error::Api(status)) => {
                self.count("settings refused");
                // What is refused as a whole names the part that holds the field.
                let parent = candidate.field();
                let parent = parent.rsplit_once('.').map_or("", |(parent, _)| parent);
                if !status.message.contains(parent) {
                    self.wrong(
                        candidate,
                        &format!("refused without naming the field: {}", status.message),
                    );
                }
                return Ok(());
            }
            Err(error) => return Err(other(error)),
            Ok(stored) => {
                let shown = self.told(candidate, &stored, false).await?;
                if shown {
                    self.count("settings in effect");
                    self.look(candidate, &stored).await?;
                } else {
                    self.count("settings explained");
                }
            }
        }
        let back = self.patch(&candidate.patch(&former)).await?;
        let text = format!("{} is back at {former}", candidate.field());
        self.world.recorder.note(&self.world.drivers[0].config, text);
        if self.told(candidate, &back, true).await? {
            // What failed meanwhile may have been told to wait for a day.
            self.retry(candidate).await;
            self.look(candidate, &back).await
        } else {
            self.wrong(candidate, "going back to the former value does not make it ready again");
            Ok(())
        }
    }

    /// Waits until the status tells of this generation. True when it is ready; otherwise the object says why it is not, unless it
    /// `must` be.
    async fn told(&self, candidate: &Candidate, stored: &AttacherConfig, must: bool) -> Result<bool> {
        let name = stored.name_any();
        let wanted = stored.metadata.generation;
        let ready = |config: &AttacherConfig| {
            let status = config.status.as_ref()?;
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
            // Ready for another reason, such as Suspended, says why nothing is seen of the settings.
            let is_running = ready.status == "True" && ready.reason == "Running";
            (status.observed_generation >= wanted).then(|| (is_running, ready.reason.clone(), ready.message.clone()))
        };
        // One that is being connected anew says so for a while.
        let is_settled = |config: Option<&AttacherConfig>| {
            config
                .and_then(ready)
                .is_some_and(|(is_ready, reason, _)| is_ready || !must && !PASSING.contains(&reason.as_str()))
        };
        let found = wait_for(
            self.configs.clone(),
            &name,
            "a status about the change",
            TOLD_WITHIN,
            is_settled,
        )
        .await;
        match found.map(|config| config.as_ref().and_then(ready)) {
            Ok(Some((true, _, _))) => Ok(true),
            Ok(Some((false, reason, message))) => {
                if message.is_empty() {
                    self.wrong(candidate, &format!("not ready, without a word but {reason}"));
                }
                Ok(false)
            }
            Ok(None) | Err(_) => {
                let now = self.configs.get(&name).await?;
                let status = serde_json::to_string(&now.status)?;
                self.wrong(candidate, &format!("not told within {TOLD_WITHIN:?}: {status}"));
                Ok(false)
            }
        }
    }

    /// Attaches and detaches some volumes, and looks whether what the driver sees is what the object says.
    async fn look(&self, candidate: &Candidate, stored: &AttacherConfig) -> Result<()> {
        let driver = &self.world.drivers[0];
        let spec = serde_json::to_value(&stored.spec)?;
        let is_base = spec == self.base(&spec)?;
        let within = if is_base { SETTLED_WITHIN } else { LOOK };
        let since = Timestamp::now();
        for number in 0..CANARIES {
            let name = canary(number);
            let spec = json!({"attacher": driver.name, "nodeName": "node-0", "source": {"persistentVolumeName": name}});
            let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
            match self.attachments.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                outcome => drop(outcome?),
            }
        }
        let all_published = driver.mock.wait_for_published(|published| {
            (0..CANARIES).all(|number| published.iter().any(|(volume, _)| *volume == canary(number)))
        });
        let is_attached = timeout(within, all_published).await.is_ok();
        for number in 0..CANARIES {
            match self.attachments.delete(&canary(number), &DeleteParams::default()).await {
                // It was that of the look before, and has gone meanwhile.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                outcome => drop(outcome?),
            }
        }
        let all_gone = driver
            .mock
            .wait_for_published(|published| !published.iter().any(|(volume, _)| volume.starts_with("canary")));
        let is_detached = timeout(within, all_gone).await.is_ok();
        let seconds = self.world.lease(driver).await?.lease_duration_seconds;
        let effect = seen(&driver.mock.calls(), since, seconds);
        for text in wrong(&effect, &spec) {
            self.wrong(candidate, &text);
        }
        if is_base && !(is_attached && is_detached) {
            let text = format!("with the former settings: attached {is_attached}, detached {is_detached}, {effect:?}");
            self.wrong(candidate, &text);
        }
        // The next look makes VolumeAttachments of these names. What a setting makes slow is waited for when the setting is gone.
        if is_detached {
            self.wait_gone(candidate).await;
        }
        Ok(())
    }

    /// The settings to begin with, with what the API server fills in.
    fn base(&self, spec: &Value) -> Result<Value> {
        let mut base = self.world.drivers[0].spec.clone();
        let filled: AttacherConfig =
            serde_json::from_value(json!({"metadata": {"name": "base"}, "spec": base.take()}))?;
        let filled = serde_json::to_value(&filled.spec)?;
        // Fields that are left out may be shown as null by one and not by the other.
        let mut differences = Vec::new();
        ending::differ("", &filled, spec, &mut differences);
        Ok(if differences.is_empty() { spec.clone() } else { filled })
    }

    /// Waits until the canaries are gone.
    async fn wait_gone(&self, candidate: &Candidate) {
        for number in 0..CANARIES {
            let name = canary(number);
            let gone = wait_for(self.attachments.clone(), &name, "gone", SETTLED_WITHIN, |object| {
                object.is_none()
            });
            if let Err(error) = gone.await {
                self.wrong(candidate, &error.to_string());
            }
        }
    }

    /// Ends all backoffs, as a person does who has set one that is too long.
    async fn retry(&self, candidate: &Candidate) {
        let now = Timestamp::now().to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {RETRY_NOW_ANNOTATION: now}}}));
        for object in self.world.watched.all() {
            // It may be gone by now.
            drop(
                self.attachments
                    .patch(&object.name_any(), &PatchParams::default(), &patch)
                    .await,
            );
        }
        self.wait_gone(candidate).await;
    }
}

/// Reasons of a condition Ready that pass by themselves.
const PASSING: [&str; 4] = ["Connecting", "Syncing", "Standby", "Draining"];
