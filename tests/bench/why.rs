//! `make why`: how long `kubectl attacher why` takes in a full cluster.
//!
//! `PODS` (10,000) pods of one namespace, of which the first `VOLUMES` (5,000) use a claim each, whose VolumeAttachments are made
//! and not attached: the case that reads most. Each question is asked `ASKED` (10) times, each time by a process of its own.

use std::fmt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cluster::{Bench, DRIVER};
use crate::support::{Error, Result, built_program};
use crate::{progress, setting};

const LIMIT: Duration = Duration::from_mins(30);
const NAMESPACE: &str = "default";
/// Requests at a time while the cluster is filled.
const AT_ONCE: usize = 32;
/// Pods and volumes of a node.
const ON_A_NODE: usize = 50;
/// What an answer may take.
const BAR: Duration = Duration::from_secs(1);

/// How long the answers to one question took, the shortest first.
struct Asked {
    question: String,
    took: Vec<Duration>,
}

/// All figures.
pub struct Report {
    pods: usize,
    volumes: usize,
    asked: Vec<Asked>,
}

/// Measures.
pub async fn measure() -> Result<Report> {
    let (pods, volumes, times) = (
        setting("PODS", 10_000)?,
        setting("VOLUMES", 5_000)?,
        setting("ASKED", 10)?,
    );
    let bench = Bench::start_for(volumes, &[DRIVER]).await?;
    fill(&bench.client, pods, volumes.min(pods)).await?;
    progress("asking");
    let last = volumes.min(pods) - 1;
    let questions = [
        vec!["why".to_owned(), "pod".to_owned(), format!("pod-{last}")],
        vec!["why".to_owned(), "pvc".to_owned(), format!("claim-{last}")],
        vec!["why".to_owned(), "pv".to_owned(), format!("pv-{last}")],
        vec!["why".to_owned(), "va".to_owned(), format!("va-{last}")],
        vec!["list".to_owned(), "--stuck".to_owned()],
    ];
    let mut asked = Vec::new();
    for question in questions {
        asked.push(ask(&bench, &question, times).await?);
    }
    Ok(Report { pods, volumes, asked })
}

async fn ask(bench: &Bench, question: &[String], times: usize) -> Result<Asked> {
    let program = built_program("kubectl-attacher")?;
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        let output = Command::new(&program)
            .args(question)
            .env("KUBECONFIG", bench.cluster.admin_kubeconfig())
            .stdin(Stdio::null())
            .output()
            .await?;
        took.push(began.elapsed());
        // 3: a step blocks, as nobody serves the driver.
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(Error::Other(format!("{question:?}: {output:?}")));
        }
    }
    took.sort_unstable();
    Ok(Asked {
        question: question.join(" "),
        took,
    })
}

async fn create<K>(api: Api<K>, objects: impl Iterator<Item = Value>) -> Result<()>
where
    K: Clone + DeserializeOwned + serde::Serialize + fmt::Debug,
{
    let parameters = PostParams::default();
    stream::iter(objects)
        .map(|object| {
            let (api, parameters) = (api.clone(), parameters.clone());
            async move {
                let object: K = serde_json::from_value(object)?;
                let made = api.create(&parameters, &object).await;
                made.map(drop).map_err(Error::from)
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn fill(client: &Client, pods: usize, volumes: usize) -> Result<()> {
    let node = |number: usize| format!("node-{}", number / ON_A_NODE);
    progress("making nodes, volumes and claims");
    let nodes = (0..=pods / ON_A_NODE).map(|number| json!({"metadata": {"name": format!("node-{number}")}}));
    create::<Node>(Api::all(client.clone()), nodes).await?;
    let claims = (0..volumes).map(|number| {
        json!({
            "metadata": {"name": format!("claim-{number}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": format!("pv-{number}"),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        })
    });
    create::<PersistentVolumeClaim>(Api::namespaced(client.clone(), NAMESPACE), claims).await?;
    // Only the last ones are asked about, so only they have to be bound.
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    let last = format!("claim-{}", volumes - 1);
    let patched = api.patch_status(&last, &PatchParams::default(), &bound).await;
    patched?;
    let made = (0..volumes).map(|number| {
        json!({
            "metadata": {"name": format!("pv-{number}")},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": NAMESPACE, "name": format!("claim-{number}")},
                "csi": {"driver": DRIVER, "volumeHandle": format!("pv-{number}")},
            },
        })
    });
    create::<PersistentVolume>(Api::all(client.clone()), made).await?;
    let attachments = (0..volumes).map(|number| {
        let source = json!({"persistentVolumeName": format!("pv-{number}")});
        let spec = json!({"attacher": DRIVER, "nodeName": node(number), "source": source});
        json!({"metadata": {"name": format!("va-{number}")}, "spec": spec})
    });
    create::<VolumeAttachment>(Api::all(client.clone()), attachments).await?;
    progress("making pods");
    let pods = (0..pods).map(|number| {
        let volumes = if number < volumes {
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": format!("claim-{number}")}}])
        } else {
            json!([])
        };
        let containers = json!([{"name": "main", "image": "never-pulled"}]);
        let spec = json!({"nodeName": node(number), "containers": containers, "volumes": volumes});
        json!({"metadata": {"name": format!("pod-{number}")}, "spec": spec})
    });
    create::<Pod>(Api::namespaced(client.clone(), NAMESPACE), pods).await
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} pods of one namespace, {} volumes with a VolumeAttachment each",
            self.pods, self.volumes
        )?;
        for asked in &self.asked {
            let median = asked.took.get(asked.took.len() / 2).copied().unwrap_or_default();
            let longest = asked.took.last().copied().unwrap_or_default();
            writeln!(
                formatter,
                "{:<24} median {:.3} s, longest {:.3} s (< {} s)",
                asked.question,
                median.as_secs_f64(),
                longest.as_secs_f64(),
                BAR.as_secs()
            )?;
        }
        Ok(())
    }
}

/// How long all may take.
pub fn limit() -> Duration {
    LIMIT
}
