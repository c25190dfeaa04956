//! The Secret of the calls of one attempt: read live, and kept for no longer than that.

use crate::apiserver::{ApiError, Requests, SecretData, SecretWire};
use crate::objects::{ResourceVersion, SecretReference};
use crate::telemetry::Span;

/// The Secret that was read last.
#[derive(Default)]
pub(crate) struct HeldSecret(Option<(SecretReference, SecretData)>);

impl HeldSecret {
    /// Reads a Secret, and keeps its contents.
    pub async fn read(&mut self, requests: &Requests, of: SecretReference, span: &Span) -> Result<(), ApiError> {
        let secret = requests.get::<SecretWire>(&of, None, span).await?;
        self.0 = Some((of, secret.into()));
        Ok(())
    }

    /// The version of a Secret, if it is the one that was read.
    pub fn version_of(&self, wanted: Option<&SecretReference>) -> Option<ResourceVersion> {
        self.of(wanted).map(|data| data.version())
    }

    /// The contents of a Secret, if it is the one that was read.
    pub fn of(&self, wanted: Option<&SecretReference>) -> Option<SecretData> {
        let (of, data) = self.0.as_ref()?;
        (Some(of) == wanted).then(|| data.clone())
    }
}
