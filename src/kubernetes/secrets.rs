//! Following one Secret without reading it.

use futures::{Stream, StreamExt, future};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};

use super::requests::Requests;
use crate::objects::{ResourceVersion, SecretReference};

/// What became of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretEvent {
    /// It is there, in this version.
    State(ResourceVersion),
    /// It is not there, or not any more.
    Gone,
    /// It may not be watched.
    Forbidden,
}

impl Requests {
    /// Follows the metadata of a Secret. After a fault of the API server, or when it may not be watched, it starts over by
    /// itself, with pauses of up to 30 s.
    pub fn watch_secret(&self, reference: &SecretReference) -> impl Stream<Item = SecretEvent> + Send + use<> {
        // Asking for this type asks the API server for metadata alone.
        let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client().clone(), &reference.namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={}", reference.name));
        watcher(api, only)
            .default_backoff()
            .scan(false, |listed, event| future::ready(Some(told(event, listed))))
            .filter_map(future::ready)
    }
}

/// `listed` is whether the list that comes in has the Secret.
fn told(event: watcher::Result<Event<PartialObjectMeta<Secret>>>, listed: &mut bool) -> Option<SecretEvent> {
    match event {
        Ok(Event::Apply(object)) => Some(SecretEvent::State(ResourceVersion::of(&object.metadata))),
        Ok(Event::InitApply(object)) => {
            *listed = true;
            Some(SecretEvent::State(ResourceVersion::of(&object.metadata)))
        }
        Ok(Event::Delete(_)) => Some(SecretEvent::Gone),
        Ok(Event::Init) => {
            *listed = false;
            None
        }
        Ok(Event::InitDone) => (!*listed).then_some(SecretEvent::Gone),
        Err(error) => is_forbidden(&error).then_some(SecretEvent::Forbidden),
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let cause = match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => cause,
        watcher::Error::WatchError(status) => return status.code == 403,
        watcher::Error::NoResourceVersion => return false,
    };
    matches!(cause, kube::Error::Api(status) if status.code == 401 || status.code == 403)
}
