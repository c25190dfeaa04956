//! What an attempt reads from the API server by itself: a publish secret, and objects that the watches may be late with.

use std::sync::Arc;

use super::attempt::{Attempt, Step};
use super::report::Cause;
use super::rights;
use super::secrets::Withheld;
use crate::decide::patch::Target;
use crate::decide::{Failure, Observed};
use crate::kubernetes::Returned;
use crate::objects::SecretReference;
use crate::store::Snapshot;

impl Attempt<'_> {
    /// Takes in a volume that the cache does not know, if there is one. The watch of volumes may be behind that of
    /// attachments, which told us of this one: an error on the attachment, gone again a moment later, would only alarm
    /// people. One that has gone meanwhile is not taken in.
    pub(super) async fn ask_for_volume(&self, name: Arc<str>) {
        let reading = self.work.context.store.read_volume(&name);
        let answer = self.work.context.requests.read(&Target::Volume(name), &self.span).await;
        if let Ok(Returned::Volume(record)) = answer
            && !record.is_gone()
        {
            reading.volume(*record);
        }
    }

    /// The same for the CSINode: a driver registers at the moment that the first pods come to a new node.
    pub(super) async fn ask_for_node(&self, name: &Arc<str>) {
        let reading = self.work.context.store.read_node(name);
        if let Ok(record) = self.work.context.requests.node(name, &self.span).await {
            reading.node(record);
        }
    }

    pub(super) async fn load(
        &mut self,
        snapshot: &Snapshot,
        observed: &Observed<'_>,
        reference: &SecretReference,
    ) -> Step {
        self.needed_secret = Some(reference.clone());
        match self.work.context.requests.secret(reference, &self.span).await {
            Ok(secrets) => {
                self.secrets = Some(secrets);
                Step::Again
            }
            Err(error) => {
                let SecretReference { namespace, name } = reference;
                let mut text = format!("failed to load secret \"{namespace}/{name}\": {error}");
                if error.lacks_right() {
                    self.denied_secret = Some(Withheld::forbidden(reference));
                    text = format!("{text}; {}", rights::missing_secret(reference));
                }
                self.fail(snapshot, observed, Failure::plain(text), Cause::of_secret(&error))
                    .await
            }
        }
    }
}
