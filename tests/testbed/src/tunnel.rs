//! A tunnel to the API server that can swallow its connections: nothing more comes through, and nobody is told.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::controlplane::kubeconfig;
use super::error::{Error, Result};

/// The tunnel, with TLS from end to end. It ends when it is dropped.
pub struct Tunnel {
    /// Where it leads, as the kubeconfig has it.
    cluster: Value,
    address: SocketAddr,
    /// How often the connections that there were have been swallowed.
    swallowed: watch::Sender<u64>,
    opened: watch::Receiver<usize>,
    /// Nothing comes through before.
    stalled_until: watch::Sender<Instant>,
    _server: AbortOnDropHandle<()>,
}

impl Tunnel {
    /// A tunnel to where this kubeconfig leads.
    pub async fn start(original: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(original)?;
        let kubeconfig: Value = serde_json::from_str(&text)?;
        let cluster = kubeconfig["clusters"][0]["cluster"].clone();
        let target = cluster["server"].as_str().and_then(|url| url.strip_prefix("https://"));
        let target = target.ok_or_else(|| Error::Other("no https:// server in the kubeconfig".to_owned()))?;
        let target = target.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (swallowed, seen) = watch::channel(0);
        let (opening, opened) = watch::channel(0);
        let (stalled_until, held) = watch::channel(Instant::now());
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                opening.send_modify(|opened| *opened += 1);
                connections.spawn(carry(near, target.clone(), seen.clone(), held.clone()));
            }
        });
        Ok(Self {
            cluster,
            address,
            swallowed,
            opened,
            stalled_until,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// A kubeconfig that leads through the tunnel, beside the one that leads to the API server.
    pub fn kubeconfig(&self, original: &Path) -> Result<PathBuf> {
        let mut cluster = self.cluster.clone();
        cluster["server"] = format!("https://{}", self.address).into();
        kubeconfig::elsewhere(original, "tunnel", cluster)
    }

    /// Swallows all connections that there are; new ones come through.
    pub fn swallow(&self) {
        self.swallowed.send_modify(|times| *times += 1);
    }

    /// Holds everything back for so long, as when the API server stands still; nothing is lost.
    pub fn stall(&self, time: Duration) {
        self.stalled_until.send_replace(Instant::now() + time);
    }

    /// How many connections came so far.
    pub fn opened(&self) -> usize {
        *self.opened.borrow()
    }
}

async fn carry(
    near: TcpStream,
    target: String,
    mut swallowed: watch::Receiver<u64>,
    held: watch::Receiver<Instant>,
) -> io::Result<()> {
    swallowed.mark_unchanged();
    let far = TcpStream::connect(target).await?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // By reference: what is not polled any more keeps both sides open, without an end.
    let mut both = pin!(async {
        tokio::join!(
            copy(near_read, far_write, held.clone()),
            copy(far_read, near_write, held)
        )
    });
    tokio::select! {
        _ended = &mut both => {}
        _swallowed = swallowed.changed() => std::future::pending().await,
    }
    Ok(())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    held: watch::Receiver<Instant>,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut bytes).await?;
        let until = *held.borrow();
        sleep_until(until).await;
        match length {
            0 => return to.shutdown().await,
            length => to.write_all(&bytes[..length]).await?,
        }
    }
}
