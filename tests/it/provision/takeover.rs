//! The real csi-provisioner and the operator by turns, each killed in the middle of calls: what one leaves is what the other expects.

use std::collections::BTreeSet;

use csi_mock_driver::{Method, MockHandle, Rule};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tonic::Code;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::{lease_name, provisioner_lease_name};

use super::{carries_marker, settings, soon};
use crate::rig::{Driver, LIMIT, World, operator_options, other, within};
use crate::support::operator::{IDENTITY, release_lease, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Operator, Result, Sidecar, sidecar};

/// The namespace of the sidecar, with its Lease.
const ELSEWHERE: &str = "default";
const TURNS: usize = 2;

/// Of both. Short, as the Lease of who was killed has to run out, and yet longer than a busy machine holds up who renews it.
const DURATIONS: [&str; 5] = [
    "--leader-election",
    "--leader-election-namespace=default",
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=6s",
    "--leader-election-retry-period=1s",
];

fn elected(driver: &Driver<'_>) -> Value {
    let mut settings = settings(driver, &soon());
    settings["leaderElection"] = json!({
        "leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "1s", "sidecarNamespaces": [ELSEWHERE],
    });
    settings
}

impl Driver<'_> {
    async fn provisioner(&self) -> Result<Sidecar> {
        let socket = self.world.socket(&self.short);
        Sidecar::start_program(sidecar::PROVISIONER, &self.world.cluster, &socket, &DURATIONS).await
    }

    /// What CreateVolume is asked for with.
    fn volume_name(claim: &PersistentVolumeClaim) -> String {
        format!("pvc-{}", claim.uid().unwrap_or_default())
    }

    /// Brings claims named after `turn` into every state that a provisioner can be killed in: `-rests` is bound, `-goes` is in the middle
    /// of DeleteVolume, `-mid` of CreateVolume, both of which are done once the caller is gone, and `-full` is refused.
    async fn leave_claims_in_the_midst(&self, turn: &str) -> Result<()> {
        let name = |state: &str| format!("{turn}-{state}");
        self.ask_for(&name("rests")).await?;
        self.bound(&name("rests")).await?;
        let goes = self.ask_for(&name("goes")).await?;
        self.bound(&name("goes")).await?;
        let saved = self.saved(&goes).await?;
        let handle = saved.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle);
        let handle = handle.unwrap_or_default();
        self.mock
            .script(Rule::on(Method::DeleteVolume).volume(&handle).times(1).late_success());
        let deleted = self.claims().delete(&name("goes"), &DeleteParams::default()).await;
        deleted?;
        self.call(Method::DeleteVolume, &handle, |_| true).await?;

        self.mock.script(Rule::on(Method::CreateVolume).times(1).late_success());
        let mid = self.ask_for(&name("mid")).await?;
        self.call(Method::CreateVolume, &Self::volume_name(&mid), |_| true)
            .await?;
        self.mock
            .script(Rule::on(Method::CreateVolume).fail(Code::ResourceExhausted, "the pool is full"));
        let full = self.ask_for(&name("full")).await?;
        let full = Self::volume_name(&full);
        self.call(Method::CreateVolume, &full, |_| true).await.map(drop)
    }

    /// The follower has carried on what was left, and deletes what the one before it had made.
    async fn claims_are_carried_on(&self, turn: &str) -> Result<()> {
        for state in ["mid", "full", "rests"] {
            self.bound(&format!("{turn}-{state}")).await?;
        }
        let rests = format!("{turn}-rests");
        let claim = self.claims().get(&rests).await?;
        let calls = self.mock.calls_of(Method::CreateVolume);
        let name = Self::volume_name(&claim);
        assert_eq!(
            calls.iter().filter(|call| call.volume.as_ref() == Some(&name)).count(),
            1
        );
        self.claims().delete(&rests, &DeleteParams::default()).await?;
        self.only_volumes_of_claims().await
    }

    /// Waits until the driver has one volume for each claim, the one that its PersistentVolume names, and no other.
    async fn only_volumes_of_claims(&self) -> Result<()> {
        let claims = self.claims().list(&ListParams::default()).await?;
        let deleted = |claim: &&PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_some();
        for claim in claims.iter().filter(deleted) {
            wait_for(self.claims(), &claim.name_any(), "gone", LIMIT, |claim| claim.is_none()).await?;
        }
        let left = claims.iter().filter(|claim| !deleted(claim));
        let mut wanted: Vec<String> = left.map(Self::volume_name).collect();
        wanted.sort();
        let is_one_each = |mock: &MockHandle| {
            let mut made: Vec<String> = mock.volumes().into_values().collect();
            made.sort();
            made == wanted
        };
        let one_each = within("one volume for each claim", self.mock.wait_until(is_one_each)).await;
        one_each.map_err(|error| other(format!("{error}: {:?} for {wanted:?}", self.mock.volumes())))?;
        let volumes = self.volumes().list(&ListParams::default()).await?;
        for name in volumes
            .iter()
            .map(ResourceExt::name_any)
            .filter(|name| !wanted.contains(name))
        {
            wait_for(self.volumes(), &name, "gone", LIMIT, |volume| volume.is_none()).await?;
        }
        for name in &wanted {
            wait_for(self.volumes(), name, "saved", LIMIT, |volume| volume.is_some()).await?;
        }
        let volumes = self.volumes().list(&ListParams::default()).await?;
        let handle = |volume: PersistentVolume| volume.spec?.csi.map(|csi| csi.volume_handle);
        let named: BTreeSet<String> = volumes.into_iter().filter_map(handle).collect();
        assert_eq!(self.mock.volumes().into_keys().collect::<BTreeSet<_>>(), named);
        Ok(())
    }
}

