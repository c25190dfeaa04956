//! T5: a collector that accepts connections and never answers: attaching is as fast as with tracing off, and what cannot be
//! exported is counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_mock_driver::MockDriver;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::operator::{apply_config, wait_condition};
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::stop;
use crate::support::{ControlPlane, Fixtures, Operator, OperatorOptions, Options, Result, Volume};

const DRIVER: &str = "hanging.csi.test";
const NODE: &str = "hanging-node";
/// Attaches of one round; each way has two rounds.
const VOLUMES: usize = 250;
/// Attaches in flight: enough to keep the operator busy, few enough that the time of each is not mere queueing.
const AT_ONCE: usize = 4;
/// How long one export may take. Longer than any attach, also of a machine that stands still for some seconds: whatever waits
/// for the collector is seen at once.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(8);
const LIMIT: Duration = Duration::from_mins(5);

#[tokio::test]
async fn t5_a_hanging_collector_slows_no_attach() -> Result<()> {
    // Not a part of the limit: other tests may take long.
    let _permit = crate::rig::own_control_planes(1).await;
    tokio::time::timeout(LIMIT, compare())
        .await
        .expect("the test is bounded")
}

async fn compare() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::builder(DRIVER).accept_any_volume();
    let _driver = driver.start(&socket).await.unwrap();
    let client = cluster.admin_client().await?;
    let fixtures = Fixtures::new(client.clone());
    fixtures.csi_node(NODE, DRIVER, "node-id").await?;
    stream::iter(0..VOLUMES)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, async |index| {
            let volume = Volume::new(&volume_name(index), DRIVER, &volume_name(index));
            fixtures.persistent_volume(&volume).await.map(drop)
        })
        .await?;
    crate::support::operator::install(&cluster).await?;
    let endpoint = format!("unix://{}", socket.display());
    apply_config(&client, "hanging", json!({ "endpoint": endpoint })).await?;
    let bench = Bench {
        cluster,
        watch: Watch::start(client),
        fixtures,
    };

    // The first attach of a volume has a write more than the others, and all caches are cold.
    bench.round("warm-up", None).await?;
    let [http, grpc] = [OtlpReceiver::silent().await, OtlpReceiver::silent().await];
    // What drifts while the test runs hits both ways alike.
    let mut off = bench.round("off-1", None).await?;
    let mut hanging = bench.round("hanging-1", Some((&http, "http/protobuf"))).await?;
    hanging.extend(bench.round("hanging-2", Some((&grpc, "grpc"))).await?);
    off.extend(bench.round("off-2", None).await?);

    let (off, hanging) = (Distribution::of(off), Distribution::of(hanging));
    println!("tracing off:       {off:?}");
    println!("hanging collector: {hanging:?}");
    assert_eq!((off.attaches, hanging.attaches), (2 * VOLUMES, 2 * VOLUMES));
    // Whatever waits for the collector waits for eight seconds: nothing but that breaks these bounds. `make overhead` measures.
    assert!(hanging.median < off.median.mul_f64(3.0) + EXPORT_TIMEOUT / 32);
    assert!(hanging.p99 < off.p99.mul_f64(3.0) + EXPORT_TIMEOUT / 2);
    Ok(())
}

fn volume_name(index: usize) -> String {
    format!("hanging-{index}")
}

struct Bench {
    cluster: ControlPlane,
    watch: Watch,
    fixtures: Fixtures,
}

