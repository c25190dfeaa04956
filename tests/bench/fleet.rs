//! One operator with its drivers, each with an AttacherConfig: what most scenes begin with.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use csi_mock_driver::{MockDriver, MockDriverBuilder, MockHandle};

use super::attacher::{self, PHASE_LIMIT};
use super::cluster::{Bench, NOBODYS_DRIVER, no_volumes};
use super::process::{self, Memory};
use super::recorder::Stage;
use super::requests::send_all;
use super::support::operator::{IDENTITY, apply_config, wait_condition};
use super::support::{Operator, OperatorOptions, Result};
use super::usage::Usage;

/// How large a fleet is to be.
pub struct Plan {
    /// Begin of the names of drivers and AttacherConfigs.
    pub name: &'static str,
    pub drivers: usize,
    /// Volumes of each driver, for which there are nodes.
    pub volumes: usize,
    /// What is wanted of each mock driver.
    pub mock: fn(MockDriverBuilder) -> MockDriverBuilder,
    /// What each AttacherConfig has besides its endpoint.
    pub spec: Value,
    /// How the operator is started.
    pub options: OperatorOptions,
}

impl Plan {
    /// Drivers without delay, default settings.
    pub fn new(name: &'static str, drivers: usize, volumes: usize) -> Self {
        Self {
            name,
            drivers,
            volumes,
            mock: |mock| mock,
            spec: json!({}),
            options: attacher::options(),
        }
    }

    pub fn mock(mut self, mock: fn(MockDriverBuilder) -> MockDriverBuilder) -> Self {
        self.mock = mock;
        self
    }

    pub fn spec(mut self, spec: Value) -> Self {
        self.spec = spec;
        self
    }
}

/// The running operator with all around it; `Fleet<()>` is one whose operator is somebody else's, or does not run.
pub struct Fleet<O = Operator> {
    // Ends before the API server that it works on.
    pub operator: O,
    pub mocks: Vec<MockHandle>,
    pub bench: Bench,
    pub kubeconfig: PathBuf,
    /// What the API server counted before the operator started.
    pub before: Usage,
    plan: Plan,
    sockets: tempfile::TempDir,
}

impl Fleet {
    /// Starts control plane, drivers and operator, and waits until all drivers are served.
    pub async fn start(plan: Plan) -> Result<Self> {
        let names: Vec<String> = (0..plan.drivers).map(|number| driver_of(&plan, number)).collect();
        let mut drivers: Vec<&str> = names.iter().map(String::as_str).collect();
        drivers.push(NOBODYS_DRIVER);
        let bench = Bench::start_for(plan.volumes, &drivers).await?;
        let sockets = tempfile::tempdir()?;
        let mut mocks = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let mock = (plan.mock)(MockDriver::builder(name).accept_any_volume());
            let mock = mock.start(sockets.path().join(format!("{number}.sock"))).await;
            mocks.push(mock?);
        }
        let before = Usage::read(&bench.client).await?;
        let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        let operator = Operator::start_with(&kubeconfig, plan.options.clone())?;
        let fleet = Self {
            operator,
            mocks,
            bench,
            kubeconfig,
            before,
            plan,
            sockets,
        };
        for number in 0..fleet.plan.drivers {
            fleet.configure(number, &json!({})).await?;
        }
        fleet.operator.wait_ready().await?;
        fleet.wait_served().await?;
        Ok(fleet)
    }

    /// Its AttacherConfig.
    pub fn config(&self, number: usize) -> String {
        format!("{}-{number}", self.plan.name)
    }

    /// Makes or changes its AttacherConfig: the plan's with these fields on top.
    pub async fn configure(&self, number: usize, more: &Value) -> Result<()> {
        let mut spec = self.plan.spec.clone();
        spec["endpoint"] = json!(format!("unix://{}", self.socket(number).display()));
        for (name, value) in more.as_object().into_iter().flatten() {
            spec[name] = value.clone();
        }
        apply_config(&self.bench.client, &self.config(number), spec)
            .await
            .map(drop)
    }

    /// Serves a driver, or suspends it and waits until that is so.
    pub async fn serve(&self, number: usize, serves: bool) -> Result<()> {
        self.configure(number, &json!({"suspend": !serves})).await?;
        if serves {
            return Ok(());
        }
        let config = self.config(number);
        wait_condition(&self.bench.client, &config, "Ready", "True", Some("Suspended"))
            .await
            .map(drop)
    }

    /// Waits until all drivers are served.
    pub async fn wait_served(&self) -> Result<()> {
        for number in 0..self.plan.drivers {
            let config = self.config(number);
            wait_condition(&self.bench.client, &config, "Ready", "True", Some("Running")).await?;
        }
        Ok(())
    }

    /// The operator apart from what is around it.
    pub fn split(self) -> (Fleet<()>, Operator) {
        self.exchange(())
    }

    /// Ends the operator, which gives up its Leases first.
    pub async fn stop(self) -> Result<Fleet<()>> {
        let (fleet, operator) = self.split();
        attacher::stop(operator).await?;
        Ok(fleet)
    }

    pub fn memory(&self) -> Result<Memory> {
        process::memory(self.operator.pid()?)
    }

    pub fn cpu(&self) -> Result<Duration> {
        process::cpu(self.operator.pid()?)
    }
}

impl<O> Fleet<O> {
    /// Another operator in the place of this one, with the same things around it.
    fn exchange<P>(self, operator: P) -> (Fleet<P>, O) {
        let other = Fleet {
            operator,
            mocks: self.mocks,
            bench: self.bench,
            kubeconfig: self.kubeconfig,
            before: self.before,
            plan: self.plan,
            sockets: self.sockets,
        };
        (other, self.operator)
    }

    /// Name of driver number `number`.
    pub fn driver(&self, number: usize) -> String {
        driver_of(&self.plan, number)
    }

    /// Where it listens.
    pub fn socket(&self, number: usize) -> PathBuf {
        self.sockets.path().join(format!("{number}.sock"))
    }

    /// Makes volumes and attachments of a group of a driver as fast as the API server takes them; from the first creation of
    /// an attachment to the last attach.
    pub async fn attach(&self, number: usize, group: &str, count: usize) -> Result<Duration> {
        let driver = self.driver(number);
        self.bench.create_volumes(group, &driver, count).await?;
        let started = Instant::now();
        send_all(&self.bench.client, Bench::attachments(group, &driver, count)).await?;
        self.wait(group, Stage::Attached, count).await?;
        Ok(started.elapsed())
    }

    /// Detaches a group and removes its volumes.
    pub async fn remove(&self, group: &str, count: usize) -> Result<()> {
        self.bench.delete_attachments(group, count).await?;
        self.wait(group, Stage::Gone, count).await?;
        self.bench.delete_volumes(group, count).await
    }

    /// The same, and waits until no PersistentVolume is left.
    pub async fn remove_all(&self, group: &str, count: usize) -> Result<()> {
        self.remove(group, count).await?;
        no_volumes(&self.bench).await
    }

    pub async fn wait(&self, group: &str, stage: Stage, count: usize) -> Result<()> {
        self.bench.recorder.wait(group, stage, count, PHASE_LIMIT).await
    }
}

impl Fleet<()> {
    /// Starts an operator; does not wait for anything.
    pub fn start_again(self) -> Result<Fleet> {
        let operator = Operator::start_with(&self.kubeconfig, self.plan.options.clone())?;
        Ok(self.exchange(operator).0)
    }
}

fn driver_of(plan: &Plan, number: usize) -> String {
    format!("{}-{number}.csi.test", plan.name)
}
