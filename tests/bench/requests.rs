//! Raw requests to the API server over the same HTTP/2 client that the operator uses, many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Request, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use csi_attacher_model::decide::Write;
use csi_attacher_model::decide::patch::{PatchType, WriteTarget};
use csi_attacher_model::provision::patch::ClaimWrite;

use super::support::{Error, Result};

/// Requests in flight: what the default settings allow the operator (`concurrency.attach`).
pub const IN_FLIGHT: usize = 100;

/// The namespace of all claims.
pub const CLAIMS: &str = "bench";
/// Where PersistentVolumes are.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Where the claims are.
pub fn claims() -> String {
    format!("/api/v1/namespaces/{CLAIMS}/persistentvolumeclaims")
}

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Prepared {
    method: http::Method,
    uri: String,
    content_type: &'static str,
    body: Vec<u8>,
}

impl Prepared {
    /// The patch that the operator would send.
    pub fn patch(write: &Write) -> Self {
        let path = match &write.target {
            WriteTarget::Volume(name) => format!("{VOLUMES}/{name}"),
            WriteTarget::Attachment(name) => format!("{ATTACHMENTS}/{name}"),
            WriteTarget::AttachmentStatus(name) => format!("{ATTACHMENTS}/{name}/status"),
        };
        Self {
            method: http::Method::PATCH,
            uri: format!("{path}?fieldManager=csi-attacher-operator"),
            content_type: match write.form {
                PatchType::Json => "application/json-patch+json",
                PatchType::Merge => "application/merge-patch+json",
            },
            body: write.body.to_string().into_bytes(),
        }
    }

    /// The patch of a claim that the operator would send.
    pub fn patch_claim(write: &ClaimWrite) -> Self {
        let path = format!("{}/{}?fieldManager=csi-attacher-operator", claims(), write.name);
        Self::body(http::Method::PATCH, &path, "application/json-patch+json", &write.body)
    }

    /// Changes these fields of an object.
    pub fn merge(path: &str, fields: &Value) -> Self {
        Self::body(http::Method::PATCH, path, "application/merge-patch+json", fields)
    }

    /// Makes an object of a collection.
    pub fn create(collection: &str, object: &Value) -> Self {
        Self {
            method: http::Method::POST,
            uri: collection.to_owned(),
            content_type: "application/json",
            body: object.to_string().into_bytes(),
        }
    }

    /// Makes a PersistentVolume of a driver, as a provisioner does.
    pub fn create_volume(name: &str, driver: &str) -> Self {
        Self::create_volume_with(name, driver, "ReadWriteOnce")
    }

