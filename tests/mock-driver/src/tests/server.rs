//! Sockets: stale files, restarts, refused places; and the records that are kept.

use super::*;
use crate::{CallResult, ListenEndpoint, ListenError, Method, MockDriver, MockStartError, Rule};

#[tokio::test]
async fn a_stale_socket_is_replaced_and_anything_else_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the file of a listener that is gone stays");
    let mock = MockDriver::builder("one").start(&path).await.unwrap();

    let second = MockDriver::builder("two").start(&path).await.err().unwrap();
    assert!(
        matches!(&second, MockStartError::Listen(ListenError::InUse(taken)) if *taken == path),
        "{second}"
    );
    mock.stop().await;
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let third = MockDriver::builder("three").start(&path).await.err().unwrap();
    assert!(
        matches!(&third, MockStartError::Listen(ListenError::NotASocket(_))),
        "{third}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_restart_keeps_the_volumes_and_cuts_the_calls() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    bounded(client.controller_publish_volume(publish("v1", "n1")))
        .await
        .unwrap();
    fixture.mock.script(Rule::on(Method::ListVolumes).times(1).hang());
    let mut other = client.clone();
    let listing = tokio::spawn(async move { other.list_volumes(v1::ListVolumesRequest::default()).await });
    bounded(fixture.mock.wait_for_call(|call| call.method == Method::ListVolumes)).await;

    bounded(fixture.mock.stop()).await;
    assert!(bounded(listing).await.unwrap().is_err());
    let cut = |call: &crate::CallRecord| call.method == Method::ListVolumes && call.outcome == CallResult::Cancelled;
    bounded(fixture.mock.wait_for_call(cut)).await;
    assert!(
        bounded(client.list_volumes(v1::ListVolumesRequest::default()))
            .await
            .is_err()
    );
    assert_eq!(std::fs::read_dir(fixture.directory.path()).unwrap().count(), 0);

    fixture.mock.start_again().await.unwrap();
    let listed = bounded(client.list_volumes(v1::ListVolumesRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.entries[0].status.as_ref().unwrap().published_node_ids, ["n1"]);
}

#[tokio::test]
async fn all_connections_can_be_dropped_without_a_restart() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    fixture.mock.script(Rule::on(Method::ListVolumes).times(1).hang());
    let mut other = client.clone();
    let listing = tokio::spawn(async move { other.list_volumes(v1::ListVolumesRequest::default()).await });
    bounded(fixture.mock.wait_for_call(|call| call.method == Method::ListVolumes)).await;
    fixture.mock.drop_connections();
    assert!(bounded(listing).await.unwrap().is_err());
    bounded(client.list_volumes(v1::ListVolumesRequest::default()))
        .await
        .unwrap();
}

#[tokio::test]
async fn tcp_is_served_on_loopback_only() {
    let builder = MockDriver::builder("tcp.example.com");
    let mock = builder.start_on("tcp://127.0.0.1:0".parse().unwrap()).await.unwrap();
    let ListenEndpoint::Tcp(address) = *mock.endpoint() else {
        panic!("{}", mock.endpoint())
    };
    let channel = tonic::transport::Endpoint::try_from(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut identity = v1::identity_client::IdentityClient::new(channel);
    let info = bounded(identity.get_plugin_info(v1::GetPluginInfoRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, "tcp.example.com");

    let everywhere = "tcp://0.0.0.0:0".parse().unwrap();
    let refused = MockDriver::builder("tcp").start_on(everywhere).await.err().unwrap();
    assert!(
        matches!(&refused, MockStartError::Listen(ListenError::NotLoopback(_))),
        "{refused}"
    );
    for text in ["unix://relative", "tcp://nowhere", "http://127.0.0.1:1", ""] {
        assert!(text.parse::<ListenEndpoint>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn the_oldest_calls_are_forgotten() {
    let fixture = Fixture::new(|builder| builder.keep_calls(2)).await;
    let mut client = fixture.controller().await;
    for volume in ["v1", "v2", "v3"] {
        client.controller_publish_volume(publish(volume, "n1")).await.unwrap();
    }
    let kept: Vec<_> = fixture
        .mock
        .calls()
        .into_iter()
        .map(|call| (call.id, call.volume.unwrap(), call.code))
        .collect();
    assert_eq!(
        kept,
        [
            (1, "v2".to_owned(), Some(Code::Ok)),
            (2, "v3".to_owned(), Some(Code::Ok))
        ]
    );
}

#[tokio::test]
async fn large_pages_come_through() {
    let fixture = Fixture::new(|builder| builder.settings(|settings| settings.list_padding_bytes = 2 << 20)).await;
    let mut client = fixture.controller().await.max_decoding_message_size(16 << 20);
    let listed = bounded(client.list_volumes(v1::ListVolumesRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.entries.len(), 3);
    assert!(prost::Message::encoded_len(&listed) > 6 << 20);
}

#[tokio::test]
async fn a_handle_that_is_dropped_stops_the_server() {
    let fixture = Fixture::new(|builder| builder).await;
    let mut client = fixture.controller().await;
    let Fixture {
        mock,
        directory: _directory,
    } = fixture;
    drop(mock);
    // The connection is gone or going: the first call that fails proves it, and one has to.
    bounded(async { while client.list_volumes(v1::ListVolumesRequest::default()).await.is_ok() {} }).await;
}
