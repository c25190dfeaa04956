//! Single reads, in pages, whose failures are kept as gaps.

use csi_attacher_base::error_chain::chain;
use csi_attacher_kubeconfig::ValueError;
use kube::api::{ListParams, ObjectList};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource};
use kube_core::ClusterResourceScope;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::nearest::nearest;
use crate::error::{PluginError, Result};
use crate::observed::{Gap, GapReason, Lookup};

/// Objects of one page: a cluster may have ten thousand pods.
const PAGE_SIZE: u32 = 2_000;
/// Requests at once, whoever asks: over HTTP/1.1 each has a connection of its own, and a process may open a few hundred files.
const AT_ONCE: usize = 16;

/// Reads with the caller's permissions.
pub struct Reader {
    client: Client,
    gaps: Mutex<Vec<Gap>>,
    turns: Semaphore,
}

/// What the reader needs of a type.
pub trait Readable: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()> {}
impl<K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()>> Readable for K {}

impl Reader {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            gaps: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What could not be read so far, each once, in an order that does not depend on which answer came first.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = self.gaps.lock().map(|gaps| gaps.clone()).unwrap_or_default();
        gaps.sort_by_key(|gap| (gap.group.clone(), gap.resource.clone(), gap.verb));
        gaps
    }

    /// Waits until few enough requests are under way. The semaphore is never closed.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// What an answer says. A failure is kept as a gap.
    fn lookup<K: Readable, T>(
        &self,
        verb: &'static str,
        api: &Api<K>,
        answer: Result<Option<T>, kube::Error>,
    ) -> Lookup<T> {
        let error = match answer {
            Ok(found) => return found.into(),
            Err(error) => error,
        };
        let gap = gap(verb, api, &error);
        if let Ok(mut gaps) = self.gaps.lock()
            && !gaps.contains(&gap)
        {
            gaps.push(gap);
        }
        Lookup::Unknown
    }

    pub fn cluster<K: Readable + Resource<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub fn namespaced<K: Readable + Resource<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn get<K: Readable>(&self, api: Api<K>, name: &str) -> Lookup<K> {
        let _turn = self.turn().await;
        self.lookup("get", &api, api.get_opt(name).await)
    }

    /// The metadata of one object: of a Secret nothing else is ever read.
    pub async fn exists<K: Readable>(&self, api: Api<K>, name: &str) -> Lookup<()> {
        let _turn = self.turn().await;
        self.lookup("get", &api, api.get_metadata_opt(name).await).map(drop)
    }

    /// The object of the question: without it there is no answer.
    pub async fn require<K: Readable>(&self, api: Api<K>, name: &str) -> Result<Option<K>> {
        let _turn = self.turn().await;
        let found = api.get_opt(name).await;
        found.map_err(|error| {
            let what = format!("cannot get {} {name}", K::plural(&()));
            unanswered(what, gap("get", &api, &error), &error)
        })
    }

    /// What is made of a list, page by page. Missing when the API server does not know the resource.
    pub async fn list<K: Readable, T: From<K>>(&self, api: Api<K>, parameters: ListParams) -> Lookup<Vec<T>> {
        let _turn = self.turn().await;
        let listed = pages(&parameters, async |page: &ListParams| api.list(page).await, T::from).await;
        let listed = match listed {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            listed => listed.map(Some),
        };
        self.lookup("list", &api, listed)
    }

    /// All names of a kind. Where they cannot be listed there is no answer: a name that is not seen may begin as the one asked for.
    pub async fn names<K: Readable>(&self, api: Api<K>) -> Result<Vec<String>> {
        let listed = self.all_names(&api).await;
        listed.map_err(|error| {
            let what = format!("cannot list {}", K::plural(&()));
            unanswered(what, gap("list", &api, &error), &error)
        })
    }

    /// Names like one that does not exist, for those who mistyped it; none where they cannot be listed.
    pub async fn nearest<K: Readable>(&self, api: Api<K>, name: &str) -> Vec<String> {
        nearest(name, &self.all_names(&api).await.unwrap_or_default())
    }

    /// Asks for metadata only, and keeps nothing but the names of a page.
    async fn all_names<K: Readable>(&self, api: &Api<K>) -> Result<Vec<String>, kube::Error> {
        let _turn = self.turn().await;
        let name = |object: PartialObjectMeta<K>| object.metadata.name.unwrap_or_default();
        let every = ListParams::default();
        pages(&every, async |page: &ListParams| api.list_metadata(page).await, name).await
    }
}

