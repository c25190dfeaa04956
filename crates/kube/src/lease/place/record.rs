//! The place under which a driver is worked for, in the status of its AttacherConfig.

use std::time::Duration;

use kube::Client;
use serde_json::json;

use crate::api::{AttacherConfigObject, LeaderElectionStatus};
use crate::apiserver::{ApiError, ObjectName, Requests};
use crate::decide::patch::PatchType;
use crate::lease::settings::namespace;
use crate::telemetry::Span;

/// An AttacherConfig, whose status records the place.
#[derive(Clone)]
pub struct PlaceRecord {
    client: Client,
    name: String,
}

/// Where a spec wants the Lease: in this namespace, or none at all.
pub(super) struct Wanted(pub Option<String>);

/// An AttacherConfig as it is now.
pub(super) struct Live {
    pub recorded: LeaderElectionStatus,
    /// The place that its spec asks for; none when the spec cannot be used, so that each goes on with the last good one.
    pub wanted: Option<Wanted>,
    /// The longest call that replicas without a Lease may have begun.
    pub longest_call: Duration,
    uid: Option<String>,
    version: Option<String>,
}

impl PlaceRecord {
    /// That of the AttacherConfig of this name.
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// Reads the object as it is, past every cache; none when it is gone. By a list, for which there is a permission.
    pub(super) async fn read(&self, deadline: Duration) -> Result<Option<Live>, ApiError> {
        let requests = Requests::immediate(self.client.clone(), deadline);
        let found: Option<AttacherConfigObject> = requests.list_one(&self.name).await?;
        Ok(found.map(|object| {
            let config = object.config().ok();
            Live {
                wanted: config.as_ref().map(|config| {
                    let election = &config.leader_election;
                    Wanted(election.enabled.then(|| namespace(&election.namespace)))
                }),
                longest_call: config
                    .map(|config| config.timeouts.publish.max(config.timeouts.unpublish))
                    .unwrap_or_default(),
                uid: object.metadata.uid,
                version: object.metadata.resource_version,
                recorded: object.status.leader_election.unwrap_or_default(),
            }
        }))
    }

    /// Writes the record over what was read; nothing else in the status is touched. It is not kept by an API server whose CRD is too
    /// old, which waiting does not change.
    pub(super) async fn write(
        &self,
        over: &Live,
        record: &LeaderElectionStatus,
        deadline: Duration,
    ) -> Result<(), ApiError> {
        // In a merge patch a field that is to go is null.
        let body = json!({
            "metadata": {"uid": over.uid, "resourceVersion": over.version},
            "status": {"leaderElection": {
                "namespace": record.namespace,
                "runsOutAfterSeconds": record.runs_out_after_seconds,
                "withoutLease": (!record.without_lease.is_empty()).then_some(&record.without_lease),
            }},
        });
        let requests = Requests::immediate(self.client.clone(), deadline);
        let (status, quiet) = (ObjectName::status_of(&self.name), Span::disabled());
        let written = requests.patch::<AttacherConfigObject>(status, PatchType::Merge, &body, None, &quiet);
        if written.await?.status.leader_election.as_ref() == Some(record) {
            return Ok(());
        }
        Err(ApiError::not_kept(
            "the API server does not keep status.leaderElection; its CustomResourceDefinition is older than the operator",
        ))
    }
}
