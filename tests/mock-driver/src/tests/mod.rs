//! Tests over real sockets. Nothing waits for the clock: calls are awaited by their records, delays run in paused time.

mod backend;
mod control;
mod script;
mod server;

use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Response, Status};

use super::{MockDriver, MockDriverBuilder, MockHandle};
use csi_attacher_proto::v1;
use v1::controller_client::ControllerClient;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// A driver on a socket in a directory of its own.
struct Fixture {
    mock: MockHandle,
    directory: tempfile::TempDir,
}

impl Fixture {
    /// Starts a driver that has the volumes v1, v2 and v3.
    async fn new(adjust: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let builder = MockDriver::builder("mock.example.com")
            .volume("v1")
            .volume("v2")
            .volume("v3");
        let mock = adjust(builder).start(directory.path().join("csi.sock")).await.unwrap();
        Self { mock, directory }
    }

    async fn channel(&self) -> Channel {
        let path = self.mock.socket().unwrap();
        let connect = move |_: Uri| {
            let path = path.clone();
            async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
        };
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
        endpoint
            .connect_with_connector(tower::service_fn(connect))
            .await
            .unwrap()
    }

    async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }
}

/// A failing test must end: gives up after half a minute.
async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("this should have happened by now")
}

fn capability(mode: Mode) -> v1::VolumeCapability {
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        ..MountVolume::default()
    };
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn block(mode: Mode) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..capability(mode)
    }
}

fn publish(volume: &str, node: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        ..v1::ControllerPublishVolumeRequest::default()
    }
}

fn unpublish(volume: &str, node: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        ..v1::ControllerUnpublishVolumeRequest::default()
    }
}

fn pairs(pairs: &[(&str, &str)]) -> std::collections::BTreeSet<(String, String)> {
    pairs
        .iter()
        .map(|(volume, node)| ((*volume).to_owned(), (*node).to_owned()))
        .collect()
}

fn code<T>(result: &Result<Response<T>, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}
