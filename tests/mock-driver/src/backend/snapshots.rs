//! Snapshots: a note of a volume's size at a time.

use std::time::SystemTime;

use tonic::Status;

use super::{Backend, page, required};
use crate::settings::MockSettings;
use csi_attacher_proto::v1;

impl Backend {
    /// CreateSnapshot. [CreateSnapshot Errors]
    pub fn create_snapshot(
        &mut self,
        settings: &MockSettings,
        request: &v1::CreateSnapshotRequest,
    ) -> Result<v1::CreateSnapshotResponse, Status> {
        let name = required(&request.name, "name")?;
        let source = required(&request.source_volume_id, "source_volume_id")?;
        if let Some(found) = self.snapshot_names.get(name).and_then(|id| self.snapshots.get(id)) {
            if found.source_volume_id != source {
                return Err(Status::already_exists(format!(
                    "snapshot {name:?} exists of another volume"
                )));
            }
            return Ok(v1::CreateSnapshotResponse {
                snapshot: Some(found.clone()),
            });
        }
        let size_bytes = self.volume(settings, source)?.capacity_bytes;
        let id = self.new_id("snap");
        let snapshot = v1::Snapshot {
            size_bytes,
            snapshot_id: id.clone(),
            source_volume_id: source.to_owned(),
            creation_time: Some(SystemTime::now().into()),
            ready_to_use: true,
            group_snapshot_id: String::new(),
        };
        self.snapshot_names.insert(name.to_owned(), id.clone());
        self.snapshots.insert(id, snapshot.clone());
        Ok(v1::CreateSnapshotResponse {
            snapshot: Some(snapshot),
        })
    }

    /// DeleteSnapshot. [DeleteSnapshot Errors]
    pub fn delete_snapshot(
        &mut self,
        request: &v1::DeleteSnapshotRequest,
    ) -> Result<v1::DeleteSnapshotResponse, Status> {
        let id = required(&request.snapshot_id, "snapshot_id")?;
        self.snapshots.remove(id);
        self.snapshot_names.retain(|_, named| named != id);
        Ok(v1::DeleteSnapshotResponse {})
    }

    /// GetSnapshot. [GetSnapshot Errors]
    pub fn get_snapshot(&self, request: &v1::GetSnapshotRequest) -> Result<v1::GetSnapshotResponse, Status> {
        let id = required(&request.snapshot_id, "snapshot_id")?;
        let found = self.snapshots.get(id).cloned();
        let snapshot = found.ok_or_else(|| Status::not_found(format!("snapshot {id:?} does not exist")))?;
        Ok(v1::GetSnapshotResponse {
            snapshot: Some(snapshot),
        })
    }

    /// ListSnapshots: a filter nothing fits gives an empty list. [ListSnapshots Errors]
    pub fn list_snapshots(
        &self,
        settings: &MockSettings,
        request: &v1::ListSnapshotsRequest,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        let fits = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
        let matching = self.snapshots.iter().filter(|(id, snapshot)| {
            fits(&request.snapshot_id, id) && fits(&request.source_volume_id, &snapshot.source_volume_id)
        });
        let (found, next_token) = page(
            matching,
            request.max_entries,
            &request.starting_token,
            settings.list_page_limit,
        )?;
        let entry = |(_, snapshot): (&String, &v1::Snapshot)| v1::list_snapshots_response::Entry {
            snapshot: Some(snapshot.clone()),
        };
        Ok(v1::ListSnapshotsResponse {
            entries: found.into_iter().map(entry).collect(),
            next_token,
        })
    }
}
