//! Requests that write events.

use http::{Request, header};
use kube::client::Body;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::error::ApiError;
use super::requests::Requests;
use super::resource::Resource;
use crate::api::names::FIELD_MANAGER;
use crate::telemetry::Span;

const EVENTS: Resource = Resource {
    name: "events",
    path: "/api/v1/namespaces/{:namespace}/events",
    kinds: &["Event"],
};
const EVENT: Resource = Resource {
    name: "events",
    path: "/api/v1/namespaces/{:namespace}/events/{:name}",
    kinds: &["Event"],
};

impl Requests {
    /// Creates an event.
    pub async fn create_event(&self, namespace: &str, body: &Value) -> Result<(), ApiError> {
        let url = EVENTS.path.replace("{:namespace}", namespace);
        let request = Request::post(format!("{url}?fieldManager={FIELD_MANAGER}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()));
        self.event(request, EVENTS).await
    }

    /// Changes an event by a merge patch.
    pub async fn change_event(&self, namespace: &str, name: &str, body: &Value) -> Result<(), ApiError> {
        let url = EVENT.path.replace("{:namespace}", namespace).replace("{:name}", name);
        let request = Request::patch(format!("{url}?fieldManager={FIELD_MANAGER}"))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(Body::from(body.to_string().into_bytes()));
        self.event(request, EVENT).await
    }

    /// An event is news about something that has its own spans, so it has none.
    async fn event(&self, request: http::Result<Request<Body>>, resource: Resource) -> Result<(), ApiError> {
        let answer: Result<IgnoredAny, ApiError> = self.send(request, resource, &Span::disabled()).await;
        answer.map(drop)
    }
}