impl Bench {
    /// Attaches all volumes with an operator of its own, then detaches them. Answers how long each attach took.
    async fn round(&self, name: &str, collector: Option<(&OtlpReceiver, &str)>) -> Result<Vec<Duration>> {
        let mut options = OperatorOptions::new(env!("CARGO_BIN_EXE_csi-attacher-operator"));
        if let Some((receiver, protocol)) = collector {
            options = options
                .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
                .variable("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
                .variable("OTEL_BSP_SCHEDULE_DELAY", "10")
                .variable("OTEL_BSP_MAX_QUEUE_SIZE", "64")
                .variable("OTEL_BSP_EXPORT_TIMEOUT", EXPORT_TIMEOUT.as_millis().to_string());
        }
        let mut operator = Operator::start(&self.cluster, options).await?;
        operator.wait_ready().await?;
        wait_condition(self.fixtures.client(), "hanging", "Ready", "True", None).await?;
        let attachments = (0..VOLUMES).map(|index| (format!("{name}-{index}"), volume_name(index)));
        let took: Vec<Duration> = stream::iter(attachments.clone())
            .map(|(attachment, volume)| self.attach(attachment, volume))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        if let Some((receiver, _)) = collector {
            receiver.wait_for_request(LIMIT).await;
            let drops = wait_for_drops(&operator).await?;
            println!("{name}: {drops:?}");
        }
        stream::iter(attachments)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |(attachment, _)| self.detach(attachment))
            .await?;
        // It does not wait for the collector either.
        let stopping = Instant::now();
        stop(&mut operator).await?;
        assert!(stopping.elapsed() < Duration::from_secs(10));
        Ok(took)
    }

    async fn attach(&self, attachment: String, volume: String) -> Result<Duration> {
        let attached = self.watch.expect(&attachment, Seen::Attached);
        let started = Instant::now();
        self.fixtures
            .volume_attachment(&attachment, DRIVER, &volume, NODE)
            .await?;
        let at = attached.await.expect("the watch runs as long as the test");
        Ok(at.duration_since(started))
    }

    async fn detach(&self, attachment: String) -> Result<()> {
        let gone = self.watch.expect(&attachment, Seen::Gone);
        self.fixtures.delete::<VolumeAttachment>(&attachment).await?;
        gone.await.expect("the watch runs as long as the test");
        Ok(())
    }
}

/// Spans by what became of them.
#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Drops {
    exported: u64,
    export_failed: u64,
    queue_full: u64,
}

/// Waits until spans were dropped for both reasons: the queue was full, and an export was given up.
async fn wait_for_drops(operator: &Operator) -> Result<Drops> {
    loop {
        let metrics = operator.metrics().await?;
        let [exported, export_failed, queue_full] = ["exported", "export_failed", "queue_full"].map(|result| {
            let start = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} ");
            let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        });
        assert_eq!(exported, 0, "nobody took a span");
        if export_failed > 0 && queue_full > 0 {
            return Ok(Drops {
                exported,
                export_failed,
                queue_full,
            });
        }
        // A scrape, as Prometheus makes it; the test as a whole is bounded.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seen {
    Attached,
    Gone,
}

type Waiting = HashMap<(String, Seen), oneshot::Sender<Instant>>;

/// One watch of all VolumeAttachments, which tells the instant of what others wait for.
struct Watch {
    waiting: Arc<Mutex<Waiting>>,
    task: JoinHandle<()>,
}

impl Watch {
    fn start(client: Client) -> Self {
        let waiting = Arc::new(Mutex::new(Waiting::new()));
        let shared = Arc::clone(&waiting);
        let task = tokio::spawn(async move {
            let events = watcher(Api::<VolumeAttachment>::all(client), watcher::Config::default());
            let mut events = events.default_backoff().boxed();
            while let Some(event) = events.next().await {
                let (object, seen) = match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => (object, Seen::Attached),
                    Ok(Event::Delete(object)) => (object, Seen::Gone),
                    _ => continue,
                };
                if seen == Seen::Gone || object.status.as_ref().is_some_and(|status| status.attached) {
                    let waiter = shared.lock().remove(&(object.name_any(), seen));
                    if let Some(waiter) = waiter {
                        // One that gave up no longer wants to know.
                        waiter.send(Instant::now()).ok();
                    }
                }
            }
        });
        Self { waiting, task }
    }

    /// The instant at which this will have been seen. To be called before it can happen.
    fn expect(&self, name: &str, seen: Seen) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert((name.to_owned(), seen), sender);
        receiver
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How long attaches took.
#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Distribution {
    attaches: usize,
    min: Duration,
    median: Duration,
    p90: Duration,
    p99: Duration,
    max: Duration,
}

impl Distribution {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        Self {
            attaches: times.len(),
            min: at(0),
            median: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
        }
    }
}
