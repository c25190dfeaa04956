//! ListVolumes, page by page.

use std::time::Duration;

use super::call_error::CallError;
use super::client::{CsiClient, Frame};
use super::v1;
use super::v1::controller_client::ControllerClient;
use super::witness::Witness;
use crate::telemetry::Span;
use crate::telemetry::names::attr;

/// Largest page that is read. A driver that answers everything at once has some 200 bytes for each volume, so this is more
/// than 100,000 of them; one gone wild must not fill our memory.
const MAX_PAGE_BYTES: usize = 32 << 20;

/// A page of the volumes that a driver knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePage {
    /// The volumes.
    pub volumes: Vec<ListedVolume>,
    /// Where the next page begins; empty after the last one.
    pub next_token: String,
}

/// A volume in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// Its handle.
    pub handle: String,
    /// IDs of the nodes to which it is published; none when the driver told no status.
    pub nodes: Option<Vec<String>>,
}

impl From<v1::ListVolumesResponse> for VolumePage {
    /// Entries without a volume are left out.
    fn from(answer: v1::ListVolumesResponse) -> Self {
        let entries = answer.entries.into_iter();
        let volumes = entries.filter_map(|entry| {
            Some(ListedVolume {
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
    /// One page of ListVolumes: that of this token, or the first. `max_entries` 0 lets the driver choose.
    pub async fn list_volumes(
        &self,
        max_entries: i32,
        token: &str,
        deadline: Duration,
        parent: &Span,
    ) -> Result<VolumePage, CallError> {
        let frame = Frame {
            method: "/csi.v1.Controller/ListVolumes",
            deadline,
            parent,
            secrets: None,
        };
        let request = v1::ListVolumesRequest {
            max_entries,
            starting_token: token.to_owned(),
        };
        let channel = self.connection().channel();
        let mut client = ControllerClient::new(Witness(channel)).max_decoding_message_size(MAX_PAGE_BYTES);
        let call = async move |request| client.list_volumes(request).await;
        let (mut span, answer) = self.call(&frame, request, |_| {}, call).await?;
        let page = VolumePage::from(answer);
        let entries = i64::try_from(page.volumes.len()).unwrap_or(i64::MAX);
        span.set(attr::PAGE_ENTRIES, entries);
        span.set(attr::PAGE_LAST, page.next_token.is_empty());
        Ok(page)
    }
}
