//! Asking how a Secret is without reading it, with no other right than to get it.
//!
//! Who may list or watch Secrets by name has no more than who may get them; that right is left out all the same, so that what
//! the operator is granted on Secrets is one word. So one Secret is asked for now and then, its metadata only.

use std::time::Duration;

use futures::{Stream, stream};
use http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::Body;
use serde::Deserialize;

use super::error::{ApiError, ApiErrorKind};
use super::requests::Requests;
use super::resource::SECRETS;
use crate::objects::{ResourceVersion, SecretReference};
use crate::telemetry::Span;

/// The pause after news; then it doubles with each look that brings none.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, hence how late news may be.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Asks the API server for the metadata alone.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// What became of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretEvent {
    /// It is there, in this version.
    State(ResourceVersion),
    /// It is not there, or not any more.
    Gone,
    /// It may not be read.
    Forbidden,
    /// The API server does not say, for another reason. Told only while nothing else was.
    Unknown,
}

impl SecretEvent {
    /// Whether it says more than the last one that did.
    pub fn is_news_after(self, told: Option<Self>) -> bool {
        match self {
            Self::Unknown => told.is_none(),
            _ => told != Some(self),
        }
    }
}

/// The pause before the next look: short after news, then twice as long each time.
pub fn pause_after(is_news: bool, last: Option<Duration>) -> Duration {
    match last {
        Some(last) if !is_news => (last * 2).min(LONGEST_PAUSE),
        _ => SHORTEST_PAUSE,
    }
}

impl Requests {
    /// Follows the metadata of a Secret: tells how it is, and what changes, 5 s late at most.
    pub fn follow_secret(&self, reference: &SecretReference) -> impl Stream<Item = SecretEvent> + Send + use<> {
        let follower = SecretPoller {
            requests: self.clone(),
            reference: reference.clone(),
            told: None,
            pause: None,
        };
        stream::unfold(follower, |mut follower| async move {
            let event = follower.next().await;
            Some((event, follower))
        })
    }

    /// How a Secret is now.
    pub async fn look_at_secret(&self, reference: &SecretReference) -> SecretEvent {
        match self.secret_version(reference).await {
            Ok(version) => SecretEvent::State(version),
            Err(error) if error.kind == ApiErrorKind::NotFound => SecretEvent::Gone,
            Err(error) if error.is_forbidden() => SecretEvent::Forbidden,
            Err(_) => SecretEvent::Unknown,
        }
    }

    /// The version of a Secret, whose contents stay with the API server.
    async fn secret_version(&self, reference: &SecretReference) -> Result<ResourceVersion, ApiError> {
        #[derive(Deserialize)]
        struct SecretMetadataWire {
            #[serde(default)]
            metadata: ObjectMeta,
        }
        let request = Request::get(SECRETS.url_of_secret(reference)?)
            .header(header::ACCEPT, METADATA_ONLY)
            .body(Body::empty());
        let wire: SecretMetadataWire = self.send(request, SECRETS, &Span::disabled()).await?;
        Ok(ResourceVersion::of(&wire.metadata))
    }
}

struct SecretPoller {
    requests: Requests,
    reference: SecretReference,
    told: Option<SecretEvent>,
    /// None before the first look.
    pause: Option<Duration>,
}

impl SecretPoller {
    async fn next(&mut self) -> SecretEvent {
        loop {
            if let Some(pause) = self.pause {
                tokio::time::sleep(pause).await;
            }
            let event = self.requests.look_at_secret(&self.reference).await;
            let is_news = event.is_news_after(self.told);
            self.pause = Some(pause_after(is_news, self.pause));
            if is_news {
                self.told = Some(event);
                return event;
            }
        }
    }
}
