//! Whom a bearer token belongs to and what its owner may do: questions that only the API server can answer.
//!
//! None of it has a span, as it is about no volume, and the token is in the body of one request and nowhere else.

use http::{Request, header};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::error::ApiError;
use super::requests::Requests;
use super::resource::Resource;
use crate::telemetry::Span;

const TOKENS: Resource = Resource {
    name: "tokenreviews",
    path: "/apis/authentication.k8s.io/v1/tokenreviews",
    kinds: &["TokenReview"],
};
const ACCESS: Resource = Resource {
    name: "subjectaccessreviews",
    path: "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    kinds: &["SubjectAccessReview"],
};

/// Whom a token belongs to, as `status.user` of a TokenReview has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct UserInfo {
    /// Such as `system:serviceaccount:monitoring:prometheus`.
    #[serde(default)]
    pub username: String,
    /// Tells apart users of one name over time.
    #[serde(default)]
    pub uid: String,
    /// Groups, such as `system:authenticated`.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What else the authenticator tells of it.
    #[serde(default)]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Both kinds of review answer in their status.
#[derive(Deserialize)]
struct ReviewResponse<T> {
    status: T,
}

impl Requests {
    /// Asks whom a token belongs to (TokenReview); `None` when it is no valid one.
    pub async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, ApiError> {
        #[derive(Deserialize)]
        struct TokenReviewStatus {
            #[serde(default)]
            authenticated: bool,
            #[serde(default)]
            user: UserInfo,
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let ReviewResponse { status } = self.review::<ReviewResponse<TokenReviewStatus>>(TOKENS, &body).await?;
        let known = status.authenticated && !status.user.username.is_empty();
        Ok(known.then_some(status.user))
    }

    /// Asks whether somebody may GET a path that is no resource (SubjectAccessReview).
    pub async fn may_get(&self, who: &UserInfo, path: &str) -> Result<bool, ApiError> {
        #[derive(Deserialize)]
        struct TokenReviewStatus {
            #[serde(default)]
            allowed: bool,
            #[serde(default)]
            denied: bool,
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": who.username, "uid": who.uid, "groups": who.groups, "extra": who.extra,
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        });
        let ReviewResponse { status } = self.review::<ReviewResponse<TokenReviewStatus>>(ACCESS, &body).await?;
        Ok(status.allowed && !status.denied)
    }

    async fn review<T: DeserializeOwned>(&self, resource: Resource, body: &Value) -> Result<T, ApiError> {
        let request = Request::post(resource.path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()));
        self.send(request, resource, &Span::disabled()).await
    }
}
