//! What an attempt reads from the API server by itself: a publish secret, and objects that the watches may be late with.

use std::sync::Arc;

use super::super::permissions;
use super::super::secret_waiters::Withheld;
use super::cause::FailureCause;
use super::state::{Attempt, StepResult};
use crate::apiserver::Returned;
use crate::cache::Snapshot;
use crate::decide::patch::WriteTarget;
use crate::decide::{Failure, Observed};
use crate::objects::SecretReference;

impl Attempt<'_> {
    /// Takes in a volume that the cache does not know, if there is one. The watch of volumes may be behind that of
    /// attachments, which told us of this one: an error on the attachment, gone again a moment later, would only alarm
    /// people. One that has gone meanwhile is not taken in.
    pub(in crate::driver) async fn fetch_volume(&self, name: Arc<str>) {
        let reading = self.work.context.store.read_volume(&name);
        let answer = self
            .work
            .context
            .requests
            .get(&WriteTarget::Volume(name), &self.span)
            .await;
        if let Ok(Returned::Volume(record)) = answer
            && !record.is_gone()
        {
            reading.volume(*record);
        }
    }

    /// The same for the CSINode: a driver registers at the moment that the first pods come to a new node.
    pub(in crate::driver) async fn fetch_csi_node(&self, name: &Arc<str>) {
        let reading = self.work.context.store.read_node(name);
        if let Ok(record) = self.work.context.requests.get_csi_node(name, &self.span).await {
            reading.node(record);
        }
    }

    pub(in crate::driver) async fn load_secret(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        reference: &SecretReference,
    ) -> StepResult {
        self.needed_secret = Some(reference.clone());
        match self.work.context.requests.get_secret(reference, &self.span).await {
            Ok(secrets) => {
                self.secrets = Some(secrets);
                StepResult::Continue
            }
            Err(error) => {
                let SecretReference { namespace, name } = reference;
                let mut text = format!("failed to load secret \"{namespace}/{name}\": {error}");
                if error.is_forbidden() {
                    self.denied_secret = Some(Withheld::forbidden(reference));
                    text = format!("{text}; {}", permissions::required_role(reference));
                }
                self.record_failure(
                    snapshot,
                    observed,
                    Failure::plain(text),
                    FailureCause::of_secret(&error),
                )
                .await
            }
        }
    }
}
