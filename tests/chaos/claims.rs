//! What workers do that make and delete their volumes by claims: a claim is bound, attached for a while, and deleted, in several orders; or
//! it is deleted while it is Pending. With the policy Retain the volume is deleted by hand, as a person does.

use std::time::Duration;

use csi_attacher_model::api::names::RETRY_NOW_ANNOTATION;
use csi_mock_driver::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::history::{Place, Step};
use super::workers::{Done, FREE_WITHIN, Interrupted, Order, PAUSE, Worker, if_uid};
use super::world::{Driver, NAMESPACE, World};

/// After a refusal that is final the operator waits for minutes, unless somebody asks for a retry; it counts once in 10 s.
const ASKS_EACH: Duration = Duration::from_secs(11);

/// A claim: the same name each time, with another UID.
pub struct Claim {
    pub name: String,
    /// Empty while there is none.
    pub uid: String,
    /// Whether it has the policy Retain.
    retain: bool,
    api: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Claim {
    /// One that is not there.
    pub fn new(world: &World, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            uid: String::new(),
            retain: false,
            api: Api::namespaced(world.client.clone(), NAMESPACE),
            volumes: Api::all(world.client.clone()),
        }
    }

    /// The name of its volume at the driver, and of its PersistentVolume.
    fn made_as(&self) -> String {
        volume_name(&self.uid)
    }
}

/// The name of the volume for a claim with this UID.
pub fn volume_name(uid: &str) -> String {
    format!("pvc-{uid}")
}

/// Whether somebody has bound a claim.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

/// What a PersistentVolume calls its volume.
pub fn handle(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.as_str())
}

/// What matters of a claim and its PersistentVolume, for people.
pub async fn brief(world: &World, name: &str) -> String {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), NAMESPACE);
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let claim = claims.get_opt(name).await.ok().flatten();
    let all = volumes.list(&kube::api::ListParams::default()).await;
    let of_claim = |volume: &PersistentVolume| {
        let claimed = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claimed.is_some_and(|claimed| claimed.name.as_deref() == Some(name))
    };
    let volumes = all.into_iter().flatten().filter(of_claim);
    let volumes = volumes.map(|volume| json!({"metadata": short(&volume.metadata), "status": volume.status}));
    let claim = claim.map(|claim| json!({"metadata": short(&claim.metadata), "status": claim.status}));
    json!({"claim": claim, "volumes": volumes.collect::<Vec<_>>()}).to_string()
}

fn short(metadata: &kube::core::ObjectMeta) -> Value {
    json!({
        "name": metadata.name, "uid": metadata.uid, "deletionTimestamp": metadata.deletion_timestamp, "finalizers": metadata.finalizers,
        "annotations": metadata.annotations,
    })
}

impl Driver {
    /// The IDs of volumes that were made under a name.
    fn made_as(&self, name: &str) -> Vec<String> {
        let made = self.mock.volumes().into_iter().filter(|(_, of)| of == name);
        made.map(|(handle, _)| handle).collect()
    }

    /// Deletes them by hand.
    pub fn delete_made(&self, name: &str) {
        for handle in self.made_as(name) {
            self.mock.delete_volume(&handle);
        }
    }
}

impl Worker {
    fn own_driver(&self) -> &Driver {
        &self.world.drivers[self.driver]
    }

    pub fn place_of_claim(&self, uid: &str) -> Place {
        Place {
            driver: self.own_driver().name.clone(),
            volume: volume_name(uid),
            node: String::new(),
        }
    }

    fn claim_step(&self, claim: &Claim, step: Step) {
        self.world.recorder.step(&self.place_of_claim(&claim.uid), step);
    }

