//! ListVolumes against the mock driver.

use super::client_tests::{ClientFixture, LONG, within};
use super::{CallError, ListVolumes, VolumePage};
use crate::telemetry::Span;
use csi_mock_driver::{MockDriver, MockSettings};

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
