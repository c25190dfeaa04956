//! ListVolumes, page by page.

use csi_attacher_proto::v1;

use crate::call::{Call, ElementField};
use crate::telemetry::Span;

/// Elements of an entry: the nodes in its status.
const IN_ENTRY: &[ElementField] = &[ElementField::single(2, IN_STATUS)];
const IN_STATUS: &[ElementField] = &[ElementField::repeated(1, &[])];

/// Asks for one page of the volumes that the driver knows.
#[derive(Clone, Copy, Debug)]
pub struct ListVolumes<'a> {
    /// Limit of the volumes on the page; 0 lets the driver choose.
    pub max_entries: i32,
    /// `next_token` of the page before; empty for the first page.
    pub token: &'a str,
}

impl Call for ListVolumes<'_> {
    const PATH: &'static str = "/csi.v1.Controller/ListVolumes";
    /// A driver that answers everything at once has some 200 bytes for each volume: this is enough for more than 100,000 of them.
    const MAX_ANSWER_BYTES: usize = 32 << 20;
    const ELEMENTS: &'static [ElementField] = &[ElementField::repeated(1, IN_ENTRY)];
    /// More than an answer of that size has: a volume or a node with an ID of 14 bytes or more takes at least 16 bytes of it.
    const MAX_ELEMENTS: usize = 2 << 20;
    type Request = v1::ListVolumesRequest;
    type Response = ListVolumesPage;
    type Answer = VolumePage;

    fn request(&self) -> Self::Request {
        v1::ListVolumesRequest {
            max_entries: self.max_entries,
            starting_token: self.token.to_owned(),
        }
    }

    /// Entries without a volume, or without its ID, are left out. One with a node without an ID does not say where its volume is.
    fn answer(&self, response: ListVolumesPage, _: &mut Span) -> VolumePage {
        let is_blank = |id: &String| id.trim().is_empty();
        let volumes = response.entries.into_iter().filter_map(|entry| {
            let handle = entry.volume?.volume_id;
            let nodes = entry.status.map(|status| status.published_node_ids);
            let nodes = nodes.filter(|nodes| !nodes.iter().any(is_blank));
            (!is_blank(&handle)).then_some(VolumeWithNodes { handle, nodes })
        });
        VolumePage {
            volumes: volumes.collect(),
            next_token: response.next_token,
        }
    }
}

/// A page of the volumes that a driver knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePage {
    /// In the order of the driver.
    pub volumes: Vec<VolumeWithNodes>,
    /// Where the next page begins; empty after the last one.
    pub next_token: String,
}

/// A volume on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeWithNodes {
    /// The volume ID.
    pub handle: String,
    /// IDs of the nodes to which it is published; none when the driver sent no status.
    pub nodes: Option<Vec<String>>,
}

/// `ListVolumesResponse` with the fields that the operator uses. What else a driver sends of each volume, such as its context, is
/// skipped when the answer is read: decoded, it would take several times the memory of the answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListVolumesPage {
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
