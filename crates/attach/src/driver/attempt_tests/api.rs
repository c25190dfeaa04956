//! The API server, and who answers in its place.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{Barrier, watch};

use super::{LIMIT, VOLUMES};
use crate::cache::Store;
use crate::decide::patch::{PatchType, Write, WriteTarget};
use crate::objects::{Attachment, VolumeAttachmentWire};
use csi_attacher_testbed::api_answers::{apply, is_gone, not_found, refusal};

/// Changes what a patch of this path makes of an object, before it is stored.
pub(super) type Admission = Box<dyn Fn(&str, &mut Value) + Send>;

/// The API server: objects by path, and every patch in the order of arrival.
#[derive(Default)]
pub(super) struct Api {
    pub(super) objects: Mutex<BTreeMap<String, Value>>,
    pub(super) patches: Mutex<Vec<(String, Value, u16)>>,
    pub(super) version: Mutex<u64>,
    pub(super) changes: watch::Sender<()>,
    /// Patches of volumes wait here until so many have come.
    pub(super) volumes_together: Option<Barrier>,
    /// How many patches of volumes have come so far.
    pub(super) volume_patches: AtomicUsize,
    /// How many patches of a status are answered with 503 first.
    pub(super) out_of_order: Mutex<usize>,
    /// Answers that somebody on the way gives in place of the API server, which does not get the request.
    pub(super) untrue: Mutex<Vec<Untrue>>,
    /// Paths of what was read.
    pub(super) reads: Mutex<Vec<String>>,
    /// Whether reads of Secrets are answered with 403.
    pub(super) secrets_forbidden: AtomicBool,
    /// Whether patches of attachments wait.
    pub(super) hold_attachments: AtomicBool,
    /// Reads wait here, before they are answered and after, if they are to.
    pub(super) reads_together: Option<Barrier>,
    /// A mutating admission webhook.
    pub(super) admission: Mutex<Option<Admission>>,
    /// Paths of objects that somebody else changes before each patch of them; the watch has brought it before the answer.
    pub(super) contended: Mutex<Option<(String, Store)>>,
}

/// An answer that is not the API server's.
pub(super) struct Untrue {
    pub(super) method: Method,
    /// What the path ends in.
    pub(super) path: String,
    pub(super) times: usize,
    pub(super) code: u16,
    pub(super) body: String,
}

impl Api {
    /// One at which so many patches of volumes wait for each other.
    pub(super) fn volumes_together(count: usize) -> Self {
        Self {
            volumes_together: Some(Barrier::new(count)),
            ..Self::default()
        }
    }

    pub(super) fn put(&self, path: String, mut object: Value) -> Value {
        let mut version = self.version.lock();
        *version += 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.objects.lock().insert(path, object.clone());
        object
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().get(path).cloned()
    }

    /// Has somebody on the way answer the next so many requests of a kind.
    pub(super) fn answer_untruly(&self, method: Method, path: &str, times: usize, code: u16, body: &str) {
        self.untrue.lock().push(Untrue {
            method,
            path: path.to_owned(),
            times,
            code,
            body: body.to_owned(),
        });
    }

    /// Has the API server refuse the next so many patches of what ends so, as a policy or an admission webhook has it do.
    pub(super) fn refuse(&self, path: &str, times: usize, code: u16, message: &str) {
        self.answer_untruly(Method::PATCH, path, times, code, &refusal(code, message).to_string());
    }

    /// Has a webhook change the objects that are patched from now on.
    pub(super) fn admit(&self, admission: impl Fn(&str, &mut Value) + Send + 'static) {
        *self.admission.lock() = Some(Box::new(admission));
    }

    /// Has somebody else change this attachment before each patch of it.
    pub(super) fn contend(&self, path: String, store: &Store) {
        *self.contended.lock() = Some((path, store.clone()));
    }

    fn change_contended(&self, path: &str) {
        let contended = self.contended.lock();
        let Some((_, store)) = contended.as_ref().filter(|(contended, _)| contended == path) else {
            return;
        };
        if let Some(object) = self.get(path) {
            let object = self.put(path.to_owned(), object);
            store.apply::<Attachment>(serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into());
        }
    }

    pub(super) fn untrue_answer(&self, method: &Method, path: &str) -> Option<Response> {
        let mut all = self.untrue.lock();
        let is_meant =
            |untrue: &&mut Untrue| untrue.times > 0 && untrue.method == *method && path.ends_with(&untrue.path);
        let untrue = all.iter_mut().find(is_meant)?;
        untrue.times -= 1;
        Some((StatusCode::from_u16(untrue.code).unwrap(), untrue.body.clone()).into_response())
    }

    pub(super) async fn until(&self, reached: impl Fn(&Self) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !reached(self) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("in time");
    }

    /// Carries out a patch; the status and the object that is answered.
    pub(super) fn patch(&self, path: &str, form: PatchType, body: Value) -> (u16, Value) {
        let object_path = path.trim_end_matches("/status").to_owned();
        let Some(object) = self.get(&object_path) else {
            return (404, not_found(path));
        };
        let target = match (path.ends_with("/status"), path.starts_with(VOLUMES)) {
            (true, _) => WriteTarget::AttachmentStatus("".into()),
            (false, true) => WriteTarget::Volume("".into()),
            (false, false) => WriteTarget::Attachment("".into()),
        };
        let status = matches!(target, WriteTarget::AttachmentStatus(_));
        let mut out_of_order = self.out_of_order.lock();
        if status && *out_of_order > 0 {
            *out_of_order -= 1;
            return (503, refusal(503, "out of order"));
        }
        match apply(&object, &Write { target, form, body }) {
            Err(message) => (422, refusal(422, &message)),
            Ok(mut patched) => {
                if let Some(admit) = &*self.admission.lock() {
                    admit(path, &mut patched);
                }
                let stored = self.put(object_path.clone(), patched);
                if is_gone(&stored) {
                    self.objects.lock().remove(&object_path);
                }
                (200, stored)
            }
        }
    }
}

pub(super) async fn serve(State(api): State<Arc<Api>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET {
        api.reads.lock().push(path.clone());
        api.changes.send_replace(());
    }
    if let Some(untrue) = api.untrue_answer(request.method(), &path) {
        api.changes.send_replace(());
        return untrue;
    }
    let (code, object) = if request.method() == Method::GET {
        let answer = api.read(&path);
        if let Some(barrier) = &api.reads_together {
            barrier.wait().await;
            barrier.wait().await;
        }
        answer
    } else {
        let json_patch = request.headers()[header::CONTENT_TYPE] == "application/json-patch+json";
        let form = if json_patch { PatchType::Json } else { PatchType::Merge };
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        if path.starts_with(VOLUMES) {
            api.volume_patches.fetch_add(1, Ordering::SeqCst);
            api.changes.send_replace(());
        }
        if let Some(barrier) = api.volumes_together.as_ref().filter(|_| path.starts_with(VOLUMES)) {
            barrier.wait().await;
        }
        api.hold(&path).await;
        api.change_contended(&path);
        let (code, object) = api.patch(&path, form, body.clone());
        api.patches.lock().push((path, body, code));
        api.changes.send_replace(());
        (code, object)
    };
    (StatusCode::from_u16(code).unwrap(), axum::Json(object)).into_response()
}
