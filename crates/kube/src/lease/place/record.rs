//! The place under which a driver is worked for, in the status of its AttacherConfig.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::api::names::FIELD_MANAGER;
use crate::api::{AttacherConfigObject, LeaderElectionStatus};
use crate::lease::requests::{LeaseRequestError, bounded};
use crate::lease::settings::namespace;

/// An AttacherConfig, whose status records the place.
#[derive(Clone)]
pub struct PlaceRecord {
    api: Api<AttacherConfigObject>,
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

/// How a write of the record ended.
pub(super) enum Written {
    /// It stands.
    Recorded,
    /// The object changed since it was read.
    Conflict,
    /// It is refused, which waiting seldom changes; the reason.
    Refused(String),
    /// The API server does not keep it, which waiting does not change; the reason.
    NotKept(String),
}

impl PlaceRecord {
    /// That of the AttacherConfig of this name.
    pub fn new(client: Client, name: String) -> Self {
        Self {
            api: Api::all(client),
            name,
        }
    }

    /// Reads the object as it is, past every cache; none when it is gone. By a list, for which there is a permission.
    pub(super) async fn read(&self, limit: Duration) -> Result<Option<Live>, LeaseRequestError> {
        let params = ListParams::default().fields(&format!("metadata.name={}", self.name));
        let listed = bounded(limit, self.api.list(&params)).await??;
        let found = listed
            .items
            .into_iter()
            .find(|object| object.metadata.name.as_ref() == Some(&self.name));
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

    /// Writes the record over what was read; nothing else in the status is touched.
    pub(super) async fn write(
        &self,
        over: &Live,
        record: &LeaderElectionStatus,
        limit: Duration,
    ) -> Result<Written, LeaseRequestError> {
        // In a merge patch a field that is to go is null.
        let body = json!({
            "metadata": {"uid": over.uid, "resourceVersion": over.version},
            "status": {"leaderElection": {
                "namespace": record.namespace,
                "runsOutAfterSeconds": record.runs_out_after_seconds,
                "withoutLease": (!record.without_lease.is_empty()).then_some(&record.without_lease),
            }},
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&body);
        let answer = bounded(limit, self.api.patch_status(&self.name, &params, &patch)).await?;
        match answer {
            Ok(object) if object.status.leader_election.as_ref() == Some(record) => Ok(Written::Recorded),
            Ok(_) => Ok(Written::NotKept(
                "the API server does not keep status.leaderElection; its CustomResourceDefinition is older than the \
                 operator"
                    .to_owned(),
            )),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Written::Conflict),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 405 | 422) => {
                Ok(Written::Refused(status.message.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }
}
