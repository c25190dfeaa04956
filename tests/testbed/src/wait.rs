//! Waiting for a state of an object by watching it, always with a limit.

use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watch_object, watcher};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{Error, Result};

/// An object with a fixed kind and nothing special about it, as all of them here are.
pub trait Object: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static {}

impl<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static> Object for K {}

/// Waits until `condition` holds for the object of this name, which it gets as `None` while there is no such object.
/// Returns the object in the state that satisfied the condition. `what` goes into the error message.
///
/// A watch that the API server ends, or an outage of the API server, does not end the wait: the watch starts again.
pub async fn wait_for<K: Object>(
    api: Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    condition: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>> {
    let states = watch_object(api, name).default_backoff().boxed();
    let what = format!("{} {name}: {what}", K::kind(&()));
    first(states, &what, limit, |state| condition(state.as_ref())).await
}

/// Waits until there is an object for which `condition` holds, and returns it.
pub async fn wait_for_any<K: Object>(
    api: Api<K>,
    what: &str,
    limit: Duration,
    condition: impl Fn(&K) -> bool,
) -> Result<K> {
    let objects = watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(|event| {
            future::ready(match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => Some(Ok(object)),
                Ok(Event::Init | Event::InitDone | Event::Delete(_)) => None,
                Err(error) => Some(Err(error)),
            })
        });
    let what = format!("any {}: {what}", K::kind(&()));
    first(objects.boxed(), &what, limit, condition).await
}

/// The first item that matches. Errors are remembered for the message only: the stream recovers from them.
async fn first<T: Serialize>(
    mut items: impl Stream<Item = watcher::Result<T>> + Unpin,
    what: &str,
    limit: Duration,
    matches: impl Fn(&T) -> bool,
) -> Result<T> {
    let mut last = "nothing".to_owned();
    let search = async {
        while let Some(item) = items.next().await {
            match item {
                Ok(item) if matches(&item) => return Some(item),
                Ok(item) => last = describe(&item),
                Err(error) => last = error.to_string(),
            }
        }
        None
    };
    let found = tokio::time::timeout(limit, search).await.ok().flatten();
    found.ok_or_else(|| Error::TimedOut {
        what: what.to_owned(),
        limit,
        last,
    })
}

/// The JSON form of an object without the bookkeeping of server-side apply, which nobody wants to read.
fn describe(object: &impl Serialize) -> String {
    let mut json = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    json.to_string()
}