/// What `take` makes of the objects of all pages of a list. One that takes so long that its continuation expires is read again, whole.
async fn pages<T: Clone, U>(
    parameters: &ListParams,
    list: impl AsyncFn(&ListParams) -> Result<ObjectList<T>, kube::Error>,
    take: impl Fn(T) -> U,
) -> Result<Vec<U>, kube::Error> {
    let mut items = Vec::new();
    let mut parameters = parameters.clone().limit(PAGE_SIZE);
    loop {
        let mut page = list(&parameters).await;
        if matches!(&page, Err(kube::Error::Api(status)) if status.code == 410) {
            items.clear();
            parameters.limit = None;
            parameters.continue_token = None;
            page = list(&parameters).await;
        }
        let page = page?;
        items.extend(page.items.into_iter().map(&take));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(items),
        }
    }
}

/// Why there is no answer: what the API server says, or that it cannot be asked.
fn unanswered(what: String, gap: Gap, error: &kube::Error) -> PluginError {
    if matches!(error, kube::Error::Api(_)) {
        PluginError::Unreadable(gap)
    } else {
        let message = words(error);
        PluginError::Api { what, message }
    }
}

fn gap<K: Readable>(verb: &'static str, api: &Api<K>, error: &kube::Error) -> Gap {
    let reason = match error {
        kube::Error::Api(status) if status.is_forbidden() => GapReason::Forbidden,
        error => GapReason::Failed(words(error)),
    };
    Gap {
        verb,
        group: K::group(&()).into_owned(),
        resource: K::plural(&()).into_owned(),
        namespace: api.namespace().map(str::to_owned),
        reason,
    }
}

/// An error of the client, with its causes, and without the values that kube quotes.
pub fn words(error: &kube::Error) -> String {
    if let Some(value) = ValueError::of(error) {
        return value.to_string();
    }
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    chain(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server_fixture::{Answer, ApiServerFixture, list, page};
    use crate::error::{EXIT_ERROR, EXIT_UNKNOWN};
    use csi_attacher_model::objects::PersistentVolumeWire;
    use futures::future::join_all;
    use serde_json::json;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// A node with many VolumeAttachments, or many drivers: each request has a connection of its own.
    #[tokio::test]
    async fn few_requests_are_made_at_once() {
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let peak = Arc::clone(&most);
        let server = ApiServerFixture::start(move |_, _| {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            open.fetch_sub(1, Ordering::SeqCst);
            Err(404)
        });
        let sources = server.sources();
        let names: Vec<String> = (0..100).map(|number| format!("node-{number}")).collect();
        join_all(names.iter().map(|name| sources.node(name))).await;
        assert_eq!(server.requests().len(), 200, "a node and its CSINode");
        let peak = peak.load(Ordering::SeqCst);
        assert!((2..=AT_ONCE).contains(&peak), "{peak}");
    }

    /// The names that are listed when this is what comes after the first page.
    async fn names(second: Answer) -> Result<Vec<String>> {
        let first = json!({"metadata": {"name": "pv-1"}});
        let last = json!({"metadata": {"name": "pv-2"}});
        let server = ApiServerFixture::start(move |_, query| {
            if query.contains("continue=") {
                second.clone()
            } else if query.contains("limit=") {
                Ok(page(std::slice::from_ref(&first), "second"))
            } else {
                Ok(list(&[first.clone(), last.clone()]))
            }
        });
        let reader = server.sources().reader;
        let listed = reader.names(reader.cluster::<PersistentVolumeWire>()).await;
        let like = reader.nearest(reader.cluster::<PersistentVolumeWire>(), "pv-3").await;
        assert_eq!(like, listed.as_deref().unwrap_or_default());
        listed
    }

    #[tokio::test]
    async fn names_are_those_of_all_pages() {
        let second = list(&[json!({"metadata": {"name": "pv-2"}})]);
        assert_eq!(names(Ok(second)).await.unwrap(), ["pv-1", "pv-2"]);
        assert_eq!(names(Err(410)).await.unwrap(), ["pv-1", "pv-2"], "read again");
    }

    #[tokio::test]
    async fn a_page_that_is_missing_is_an_error() {
        for (code, exit_code) in [(403, EXIT_UNKNOWN), (500, EXIT_ERROR)] {
            let error = names(Err(code)).await.unwrap_err();
            assert_eq!(error.exit_code(), exit_code, "{error}");
            assert!(
                error.to_string().starts_with("cannot list persistentvolumes"),
                "{error}"
            );
        }
    }
}