    /// The same with this access mode.
    pub fn create_volume_with(name: &str, driver: &str, mode: &str) -> Self {
        let attributes =
            json!({"storage.kubernetes.io/csiProvisionerIdentity": format!("1700000000000-8081-{driver}")});
        let csi = json!({
            "driver": driver, "volumeHandle": format!("vol-{name}"), "fsType": "ext4", "volumeAttributes": attributes,
        });
        let claim = json!({"namespace": CLAIMS, "name": format!("claim-{name}"), "uid": format!("uid-{name}")});
        let spec = json!({
            "capacity": {"storage": "1Gi"}, "accessModes": [mode], "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "bench", "claimRef": claim, "csi": csi,
        });
        let metadata = json!({"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": driver}});
        Self::create(
            VOLUMES,
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}),
        )
    }

    /// Makes a VolumeAttachment, as the attach/detach controller does.
    pub fn create_attachment(name: &str, driver: &str, volume: &str, node: &str) -> Self {
        let spec = json!({"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}});
        Self::create(
            ATTACHMENTS,
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec,
            }),
        )
    }

    /// Makes the CSINode of a node that has these drivers, as a kubelet does.
    pub fn create_csi_node(name: &str, drivers: &[&str]) -> Self {
        let drivers = drivers
            .iter()
            .map(|driver| json!({"name": driver, "nodeID": format!("id-{name}")}));
        let spec = json!({"drivers": drivers.collect::<Vec<_>>()});
        Self::create(
            "/apis/storage.k8s.io/v1/csinodes",
            &json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": spec}),
        )
    }

    fn body(method: http::Method, path: &str, content_type: &'static str, body: &Value) -> Self {
        Self {
            method,
            uri: path.to_owned(),
            content_type,
            body: body.to_string().into_bytes(),
        }
    }

    /// Asks for the end of a PersistentVolume, if it is still the one with this UID: as a provisioner does.
    pub fn delete_volume_of(name: &str, uid: &str) -> Self {
        let options = json!({"preconditions": {"uid": uid}});
        Self::body(
            http::Method::DELETE,
            &format!("{VOLUMES}/{name}"),
            "application/json",
            &options,
        )
    }

    /// Asks for the end of a claim.
    pub fn delete_claim(name: &str) -> Self {
        Self::delete(&claims(), name)
    }

    fn delete(collection: &str, name: &str) -> Self {
        Self {
            method: http::Method::DELETE,
            uri: format!("{collection}/{name}"),
            content_type: "application/json",
            body: Vec::new(),
        }
    }

    fn list(collection: &str, limit: usize) -> Self {
        Self {
            method: http::Method::GET,
            uri: format!("{collection}?limit={limit}"),
            content_type: "application/json",
            body: Vec::new(),
        }
    }

    /// Lists PersistentVolumes.
    pub fn list_volumes(limit: usize) -> Self {
        Self::list(VOLUMES, limit)
    }

    /// Lists VolumeAttachments.
    pub fn list_attachments(limit: usize) -> Self {
        Self::list(ATTACHMENTS, limit)
    }

    /// Asks for the end of a PersistentVolume.
    pub fn delete_volume(name: &str) -> Self {
        Self::delete(VOLUMES, name)
    }

    /// Asks for the end of a VolumeAttachment.
    pub fn delete_attachment(name: &str) -> Self {
        Self::delete(ATTACHMENTS, name)
    }

    /// Sends it, and returns the body of the answer. Anything but success is an error.
    pub async fn send(&self, client: &Client) -> Result<Vec<u8>> {
        let failed = |error: String| Error::Other(format!("{} {}: {error}", self.method, self.uri));
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&self.uri)
            .header(header::CONTENT_TYPE, self.content_type)
            .body(Body::from(self.body.clone()))
            .map_err(|error| failed(error.to_string()))?;
        let answer = client.send(request).await.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
        if status.is_success() {
            return Ok(body.to_vec());
        }
        Err(failed(format!("{status} {}", String::from_utf8_lossy(&body))))
    }

    /// Sends it and decodes the object that the API server made of it.
    pub async fn send_for<T: DeserializeOwned>(&self, client: &Client) -> Result<T> {
        Ok(serde_json::from_slice(&self.send(client).await?)?)
    }
}

/// Does `work` for each item, [`IN_FLIGHT`] at a time, and returns what came of each, in order, and how long all took.
pub async fn each<I, T, F>(items: Vec<I>, work: impl Fn(I) -> F + Send + Sync + 'static) -> Result<(Vec<T>, Duration)>
where
    I: Clone + Send + Sync + 'static,
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let shared = Arc::new((items, work, AtomicUsize::new(0)));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let shared = shared.clone();
        workers.spawn(async move {
            let (items, work, next) = &*shared;
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else { return Ok(done) };
                done.push((at, work(item.clone()).await?));
            }
        });
    }
    let mut all = Vec::new();
    while let Some(done) = workers.join_next().await {
        let done: Result<Vec<(usize, T)>> = done.map_err(|error| Error::Other(error.to_string()))?;
        all.extend(done?);
    }
    let took = started.elapsed();
    all.sort_by_key(|(at, _)| *at);
    Ok((all.into_iter().map(|(_, result)| result).collect(), took))
}

/// Sends requests as fast as the API server takes them; returns how long that took.
pub async fn send_all(client: &Client, requests: Vec<Prepared>) -> Result<Duration> {
    let client = client.clone();
    let (_, took) = each(requests, move |request| {
        let client = client.clone();
        async move { request.send(&client).await.map(drop) }
    })
    .await?;
    Ok(took)
}
