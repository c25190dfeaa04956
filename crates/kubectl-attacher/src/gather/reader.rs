//! Single reads, in pages, whose failures are kept as gaps.

use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use kube_core::ClusterResourceScope;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Mutex;

use crate::error::{PluginError, Result};
use crate::observed::{Gap, GapReason, Lookup};

/// Objects of one page: a cluster may have ten thousand pods.
const PAGE: u32 = 2_000;

/// Reads with the caller's permissions.
pub struct Reader {
    client: Client,
    gaps: Mutex<Vec<Gap>>,
}

/// A resource, as it is named in RBAC rules.
#[derive(Clone, Copy, Debug)]
pub struct ResourceName {
    /// API group.
    pub group: &'static str,
    /// Plural.
    pub plural: &'static str,
}

impl ResourceName {
    /// A resource of an API group; the core group is empty.
    pub const fn new(group: &'static str, plural: &'static str) -> Self {
        Self { group, plural }
    }
}

/// What the reader needs of a type.
pub trait Readable: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()> {}
impl<K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()>> Readable for K {}

impl Reader {
    /// Reads by a client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            gaps: Mutex::default(),
        }
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What could not be read so far, each once, in an order that does not depend on which answer came first.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = self.gaps.lock().map(|gaps| gaps.clone()).unwrap_or_default();
        gaps.sort_by(|one, other| (one.group, one.resource, one.verb).cmp(&(other.group, other.resource, other.verb)));
        gaps
    }

    fn note(&self, gap: Gap) {
        if let Ok(mut gaps) = self.gaps.lock()
            && !gaps.contains(&gap)
        {
            gaps.push(gap);
        }
    }

    /// All objects of a kind.
    pub fn cluster<K: Readable + Resource<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Objects of a namespace.
    pub fn namespaced<K: Readable + Resource<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// One object.
    pub async fn get<K: Readable>(&self, api: Api<K>, resource: ResourceName, name: &str) -> Lookup<K> {
        match api.get_opt(name).await {
            Ok(Some(object)) => Lookup::Found(object),
            Ok(None) => Lookup::Missing,
            Err(error) => {
                self.note(gap("get", resource, api.namespace(), &error));
                Lookup::Unknown
            }
        }
    }

    /// The metadata of one object: of a Secret nothing else is ever read.
    pub async fn exists<K: Readable>(&self, api: Api<K>, resource: ResourceName, name: &str) -> Lookup<()> {
        match api.get_metadata_opt(name).await {
            Ok(Some(_)) => Lookup::Found(()),
            Ok(None) => Lookup::Missing,
            Err(error) => {
                self.note(gap("get", resource, api.namespace(), &error));
                Lookup::Unknown
            }
        }
    }

    /// The object of the question: without it there is no answer.
    pub async fn require<K: Readable>(&self, api: Api<K>, resource: ResourceName, name: &str) -> Result<Option<K>> {
        let namespace = api.namespace().map(str::to_owned);
        match api.get_opt(name).await {
            Ok(found) => Ok(found),
            Err(error) if is_status(&error) => Err(PluginError::Unreadable(gap(
                "get",
                resource,
                namespace.as_deref(),
                &error,
            ))),
            Err(error) => Err(PluginError::Api {
                what: format!("cannot get {} {name}", resource.plural),
                message: words(&error),
            }),
        }
    }

    /// A list, page by page. Missing when the API server does not know the resource.
    pub async fn list<K: Readable>(
        &self,
        api: Api<K>,
        resource: ResourceName,
        parameters: ListParams,
    ) -> Lookup<Vec<K>> {
        match pages(&api, &parameters).await {
            Ok(items) => Lookup::Found(items),
            Err(kube::Error::Api(status)) if status.code == 404 => Lookup::Missing,
            Err(error) => {
                self.note(gap("list", resource, api.namespace(), &error));
                Lookup::Unknown
            }
        }
    }

    /// The names of a kind, for those who mistyped one.
    pub async fn names<K: Readable>(&self, api: Api<K>) -> Vec<String> {
        let page = api.list_metadata(&ListParams::default().limit(PAGE)).await;
        let items = page.map(|list| list.items).unwrap_or_default();
        items.into_iter().filter_map(|item| item.metadata.name).collect()
    }
}

/// All pages of a list. One that takes so long that its continuation expires is read again, whole.
async fn pages<K: Readable>(api: &Api<K>, parameters: &ListParams) -> Result<Vec<K>, kube::Error> {
    let mut items = Vec::new();
    let mut parameters = parameters.clone().limit(PAGE);
    loop {
        let page = match api.list(&parameters).await {
            Err(kube::Error::Api(status)) if status.code == 410 => {
                items.clear();
                parameters.limit = None;
                parameters.continue_token = None;
                api.list(&parameters).await?
            }
            page => page?,
        };
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(items),
        }
    }
}

fn is_status(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(_))
}

fn gap(verb: &'static str, resource: ResourceName, namespace: Option<&str>, error: &kube::Error) -> Gap {
    let reason = match error {
        kube::Error::Api(status) if status.is_forbidden() => GapReason::Forbidden,
        error => GapReason::Failed(words(error)),
    };
    Gap {
        verb,
        group: resource.group,
        resource: resource.plural,
        namespace: namespace.map(str::to_owned),
        reason,
    }
}

/// An error of the client, with its causes.
pub fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
