//! ListVolumes, page by page.

use http::uri::PathAndQuery;
use std::time::Duration;
use tonic::Status;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::call_error::CallError;
use super::client::{CallContext, CsiClient};
use super::grpc_status::GrpcStatusChannel;
use crate::error_chain::chain;
use crate::telemetry::Span;
use csi_attacher_proto::v1;

/// Largest page that is read. A driver that answers everything at once has some 200 bytes for each volume, so this is more
/// than 100,000 of them; one gone wild must not fill our memory.
const MAX_PAGE_BYTES: usize = 32 << 20;

const METHOD: &str = "/csi.v1.Controller/ListVolumes";

/// A page of the volumes that a driver knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePage {
    /// The volumes.
    pub volumes: Vec<VolumeWithNodes>,
    /// Where the next page begins; empty after the last one.
    pub next_token: String,
}

/// A volume in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeWithNodes {
    /// Its handle.
    pub handle: String,
    /// IDs of the nodes to which it is published; none when the driver told no status.
    pub nodes: Option<Vec<String>>,
}

/// `ListVolumesResponse` as far as it concerns us. What else a driver tells of each volume, such as its context, is skipped
/// when the answer is read: decoded, it would take several times the memory of the answer.
#[derive(Clone, PartialEq, prost::Message)]
struct ListVolumesPage {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<ListVolumesEntry>,
    #[prost(string, tag = "2")]
    next_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListVolumesEntry {
    #[prost(message, optional, tag = "1")]
    volume: Option<ListVolumesVolume>,
    #[prost(message, optional, tag = "2")]
    status: Option<VolumeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListVolumesVolume {
    #[prost(string, tag = "2")]
    volume_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct VolumeStatus {
    #[prost(string, repeated, tag = "1")]
    published_node_ids: Vec<String>,
}

impl From<ListVolumesPage> for VolumePage {
    /// Entries without a volume are left out.
    fn from(answer: ListVolumesPage) -> Self {
        let entries = answer.entries.into_iter();
        let volumes = entries.filter_map(|entry| {
            Some(VolumeWithNodes {
                handle: entry.volume?.volume_id,
                nodes: entry.status.map(|status| status.published_node_ids),
            })
        });
        Self {
            volumes: volumes.collect(),
            next_token: answer.next_token,
        }
    }
}

impl CsiClient {
    /// One page of ListVolumes. `max_entries` 0 lets the driver choose.
    pub async fn list_volumes(
        &self,
        max_entries: i32,
        token: &str,
        deadline: Duration,
    ) -> Result<VolumePage, CallError> {
        // Pages are in no trace: what came of all of them is one span.
        let untraced = Span::disabled();
        let frame = CallContext {
            method: METHOD,
            deadline,
            parent: &untraced,
            secrets: None,
        };
        let request = v1::ListVolumesRequest {
            max_entries,
            starting_token: token.to_owned(),
        };
        let channel = self.connection().channel();
        let mut client = Grpc::new(GrpcStatusChannel(channel)).max_decoding_message_size(MAX_PAGE_BYTES);
        let call = async move |request| {
            // A channel that is not ready has lost its connection.
            let ready = client.ready().await;
            ready.map_err(|error| Status::unknown(format!("Service was not ready: {}", chain(&error))))?;
            let codec: ProstCodec<v1::ListVolumesRequest, ListVolumesPage> = ProstCodec::default();
            client.unary(request, PathAndQuery::from_static(METHOD), codec).await
        };
        let (_, answer) = self.call(&frame, request, |_| {}, call).await?;
        Ok(VolumePage::from(answer))
    }
}
