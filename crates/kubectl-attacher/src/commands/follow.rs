//! VolumeAttachments that a command watches, and one that it asks something of: the annotation, and what becomes of the object.

use csi_attacher_model::objects::{Attachment, VolumeAttachmentWire};
use futures::StreamExt;
use futures::stream::LocalBoxStream;
use http::Request;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

use super::{Context, tell};
use crate::error::{PluginError, Result};
use crate::gather::words;
use crate::observed::{Gap, GapReason};

/// Who writes, in `managedFields` and Events.
pub(super) const MANAGER: &str = "kubectl-attacher";

/// Between the starts of two watches. One whose stream ends is begun again at once, and an API server that ends every one of them would be
/// asked without a pause.
const START_INTERVAL: Duration = Duration::from_millis(800);

/// HTTP: the credentials do not count, and they do not allow it.
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;

/// Sets an annotation. A name comes back with another object; the UID does not.
pub(super) async fn annotate(
    context: &Context,
    record: &Attachment,
    annotation: &str,
    value: &str,
    dry_run: bool,
) -> Result<()> {
    let api: Api<VolumeAttachmentWire> = Api::all(context.client.clone());
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        dry_run,
        ..PatchParams::default()
    };
    let body = json!({"metadata": {"uid": &*record.uid, "annotations": {annotation: value}}});
    let name = &record.name;
    let patched = api.patch_metadata(name, &parameters, &Patch::Merge(&body)).await;
    patched.map(drop).map_err(|error| PluginError::Api {
        what: format!("cannot set the annotation {annotation} on VolumeAttachment {name}"),
        message: words(&error),
    })
}

/// Follows the object of this name until `look` has a result; it is handed none when the object is gone.
pub(super) async fn follow<T>(
    context: &Context,
    name: &str,
    mut look: impl FnMut(Option<VolumeAttachmentWire>) -> Option<T>,
) -> Result<T> {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut watch = Watch::new(context.client.clone(), only);
    // The API server has just answered: what fails now is tried again.
    watch.is_listed = true;
    let mut present = false;
    loop {
        let seen = match watch.next().await? {
            Ok(Event::Init) => {
                present = false;
                continue;
            }
            Ok(Event::InitDone) if present => continue,
            Ok(Event::InitDone | Event::Delete(_)) => None,
            Ok(Event::Apply(wire) | Event::InitApply(wire)) => {
                present = true;
                Some(wire)
            }
            Err(error) => {
                tell(&error);
                continue;
            }
        };
        if let Some(result) = look(seen) {
            return Ok(result);
        }
    }
}

/// An event, or an error that did not end the watch.
pub(super) type WatchResult = std::result::Result<Event<VolumeAttachmentWire>, String>;

/// A watch of VolumeAttachments that begins again after an error.
pub(super) struct Watch {
    stream: LocalBoxStream<'static, watcher::Result<Event<VolumeAttachmentWire>>>,
    is_listed: bool,
    has_failed: bool,
}

impl Watch {
    /// Of all, or of those that the configuration selects.
    pub(super) fn new(client: Client, config: watcher::Config) -> Self {
        let api = Api::<VolumeAttachmentWire>::all(paced(client));
        Self {
            stream: watcher(api, config).default_backoff().boxed_local(),
            is_listed: false,
            has_failed: false,
        }
    }

    /// What comes next. An error ends the watch if the API server did not answer even once, or does not let this user watch. Of others, the
    /// first is told until something is seen again.
    pub(super) async fn next(&mut self) -> Result<WatchResult> {
        while let Some(event) = self.stream.next().await {
            let error = match event {
                Ok(event) => {
                    self.is_listed |= matches!(event, Event::InitDone);
                    // It comes before the API server is asked.
                    self.has_failed &= matches!(event, Event::Init);
                    return Ok(Ok(event));
                }
                // The API server has forgotten what came since the last event; the list that follows has it.
                Err(watcher::Error::WatchError(status)) if status.code == 410 => continue,
                Err(error) => error,
            };
            let (error, is_final) = failure(&error);
            if !self.is_listed || is_final {
                return Err(error);
            }
            if !std::mem::replace(&mut self.has_failed, true) {
                return Ok(Err(error.to_string()));
            }
        }
        Err(PluginError::Api {
            what: "cannot watch volumeattachments".to_owned(),
            message: "the watch ended".to_owned(),
        })
    }
}

