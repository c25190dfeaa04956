//! ListVolumes against the mock driver.

use super::client_tests::{ClientFixture, LONG, within};
use super::{CallError, ListVolumes, VolumePage};
use crate::call::Call as _;
use crate::calls::list::ListVolumesPage;
use crate::telemetry::Span;
use csi_attacher_proto::v1::{self, list_volumes_response};
use csi_mock_driver::{MockDriver, MockSettings};
use prost::Message as _;

async fn stage(settings: impl FnOnce(&mut MockSettings)) -> ClientFixture {
    let stage = ClientFixture::of(MockDriver::builder("list.test").settings(settings)).await;
    for volume in ["a", "b", "c"] {
        stage.driver.create_volume(volume);
    }
    stage.driver.drift_attach("b", "n2");
    stage.driver.drift_attach("b", "n1");
    stage
}

async fn list(stage: &ClientFixture, max_entries: i32, token: &str) -> Result<VolumePage, CallError> {
    let call = ListVolumes { max_entries, token };
    within(stage.client.call(&call, LONG, &Span::disabled())).await
}

#[tokio::test]
async fn volumes_come_with_their_nodes_page_by_page() {
    let stage = stage(|_| {}).await;
    let mut token = String::new();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let page = list(&stage, 1, &token).await.unwrap();
        seen.extend(page.volumes.into_iter().map(|volume| {
            let mut nodes = volume.nodes.unwrap();
            nodes.sort_unstable();
            (volume.handle, nodes.join("+"))
        }));
        token = page.next_token;
    }
    assert_eq!(token, "");
    let expected = [("a", ""), ("b", "n1+n2"), ("c", "")];
    assert_eq!(
        seen,
        expected.map(|(handle, nodes)| (handle.to_owned(), nodes.to_owned()))
    );
}

#[tokio::test]
async fn an_answer_without_measure_is_not_read() {
    // Three volumes of 12 MiB each.
    let stage = stage(|settings| settings.list_padding_bytes = 12 << 20).await;
    let page = list(&stage, 2, "").await.unwrap();
    assert_eq!(page.volumes.len(), 2);
    let error = list(&stage, 0, "").await.unwrap_err();
    assert!(error.message.contains("too large"), "{error}");
}

/// A driver that fills what it does not know with nothing.
#[test]
fn an_empty_id_is_none() {
    let entry = |handle: &str, nodes: &[&str]| list_volumes_response::Entry {
        volume: Some(v1::Volume {
            volume_id: handle.to_owned(),
            ..Default::default()
        }),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..Default::default()
        }),
    };
    let page = v1::ListVolumesResponse {
        entries: vec![
            entry("", &["n1"]),
            entry(" ", &[]),
            entry("a", &["n1", ""]),
            entry("b", &[]),
        ],
        next_token: String::new(),
    };
    let page = ListVolumesPage::decode(&*page.encode_to_vec()).unwrap();
    let call = ListVolumes {
        max_entries: 0,
        token: "",
    };
    let page = call.answer(page, &mut Span::disabled());
    let seen = page.volumes.into_iter().map(|volume| (volume.handle, volume.nodes));
    let expected = [("a".to_owned(), None), ("b".to_owned(), Some(Vec::new()))];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
}
