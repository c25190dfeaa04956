//! The nine drivers that misbehave, each with an AttacherConfig as somebody would write it who thinks of nobody else.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use csi_mock_driver::{Method, MockDriver, MockDriverBuilder, MockHandle, Rule, ScriptAction, ScriptedFailure};

use crate::cluster::Bench;
use crate::requests;
use crate::support::operator::{apply_config, wait_condition};
use crate::support::{Error, Result};

/// What a driver does to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It does not even answer Probe and GetPluginInfo.
    HangsFromTheStart,
    /// It says what it is, and no call for a volume ever ends.
    Hangs,
    /// Every attach fails at once, and is tried again almost at once.
    Fails,
    /// The same with 64 KiB of text in each answer, and a listing without end every 100 ms.
    Floods,
    /// It attaches and detaches as fast as somebody asks, and somebody does.
    Churns,
}

/// The nine, in the order of their numbers.
pub const KINDS: [Kind; 9] = [
    Kind::HangsFromTheStart,
    Kind::Hangs,
    Kind::Hangs,
    Kind::Fails,
    Kind::Fails,
    Kind::Fails,
    Kind::Floods,
    Kind::Floods,
    Kind::Churns,
];

/// Bytes of text in each answer of a driver that floods.
const FLOOD: usize = 64 << 10;
/// Longest a state may take to be reached; the slowest is the drain of calls that hang until their deadline.
const LIMIT: Duration = Duration::from_mins(3);
/// Entries of the listing of a driver that floods.
const LISTED: usize = 5000;

/// A driver that misbehaves.
pub struct Hostile {
    /// Number, also in its names.
    pub number: usize,
    /// What it does.
    pub kind: Kind,
    /// To watch it.
    pub mock: MockHandle,
    spec: Value,
}

/// Name of driver number `number`.
pub fn driver(number: usize) -> String {
    format!("hostile-{number}.csi.test")
}

fn config(number: usize) -> String {
    format!("hostile-{number}")
}

impl Hostile {
    /// Starts the driver and makes its AttacherConfig, suspended at first.
    pub async fn start(bench: &Bench, number: usize, sockets: &Path) -> Result<Self> {
        let kind = KINDS[number];
        let socket = sockets.join(format!("{number}.sock"));
        let mock = builder(number, kind).start(&socket).await;
        let mock = mock?;
        if kind == Kind::Floods {
            for volume in 0..LISTED {
                mock.create_volume(&format!("listed-{volume}"));
            }
        }
        let hostile = Self {
            number,
            kind,
            mock,
            spec: spec(number, kind, &socket),
        };
        hostile.suspend(bench).await?;
        Ok(hostile)
    }

    /// Group of its volumes and attachments.
    pub fn group(&self) -> String {
        config(self.number)
    }

    /// Makes the attachments that it misbehaves about. The one that churns gets its own while it runs.
    pub async fn fill(&self, bench: &Bench, count: usize) -> Result<()> {
        let (group, driver) = (self.group(), driver(self.number));
        bench.create_volumes(&group, &driver, count).await?;
        if self.kind == Kind::Churns {
            return Ok(());
        }
        requests::send_all(&bench.client, Bench::attachments(&group, &driver, count))
            .await
            .map(drop)
    }

    /// Tells it to rest, and waits until it does.
    pub async fn suspend(&self, bench: &Bench) -> Result<()> {
        let mut spec = self.spec.clone();
        spec["suspend"] = json!(true);
        apply_config(&bench.client, &config(self.number), spec).await.map(drop)
    }

    /// Waits until it rests.
    pub async fn wait_suspended(&self, bench: &Bench) -> Result<()> {
        wait_condition(&bench.client, &config(self.number), "Ready", "True", Some("Suspended"))
            .await
            .map(drop)
    }

    /// Lets it loose.
    pub async fn resume(&self, bench: &Bench) -> Result<()> {
        apply_config(&bench.client, &config(self.number), self.spec.clone())
            .await
            .map(drop)
    }

    /// Waits until it is in full swing: calls that hang are there, failures have come back for more than once.
    pub async fn wait_in_swing(&self, calls_before: u64, count: usize) -> Result<()> {
        let enough = async {
            let mut changes = tokio::time::interval(Duration::from_millis(50));
            loop {
                changes.tick().await;
                let reached = match self.kind {
                    Kind::HangsFromTheStart => self.mock.in_flight().now > 0,
                    Kind::Hangs => self.mock.in_flight_of(Method::ControllerPublishVolume).now >= count.min(100),
                    Kind::Fails | Kind::Floods => self.calls() >= calls_before + 2 * count as u64,
                    Kind::Churns => true,
                };
                if reached {
                    return;
                }
            }
        };
        tokio::time::timeout(LIMIT, enough).await.map_err(|_| {
            let calls = self.calls() - calls_before;
            Error::Other(format!("{}: only {calls} calls within {LIMIT:?}", driver(self.number)))
        })
    }

    /// How many calls arrived so far.
    pub fn calls(&self) -> u64 {
        self.mock.call_count()
    }
}

fn builder(number: usize, kind: Kind) -> MockDriverBuilder {
    let builder = MockDriver::builder(driver(number)).accept_any_volume().keep_calls(1000);
    let publish = Rule::on(Method::ControllerPublishVolume);
    match kind {
        Kind::HangsFromTheStart => builder.rule(Rule::any().hang()),
        Kind::Hangs => builder
            .rule(publish.hang())
            .rule(Rule::on(Method::ControllerUnpublishVolume).hang())
            .rule(Rule::on(Method::ListVolumes).hang()),
        Kind::Fails => builder.rule(publish.fail(Code::Internal, "the backend is on fire, request {call}")),
        Kind::Floods => builder
            .rule(publish.action(ScriptAction::Fail(ScriptedFailure {
                code: Code::Unknown,
                message: "request {call}: ".to_owned(),
                echo_secrets: false,
                pad_bytes: FLOOD,
            })))
            .settings(|settings| settings.list_padding_bytes = 200),
        Kind::Churns => builder,
    }
}

/// Short deadlines and pauses, no limit of calls: all that an AttacherConfig allows against the others.
fn spec(number: usize, kind: Kind, socket: &Path) -> Value {
    let mut spec = json!({
        "driverName": driver(number),
        "endpoint": format!("unix://{}", socket.display()),
        "backoff": {"initial": "10ms", "max": "100ms", "jitterPercent": 0},
        "concurrency": {"attach": 0, "detach": 0},
    });
    match kind {
        Kind::Hangs | Kind::HangsFromTheStart => spec["timeouts"] = json!({"publish": "5s", "unpublish": "5s"}),
        Kind::Floods => spec["reconcileSync"] = json!({"interval": "100ms"}),
        Kind::Fails | Kind::Churns => {}
    }
    spec
}
