//! What the settings of an AttacherConfig do while the process runs. Only who is set up by one can play this.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tonic::Code;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{ControllerCapability, Method, MockSettings};

use super::claims::{Claim, is_marked, unknown};
use super::volumes::handle_of;
use crate::expect::LIMIT;
use crate::launcher::CONFIG;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, same};
use crate::support::operator::wait_condition;
use crate::support::wait::wait_for;
use crate::test::Test;

/// The criterion of all scenarios here.
pub const WITHOUT_CONFIG: &str = "not supported when there is no AttacherConfig";

pub fn scenarios() -> Vec<Scenario> {
    let mut all = unable(Group::new("provision-role")).done();
    let hold = Group::new("provision-delete")
        .demands("with deletion: Hold volumes stay, which is told, and they are deleted when it is Enabled")
        .unless(WITHOUT_CONFIG)
        .extension("hold", |t| async move {
            t.config().await?;
            let (claim, volume) = t.given_bound().await?;
            let hold = json!({ "provisioning": { "deletion": "Hold" } });
            t.with_settings(hold, Box::pin(held(&t, &claim, &volume))).await?;
            t.persistent_volume_gone(&volume.name_any()).await
        });
    all.extend(hold.done());
    all.extend(together(Group::new("provision-together")).done());
    all
}

fn unable(group: Group) -> Group {
    group
        .demands("a driver without CREATE_DELETE_VOLUME is told on the claim, which is provisioned when it has it")
        .scenario(
            "not-supported",
            |t| async move { unable_driver(&t, without_calls).await },
        )
        .demands("a driver without a Controller service is told on the claim, which is provisioned when it has one")
        .scenario("not-supported-service", |t| async move {
            unable_driver(&t, |settings| settings.controller_service = false).await
        })
        .peer_fails("it exits")
        .demands("and a condition says so")
        .unless(WITHOUT_CONFIG)
        .extension("not-supported-condition", |t| async move {
            t.config().await?;
            t.driver_is(without_calls)?;
            let (kind, reason) = ("ProvisioningReady", "NotSupported");
            let told = wait_condition(&t.env.client, CONFIG, kind, "False", Some(reason)).await;
            t.driver_is(able)?;
            Ok(told.map(drop)?)
        })
}

fn together(group: Group) -> Group {
    group
        .demands("a class whose calls hang leaves places to another one")
        .unless(WITHOUT_CONFIG)
        .extension("classes", |t| async move {
            let limits = json!({ "provisioning": { "concurrency": { "create": 8, "perClass": 4 } } });
            t.with_settings(limits, Box::pin(one_class_hangs(&t))).await
        })
        .demands("without its section the role takes markers off where there is no volume, and attaching goes on")
        .unless(WITHOUT_CONFIG)
        .extension("off", |t| async move {
            t.given_zone(&t.node, None).await?;
            let claims = t.open_claims().await?;
            let off = async {
                only_the_refused_is_unmarked(&claims).await?;
                t.attaching_goes_on().await
            };
            t.with_settings(json!({ "provisioning": null }), Box::pin(off)).await?;
            t.all_go_on(&claims).await
        })
        .demands("with mode: Disabled what is uncertain is finished, and nothing is begun")
        .unless(WITHOUT_CONFIG)
        .extension("off-disabled", |t| async move {
            let claims = t.open_claims().await?;
            let off = async {
                claims[0].without_marker().await?;
                claims[0].heal();
                let made = claims[0].creates().len();
                claims[1].heal();
                claims[1].bound().await?;
                let count = claims[0].creates().len();
                same("number of CreateVolume of the refused claim", &count, &made)
            };
            let disabled = json!({ "provisioning": { "mode": "Disabled" } });
            t.with_settings(disabled, Box::pin(off)).await?;
            t.all_go_on(&claims).await
        })
        .demands("spec.suspend takes markers off where there is no volume, and only there")
        .unless(WITHOUT_CONFIG)
        .extension("off-suspended", |t| async move {
            let claims = t.open_claims().await?;
            let off = only_the_refused_is_unmarked(&claims);
            t.with_settings(json!({ "suspend": true }), Box::pin(off)).await?;
            t.all_go_on(&claims).await
        })
        .demands("an AttacherConfig that is deleted takes markers off where there is no volume")
        .unless(WITHOUT_CONFIG)
        .extension("off-deleted", |t| async move {
            let claims = t.open_claims().await?;
            let configs: Api<AttacherConfig> = Api::all(t.env.client.clone());
            configs.delete(CONFIG, &DeleteParams::default()).await?;
            let outcome = off_with_config(&claims, configs).await;
            t.process_anew()?;
            outcome?;
            t.all_go_on(&claims).await
        })
}