/// Whoever worked before is gone; fails with the log of a sidecar that did not carry on.
async fn follows(driver: &Driver<'_>, turn: &str, mut sidecar: Option<&mut Sidecar>) -> Result<()> {
    driver.mock.clear_rules();
    let carried_on = driver.claims_are_carried_on(turn).await;
    if let Some(sidecar) = &mut sidecar {
        sidecar.check()?;
    }
    carried_on.map_err(|error| {
        other(format!(
            "{turn}: {error}\n{}",
            sidecar.map_or_else(String::new, |it| it.log_text())
        ))
    })
}

async fn waiting_operator(world: &World, driver: &Driver<'_>) -> Result<Operator> {
    let operator = world.operator(operator_options()).await?;
    driver.configure(&elected(driver)).await?;
    driver.wait("ProvisioningReady", "True", Some("Standby")).await?;
    Ok(operator)
}

pub async fn follow_each_other(world: &World) -> Result<()> {
    let driver = world.unconfigured_driver("p-turns", |builder| builder).await?;
    let leases = [lease_name(&driver.name), provisioner_lease_name(&driver.name)];
    world.grant_leases(ELSEWHERE, &leases).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    release_lease(&world.client, ELSEWHERE, &driver.name).await?;
    driver.class("Delete").await?;
    let mut sidecar = driver.provisioner().await?;
    driver.ask_for("first").await?;
    driver.bound("first").await?;

    for turn in 1..=TURNS {
        let mut operator = waiting_operator(world, &driver).await?;
        let ours = format!("to-us-{turn}");
        driver.leave_claims_in_the_midst(&ours).await?;
        drop(sidecar);
        follows(&driver, &ours, None).await?;
        driver.wait("ProvisioningReady", "True", Some("Running")).await?;
        // Of the turn before, in which a sidecar went on from what we had begun.
        if turn > 1 {
            driver.without_marker(&format!("to-them-{}-mid", turn - 1)).await?;
        }

        let theirs = format!("to-them-{turn}");
        driver.leave_claims_in_the_midst(&theirs).await?;
        let begun = format!("{theirs}-mid");
        wait_for(driver.claims(), &begun, "marked", LIMIT, carries_marker).await?;
        sidecar = driver.provisioner().await?;
        operator.signal("KILL")?;
        operator.wait_ended(LIMIT).await?;
        follows(&driver, &theirs, Some(&mut sidecar)).await?;
    }

    // And back once more: everything that is left goes.
    let _operator = waiting_operator(world, &driver).await?;
    drop(sidecar);
    for claim in driver.claims().list(&ListParams::default()).await? {
        let name = claim.name_any();
        driver.claims().delete(&name, &DeleteParams::default()).await?;
        wait_for(driver.claims(), &name, "gone", LIMIT, |claim| claim.is_none()).await?;
    }
    driver.only_volumes_of_claims().await?;
    assert!(driver.mock.volumes().is_empty());
    assert!(
        driver.mock.calls().iter().all(|call| !call.overlap),
        "{:#?}",
        driver.mock.calls()
    );
    world.fixtures.delete::<AttacherConfig>(&driver.short).await
}