/// The same client, with pauses between watches. kube pauses after errors alone, and the end of a stream is none.
fn paced(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let last = Arc::new(Mutex::new(None::<Instant>));
    let service = service_fn(move |request: Request<Body>| {
        let (client, last) = (client.clone(), Arc::clone(&last));
        async move {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.split('&').any(|pair| pair.starts_with("watch="));
            if is_watch {
                let mut last = last.lock().await;
                if let Some(last) = *last {
                    sleep_until(last + START_INTERVAL).await;
                }
                *last = Some(Instant::now());
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

/// Why a watch failed, and whether that stays so: credentials that do not count any more, or a missing permission.
fn failure(error: &watcher::Error) -> (PluginError, bool) {
    let of = |error: &kube::Error| match error {
        kube::Error::Api(status) => (status.code, words(error)),
        _ => (0, words(error)),
    };
    let (verb, (code, message)) = match error {
        watcher::Error::InitialListFailed(error) => ("list", of(error)),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => ("watch", of(error)),
        watcher::Error::WatchError(status) => ("watch", (status.code, status.message.clone())),
        watcher::Error::NoResourceVersion => ("watch", (0, error.to_string())),
    };
    if code == FORBIDDEN {
        let gap = Gap {
            verb,
            group: "storage.k8s.io".to_owned(),
            resource: "volumeattachments".to_owned(),
            namespace: None,
            reason: GapReason::Forbidden,
        };
        return (PluginError::Unreadable(gap), true);
    }
    let error = PluginError::Api {
        what: format!("cannot {verb} volumeattachments"),
        message,
    };
    (error, code == UNAUTHORIZED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, attachment, list};
    use crate::error::{EXIT_ERROR, EXIT_UNKNOWN};

    /// An API server that answers a list and a watch so.
    fn server(listed: Answer, watched: u16) -> ApiServerFixture {
        ApiServerFixture::start(move |_, query| {
            if query.contains("watch=") {
                Err(watched)
            } else {
                listed.clone()
            }
        })
    }

    fn watch(server: &ApiServerFixture) -> Watch {
        Watch::new(server.context().client, watcher::Config::default())
    }

    /// The events until something else comes.
    async fn failed(watch: &mut Watch) -> Result<String> {
        loop {
            if let Err(told) = watch.next().await? {
                return Ok(told);
            }
        }
    }

    #[tokio::test]
    async fn a_watch_that_cannot_begin_ends() {
        let listed = || Ok(list(&[attachment("csi-1")]));
        let rows = [
            (
                server(Err(401), 401),
                EXIT_ERROR,
                "cannot list volumeattachments: error 401",
            ),
            (server(Err(403), 403), EXIT_UNKNOWN, "verbs: [\"list\"]"),
            (server(listed(), 403), EXIT_UNKNOWN, "verbs: [\"watch\"]"),
        ];
        for (server, code, says) in rows {
            let error = failed(&mut watch(&server)).await.unwrap_err();
            assert_eq!(error.exit_code(), code, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[tokio::test]
    async fn an_error_is_told_once() {
        let server = server(Ok(list(&[attachment("csi-1")])), 500);
        let mut watch = watch(&server);
        let told = failed(&mut watch).await.unwrap();
        assert!(told.starts_with("cannot watch volumeattachments: error 500"), "{told}");
        let asked_again = async {
            let is_watch = |request: &&String| request.contains("watch=");
            while server.requests().iter().filter(is_watch).count() < 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            told = failed(&mut watch) => panic!("told again: {told:?}"),
            () = asked_again => {}
        }
    }

    #[tokio::test]
    async fn a_watch_that_ends_at_once_is_not_begun_without_a_pause() {
        let server = ApiServerFixture::start(|_, query| {
            let seen = attachment("csi-1");
            if query.contains("watch=") {
                Ok(json!({"type": "MODIFIED", "object": seen}))
            } else {
                Ok(list(&[seen]))
            }
        });
        let mut watch = watch(&server);
        let events = async { while matches!(watch.next().await, Ok(Ok(_))) {} };
        let began = Instant::now();
        let ended = tokio::time::timeout(2 * START_INTERVAL, events).await;
        assert!(ended.is_err(), "it goes on");
        let requests = server.requests();
        let watches = requests.iter().filter(|request| request.contains("watch=")).count();
        let most = 1.0 + began.elapsed().as_secs_f64() / START_INTERVAL.as_secs_f64();
        assert!(watches >= 1 && watches as f64 <= most, "{requests:?}");
    }
}