impl Test {
    /// The AttacherConfig that the process is set up by.
    pub async fn config(&self) -> Outcome<AttacherConfig> {
        let configs: Api<AttacherConfig> = Api::all(self.env.client.clone());
        // Who was played before may have had one, which is there still.
        let found = configs.get_opt(CONFIG).await.unwrap_or_default();
        let ours = found.filter(|config| config.spec.driver_name.as_deref() == Some(&self.env.driver_name));
        ours.ok_or_else(|| Stop::NotSupported("there is no AttacherConfig for the driver".to_owned()))
    }

    /// Merges into the AttacherConfig, plays something, and puts the former settings back whatever came of it.
    pub async fn with_settings(&self, change: Value, played: impl Future<Output = Outcome>) -> Outcome {
        let before = self.config().await?;
        let before = serde_json::to_value(&before.spec).unwrap_or_default();
        let changed = change.as_object().into_iter().flat_map(|change| change.keys());
        let back: Value = changed
            .map(|key| (key.clone(), before.get(key).cloned().unwrap_or_default()))
            .collect();
        self.change_config(&change).await?;
        let outcome = played.await;
        self.change_config(&back).await?;
        outcome
    }

    async fn change_config(&self, spec: &Value) -> Outcome {
        let configs: Api<AttacherConfig> = Api::all(self.env.client.clone());
        let patch = Patch::Merge(json!({ "spec": spec }));
        configs.patch(CONFIG, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the process works by the settings of now.
    async fn settings_are_used(&self) -> Outcome {
        let configs: Api<AttacherConfig> = Api::all(self.env.client.clone());
        let observed = |it: &AttacherConfig| it.status.as_ref().and_then(|status| status.observed_generation);
        let are_used = |it: Option<&AttacherConfig>| it.is_some_and(|it| observed(it) == it.metadata.generation);
        let found = wait_for(configs, CONFIG, "settings in use", LIMIT, are_used);
        Ok(found.await.map(drop)?)
    }

    /// Another process, which is set up as at first.
    fn process_anew(&self) -> Outcome {
        self.env.attacher.kill();
        Ok(self.env.attacher.again()?)
    }

    async fn some_condition_says(&self, parts: &[&str]) -> Outcome {
        let configs: Api<AttacherConfig> = Api::all(self.env.client.clone());
        let says = |config: Option<&AttacherConfig>| {
            let conditions = config
                .and_then(|config| config.status.as_ref())
                .map(|status| &status.conditions);
            let mut all = conditions.into_iter().flatten();
            all.any(|condition| parts.iter().all(|part| condition.message.contains(part)))
        };
        let what = format!("a condition with {parts:?}");
        Ok(wait_for(configs, CONFIG, &what, LIMIT, says).await.map(drop)?)
    }

    /// The driver is another one from the next connection on, which is that of another process.
    fn driver_is(&self, other: fn(&mut MockSettings)) -> Outcome {
        self.env.driver.settings(other);
        self.process_anew()
    }

    /// Two claims that were called for: the first one was refused, so that there is no volume, and of the second one that is not known.
    async fn open_claims(&self) -> Outcome<[Claim; 2]> {
        self.config().await?;
        self.given_class(|_| {}).await?;
        let claims = [self.claim("refused"), self.claim("uncertain")];
        self.script(claims[0].on_create().fail(Code::Internal, "not today"));
        self.script(unknown(claims[1].on_create()));
        for claim in &claims {
            claim.create(|_| {}).await?;
            claim.is("with the marker", is_marked).await?;
            claim.told("", "").await?;
        }
        Ok(claims)
    }

    async fn all_go_on(&self, claims: &[Claim]) -> Outcome {
        for claim in claims {
            claim.heal();
            claim.bound().await?;
            same("volumes", &claim.handles().len(), &1)?;
        }
        Ok(())
    }

    /// A volume is attached and detached.
    async fn attaching_goes_on(&self) -> Outcome {
        self.given_volume(|_| {}).await?;
        self.create_attachment(|_| {}).await?;
        self.attached().await?;
        self.detach().await
    }
}

fn without_calls(settings: &mut MockSettings) {
    settings.capabilities.remove(&ControllerCapability::CreateDeleteVolume);
}

fn able(settings: &mut MockSettings) {
    settings.controller_service = true;
    settings.capabilities.insert(ControllerCapability::CreateDeleteVolume);
}

async fn unable_driver(t: &Test, unable: fn(&mut MockSettings)) -> Outcome {
    t.given_class(|_| {}).await?;
    t.driver_is(unable)?;
    let claim = t.given_claim("").await?;
    let told = claim.told_soon("ProvisioningFailed", "").await;
    let no_call = claim.no_call();
    t.driver_is(able)?;
    told?;
    no_call?;
    claim.bound().await.map(drop)
}

async fn held(t: &Test, claim: &Claim, volume: &PersistentVolume) -> Outcome {
    t.settings_are_used().await?;
    claim.delete().await?;
    t.told(&volume.name_any(), "VolumeDelete", "Hold").await?;
    t.some_condition_says(&[": 1", "Hold"]).await?;
    t.served_after("b").await?;
    t.not_deleted(&handle_of(volume))
}

async fn one_class_hangs(t: &Test) -> Outcome {
    t.settings_are_used().await?;
    t.given_class(|_| {}).await?;
    let hanging: Vec<Claim> = (0..12).map(|number| t.claim(&number.to_string())).collect();
    for claim in &hanging {
        t.script(claim.on_create().until_released());
        claim.create(|_| {}).await?;
    }
    let calls = || t.env.driver.in_flight_of(Method::CreateVolume).now;
    t.until("as many calls as are allowed for a class", || calls() == 4)
        .await?;
    t.given_claim_with("other", |_| {}).await?.bound().await?;
    // A call that comes to its deadline gives its place to another claim.
    let all: Vec<_> = hanging.iter().flat_map(Claim::creates).collect();
    let end = all.iter().filter_map(|call| call.finished).min();
    let first = all.iter().filter(|call| end.is_none_or(|end| call.started < end));
    let called = first.map(|call| &call.volume).collect::<BTreeSet<_>>().len();
    // What is left of the scenario does not wait for their deadlines.
    for claim in &hanging {
        claim.heal();
        for call in claim.creates() {
            t.env.driver.release(call.id);
        }
    }
    same("claims of the hanging class that were called for", &called, &4)
}

async fn off_with_config(claims: &[Claim; 2], configs: Api<AttacherConfig>) -> Outcome {
    claims[0].without_marker().await?;
    // The AttacherConfig may stay until it is known whether there is a volume.
    claims[1].heal();
    wait_for(configs, CONFIG, "gone", LIMIT, |config| config.is_none()).await?;
    Ok(())
}

async fn only_the_refused_is_unmarked(claims: &[Claim; 2]) -> Outcome {
    claims[0].without_marker().await?;
    demand(is_marked(&claims[1].get().await?), || {
        "the marker is off, though a volume may be there".to_owned()
    })
}