    pub fn forget_claim(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.uid.clear();
            self.volume.clear();
            self.handle.clear();
        }
    }

    /// One thing with the claim. What is begun is finished, unless it is all to be forgotten.
    pub async fn claim_round(&mut self) -> Done {
        let choice = self.random.u8(..8);
        let is_there = self.claim.as_ref().is_some_and(|claim| !claim.uid.is_empty());
        if !is_there {
            let retain = self.random.u8(..5) == 0;
            self.make_claim(retain).await?;
            if choice < 3 {
                sleep(Duration::from_millis(self.random.u64(..1500))).await;
                self.unclaim().await?;
            } else {
                self.wait_bound().await?;
            }
        } else if choice < 3 {
            let node = self.any_node();
            self.reach(Some(node)).await?;
        } else if choice == 3 {
            self.reach(None).await?;
        } else {
            self.unclaim().await?;
        }
        self.pause(1500).await;
        Ok(())
    }

    /// Brings about where a run ends: a claim that is bound and attached at a node, or none. With a volume of its own, the volume is
    /// attached or not.
    pub async fn finish(&mut self, target: Option<String>) -> Done {
        let Some(claim) = &self.claim else {
            return self.reach(target).await;
        };
        if !claim.uid.is_empty() && (target.is_none() || claim.retain) {
            self.reach(None).await?;
            self.unclaim().await?;
        }
        if target.is_none() {
            return Ok(());
        }
        if self.claim.as_ref().is_some_and(|claim| claim.uid.is_empty()) {
            self.make_claim(false).await?;
        }
        if self.volume.is_empty() {
            self.wait_bound().await?;
        }
        self.reach(target).await
    }

    async fn make_claim(&mut self, retain: bool) -> Done {
        let config = self.own_driver().config.clone();
        let class = if retain { format!("{config}-retain") } else { config };
        let Some(claim) = &self.claim else { return Ok(()) };
        let object = json!({
            "metadata": {"name": claim.name},
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        // It has the form of the type.
        let Ok(object) = serde_json::from_value::<PersistentVolumeClaim>(object) else {
            return Err(Interrupted);
        };
        let uid = self.create(&claim.api, &object).await?;
        let Some(claim) = &mut self.claim else { return Ok(()) };
        (claim.uid, claim.retain) = (uid, retain);
        if let Some(claim) = &self.claim {
            self.claim_step(claim, Step::Create);
        }
        Ok(())
    }

    async fn wait_bound(&mut self) -> Done {
        self.says("", "bound", None);
        let Some(claim) = &self.claim else { return Ok(()) };
        let mut asks_at = Instant::now() + ASKS_EACH;
        let volume = loop {
            self.forgotten()?;
            let found = claim.api.get_opt(&claim.name).await.ok().flatten();
            let found = found.filter(|found| is_bound(found) && found.uid().as_ref() == Some(&claim.uid));
            if let Some(name) = found.and_then(|found| found.spec?.volume_name)
                && let Ok(volume) = claim.volumes.get(&name).await
            {
                break volume;
            }
            if Instant::now() > asks_at {
                self.ask_again(claim).await;
                asks_at = Instant::now() + ASKS_EACH;
            }
            sleep(PAUSE).await;
        };
        let handle = handle(&volume).unwrap_or_default().to_owned();
        let published = self.own_driver().mock.volumes().get(&handle) == Some(&claim.made_as());
        self.claim_step(claim, Step::Attached { published });
        self.volume = volume.name_any();
        self.world.bound(&self.volume, &handle);
        self.handle = handle;
        Ok(())
    }

    /// As a person does who reads that a call was refused for good.
    async fn ask_again(&self, claim: &Claim) {
        let name = claim.made_as();
        let calls = self.own_driver().mock.calls_of(Method::CreateVolume);
        let last = calls.into_iter().rfind(|call| call.volume.as_ref() == Some(&name));
        if last.is_some_and(|call| call.code == Some(Code::InvalidArgument)) {
            let annotations = json!({RETRY_NOW_ANNOTATION: Timestamp::now().to_string()});
            let patch = json!({"metadata": {"annotations": annotations}});
            // The API server may be away: it is asked again later.
            drop(
                claim
                    .api
                    .patch(&claim.name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await,
            );
        }
    }

    /// Deletes the claim: half of the time before its VolumeAttachment, or after its PersistentVolume.
    async fn unclaim(&mut self) -> Done {
        let in_order = self.random.bool();
        let pause = Duration::from_millis(self.random.u64(..1500));
        if self.last.is_some() && !in_order {
            self.delete_claim().await?;
            sleep(pause).await;
        }
        self.reach(None).await?;
        self.says("", "gone with its volume", None);
        if !self.volume.is_empty() && !in_order {
            self.delete_volume(&self.volume).await?;
            sleep(pause).await;
        }
        self.delete_claim().await?;
        self.wait_claim_gone().await?;
        self.wait_volume_gone().await?;
        self.forget_claim();
        Ok(())
    }

    async fn delete_claim(&self) -> Done {
        let Some(claim) = &self.claim else { return Ok(()) };
        if !claim.retain {
            self.claim_step(claim, Step::Delete);
        }
        let answer = self.delete(&claim.api, &claim.name, &if_uid(&claim.uid)).await;
        answer.map(drop)
    }

    async fn delete_volume(&self, name: &str) -> Done {
        let Some(claim) = &self.claim else { return Ok(()) };
        let answer = self.delete(&claim.volumes, name, &DeleteParams::default()).await;
        answer.map(drop)
    }

    async fn wait_claim_gone(&self) -> Done {
        let Some(claim) = &self.claim else { return Ok(()) };
        loop {
            self.forgotten()?;
            let found = claim.api.get_opt(&claim.name).await;
            if found.is_ok_and(|found| found.and_then(|found| found.uid()).as_ref() != Some(&claim.uid)) {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for what the operator does, or does it by hand.
    async fn wait_volume_gone(&self) -> Done {
        let Some(claim) = &self.claim else { return Ok(()) };
        let (name, driver) = (claim.made_as(), self.own_driver());
        if claim.retain {
            self.claim_step(claim, Step::Delete);
        }
        let mut by_hand = claim.retain;
        // Its PersistentVolume may be gone already.
        let is_left = claim.retain && !self.volume.is_empty();
        loop {
            self.forgotten()?;
            match claim.volumes.get_opt(&name).await {
                Ok(None) => break,
                Ok(Some(_)) if by_hand => {
                    self.delete_volume(&name).await?;
                    driver.delete_made(&name);
                    by_hand = false;
                }
                _ => sleep(PAUSE).await,
            }
        }
        if is_left {
            driver.delete_made(&name);
        }
        self.claim_step(claim, Step::Gone);
        let mut orders = self.orders.clone();
        tokio::select! {
            () = driver.mock.wait_until(|_| driver.made_as(&name).is_empty()) => self.claim_step(claim, Step::Free),
            () = sleep(FREE_WITHIN) => {
                self.claim_step(claim, Step::Kept);
                // So that the rest of the run tells something.
                driver.delete_made(&name);
            }
            _ = orders.wait_for(|order| *order == Order::Forget) => return Err(Interrupted),
        }
        Ok(())
    }
}
