//! The request that reads what a CSIDriver says about attaching.

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::Body;
use serde::Deserialize;

use super::error::{ApiError, ApiErrorKind};
use super::requests::Requests;
use super::resource::{Resource, is_segment};
use crate::telemetry::Span;

const DRIVERS: Resource = Resource {
    name: "csidrivers",
    path: "/apis/storage.k8s.io/v1/csidrivers/{:name}",
    kinds: &["CSIDriver"],
};

/// The part of a CSIDriver that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `spec.attachRequired`; true where the object does not say, as the API server has it.
    pub attach_required: bool,
}

#[derive(Deserialize)]
struct CsiDriverWire {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: CsiDriverSpecWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiDriverSpecWire {
    attach_required: Option<bool>,
}

impl Requests {
    /// Reads the CSIDriver of a name.
    pub async fn csi_driver(&self, name: &str) -> Result<CsiDriver, ApiError> {
        // The name is what a driver answered: free text, which must not lead to another object than a CSIDriver.
        if !is_segment(name) {
            let message = "the driver's name cannot be that of an object";
            return Err(ApiError::without_answer(ApiErrorKind::Refused, message));
        }
        let request = Request::get(DRIVERS.url(name)).body(Body::empty());
        let wire: CsiDriverWire = self.send(request, DRIVERS, &Span::disabled()).await?;
        Ok(CsiDriver {
            uid: wire.metadata.uid.unwrap_or_default().into(),
            attach_required: wire.spec.attach_required.unwrap_or(true),
        })
    }
}
